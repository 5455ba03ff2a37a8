package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/relay/internal/stream"
)

// tickLimit bounds one round of statements.
const tickLimit = 30 * time.Second

// checkpoints works every CheckpointInterval: it takes a snapshot when one is
// due, saves the position, and publishes the snapshot whose marker came back. It
// ends with ctx; whole is that of the relay, by which a graceful stop is told
// from a session that broke.
func (s *session) checkpoints(ctx, whole context.Context) error {
	if fault.Is(fault.NoEpoch) {
		defer s.parting(ctx)
	}
	tick := time.NewTicker(s.cfg.CheckpointInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-whole.Done():
			return s.snapshots.last(ctx, s.pump)
		case <-ctx.Done():
			return nil
		}
		if err := s.round(ctx, whole); err != nil {
			return err
		}
	}
}

// round is one tick. The marker is written before the checkpoint, whose commit
// flushes the log and so lets the marker reach the reader. A graceful stop lets
// it end; when something else of the session broke, its connection may be as dead.
func (s *session) round(session, whole context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(session), tickLimit)
	defer cancel()
	defer context.AfterFunc(session, func() {
		if whole.Err() == nil {
			cancel()
		}
	})()
	now, err := s.pump.HasEnded()
	if err != nil {
		return err
	}
	now.Oldest = earlier(now.Oldest, s.reader.Reading())
	s.counts.observe(now, s.saved.Load().Order, s.reader.QueueBytes())
	commands, err := s.state.PollCommands(ctx)
	if err != nil {
		return err
	}
	s.pump.SetCommands(commands)
	if err := s.newRepair(commands.Repairs); err != nil {
		return err
	}
	if err := s.snapshots.take(ctx, s.pump, now.Events); err != nil {
		return err
	}
	if err := s.checkpoint(ctx, now, false); err != nil {
		return err
	}
	if err := s.snapshots.publish(ctx, now.Marked); err != nil {
		return err
	}
	return s.health.look(ctx)
}

// errRepairAsked: an operator wants a gap repaired, which is done before a
// session's stream.
var errRepairAsked = errors.New("a gap is to be repaired")

// newRepair ends the session for a gap that it does not repair.
func (s *session) newRepair(asked []uuid.UUID) error {
	for _, id := range asked {
		if !s.begin.Repairing(id) {
			return fmt.Errorf("%w: %s", errRepairAsked, id)
		}
	}
	return nil
}

// checkpoint makes the position durable first, and only then lets the slot
// forget it. A position that has passed no transaction since the last one is an
// idle one, see [ledger.Idle]; at the end of a session it counts too. In
// exactly-once mode the position is durable in Kafka already, by the same rule,
// and what is written here is the lower bound for the day on which that is lost.
func (s *session) checkpoint(ctx context.Context, now stream.Status, last bool) error {
	saved := s.saved.Load()
	durable := saved.Order
	reached := now.Reach != saved.Reach
	if now.Position < durable || now.Position == durable && !reached {
		return nil
	}
	passed := now.Transactions != s.savedTransactions
	if !last && !reached && s.cfg.Kafka.Mode == ModeIdempotent &&
		!s.idle.Due(passed, durable, now.Position, time.Since(s.savedAt)) {
		if fault.Is(fault.ConfirmIdle) {
			s.reader.Confirm(now.Position)
		}
		return nil
	}
	if fault.Is(fault.SlotFirst) {
		s.reader.Confirm(now.Position)
	}
	c := ledger.Checkpoint{
		Order: now.Position, Reach: now.Reach, Timeline: s.reader.System().Timeline, Tick: s.tick.Load(),
		Letters: now.Letters, Session: s.id,
	}
	tick, err := s.state.Save(ctx, c)
	if err != nil {
		return err
	}
	fault.Crash(fault.BeforeConfirm)
	s.saved.Store(&c)
	since := time.Since(s.savedAt)
	s.savedAt, s.savedTransactions = time.Now(), now.Transactions
	s.tick.Store(max(tick, s.tick.Load()))
	s.idle.Saved(passed, durable, now.Position, since)
	s.counts.checkpointed()
	s.reader.Confirm(now.Position)
	return nil
}

// finish is the graceful stop: what was handed over is acknowledged and
// checkpointed, so that the next start publishes nothing twice. A commit that was under
// way may have taken some of the grace.
func (s *session) finish(ctx context.Context, stopped time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, stopped.Add(s.cfg.StopGrace))
	defer cancel()
	if err := s.pump.Flush(ctx); err != nil {
		return fmt.Errorf("flush before stopping: %w", err)
	}
	now, err := s.pump.HasEnded()
	if err != nil {
		return err
	}
	if err := s.checkpoint(ctx, now, true); err != nil {
		return err
	}
	if err := s.pump.Conclude(ctx); err != nil {
		return err
	}
	return s.snapshots.publish(ctx, now.Marked)
}

// unfinishedError is why a graceful stop was none, whatever ended what it waited for.
type unfinishedError struct{ error }

// Unwrap returns the reason.
func (e *unfinishedError) Unwrap() error { return e.error }

// sayStopping says what a graceful stop waits for.
func (s *session) sayStopping() {
	if now, err := s.pump.HasEnded(); err == nil && now.Owing > 0 {
		s.log.Info("stopping: waiting until Kafka has acknowledged what is in flight; stop_grace is the most that this takes",
			"events", now.Owing, "stop_grace", s.cfg.StopGrace)
	}
}

// earlier returns the first of two times, where zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// parting applies [fault.NoEpoch] to the end of a session: what has ended is written
// down, though another may own the slot by now. The pump's connection is the one
// that no statement was cut off on.
func (s *session) parting(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickLimit)
	defer cancel()
	if s.pump.FlushSink(ctx) != nil {
		return
	}
	if now, err := s.pump.HasEnded(); err == nil && now.Position > s.saved.Load().Order {
		_, _ = s.pumps.Unfenced(ctx, now.Position)
	}
}
