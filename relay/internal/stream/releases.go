package stream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
)

// releases are how what waits goes out again: routes are tried, the lanes of those that
// can be used are released, one release after the other, and what an operator gave up
// waits no more.
type releases struct {
	*held
	reading *reading
	letters *deadLetters
	p       *Pump     // of whoever is released
	current *draining // nil: none is under way

	spent     time.Duration // on the last batch
	pausedFor []string      // routes that were paused at the last try
}

// turn tries what is due, and goes on with the release.
func (r *releases) turn(ctx context.Context) error {
	if err := r.skipWaiting(ctx); err != nil {
		return err
	}
	if err := r.try(ctx); err != nil {
		return err
	}
	if r.current == nil && len(r.lanes.ready) > 0 {
		if err := r.begin(ctx); err != nil {
			return err
		}
	}
	if r.current == nil {
		return nil
	}
	return r.current.advance(ctx)
}

// maxTries bounds how many routes are tried between two looks at the stream.
const maxTries = 64

// try asks whether the routes whose time has come can be used again.
func (r *releases) try(ctx context.Context) error {
	if now := r.out.Commands(); !slices.Equal(now.Routes, r.pausedFor) {
		r.pausedFor = now.Routes
		r.lanes.soon(time.Now())
	}
	for range maxTries {
		route := r.lanes.try(time.Now())
		if route == nil {
			return nil
		}
		err := r.out.usable(ctx, route.lanes[0].asking())
		var why *publisher.RouteError
		switch {
		case err == nil, errors.Is(err, publisher.ErrRecord), errors.Is(err, publisher.ErrPartitions):
			r.lanes.usable(route) // or the release finds what is wrong: it makes letters, and halts
		case errors.As(err, &why):
			if r.lanes.refused(route, why, time.Now()) && !why.Passing {
				r.sayAgain(ctx, why, "route", route.name)
			}
		default:
			return err
		}
	}
	return nil
}

// begin starts a release of the lanes that are ready, those with the least first, but
// those last that the release before was refused at: each of them ends one.
func (r *releases) begin(ctx context.Context) error {
	if err := r.write(ctx); err != nil { // each has its number then
		return err
	}
	var ready, empty []*heldLane
	for _, w := range r.lanes.ready {
		if w.empty() {
			empty = append(empty, w)
		} else {
			ready = append(ready, w)
		}
	}
	r.lanes.ready = nil
	if err := r.openEmpty(ctx, empty); err != nil || len(ready) == 0 {
		return err
	}
	slices.SortStableFunc(ready, func(a, b *heldLane) int {
		switch {
		case a.refused == b.refused:
			return cmp.Compare(a.events, b.events)
		case b.refused:
			return -1
		}
		return 1
	})
	fault.Crash(fault.BeforeRelease)
	if err := r.keeper.begin(ctx, r.reading.release+1, ready); err != nil {
		return err
	}
	fault.Crash(fault.AfterRelease)
	r.reading.release++
	r.reading.cursor = ledger.Cursor{}
	r.current = &draining{releases: r, order: ready, began: time.Now()}
	r.reading.mark()
	return nil
}

// openEmpty opens lanes of which all that waited was given up. No release is under
// way: what another one had handed over of them is forgotten by now.
func (r *releases) openEmpty(ctx context.Context, empty []*heldLane) error {
	if len(empty) == 0 {
		return nil
	}
	if err := r.keeper.open(ctx, empty); err != nil {
		return err
	}
	for _, w := range empty {
		r.lanes.opened(w)
		r.log.InfoContext(ctx, "route released: nothing waits for it any more", "lane", w.name(), "route", w.route.name)
	}
	return nil
}

// drainShare: a release has one such part of the time that the stream had.
const drainShare = 3

// drainPoll is how often a release that is over looks for its checkpoint.
const drainPoll = 20 * time.Millisecond

// wake returns when the release has something to do; zero when there is
// none.
func (r *releases) wake(now time.Time) time.Time {
	switch {
	case r.current == nil && len(r.lanes.ready) > 0:
		return now
	case r.current == nil:
		return time.Time{}
	case r.current.over:
		return now.Add(drainPoll)
	}
	if r.current.paused.After(now) {
		return r.current.paused
	}
	return now
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
	if r.isAt(w) && r.current.inPage {
		r.skippedFor = nil // once more: what was read of it would go out all the same
		return nil
	}
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
	return r.isAt(w) && at.Before(r.reading.cursor.From)
}

// isAt reports whether the release has come to a lane, and no further.
func (r *releases) isAt(w *heldLane) bool {
	d, lane := r.current, r.reading.cursor.Lane
	return d != nil && lane < len(d.order) && d.order[lane] == w
}
