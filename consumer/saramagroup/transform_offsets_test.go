package saramagroup_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// dies leaves a transaction of partition 0, which has an output and offset 5, before its
// end. It returns what ends it well all the same.
func (p *plant) dies() (commit func() error) {
	t := p.t
	t.Helper()
	dead, err := kgo.NewClient(kgo.SeedBrokers(p.ListenAddrs()...), kgo.TransactionalID("shouting:"+topic+":0"), kgo.TransactionTimeout(15*time.Minute), kgo.MaxVersions(kversion.V2_8_0()))
	require.NoError(t, err)
	t.Cleanup(dead.Close)
	require.NoError(t, dead.BeginTransaction())
	require.NoError(t, dead.ProduceSync(t.Context(), &kgo.Record{Topic: upper, Value: []byte("ghost")}).FirstErr())
	id, epoch, err := dead.ProducerID(t.Context())
	require.NoError(t, err)
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = "shouting:"+topic+":0", id, epoch, "shouting"
	added, err := add.RequestWith(t.Context(), dead)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(added.ErrorCode))
	offset := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	offset.Offset = 5
	of := kmsg.NewTxnOffsetCommitRequestTopic()
	of.Topic, of.Partitions = topic, append(of.Partitions, offset)
	last := kmsg.NewPtrTxnOffsetCommitRequest()
	last.TransactionalID, last.ProducerID, last.ProducerEpoch, last.Group = add.TransactionalID, id, epoch, "shouting"
	last.Topics = append(last.Topics, of)
	committed, err := last.RequestWith(t.Context(), dead)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(committed.Topics[0].Partitions[0].ErrorCode))
	return func() error { return dead.EndTransaction(t.Context(), kgo.TryCommit) }
}

// A member that is well, and whose commit takes a while, is not fenced by one that finds
// its offset held back.
func TestTransformLeavesAHealthyCommitAlone(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 2)
	p.produce(0, 1, 10)
	commit := p.dies()
	ended := make(chan error, 1)
	var looks atomic.Int64
	p.ControlKey(int16(kmsg.OffsetFetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		p.KeepControl()
		look := len(r.(*kmsg.OffsetFetchRequest).Topics[0].Partitions) == 2 // sarama asks for one after the other
		if look && looks.Add(1) == 2 {
			p.SleepControl(func() { ended <- commit() })
		}
		return nil, nil, false
	})
	stop, _ := p.start(shout, p.config())
	p.reaches(0, 10)
	require.NoError(t, stop())
	select {
	case err := <-ended:
		require.NoError(t, err, "it was fenced")
	default:
		t.Error("there was one look")
	}
	require.ElementsMatch(t, append(numbers(6, 10), "ghost"), p.seen(kgo.ReadCommitted()))
}

// rebalances ends the session of every member, once.
func (p *plant) rebalances() {
	p.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
		answer := r.ResponseKind().(*kmsg.HeartbeatResponse)
		answer.ErrorCode = kerr.RebalanceInProgress.Code
		return answer, nil, true
	})
}

// lie is an offset that is told in the place of the group's, some times.
type lie struct{ offset, times atomic.Int64 }

func (p *plant) tells(l *lie) {
	p.ControlKey(int16(kmsg.OffsetFetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		p.KeepControl()
		if l.times.Add(-1) < 0 {
			return nil, nil, false
		}
		partition := kmsg.NewOffsetFetchResponseTopicPartition()
		partition.Offset = l.offset.Load()
		of := kmsg.NewOffsetFetchResponseTopic()
		of.Topic, of.Partitions = topic, append(of.Partitions, partition)
		stale := r.ResponseKind().(*kmsg.OffsetFetchResponse)
		stale.Topics = append(stale.Topics, of)
		return stale, nil, true
	})
}

// The group's offset lies before what was confirmed to this process: it does not make the
// outputs again, and says so. A coordinator that is only behind is waited for.
func TestTransformOffsetWentBack(t *testing.T) {
	t.Parallel()
	lives := func(t *testing.T, times int64) (p *plant, stop func() error, ended <-chan error) {
		p = newPlant(t, 1)
		var told lie
		p.tells(&told)
		p.produce(0, 1, 5)
		stop, ended = p.start(shout, p.config())
		p.reaches(0, 5)
		p.produce(0, 6, 6) // what is confirmed is noted before the next transaction
		p.reaches(0, 6)
		told.offset.Store(2)
		told.times.Store(times)
		p.rebalances()
		return p, stop, ended
	}
	t.Run("for good", func(t *testing.T) {
		t.Parallel()
		p, _, ended := lives(t, 1000)
		var err error
		select {
		case err = <-ended:
		case <-time.After(patience):
		}
		require.ErrorContains(t, err, `the offset of group "shouting" in orders/0 is 2, and Kafka had confirmed `)
		require.ErrorContains(t, err, "--reset-offsets --to-offset ")
		require.Equal(t, numbers(1, 6), p.seen(kgo.ReadCommitted()))
	})
	t.Run("for a moment", func(t *testing.T) {
		t.Parallel()
		p, stop, ended := lives(t, 4)
		p.produce(0, 7, 7)
		p.reaches(0, 7)
		require.Empty(t, ended)
		require.NoError(t, stop())
		require.Equal(t, numbers(1, 7), p.seen(kgo.ReadCommitted()))
	})
}

// A coordinator confirms a transaction's offset and loses it, as one that was deposed did
// (KAFKA-20634): it is committed again before anything else, so that whoever has the
// partition next begins behind it.
func TestTransformOffsetLost(t *testing.T) {
	t.Parallel()
	seen := func(t *testing.T, defect bool) []string {
		p := newPlant(t, 1)
		var lost atomic.Bool
		p.ControlKey(int16(kmsg.TxnOffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
			if lost.Swap(true) {
				return nil, nil, false
			}
			of := r.(*kmsg.TxnOffsetCommitRequest).Topics[0]
			answer := kmsg.NewTxnOffsetCommitResponseTopic()
			answer.Topic = of.Topic
			partition := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			partition.Partition = of.Partitions[0].Partition
			answer.Partitions = append(answer.Partitions, partition)
			confirmed := r.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
			confirmed.Topics = append(confirmed.Topics, answer)
			return confirmed, nil, true
		})
		p.produce(0, 1, 3)
		cfg := p.config()
		cfg.MaxRecords, cfg.CommitInterval = 3, 10*time.Second
		if defect {
			cfg = cfg.KeepProducer()
		}
		stop, _ := p.start(shout, cfg)
		require.Eventually(t, func() bool { return len(p.seen(kgo.ReadCommitted())) == 3 }, patience, 10*time.Millisecond)
		if !defect {
			p.reaches(0, 3)
		}
		p.produce(0, 4, 4)
		require.NoError(t, stop())
		stop, _ = p.start(shout, p.config())
		p.reaches(0, 4)
		require.NoError(t, stop())
		return p.seen(kgo.ReadCommitted())
	}
	t.Run("ours", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, numbers(1, 4), seen(t, false))
	})
	t.Run("defect: no look", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, append(numbers(1, 3), numbers(1, 4)...), seen(t, true))
	})
}

// twice gives the third message of the first session again.
type twice struct {
	sarama.ConsumerGroupHandler
	given *atomic.Bool
}

func (h twice) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	all := make(chan *sarama.ConsumerMessage)
	go func() {
		defer close(all)
		for msg := range c.Messages() {
			for range 1 + h.again(msg) {
				select {
				case all <- msg:
				case <-s.Context().Done():
					return
				}
			}
		}
	}()
	return h.ConsumerGroupHandler.ConsumeClaim(s, claimOf{c, all})
}

func (h twice) again(msg *sarama.ConsumerMessage) int {
	if msg.Offset == 2 && h.given.CompareAndSwap(false, true) {
		return 1
	}
	return 0
}

// claimOf is a claim with other messages.
type claimOf struct {
	sarama.ConsumerGroupClaim
	messages <-chan *sarama.ConsumerMessage
}

func (c claimOf) Messages() <-chan *sarama.ConsumerMessage { return c.messages }

// A message that the library gives again is not transformed again.
func TestTransformMessageTwice(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.produce(0, 1, 5)
	var given atomic.Bool
	stop, _ := p.start(shout, p.config().Member(func(h sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler { return twice{h, &given} }))
	p.reaches(0, 5)
	require.NoError(t, stop())
	require.True(t, given.Load())
	require.Equal(t, numbers(1, 5), p.seen(kgo.ReadCommitted()))
}
