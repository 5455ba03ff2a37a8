package check

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher"
)

func TestCheckpointVerdict(t *testing.T) {
	missing := &publisher.CheckpointError{Topic: "t", Reason: "does not exist", Cure: "make it", Missing: true}
	wide := &publisher.CheckpointError{Topic: "t", Reason: "has 3 partitions", Cure: "make another"}
	for _, c := range []struct {
		err    error
		create bool
		want   Status
	}{{nil, false, OK}, {missing, true, OK}, {missing, false, Failed}, {wide, true, Failed}, {errors.New("no broker"), true, Failed}} {
		require.Equal(t, c.want, checkpointVerdict(c.err, c.create).Status, "%v, create %t", c.err, c.create)
	}
	require.Equal(t, "make another", checkpointVerdict(wide, false).Cure)
}
