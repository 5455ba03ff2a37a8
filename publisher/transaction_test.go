package publisher_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// checkpointTopic makes the topic of the checkpoint.
func (c *cluster) checkpointTopic() {
	c.t.Helper()
	require.NoError(c.t, c.CreateTopic(publisher.DefaultCheckpointTopic, 2, map[string]string{"cleanup.policy": "compact"}))
}

// oneSlot names what belongs to one slot.
func oneSlot() publisher.TransactionConfig {
	return publisher.TransactionConfig{ID: "onceward-1-orders", Group: "onceward-1-orders"}
}

func startTransactional(t testing.TB, cfg publisher.Config, tx publisher.TransactionConfig) *publisher.Transactional {
	t.Helper()
	p, err := publisher.NewTransactional(within(t), cfg, tx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// transact publishes the events first..last of one aggregate.
func transact(t testing.TB, p *publisher.Transactional, aggregate string, first, last int) {
	t.Helper()
	ctx := within(t)
	for i := first; i <= last; i++ {
		require.NoError(t, p.Publish(ctx, event(uint64(i), aggregate, fmt.Sprint(i))))
	}
}

func at(order uint64) publisher.Position {
	return publisher.Position{Order: order, Meta: fmt.Sprintf("v1 order=%d", order)}
}

// committed returns the values that a reader with read_committed sees of
// partition 0.
func (c *cluster) committed(topic string) []string {
	c.t.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}
	if c.dial != nil {
		opts = append(opts, kgo.Dialer(c.dial))
	}
	return readCommitted(c.t, topic, opts...)
}

// readCommitted reads partition 0 of a topic up to its last stable offset.
func readCommitted(t testing.TB, topic string, opts ...kgo.Opt) []string {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))...)
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stable := endOffset(ctx, t, client, topic, 1)
	var values []string
	for next := int64(0); next < stable; {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err0(), "at %d of %d", next, stable)
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() && r.Offset < stable {
				values = append(values, string(r.Value))
			}
			next = r.Offset + 1
		})
	}
	return values
}

// endOffset returns the end of partition 0, at isolation level 0 or 1.
func endOffset(ctx context.Context, t testing.TB, client *kgo.Client, topic string, isolation int8) int64 {
	t.Helper()
	request := kmsg.NewPtrListOffsetsRequest()
	request.IsolationLevel = isolation
	ask := kmsg.NewListOffsetsRequestTopic()
	ask.Topic = topic
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Timestamp = -1
	ask.Partitions = append(ask.Partitions, partition)
	request.Topics = append(request.Topics, ask)
	response, err := request.RequestWith(ctx, client)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode))
	return response.Topics[0].Partitions[0].Offset
}

func TestCommitMakesEventsAndPositionVisibleTogether(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	p := startTransactional(t, c.config(), oneSlot())
	_, found := p.Checkpoint()
	require.False(t, found, "the group is unknown")
	events, bytes, since := p.Open()
	require.Zero(t, events)
	require.Zero(t, bytes)
	require.True(t, since.IsZero())

	transact(t, p, "a", 0, 9)
	events, bytes, since = p.Open()
	require.Equal(t, 10, events)
	require.Positive(t, bytes)
	require.WithinDuration(t, time.Now(), since, patience)
	require.Empty(t, c.committed("shop.order"))
	require.NoError(t, p.Commit(within(t), at(100)))
	require.Equal(t, numbers(0, 9), c.committed("shop.order"))
	events, _, since = p.Open()
	require.Zero(t, events)
	require.True(t, since.IsZero())

	transact(t, p, "a", 10, 19)
	require.NoError(t, p.Commit(within(t), at(200)))
	transact(t, p, "a", 20, 24) // never committed
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Publish(within(t), event(1, "a", "x")), publisher.ErrClosed)
	require.ErrorIs(t, p.Commit(within(t), at(300)), publisher.ErrClosed)

	next := startTransactional(t, c.config(), oneSlot())
	pos, found := next.Checkpoint()
	require.True(t, found)
	require.Equal(t, at(200), pos)
	transact(t, next, "a", 20, 29)
	require.NoError(t, next.Commit(within(t), at(300)))
	require.Equal(t, numbers(0, 29), c.committed("shop.order"), "each once, in order")
	require.NoError(t, next.Err())
}

// sarama 1.60.1 dropped such a transaction without a word.
func TestCommitWithoutEventsMovesThePosition(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	p := startTransactional(t, c.config(), oneSlot())
	require.NoError(t, p.Commit(within(t), at(7)))
	require.NoError(t, p.Commit(within(t), at(8)))
	require.NoError(t, p.Close())
	pos, found := startTransactional(t, c.config(), oneSlot()).Checkpoint()
	require.True(t, found)
	require.Equal(t, at(8), pos)
}

func TestRefusedEventsLeaveTheTransactionSound(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	p := startTransactional(t, c.config(), oneSlot())
	large := event(1, "a", string(make([]byte, publisher.DefaultMaxMessageBytes)))
	lost := event(1, "a", "x")
	lost.Row.AggregateType = "missing"
	for range 2 { // before a transaction is open, and within it
		require.ErrorIs(t, p.Publish(within(t), large), publisher.ErrRecord)
		require.ErrorIs(t, p.Publish(within(t), lost), publisher.ErrRoute)
		transact(t, p, "a", 0, 0)
	}
	events, _, _ := p.Open()
	require.Equal(t, 2, events)
	require.NoError(t, p.Commit(within(t), at(1)))
	require.Equal(t, []string{"0", "0"}, c.committed("shop.order"))
}

func TestTransactionConfigIsChecked(t *testing.T) {
	for want, tx := range map[string]publisher.TransactionConfig{
		"TransactionConfig.ID":      {Group: "g"},
		"TransactionConfig.Group":   {ID: "x"},
		"TransactionConfig.Topic":   {ID: "x", Group: "g", Topic: "__mine"},
		"TransactionConfig.Timeout": {ID: "x", Group: "g", Timeout: time.Hour},
	} {
		_, err := publisher.NewTransactional(t.Context(), minimal(), tx)
		require.ErrorContains(t, err, want)
	}
}

func TestPositionsThatKafkaCannotKeepFail(t *testing.T) {
	for name, pos := range map[string]publisher.Position{
		"at most 4096": {Order: 1, Meta: strings.Repeat("x", 4097)},
		"range":        {Order: 1 << 63},
		"UTF-8":        {Order: 1, Meta: "\xff"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
			c.checkpointTopic()
			p := startTransactional(t, c.config(), oneSlot())
			longest := publisher.Position{Order: 1<<63 - 1, Meta: strings.Repeat("é", 2048)}
			require.NoError(t, p.Commit(within(t), longest))
			transact(t, p, "a", 0, 0)
			err := p.Commit(within(t), pos)
			require.ErrorIs(t, err, publisher.ErrFailed)
			require.ErrorContains(t, err, name)
			require.NoError(t, p.Close())
			kept, _ := startTransactional(t, c.config(), oneSlot()).Checkpoint()
			require.Equal(t, longest, kept)
			require.Empty(t, c.committed("shop.order"))
		})
	}
}

func TestTheTwinThatCameFirstIsFenced(t *testing.T) {
	for name, publish := range map[string]bool{"in a transaction": true, "at the commit": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
			c.checkpointTopic()
			first := startTransactional(t, c.config(), oneSlot())
			transact(t, first, "a", 0, 4)
			require.NoError(t, first.Commit(within(t), at(5)))
			if publish {
				transact(t, first, "a", 5, 5)
				// On its way when the transaction ends, kfake would call it a
				// request in the wrong state (48), before it looks at the epoch.
				require.NoError(t, first.Written(within(t)))
			}
			second := startTransactional(t, c.config(), oneSlot())
			pos, _ := second.Checkpoint()
			require.Equal(t, at(5), pos)
			err := first.Commit(within(t), at(6))
			require.ErrorIs(t, err, publisher.ErrFenced)
			require.ErrorIs(t, err, publisher.ErrFailed)
			waitFor(t, first.Failed())
			require.ErrorIs(t, first.Err(), publisher.ErrFenced)
			require.ErrorIs(t, first.Publish(within(t), event(1, "a", "x")), publisher.ErrFenced)
			transact(t, second, "a", 5, 9)
			require.NoError(t, second.Commit(within(t), at(10)))
			require.Equal(t, numbers(0, 9), c.committed("shop.order"))
		})
	}
}

// A fenced producer that is the first to speak of a new transaction learns it
// from AddPartitionsToTxn, an error that sarama takes for a broken connection
// and would retry for as long as the transaction may last.
func TestFenceBeforeTheFirstEventIsSeenAtOnce(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	first := startTransactional(t, c.config(), oneSlot())
	startTransactional(t, c.config(), oneSlot())
	begin := time.Now()
	transact(t, first, "a", 0, 0)
	waitFor(t, first.Failed())
	require.ErrorIs(t, first.Err(), publisher.ErrFenced)
	require.Less(t, time.Since(begin), 10*time.Second)
}

func TestFailureInsideATransactionCommitsNothing(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	c.refuseProduce(20, kerr.InvalidRecord)
	p := startTransactional(t, c.config(), oneSlot())
	transact(t, p, "a", 0, 9)
	require.NoError(t, p.Commit(within(t), at(10)))
	ctx := within(t)
	var err error
	for i := 10; i < 200 && err == nil; i++ {
		err = p.Publish(ctx, event(uint64(i), "a", fmt.Sprint(i)))
	}
	if err == nil {
		err = p.Commit(ctx, at(200))
	}
	require.ErrorIs(t, err, publisher.ErrFailed)
	require.NotErrorIs(t, err, publisher.ErrFenced)
	require.ErrorIs(t, err, sarama.ErrInvalidRecord)
	require.ErrorIs(t, p.Commit(ctx, at(200)), publisher.ErrFailed)
	require.NoError(t, p.Close())

	next := startTransactional(t, c.config(), oneSlot())
	pos, _ := next.Checkpoint()
	require.Equal(t, at(10), pos)
	transact(t, next, "a", 10, 199)
	require.NoError(t, next.Commit(ctx, at(200)))
	require.Equal(t, numbers(0, 199), c.committed("shop.order"))
}

// A zombie that made a new producer has fenced the relay which has the slot by
// now. It must not publish what it still has in memory.
func TestARotationAfterATwinsCommitStandsDown(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	zombie := startTransactional(t, c.config(), oneSlot())
	transact(t, zombie, "a", 0, 4)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.ConcurrentTransactions}) // hence a rotation
	var started atomic.Bool
	c.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		if started.CompareAndSwap(false, true) { // the twin's own request passes
			c.SleepControl(func() { // between the zombie's commit and its rotation
				twin := startTransactional(t, c.config(), oneSlot())
				transact(t, twin, "a", 5, 9)
				require.NoError(t, twin.Commit(within(t), at(10)))
			})
		}
		return nil, nil, false
	})
	require.NoError(t, zombie.Commit(within(t), at(5)), "which is known")
	waitFor(t, zombie.Failed())
	require.ErrorIs(t, zombie.Err(), publisher.ErrFenced)
	require.ErrorIs(t, zombie.Publish(within(t), event(5, "a", "5")), publisher.ErrFenced)

	next := startTransactional(t, c.config(), oneSlot()) // the twin, fenced as well, takes the slot again
	pos, _ := next.Checkpoint()
	require.Equal(t, at(10), pos)
	require.Equal(t, numbers(0, 9), c.committed("shop.order"))
}

// A coordinator that was deposed confirms an offset which the next one does not have: it
// is committed again, and the relay goes on. Where the checkpoint is neither that one nor
// the one before, somebody else has moved it.
func TestAConfirmedPositionThatIsLostIsCommittedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		found publisher.Position
		err   error
	}{"the one before": {at(10), nil}, "another": {at(7), publisher.ErrFenced}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
			c.checkpointTopic()
			p := startTransactional(t, c.config(), oneSlot())
			transact(t, p, "a", 0, 9)
			require.NoError(t, p.Commit(within(t), at(10)))
			c.ControlKey(int16(kmsg.OffsetFetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
				response := request.ResponseKind().(*kmsg.OffsetFetchResponse)
				partition := kmsg.NewOffsetFetchResponseTopicPartition()
				partition.Offset, partition.Metadata = int64(tc.found.Order), &tc.found.Meta
				topic := kmsg.NewOffsetFetchResponseTopic()
				topic.Topic, topic.Partitions = publisher.DefaultCheckpointTopic, []kmsg.OffsetFetchResponseTopicPartition{partition}
				response.Topics = append(response.Topics, topic)
				return response, nil, true
			})
			transact(t, p, "a", 10, 19)
			var ends atomic.Int64
			c.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				ends.Add(1)
				return nil, nil, false
			})
			require.NoError(t, p.Commit(within(t), at(20)), "which is known")
			if tc.err != nil {
				waitFor(t, p.Failed())
				require.ErrorIs(t, p.Err(), tc.err)
				return
			}
			require.EqualValues(t, 2, ends.Load())
			transact(t, p, "a", 20, 29)
			require.NoError(t, p.Commit(within(t), at(30)))
			require.NoError(t, p.Err())
			require.Equal(t, numbers(0, 29), c.committed("shop.order"))
		})
	}
}

// Brokers that answer nothing make Commit last for as long as the transaction
// may, and no longer. In real time: sarama holds locks while it connects, for
// which fake time stands still.
func TestCommitEndsWithTheTimeout(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	tx := oneSlot()
	tx.Timeout = time.Second
	p := startTransactional(t, c.config(), tx)
	transact(t, p, "a", 0, 9)
	c.silence()
	begin := time.Now()
	require.ErrorIs(t, p.Commit(within(t), at(10)), publisher.ErrFailed)
	require.ErrorContains(t, p.Err(), "within its timeout of 1s")
	require.NoError(t, p.Close())
	require.Less(t, time.Since(begin), 10*time.Second)
}

// What sarama's defaults would get wrong, and what the brokers are told.
func TestTransactionalWriteConfig(t *testing.T) {
	conf, body, err := publisher.WriteConfig(minimal(), oneSlot())
	require.NoError(t, err)
	require.NoError(t, conf.Validate())
	require.Equal(t, sarama.WaitForAll, body.RequiredAcks)
	require.Equal(t, 1, conf.Net.MaxOpenRequests)
	require.Equal(t, oneSlot().ID, *body.TransactionalID)
	require.Less(t, time.Duration(body.Timeout)*time.Millisecond, conf.Net.ReadTimeout, "the broker answers before we give up")
	require.Less(t, conf.Net.ReadTimeout, time.Minute/2, "one lost answer does not cost the transaction")
	require.False(t, conf.Metadata.AllowAutoTopicCreation)
}

// Publish in a transaction allocates what Publish does without one.
func TestAllocationsPerTransactionalPublish(t *testing.T) {
	p, stop, err := publisher.NewDetachedTransactional(minimal(), 12)
	require.NoError(t, err)
	defer stop()
	ev := event(1, "a", "x")
	ctx := t.Context()
	perEvent := testing.AllocsPerRun(10_000, func() {
		if err := p.Publish(ctx, ev); err != nil {
			t.Fatal(err)
		}
		p.Open()
	})
	require.LessOrEqual(t, perEvent, 1.0)
}
