//go:build e2e

package publisher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/publisher"
)

// The first EndTxn is so long on its way that the client gives up on it, sends
// another, has its commit, and is in the middle of the next transaction when
// the first one arrives. Brokers of every version take it for the end of the
// transaction that is open then.
func TestLateEndTxn(t *testing.T) {
	late := func(t *testing.T, tx func(publisher.TransactionConfig) publisher.TransactionConfig) (*scene, *publisher.Transactional) {
		s := newScene(t)
		p := startTransactional(t, s.config(), tx(s.slot()))
		transact(t, p, "a", 1, 1)
		held := s.inject(kafkaproxy.EndTxn, kafkaproxy.Hold)
		require.NoError(t, p.Commit(within(t), at(1)))
		require.Equal(t, 1, held.Hits(), "the first EndTxn has not arrived")
		_, end := s.offsets()
		transact(t, p, "a", 2, 2)
		s.waitForRecords(end, 1)
		require.Equal(t, numbers(1, 1), s.committed())
		require.NoError(t, held.Deliver(within(t)))
		return s, p
	}
	t.Run("ours", func(t *testing.T) {
		s, p := late(t, func(tx publisher.TransactionConfig) publisher.TransactionConfig { return tx })
		require.NoError(t, p.Close(), "which aborts")
		stable, end := s.offsets()
		require.Equal(t, end, stable, "nothing is open any more")
		require.Equal(t, numbers(1, 1), s.committed(), "an aborted event is never seen")
		require.Equal(t, at(1), s.checkpoint())
		next := startTransactional(t, s.config(), s.slot())
		transact(t, next, "a", 3, 3)
		require.NoError(t, next.Commit(within(t), at(3)))
		require.Equal(t, []string{"1", "3"}, s.committed())
	})
	t.Run("defect: one epoch", func(t *testing.T) {
		s, p := late(t, publisher.KeepProducer)
		require.Eventually(t, func() bool { return len(s.committed()) == 2 }, patience, 20*time.Millisecond)
		require.NoError(t, p.Close(), "too late for an abort")
		require.Equal(t, numbers(1, 2), s.committed(), "an event of a transaction that was never committed")
	})
}

// The same for the request that carries the position: late, it would take the
// place of the one that the next transaction commits.
func TestLateTxnOffsetCommit(t *testing.T) {
	late := func(t *testing.T, tx func(publisher.TransactionConfig) publisher.TransactionConfig) publisher.Position {
		s := newScene(t)
		p := startTransactional(t, s.config(), tx(s.slot()))
		transact(t, p, "a", 1, 1)
		offset := s.inject(kafkaproxy.TxnOffsetCommit, kafkaproxy.Late)
		require.NoError(t, p.Commit(within(t), at(1)))
		require.Equal(t, 1, offset.Hits())
		transact(t, p, "a", 2, 2)
		end := s.inject(kafkaproxy.EndTxn, kafkaproxy.Hold)
		committed := make(chan error, 1)
		go func() { committed <- p.Commit(within(t), at(2)) }()
		s.hit(end, 1) // the second position has been written
		require.NoError(t, offset.Deliver(within(t)))
		end.Release()
		require.NoError(t, <-committed)
		require.NoError(t, p.Close())
		require.Equal(t, numbers(1, 2), s.committed())
		return s.checkpoint()
	}
	t.Run("ours", func(t *testing.T) {
		require.Equal(t, at(2), late(t, func(tx publisher.TransactionConfig) publisher.TransactionConfig { return tx }))
	})
	t.Run("defect: one epoch", func(t *testing.T) {
		require.Equal(t, at(1), late(t, publisher.KeepProducer), "the position of the transaction before: event 2 would be published twice")
	})
}

// writeTxnMarkers is what a coordinator asks the leaders of a transaction's partitions.
const writeTxnMarkers kafkaproxy.Key = 27

// The request by which the coordinator has a commit written is so long on its way that it
// is sent again, and arrives in the middle of the next transaction.
func TestLateMarker(t *testing.T) {
	late := func(t *testing.T, tx func(publisher.TransactionConfig) publisher.TransactionConfig) *scene {
		s := newScene(t)
		p := startTransactional(t, s.config(), tx(s.slot()))
		transact(t, p, "a", 1, 1)
		marker := s.network.Inject(kafkaproxy.Fault{Key: writeTxnMarkers, Action: kafkaproxy.Late, Times: 1})
		require.NoError(t, p.Commit(within(t), at(1)))
		s.hit(marker, 1)
		_, end := s.offsets()
		transact(t, p, "a", 2, 2)
		s.waitForRecords(end, 1)
		require.Equal(t, numbers(1, 1), s.committed())
		require.NoError(t, marker.Deliver(within(t)))
		require.Equal(t, at(1), s.checkpoint(), "a new producer, which aborts what is open")
		return s
	}
	t.Run("ours", func(t *testing.T) {
		require.Equal(t, numbers(1, 1), late(t, func(tx publisher.TransactionConfig) publisher.TransactionConfig { return tx }).committed())
	})
	t.Run("defect: one epoch", func(t *testing.T) {
		require.Equal(t, numbers(1, 2), late(t, publisher.KeepProducer).committed(), "event 2 will be published twice")
	})
}

// A coordinator has sent the end of a commit to some partitions only, and the one after it
// does not know that it was decided. The next relay commits what is left (docs/adr/0031).
func TestHalfCommitted(t *testing.T) {
	half := func(t *testing.T, where func(*scene) string, tx func(publisher.TransactionConfig) publisher.TransactionConfig) (publisher.Position, []string) {
		s := newScene(t)
		cfg := s.config()
		cfg.ClientID = "dies"
		p := startTransactional(t, cfg, s.slot())
		transact(t, p, "a", 1, 1)
		require.NoError(t, p.Commit(within(t), at(1)))
		transact(t, p, "a", 2, 2)
		end := s.network.Inject(kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.Hold, Client: "dies"})
		go func() { _ = p.Commit(within(t), at(2)) }()
		s.hit(end, 1)
		require.NoError(t, s.CommitHalf(within(t), s.slot().ID, where(s)))
		next := startTransactional(t, s.config(), tx(s.slot()))
		pos, found := next.Checkpoint()
		require.True(t, found)
		require.NoError(t, next.Close())
		return pos, s.committed()
	}
	ours := func(tx publisher.TransactionConfig) publisher.TransactionConfig { return tx }
	events := func(s *scene) string { return s.topic }
	position := func(*scene) string { return "__consumer_offsets" }
	for name, where := range map[string]func(*scene) string{"the events": events, "the position": position} {
		t.Run(name, func(t *testing.T) {
			pos, seen := half(t, where, ours)
			require.Equal(t, at(2), pos)
			require.Equal(t, numbers(1, 2), seen)
		})
	}
	t.Run("defect: the events, and not the position", func(t *testing.T) {
		pos, seen := half(t, events, publisher.Halves)
		require.Equal(t, at(1), pos, "event 2 will be published twice")
		require.Equal(t, numbers(1, 2), seen)
	})
	t.Run("defect: the position, and not the events", func(t *testing.T) {
		pos, seen := half(t, position, publisher.Halves)
		require.Equal(t, at(2), pos)
		require.Equal(t, numbers(1, 1), seen, "event 2 is lost")
	})
}

// The reply to each kind of request is lost, after the broker has done its work.
func TestLostReplies(t *testing.T) {
	for name, key := range map[string]kafkaproxy.Key{
		"InitProducerID":     kafkaproxy.InitProducerID,
		"OffsetCommit":       kafkaproxy.OffsetCommit,
		"OffsetFetch":        kafkaproxy.OffsetFetch,
		"AddPartitionsToTxn": kafkaproxy.AddPartitionsToTxn,
		"Produce":            kafkaproxy.Produce,
		"AddOffsetsToTxn":    kafkaproxy.AddOffsetsToTxn,
		"TxnOffsetCommit":    kafkaproxy.TxnOffsetCommit,
		"EndTxn":             kafkaproxy.EndTxn,
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			lost := s.inject(key, kafkaproxy.DropReply)
			p := startTransactional(t, s.config(), s.slot())
			for i := range 5 {
				transact(t, p, "a", 10*i, 10*i+9)
				require.NoError(t, p.Commit(within(t), at(uint64(i))))
			}
			require.Equal(t, 1, lost.Hits())
			require.NoError(t, p.Err())
			require.NoError(t, p.Close())
			require.Equal(t, numbers(0, 49), s.committed())
			require.Equal(t, at(4), s.checkpoint())
		})
	}
}
