//go:build e2e

package saramagroup_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// TestTransformCoordinatorIsBackTooSoon: the broker that coordinates a transaction, and
// leads its outputs, has the decision to commit at the end of its own log only, is killed, and is
// started again before anybody has noticed. It sends the end of the transaction to some
// partitions, and is deposed before it has sent it to all. The member is gone too: the next
// one ends the transaction as it was begun to be ended. Long form.
func TestTransformCoordinatorIsBackTooSoon(t *testing.T) {
	if os.Getenv("E2E_FULL") != "1" {
		t.Skip("long form: E2E_FULL=1")
	}
	// Brokers reach one another through the proxies, which can hold replication up. A broker that
	// was away leads again soon what it led.
	th := newTheatreOf(t, 3, "", map[string]string{
		"inter.broker.listener.name": "CLIENT", "leader.imbalance.check.interval.seconds": "5", "leader.imbalance.per.broker.percentage": "0",
	})
	th.trace = t.TempDir()
	th.members = append(th.members, th.enter())
	keys := map[int32][]byte{} // of each partition
	write := func(key []byte, n int) (partition int32) {
		for range n {
			record := &kgo.Record{Topic: topic, Key: key, Value: fmt.Append(nil, th.wrote.Add(1))}
			require.NoError(t, th.client.ProduceSync(t.Context(), record).FirstErr())
			partition = record.Partition
		}
		return partition
	}
	for n := 0; len(keys) < shoutedPartitions; n++ {
		key := fmt.Append(nil, "key-", n)
		keys[write(key, 1)] = key
	}
	th.reads("shouting", 100*time.Millisecond)
	for round, tries := 0, 0; round < 8; tries++ {
		require.Less(t, tries, 24, "the coordinator has moved each time")
		partition, victim := th.ledByItsCoordinator(t)
		endTxn := th.network.Inject(kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.Hold})
		write(keys[partition], 1)
		require.NoError(t, endTxn.Wait(t.Context(), 1))
		var replication []*kafkaproxy.Injected
		for b := 1; b <= 3; b++ {
			replication = append(replication, th.network.Inject(kafkaproxy.Fault{Key: kafkaproxy.Fetch, Action: kafkaproxy.Hold, Client: fmt.Sprintf("broker-%d-fetcher-0", b)}))
		}
		th.network.Cut() // fetches that wait at a broker would bring what comes next
		for _, r := range replication {
			require.NoError(t, r.Wait(t.Context(), 1))
		}
		require.NoError(t, endTxn.Wait(t.Context(), 2))
		before := th.transactionLog(t, victim)
		endTxn.Release()
		decided := false
		for began := time.Now(); !decided && time.Since(began) < 3*time.Second; decided = th.transactionLog(t, victim) > before {
			th.pause(4*time.Millisecond, 5*time.Millisecond)
		}
		if !decided { // it coordinates no more
			for _, r := range replication {
				r.Release()
			}
			th.reads("shouting", 100*time.Millisecond)
			continue
		}
		round++
		t.Log("round", round, "kill broker", victim+1, "which coordinates and leads partition", partition)
		th.cluster.Kill(victim)
		th.ends(0, syscall.SIGKILL)
		for _, r := range replication {
			r.Release()
		}
		require.NoError(t, th.cluster.StartBroker(t.Context(), victim))
		th.members[0] = th.enter()
		write(keys[partition], 5)
		th.reads("shouting", 100*time.Millisecond)
		input, output := th.played(topic, kgo.ReadUncommitted()), th.played(upper, kgo.ReadCommitted())
		if err := compare(input, output); err != nil {
			th.explain(input, output)
			require.NoError(t, err)
		}
	}
}

// transactionLog is how long a broker's logs of transactions are, in bytes.
func (th *theatre) transactionLog(t *testing.T, broker int) (size int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(th.cluster.Dir(), fmt.Sprintf("broker-%d", broker), "*", "__transaction_state-*", "*.log"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		about, err := os.Stat(name)
		require.NoError(t, err)
		size += about.Size()
	}
	return size
}

// ledByItsCoordinator has the outputs of a partition led by the broker that coordinates its
// transactions.
func (th *theatre) ledByItsCoordinator(t *testing.T) (partition int32, broker int) {
	t.Helper()
	partition = th.dice.Int32N(shoutedPartitions)
	for began := time.Now(); time.Since(began) < 3*time.Minute; th.pause(time.Second, 2*time.Second) {
		broker = th.coordinatorOf(fmt.Sprint("shouting:", topic, ":", partition), 1)
		if leader, known := th.leadersOf(t.Context(), upper)[partition]; known && leader == broker {
			return partition, broker
		}
		to := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
		to.Partition = partition
		for i := range int32(3) {
			to.Replicas = append(to.Replicas, (int32(broker)+i)%3+1)
		}
		of := kmsg.NewAlterPartitionAssignmentsRequestTopic()
		of.Topic, of.Partitions = upper, append(of.Partitions, to)
		request := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		request.Topics = append(request.Topics, of)
		_, _ = request.RequestWith(t.Context(), th.client) // who leads then, is looked at
	}
	t.Fatal("no broker has both")
	return 0, 0
}

func (th *theatre) leadersOf(ctx context.Context, name string) map[int32]int {
	request := kmsg.NewPtrMetadataRequest()
	of := kmsg.NewMetadataRequestTopic()
	of.Topic = &name
	request.Topics = append(request.Topics, of)
	answer, err := request.RequestWith(ctx, th.client)
	leaders := map[int32]int{}
	if err != nil || len(answer.Topics) != 1 {
		return leaders
	}
	for _, p := range answer.Topics[0].Partitions {
		if p.ErrorCode == 0 {
			leaders[p.Partition] = int(p.Leader) - 1
		}
	}
	return leaders
}
