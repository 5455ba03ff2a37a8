package beginning

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatFilledCountsPartitions(t *testing.T) {
	require.Equal(t, "partition a of onceward.outbox held rows when it was attached, which are never sent", whatFilled([]string{"a"}))
	require.Equal(t, "partitions a, b of onceward.outbox held rows when they were attached, which are never sent", whatFilled([]string{"a", "b"}))
}
