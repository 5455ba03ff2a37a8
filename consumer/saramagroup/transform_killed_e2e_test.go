//go:build e2e

package saramagroup_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// TestTransformCoordinatorDiesBeforeMarkers: Kafka has confirmed a commit, and has not yet
// written its end into the partitions, when the broker that coordinates the group, or the
// transaction, is killed. The commit holds: nothing is made again. Long form.
func TestTransformCoordinatorDiesBeforeMarkers(t *testing.T) {
	if os.Getenv("E2E_FULL") != "1" {
		t.Skip("long form: E2E_FULL=1")
	}
	// Brokers reach one another through the proxies, which can hold markers back.
	th := newTheatreOf(t, 3, "", map[string]string{"inter.broker.listener.name": "CLIENT"})
	th.trace = t.TempDir()
	th.members = append(th.members, th.enter())
	write := func(n int) {
		for range n {
			i := th.wrote.Add(1)
			record := &kgo.Record{Topic: topic, Key: []byte("key"), Value: fmt.Append(nil, i)}
			require.NoError(t, th.client.ProduceSync(t.Context(), record).FirstErr())
		}
	}
	write(20)
	th.reads("shouting", 100*time.Millisecond)
	for round, kind := range []int8{0, 1, 0, 1} { // of the group, of the transaction
		partition := th.partitionOf(t)
		markers := th.network.Inject(kafkaproxy.Fault{Key: writeTxnMarkers, Action: kafkaproxy.Hold})
		write(1)
		require.NoError(t, markers.Wait(t.Context(), 1))
		key := "shouting"
		if kind == 1 {
			key = fmt.Sprint("shouting:", topic, ":", partition)
		}
		victim := th.coordinatorOf(key, kind)
		t.Log("round", round, "kill broker", victim+1, "which coordinates", key)
		th.cluster.Kill(victim)
		markers.Release()
		require.NoError(t, th.cluster.StartBroker(t.Context(), victim))
		write(5)
		th.reads("shouting", 100*time.Millisecond)
		input, output := th.played(topic, kgo.ReadUncommitted()), th.played(upper, kgo.ReadCommitted())
		if err := compare(input, output); err != nil {
			th.explain(input, output)
			require.NoError(t, err)
		}
	}
}

// writeTxnMarkers is what a coordinator asks the leaders of a transaction's partitions.
const writeTxnMarkers kafkaproxy.Key = 27

// partitionOf returns the partition that has all of the input.
func (th *theatre) partitionOf(t *testing.T) int32 {
	t.Helper()
	ends := endsOf(t, th.client, topic, false)
	for partition, end := range ends {
		if end > 0 {
			return partition
		}
	}
	t.Fatal("nothing was written")
	return 0
}

// coordinatorOf returns the broker that coordinates a group (kind 0) or a transactional id (1).
func (th *theatre) coordinatorOf(key string, kind int8) int {
	th.t.Helper()
	request := kmsg.NewPtrFindCoordinatorRequest()
	request.CoordinatorKey, request.CoordinatorType = key, kind
	broker := -1
	require.Eventually(th.t, func() bool {
		answer, err := request.RequestWith(th.t.Context(), th.client)
		if err != nil || answer.ErrorCode != 0 {
			return false
		}
		broker = int(answer.NodeID) - 1
		return true
	}, patience, 100*time.Millisecond)
	return broker
}
