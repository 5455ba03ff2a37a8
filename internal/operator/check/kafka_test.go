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

// TestTopicsOfWhatIsThere: those that a route names, those that it makes of events, and
// those that replays name; what no route takes has none.
func TestTopicsOfWhatIsThere(t *testing.T) {
	sink := publisher.Config{Brokers: []string{"127.0.0.1:1"}, Insecure: true, Routes: []publisher.Route{
		{Match: publisher.Match{Namespace: "audit"}, Topic: "everything"},
		{Match: publisher.Match{Namespace: "orders"}, Topic: "{namespace}.{aggregate_type}"},
	}}
	fixed, err := sink.FixedTopics()
	require.NoError(t, err)
	topics, failed := ledTo([]kind{
		{namespace: "orders", aggregateType: "order", eventType: "OrderPaid"}, {namespace: "orders", aggregateType: "order", eventType: "OrderSent"},
		{topic: "orders.repair"}, {namespace: "nobody", aggregateType: "x", eventType: "y", due: true},
	}, sink, fixed)
	require.Equal(t, []string{"everything", "orders.order", "orders.repair"}, topics)
	require.Len(t, failed, 1)
	require.Contains(t, failed[0].Name, "nobody.x")
}
