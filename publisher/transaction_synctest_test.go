package publisher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// atRest waits until sarama has done with what was acknowledged. It takes a lock for
// that which its commit holds while it waits for an answer or to try again; and fake
// time stands still for as long as anything waits for a lock.
func atRest() { synctest.Wait() }

func TestTransactionOpenForTooLongFails(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		tx := oneSlot()
		tx.Timeout = 40 * time.Second
		p := startTransactional(t, cfg, tx)
		for range 10 { // together longer than the timeout
			transact(t, p, "a", 0, 0)
			time.Sleep(30 * time.Second) // of fake time
			require.NoError(t, p.Commit(t.Context(), at(1)))
			time.Sleep(time.Hour) // idle is no transaction
		}
		transact(t, p, "a", 1, 1)
		begin := time.Now()
		<-p.Failed()
		require.WithinRange(t, time.Now(), begin.Add(40*time.Second), begin.Add(50*time.Second))
		require.ErrorIs(t, p.Err(), publisher.ErrFailed)
		require.NotErrorIs(t, p.Err(), publisher.ErrFenced)
		require.ErrorContains(t, p.Err(), "40s")
		require.ErrorIs(t, p.Commit(t.Context(), at(2)), publisher.ErrFailed)
	}, kfake.SeedTopics(1, "shop.order"))
}

// Kafka deletes the checkpoint with its topic, and a commit is sent again until the
// transaction's timeout.
func TestCheckpointTopicThatIsDeletedIsNamed(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		cfg.Topics.Create = false
		p := startTransactional(t, cfg, oneSlot())
		transact(t, p, "a", 0, 0)
		require.NoError(t, p.Commit(t.Context(), at(1)))
		time.Sleep(time.Hour) // of fake time
		require.NoError(t, c.DeleteTopic(publisher.DefaultCheckpointTopic))
		c.ControlKey(int16(kmsg.TxnOffsetCommit), func(request kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			return unknownTopic(request.(*kmsg.TxnOffsetCommitRequest)), nil, true
		})
		time.Sleep(time.Hour)
		require.NoError(t, p.Err(), "nothing is to be committed")
		transact(t, p, "a", 1, 1)
		atRest()
		begin := time.Now()
		err := p.Commit(t.Context(), at(2))
		require.LessOrEqual(t, time.Since(begin), 12*time.Second)
		require.ErrorIs(t, err, publisher.ErrFailed)
		var checkpoint *publisher.CheckpointError
		require.ErrorAs(t, err, &checkpoint)
		require.ErrorContains(t, err, `checkpoint topic "onceward.checkpoint" does not exist; create it with `)
	}, kfake.SeedTopics(1, "shop.order"))
}

// unknownTopic is the answer of a broker that does not know the topics.
func unknownTopic(request *kmsg.TxnOffsetCommitRequest) kmsg.Response {
	response := request.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
	for _, topic := range request.Topics {
		refused := kmsg.NewTxnOffsetCommitResponseTopic()
		refused.Topic = topic.Topic
		for _, partition := range topic.Partitions {
			p := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			p.Partition, p.ErrorCode = partition.Partition, kerr.UnknownTopicOrPartition.Code
			refused.Partitions = append(refused.Partitions, p)
		}
		response.Topics = append(response.Topics, refused)
	}
	return response
}

func TestCommitEndsWithItsContext(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		for _, flushed := range []bool{false, true} {
			tx := oneSlot()
			p := startTransactional(t, cfg, tx)
			held := kmsg.Produce
			if flushed {
				transact(t, p, "a", 0, 9)
				atRest()
				held = kmsg.EndTxn
			}
			c.ControlKey(int16(held), func(kmsg.Request) (kmsg.Response, error, bool) { return nil, nil, true })
			if !flushed {
				transact(t, p, "a", 0, 9)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := p.Commit(ctx, at(10))
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, publisher.ErrFailed)
			waitFor(t, p.Failed())
			require.NoError(t, p.Close())
		}
	}, kfake.SeedTopics(1, "shop.order"))
}

func TestCloseCutsACommitOff(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		p := startTransactional(t, cfg, oneSlot())
		transact(t, p, "a", 0, 9)
		synctest.Wait()
		c.silence()
		committed := make(chan error, 1)
		go func() { committed <- p.Commit(context.Background(), at(10)) }()
		synctest.Wait()
		begin := time.Now()
		require.NoError(t, p.Close())
		require.ErrorIs(t, <-committed, publisher.ErrClosed)
		require.LessOrEqual(t, time.Since(begin), 10*time.Second)
		require.NoError(t, p.Err(), "which is no failure")
	}, kfake.SeedTopics(1, "shop.order"))
}

func TestCloseWithAnOpenTransactionIsBounded(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		p := startTransactional(t, cfg, oneSlot())
		transact(t, p, "a", 0, 9)
		synctest.Wait()
		c.silence()
		transact(t, p, "a", 10, 19)
		begin := time.Now()
		require.NoError(t, p.Close())
		require.LessOrEqual(t, time.Since(begin), 10*time.Second)
		require.NoError(t, p.Close(), "again")
	}, kfake.SeedTopics(1, "shop.order"))
}

func TestCloseAbortsWhatIsOpen(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		p := startTransactional(t, cfg, oneSlot())
		transact(t, p, "a", 0, 9)
		require.NoError(t, p.Close())
		require.Empty(t, c.committed("shop.order"))
		info := c.PartitionInfo("shop.order", 0)
		require.EqualValues(t, 11, info.HighWatermark, "ten events and the marker of an abort")
		require.Equal(t, info.HighWatermark, info.LastStableOffset)
	}, kfake.SeedTopics(1, "shop.order"))
}

func TestStartEndsWithItsContext(t *testing.T) {
	for name, key := range map[string]kmsg.Key{
		"producer id": kmsg.InitProducerID, "checkpoint": kmsg.OffsetFetch, "coordinator": kmsg.FindCoordinator,
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
				c.checkpointTopic()
				c.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
					c.KeepControl()
					return nil, nil, true
				})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				begin := time.Now()
				_, err := publisher.NewTransactional(ctx, cfg, oneSlot())
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.LessOrEqual(t, time.Since(begin), 10*time.Second)
			})
		})
	}
}

// A foreign transaction on the same group may last for minutes.
func TestUnstableCheckpointIsWaitedFor(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		unstable := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.UnstableOffsetCommit, Count: -1})
		time.AfterFunc(10*time.Minute, unstable.Remove)
		begin := time.Now()
		p := startUntil(t, cfg, 15*time.Minute)
		require.WithinRange(t, time.Now(), begin.Add(10*time.Minute), begin.Add(11*time.Minute))
		require.NoError(t, p.Close())
	})
}

// A marker that a deposed coordinator confirmed and lost holds the position back for ever;
// to commit it again ends that.
func TestAPositionThatStaysHeldBackIsCommittedAgain(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		p := startTransactional(t, cfg, oneSlot())
		transact(t, p, "a", 0, 9)
		unstable := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.UnstableOffsetCommit, Count: -1})
		ends := 0
		c.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if ends++; ends == 2 {
				unstable.Remove()
			}
			return nil, nil, false
		})
		require.NoError(t, p.Commit(t.Context(), at(10)))
		require.Equal(t, 2, ends)
		transact(t, p, "a", 10, 19)
		require.NoError(t, p.Commit(t.Context(), at(20)))
		require.NoError(t, p.Err())
		require.NoError(t, p.Close())
		require.Equal(t, numbers(0, 19), c.committed("shop.order"))
	}, kfake.SeedTopics(1, "shop.order"))
}

func startUntil(t *testing.T, cfg publisher.Config, limit time.Duration) *publisher.Transactional {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	p, err := publisher.NewTransactional(ctx, cfg, oneSlot())
	require.NoError(t, err)
	return p
}

func TestTopicThatVanishesInsideATransactionFailsIt(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		c.checkpointTopic()
		p := startTransactional(t, cfg, oneSlot())
		transact(t, p, "a", 0, 0)
		require.NoError(t, p.Commit(t.Context(), at(1)))
		require.NoError(t, c.DeleteTopic("shop.order"))
		transact(t, p, "a", 1, 1)
		begin := time.Now()
		<-p.Failed()
		require.LessOrEqual(t, time.Since(begin), 15*time.Second)
		require.ErrorContains(t, p.Err(), "does not exist")
	}, kfake.SeedTopics(1, "shop.order"))
}
