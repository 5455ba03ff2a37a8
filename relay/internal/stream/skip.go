package stream

import (
	"context"
	"slices"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/relay/internal/letters"
)

// skip gives up a letter whose retry is under way, or held.
func (r *retry) skip(ctx context.Context, s *step, l *letters.Letter) (done bool, err error) {
	if done, err = r.pages.Skip(ctx, l); err != nil || !done {
		return false, err
	}
	delete(r.p.letters.refused, l.ID)
	r.p.log.WarnContext(ctx, "retried dead letter given up: an operator said so", "key", l.Key(), "control", s.it.Control.ID)
	return true, nil
}

// skipWaiting gives up events that wait, because an operator said so, and tries
// retries that wait: it may be about one of their letters.
func (r *releases) skipWaiting(ctx context.Context) error {
	now := r.out.Commands()
	if slices.Equal(now.Skip, r.skippedFor) || !r.lanes.any() {
		return nil
	}
	if err := r.write(ctx); err != nil {
		return err
	}
	found, err := r.keeper.find(ctx, now.Skip)
	if err != nil {
		return err
	}
	r.skippedFor = now.Skip
	for _, w := range r.lanes.byKey {
		if w.retry && r.lanes.routes[w.route.name] == w.route {
			r.lanes.usable(w.route)
		}
	}
	for i := range found {
		if err := r.skipHeld(ctx, &found[i]); err != nil {
			return err
		}
	}
	return nil
}

// skipHeld gives up one that waits: its letter first, then it waits no more. A
// session that ends between the two leaves the rest to the next one. What a release
// has handed over already is published.
func (r *releases) skipHeld(ctx context.Context, h *heldItem) error {
	w := r.lanes.numbered(h.lane.id)
	if w == nil || r.handedOver(w, h.at) {
		return nil
	}
	h.lane = w
	switch h.status {
	case heldInvisible:
		r.skippedFor = nil // once more
		return nil
	case heldErased:
		r.sayErased(ctx, h)
	case heldDead: // and waits still
	case heldHere:
		s := step{it: h.item(), at: h.at, tag: noTag, released: true}
		if s.it.Kind == cdc.KindControl {
			return nil
		}
		if done, err := r.letters.skip(ctx, &s, "it waited for its route"); err != nil || !done {
			return err
		}
	}
	if err := r.keeper.drop(ctx, h); err != nil {
		return err
	}
	fault.Crash(fault.AfterDrop)
	w.events--
	r.lanes.leave(w) // another one may be the first now, or none
	return nil
}

// handedOver reports whether the release has come past a place of a lane.
func (r *releases) handedOver(w *heldLane, at ledger.Place) bool {
	d, cursor := r.current, r.reading.cursor
	return d != nil && cursor.Lane < len(d.lanes) && d.lanes[cursor.Lane] == w && at.Before(cursor.From)
}
