package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
)

// tickLimit bounds one round of statements.
const tickLimit = 30 * time.Second

// checkpoints works every CheckpointInterval: it takes a snapshot when one is
// due, saves the position, and publishes the snapshot whose marker came back. It
// ends with ctx; whole is that of the relay, by which a graceful stop is told
// from a session that broke.
func (s *session) checkpoints(ctx, whole context.Context) error {
	defer s.parting(ctx)
	tick := time.NewTicker(s.cfg.CheckpointInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
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
	now, err := s.mode.status()
	if err != nil {
		return err
	}
	now.oldest = earlier(now.oldest, s.reader.Reading())
	s.metrics.observe(now, pglogrepl.LSN(s.durable.Load()), s.reader.QueueBytes())
	word, err := s.state.pollWords(ctx)
	if err != nil {
		return err
	}
	s.pipeline.hear(word)
	if err := s.takeSnapshot(ctx, now.events); err != nil {
		return err
	}
	if err := s.checkpoint(ctx, now, false); err != nil {
		return err
	}
	if err := s.publishSnapshot(ctx, now.marked); err != nil {
		return err
	}
	return s.look(ctx)
}

// takeSnapshot takes one and, when one is due, writes its marker. What the
// publication is like is read in the same statement: if it changed, the snapshot
// would cover rows that were never sent. That is looked at in every round, due or
// not, and before the checkpoint: a server that lost its publication may send
// nothing and say nothing, and looks idle.
func (s *session) takeSnapshot(ctx context.Context, events uint64) error {
	read := s.pipeline.takeUnseen() // before the snapshot, which may see none of them
	taken, err := s.state.snapshot(ctx, s.cfg.PublicationName())
	if err != nil {
		return err
	}
	if err := s.samePublication(taken.PublicationCatalog); err != nil {
		return err
	}
	s.snapshots.sees(taken.Snapshot, read)
	if !s.snapshots.due(events, s.pipeline.takeAsk()) {
		return nil
	}
	marker := s.snapshots.next(events)
	s.snapshots.took(marker, snapshot{text: taken.Snapshot, at: taken.TakenAt})
	return cdc.EmitMarker(ctx, s.state.conn, marker)
}

// publishSnapshot writes the newest snapshot before which everything has ended.
func (s *session) publishSnapshot(ctx context.Context, marked uint64) error {
	published, ok := s.snapshots.published(marked)
	if !ok {
		return nil
	}
	if err := s.state.savePublished(ctx, published); err != nil {
		return err
	}
	s.metrics.snapshotPublished(published.at)
	return nil
}

// checkpoint makes the position durable first, and only then lets the slot
// forget it. A position that has passed no transaction since the last one is an
// idle one, see [idleRule]; at the end of a session it counts too. In
// exactly-once mode the position is durable in Kafka already, by the same rule,
// and what is written here is the lower bound for the day on which that is lost.
func (s *session) checkpoint(ctx context.Context, now status, last bool) error {
	durable := pglogrepl.LSN(s.durable.Load())
	if now.position <= durable {
		return nil
	}
	passed, ahead := now.transactions != s.savedTransactions, now.position-durable
	if !last && s.cfg.Kafka.Mode == ModeIdempotent && !s.idle.due(passed, ahead, time.Since(s.savedAt)) {
		return nil
	}
	s.early(now.position)
	tick, err := s.state.save(ctx, now.position)
	if err != nil {
		return err
	}
	crash(crashBeforeConfirm)
	s.durable.Store(uint64(now.position))
	s.savedAt, s.savedTransactions = time.Now(), now.transactions
	s.tick.Store(max(tick, s.tick.Load()))
	s.idle.saved(passed, ahead)
	s.metrics.checkpointed()
	s.reader.Confirm(now.position)
	return nil
}

// finish is the graceful stop: what was handed over is acknowledged and
// checkpointed, so that the next start publishes nothing twice.
func (s *session) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StopGrace)
	defer cancel()
	if err := s.pipeline.flush(ctx); err != nil {
		return fmt.Errorf("flush before stopping: %w", err)
	}
	now, err := s.mode.status()
	if err != nil {
		return err
	}
	if err := s.checkpoint(ctx, now, true); err != nil {
		return err
	}
	return s.publishSnapshot(ctx, now.marked)
}
