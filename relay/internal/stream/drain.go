package stream

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
)

// draining is a release: lanes of which what waits is published, one after the
// other, while the stream goes on and what it brings for them goes behind. A
// release ends with its last lane, with a lane that is refused again, or when
// others are ready and it has lasted; the next one takes up the rest. How far it
// has come is in every checkpoint, and what that covers is deleted.
type draining struct {
	*releases
	order     []*heldLane // of the lanes
	began     time.Time
	over      bool          // nothing more is done in it
	paused    time.Time     // nothing is done before: a commit is not visible yet
	forgotten ledger.Cursor // what is deleted
	inPage    bool          // a page is read and not handed over yet
}

// drainTime is how long a release lasts while others are ready.
const drainTime = 5 * time.Second

// invisibleWait is the pause before a commit that is decoded and not yet visible
// is looked for again.
const invisibleWait = 100 * time.Millisecond

// advance goes on with the release for as long as it has had no turn, one page at
// least, and ends it when it can.
func (d *draining) advance(ctx context.Context) error {
	began := time.Now()
	for !d.over && !began.Before(d.paused) {
		if err := d.page(ctx); err != nil {
			return err
		}
		if err := d.p.settle(ctx, false); err != nil {
			return err
		}
		if time.Since(began) >= d.spent {
			break
		}
	}
	return d.settled(ctx)
}

// settled deletes what a durable checkpoint says was released, and ends the release
// when nothing is left to be done in it.
func (d *draining) settled(ctx context.Context) error {
	durable := d.out.mode.durable()
	if durable.Release != d.reading.release {
		return nil // no checkpoint knows of it
	}
	if d.over && !durable.Cursor.Before(d.reading.cursor) {
		return d.finish(ctx)
	}
	if !d.forgotten.Before(durable.Cursor) {
		return nil
	}
	fault.Crash(fault.BeforeForget)
	d.forgotten = durable.Cursor
	return d.keeper.forget(ctx, d.order, durable.Cursor)
}

// finish ends a release of which a durable checkpoint says how far it came.
func (d *draining) finish(ctx context.Context) error {
	fault.Crash(fault.BeforeReleased)
	if err := d.keeper.end(ctx, d.order, d.reading.cursor); err != nil {
		return err
	}
	fault.Crash(fault.AfterReleased)
	d.current = nil
	return nil
}

// page publishes one page of the present lane.
func (d *draining) page(ctx context.Context) error {
	if d.reading.cursor.Lane == len(d.order) || len(d.lanes.ready) > 0 && time.Since(d.began) >= drainTime {
		d.lanes.ready = append(d.lanes.ready, d.order[d.reading.cursor.Lane:]...)
		d.over = true
		return nil
	}
	w := d.order[d.reading.cursor.Lane]
	page, err := d.keeper.page(ctx, w, d.reading.cursor.From)
	if err != nil {
		return err
	}
	if len(page) == 0 {
		return d.caughtUp(ctx, w)
	}
	d.inPage = true
	for i := range page {
		on, err := d.item(ctx, w, &page[i])
		if err != nil {
			return err
		}
		if !on {
			break
		}
		w.events--
		w.wait, w.refused = 0, false
		d.reading.cursor.From = page[i].at.Item().After()
		if err := d.p.settleAmid(ctx, i); err != nil {
			return err
		}
	}
	d.inPage = false
	d.lanes.changed = true
	d.reading.mark()
	return nil
}

// caughtUp opens a lane of which nothing waits any more. What came meanwhile and
// is not written down comes first.
func (d *draining) caughtUp(ctx context.Context, w *heldLane) error {
	if w.fresh > 0 {
		return d.write(ctx)
	}
	d.lanes.opened(w)
	d.reading.cursor = ledger.Cursor{Lane: d.reading.cursor.Lane + 1}
	d.reading.mark()
	d.log.InfoContext(ctx, "route released: all that waited for it was handed over", "lane", w.name(), "route", w.route.name)
	return nil
}

// item publishes one item that waited, and reports whether the lane goes on.
func (d *draining) item(ctx context.Context, w *heldLane, h *heldItem) (on bool, err error) {
	if fault.Is(fault.ForgetWaiting) {
		return true, d.end(d.reading.open(), ledger.Acknowledged)
	}
	switch h.status {
	case heldHere:
	case heldDead:
		d.counts.Skipped(skippedByLetter)
		return true, nil
	case heldErased:
		if err := d.end(d.reading.open(), ledger.Erased); err != nil {
			return false, err
		}
		d.sayErased(ctx, h)
		return true, nil
	case heldInvisible:
		d.paused = time.Now().Add(invisibleWait)
		return false, nil
	}
	s := step{it: h.item(), at: h.at, tag: d.reading.open(), released: true, repairing: h.repairing, repair: h.repair}
	// After an error it stays in hand: the cursor stands before it.
	d.reading.inHand = append(d.reading.inHand[:0], s.tag)
	if h.whole == nil { // it may have been moved, or come from a repair
		if s.at.Commit, err = d.letters.place(ctx, h.row, h.at.Commit, h.repairing); err != nil {
			return false, err
		}
	}
	fault.Crash(fault.MidRelease)
	err = d.p.deliver(ctx, &s)
	var route *publisher.RouteError
	if err != nil && !errors.As(err, &route) {
		return false, err
	}
	if err != nil && s.release != nil {
		if err := d.takeBack(ctx, &s); err != nil {
			return false, err
		}
	}
	d.reading.inHand = d.reading.inHand[:0]
	if err == nil {
		return true, nil
	}
	w.retry = s.release != nil
	w.first, w.known = s.first()
	d.refuseAgain(ctx, w, route)
	return false, d.end(s.tag, ledger.Waiting)
}

// takeBack lets a control wait again of which some letters may be out.
func (d *draining) takeBack(ctx context.Context, s *step) error {
	if err := d.out.mode.lettersEnded(ctx); err != nil {
		return err
	}
	d.reading.cursor.From = s.at
	return d.letters.store.Reopen(ctx, s.it.Control, s.at.Letter)
}

// refuseAgain lets a lane wait again, and ends the release with it: the lanes
// behind it go on in the next.
func (d *draining) refuseAgain(ctx context.Context, w *heldLane, why *publisher.RouteError) {
	before := w.route
	w.refused = true
	if d.lanes.hold(w, why.Route, why, time.Now()) && !before.refusedFor(why) && !why.Passing {
		d.sayAgain(ctx, why, "lane", w.name())
	}
	d.lanes.ready = append(d.lanes.ready, d.order[d.reading.cursor.Lane+1:]...)
	d.over = true
}
