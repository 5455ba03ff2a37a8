package relay

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
)

// snapshots are those of a session: each is taken with a marker, and published once
// that has come back.
type snapshots struct {
	*snapshot.Schedule
	cfg    *Config
	state  *state.State
	begin  *beginning.Beginner
	counts *counts

	stands atomic.Bool   // the pump, for an operator
	looked []int64       // the attachings of partitions that the last tick saw: none was filled
	parted chan struct{} // closed when the last snapshot of a graceful stop is published, or cannot be
}

// take takes one and, when one is due, writes its marker. What the
// publication is like is read in the same statement: if it changed, the snapshot
// would cover rows that were never sent. That is looked at in every round, due or
// not, and before the checkpoint: a server that lost its publication may send
// nothing and say nothing, and looks idle.
func (s *snapshots) take(ctx context.Context, pump *stream.Pump, events uint64) error {
	read := pump.TakeUnseen() // before the snapshot, which may see none of them
	taken, err := s.state.Snapshot(ctx, s.cfg.PublicationName())
	if err != nil {
		return err
	}
	// `migrate roles`, which gives the publication to its owner, has written what to
	// know of it from then on, and `partitions adopt` that rows are sent no more.
	if err := s.begin.SamePublication(taken); err != nil {
		// What is put back may look as before: the next session must not miss it.
		return errors.Join(err, s.state.SaveCatalog(ctx, "changed"))
	}
	if !slices.Equal(taken.Attachings, s.looked) {
		if err := s.begin.Filled(ctx); err != nil {
			return err
		}
		s.looked = taken.Attachings
	}
	s.Sees(taken.Snapshot, read)
	if !s.Due(events, pump.TakeAsk()) {
		return nil
	}
	marker := s.Next(events)
	s.Took(marker, snapshot.Of(taken))
	return cdc.EmitMarker(ctx, s.state.Conn, marker)
}

// publish writes the newest snapshot before which everything has ended.
func (s *snapshots) publish(ctx context.Context, marked uint64) error {
	published, ok := s.Published(marked)
	if !ok {
		return nil
	}
	if err := s.state.SavePublished(ctx, published); err != nil {
		return err
	}
	s.counts.snapshotPublished(published.At)
	return nil
}

// lastLimit bounds how long a graceful stop waits for its last snapshot, for the sink
// may be away; while more is read, a backlog may lie before it, and so much is enough.
const (
	lastLimit   = 5 * time.Second // of a database with a slow disk
	behindLimit = time.Second
)

// last takes a snapshot of all that is published when the relay stops, so
// that nothing of it is doubted later, should the slot be lost meanwhile, and
// waits for its marker, or that of the last tick's when nothing was read since.
// [session.finish] publishes what came back; what did not is doubted: that of a relay
// which is far behind, or which an operator has stand still, too.
func (s *snapshots) last(session context.Context, pump *stream.Pump) error {
	defer close(s.parted)
	if !pump.Repaired() {
		return nil // a marker comes by the stream
	}
	// Not the session's: its end would close the connection with the statement.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(session), min(tickLimit, s.cfg.StopGrace))
	defer cancel()
	now, err := pump.HasEnded()
	if err != nil {
		return err
	}
	if err := s.take(ctx, pump, now.Events); err != nil {
		return err
	}
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	behind := time.Now().Add(behindLimit)
	for last, events := s.Last, now.Events; now.Marked < last && !s.stands.Load(); {
		if now.Events != events && time.Now().After(behind) {
			return nil
		}
		select {
		case <-poll.C:
		case <-session.Done():
			return nil
		}
		if now, err = pump.HasEnded(); err != nil {
			return err
		}
	}
	return nil
}

// lastWait is the part of a stop's grace for its last snapshot. Flush, commit and last checkpoint need the rest.
func lastWait(grace time.Duration) time.Duration { return min(lastLimit, grace/2) }

// awaitLast lets the session go on until its last snapshot has come back.
func (s *snapshots) awaitLast(ctx context.Context) {
	timer := time.NewTimer(lastWait(s.cfg.StopGrace))
	defer timer.Stop()
	select {
	case <-s.parted:
	case <-timer.C:
	case <-ctx.Done():
	}
}
