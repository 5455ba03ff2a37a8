package relay

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/state"
)

// producer makes the transactional producer, if the mode of relay_state or the
// configured one is exactly-once, which nobody but the holder of the slot may do: it
// settles or fences every older one. The session owns it.
func (s *session) producer(ctx context.Context, sink publisher.Config, row outboxdb.RelayState) (*publisher.Transactional, error) {
	if s.cfg.Kafka.Mode != ModeExactlyOnce && row.Mode != ModeExactlyOnce {
		return nil, nil //nolint:nilnil // an idempotent relay has none
	}
	name := transactionID(row)
	var tx *publisher.Transactional
	err := s.whileOurs(ctx, func(ctx context.Context) (err error) {
		tx, err = publisher.NewTransactional(ctx, sink, publisher.TransactionConfig{ID: name, Group: name, Timeout: s.cfg.Kafka.Transaction.Timeout})
		if err == nil {
			s.sink = tx
		}
		return err
	})
	return tx, err
}

// transactionID is the transactional id of a relay, and the group of its checkpoint.
func transactionID(row outboxdb.RelayState) string {
	return fmt.Sprintf("onceward-%s-%s", row.SystemIdentifier, row.Slot)
}

// dropProducer ends the transactional producer of a relay that goes on without.
func (s *session) dropProducer(tx *publisher.Transactional) error {
	if tx == nil {
		return nil
	}
	s.sink = nil
	return tx.Close()
}

// recall returns the checkpoint from where the mode of relay_state keeps it; tx is
// nil where both modes are idempotent.
func (s *session) recall(ctx context.Context, tx *publisher.Transactional, row outboxdb.RelayState) (ledger.Checkpoint, error) {
	kept, err := state.Kept(row)
	if err != nil || tx == nil {
		return kept, err
	}
	pos, found := tx.Checkpoint()
	if row.Mode != ModeExactlyOnce {
		// What Kafka keeps is of an earlier time in that mode, as before a gap was
		// written down: true of it is only how far the repair of an older gap has come,
		// if the database has what became letters, or waits, by then: one that went back
		// may lack it.
		if old, err := ledger.Parse(pos.Order, pos.Meta); found && err == nil && old.Letters <= row.DeadLetters {
			kept.Repair = old.Repair
		}
		return kept, nil
	}
	name := transactionID(row)
	if !found {
		s.log.ErrorContext(ctx, "the checkpoint in Kafka is gone, deleted or expired; the relay goes on from relay_state, and publishes again what was committed since",
			"group", name, "topic", publisher.DefaultCheckpointTopic, "from", kept.Order.String(), "written", row.UpdatedAt)
		s.counts.checkpointLost()
		return kept, nil
	}
	inKafka, err := ledger.Parse(pos.Order, pos.Meta)
	if err != nil {
		return kept, fmt.Errorf("read the checkpoint of group %s: %w", name, err)
	}
	if inKafka.Order < kept.Order {
		s.log.ErrorContext(ctx, "the checkpoint in Kafka is behind relay_state, which only follows it: set back, lost, or a gap was accepted; the relay goes on from relay_state",
			"group", name, "checkpoint", inKafka.Order.String(), "from", kept.Order.String())
		s.counts.checkpointLost()
		return kept, nil
	}
	inKafka.Strange = !kept.Knows(&inKafka)
	return inKafka, nil
}

// ownerCheck is how often a session looks whether the slot is still its own
// while it asks for a producer; ownerLimit is how long it waits for the answer.
const (
	ownerCheck = 200 * time.Millisecond
	ownerLimit = 5 * time.Second
)

// whileOurs runs ask, which fences whoever has the producer, and ends it once
// another session has taken the slot: its error is [state.ErrFenced] then. Who asks is
// told to ask again for as long as the owner has a transaction open, which every
// try aborts: a session that lost the slot meanwhile, because its process stood
// still or its walsender ended, would fence the owner for as long as it is
// patient. The replication connection, which nobody reads yet, does not tell.
func (s *session) whileOurs(ctx context.Context, ask func(context.Context) error) error {
	group, asking := errgroup.WithContext(ctx)
	done := make(chan struct{})
	group.Go(func() error {
		defer close(done)
		return ask(asking)
	})
	group.Go(func() error {
		tick := time.NewTicker(ownerCheck)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return nil
			case <-tick.C:
			}
			// Not asking: its end would close the connection with the query.
			limited, cancel := context.WithTimeout(ctx, ownerLimit)
			err := s.state.Owns(limited)
			cancel()
			if err != nil {
				return err
			}
		}
	})
	return group.Wait()
}

// change takes the checkpoint to where the configured mode keeps it, if
// relay_state has the other mode. It is written there first: a crash in between
// does the same again. It returns the producer that goes on, if one does.
func (s *session) change(ctx context.Context, from string, kept *ledger.Checkpoint, tx *publisher.Transactional) (*publisher.Transactional, error) {
	to := s.cfg.Kafka.Mode
	switch {
	case from == to && to == ModeIdempotent: // a gap may have been written down meanwhile
		return nil, s.dropProducer(tx)
	case from == to:
		return tx, nil
	}
	level := slog.LevelWarn
	if s.begin.Anew() {
		level = slog.LevelDebug // the checkpoint is a new one, and is taken to its place
	}
	s.log.Log(ctx, level, "the checkpoint moves to where this mode keeps it: the mode was changed, or a gap was written down",
		"mode", to, "from", from, "checkpoint", kept.Order.String())
	if to == ModeIdempotent {
		tick, err := s.state.LeaveExactlyOnce(ctx, kept)
		if err != nil {
			return nil, err
		}
		s.tick.Store(tick)
		return nil, s.dropProducer(tx)
	}
	tick, err := s.pumps.RaiseTick(ctx)
	if err != nil {
		return nil, err
	}
	s.tick.Store(tick)
	kept.Tick, kept.Timeline, kept.Session = tick, s.reader.System().Timeline, s.id
	if err := tx.Commit(ctx, publisher.Position{Order: uint64(kept.Order), Meta: kept.Meta()}); err != nil {
		return nil, fmt.Errorf("write the checkpoint to Kafka: %w", err)
	}
	fault.Crash(fault.BeforeMode)
	return tx, s.state.EnterExactlyOnce(ctx)
}
