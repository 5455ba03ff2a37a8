package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/cdc"
)

// Idle checkpoints: with nothing published, the end of the log becomes a
// checkpoint only after this much foreign log or this long, so that checkpoints
// do not feed on the log that they write themselves.
const (
	idleBytes = 1 << 20
	idleTime  = time.Hour
)

// tickLimit bounds one round of statements.
const tickLimit = 30 * time.Second

// checkpoints works every CheckpointInterval: it takes a snapshot when one is
// due, saves the position, and publishes the snapshot whose marker came back.
func (s *session) checkpoints(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.CheckpointInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := s.round(ctx); err != nil {
			return err
		}
	}
}

// round is one tick. The marker is written before the checkpoint, whose commit
// flushes the log and so lets the marker reach the reader.
func (s *session) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickLimit)
	defer cancel()
	now, err := s.pipeline.status()
	if err != nil {
		return fmt.Errorf("count acknowledgements: %w", err)
	}
	s.metrics.observe(now, s.durable, s.reader.QueueBytes())
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
	taken, err := s.state.snapshot(ctx, s.cfg.PublicationName())
	if err != nil {
		return err
	}
	if err := s.samePublication(taken.PublicationCatalog); err != nil {
		return err
	}
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
// idle one.
func (s *session) checkpoint(ctx context.Context, now status, last bool) error {
	idle := now.transactions == s.savedTransactions
	soon := now.position-s.durable < idleBytes && time.Since(s.savedAt) < idleTime
	if now.position <= s.durable || idle && soon && !last {
		return nil
	}
	tick, err := s.state.save(ctx, now.position)
	if err != nil {
		return err
	}
	s.durable, s.savedAt, s.tick, s.savedTransactions = now.position, time.Now(), tick, now.transactions
	s.metrics.checkpointed()
	s.reader.Confirm(now.position)
	return nil
}

// finish is the graceful stop: what was handed over is acknowledged and
// checkpointed, so that the next start publishes nothing twice.
func (s *session) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StopGrace)
	defer cancel()
	if err := s.sink.Flush(ctx); err != nil {
		return fmt.Errorf("flush before stopping: %w", err)
	}
	now, err := s.pipeline.status()
	if err != nil {
		return fmt.Errorf("count acknowledgements: %w", err)
	}
	if err := s.checkpoint(ctx, now, true); err != nil {
		return err
	}
	return s.publishSnapshot(ctx, now.marked)
}
