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
	p         *Pump
	lanes     []*heldLane
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
	p := d.p
	began := time.Now()
	for !d.over && !began.Before(d.paused) {
		if err := d.page(ctx); err != nil {
			return err
		}
		if err := p.settle(ctx, false); err != nil {
			return err
		}
		if time.Since(began) >= p.releases.spent {
			break
		}
	}
	durable := p.mode.durable()
	if durable.Release != p.reading.release {
		return nil // no checkpoint knows of it
	}
	if d.over && !durable.Cursor.Before(p.reading.cursor) {
		return d.end(ctx)
	}
	if !d.forgotten.Before(durable.Cursor) {
		return nil
	}
	fault.Crash(fault.BeforeForget)
	d.forgotten = durable.Cursor
	return p.held.keeper.forget(ctx, d.lanes, durable.Cursor)
}

// end ends a release of which a durable checkpoint says how far it came.
func (d *draining) end(ctx context.Context) error {
	p := d.p
	fault.Crash(fault.BeforeReleased)
	if err := p.held.keeper.end(ctx, d.lanes, p.reading.cursor); err != nil {
		return err
	}
	fault.Crash(fault.AfterReleased)
	p.releases.current = nil
	return nil
}

// page publishes one page of the present lane.
func (d *draining) page(ctx context.Context) error {
	p := d.p
	if p.reading.cursor.Lane == len(d.lanes) || len(p.held.lanes.ready) > 0 && time.Since(d.began) >= drainTime {
		p.held.lanes.ready = append(p.held.lanes.ready, d.lanes[p.reading.cursor.Lane:]...)
		d.over = true
		return nil
	}
	w := d.lanes[p.reading.cursor.Lane]
	page, err := p.held.keeper.page(ctx, w, p.reading.cursor.From)
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
		p.reading.cursor.From = page[i].at.Item().After()
	}
	d.inPage = false
	p.held.lanes.changed = true
	p.reading.mark()
	return nil
}

// caughtUp opens a lane of which nothing waits any more. What came meanwhile and
// is not written down comes first.
func (d *draining) caughtUp(ctx context.Context, w *heldLane) error {
	p := d.p
	if w.fresh > 0 {
		return p.held.write(ctx)
	}
	p.held.lanes.opened(w)
	p.reading.cursor = ledger.Cursor{Lane: p.reading.cursor.Lane + 1}
	p.reading.mark()
	p.log.InfoContext(ctx, "route released: all that waited for it was handed over", "lane", w.name(), "route", w.route.name)
	return nil
}

// item publishes one item that waited, and reports whether the lane goes on.
func (d *draining) item(ctx context.Context, w *heldLane, h *heldItem) (on bool, err error) {
	p := d.p
	if fault.Is(fault.ForgetWaiting) {
		return true, p.end(p.reading.open(), ledger.Acknowledged)
	}
	switch h.status {
	case heldHere:
	case heldDead:
		p.counts.Skipped(skippedByLetter)
		return true, nil
	case heldErased:
		if err := p.end(p.reading.open(), ledger.Erased); err != nil {
			return false, err
		}
		p.held.sayErased(ctx, h)
		return true, nil
	case heldInvisible:
		d.paused = time.Now().Add(invisibleWait)
		return false, nil
	}
	s := step{it: h.item(), at: h.at, tag: p.reading.open(), released: true, repairing: h.repairing, repair: h.repair}
	// After an error it stays in hand: the cursor stands before it.
	p.reading.inHand = append(p.reading.inHand[:0], s.tag)
	if h.whole == nil { // it may have been moved, or come from a repair
		if s.at.Commit, err = p.letters.behind(ctx, h.row, h.at.Commit); err != nil {
			return false, err
		}
	}
	fault.Crash(fault.MidRelease)
	err = p.deliver(ctx, &s)
	var route *publisher.RouteError
	if err != nil && !errors.As(err, &route) {
		return false, err
	}
	if err != nil && s.release != nil {
		if err := d.takeBack(ctx, &s); err != nil {
			return false, err
		}
	}
	p.reading.inHand = p.reading.inHand[:0]
	if err == nil {
		return true, nil
	}
	w.retry = s.release != nil
	w.first, w.known = s.first()
	d.refuseAgain(ctx, w, route)
	return false, p.end(s.tag, ledger.Waiting)
}

// takeBack lets a control wait again of which some letters may be out.
func (d *draining) takeBack(ctx context.Context, s *step) error {
	p := d.p
	if err := p.mode.handedAll(ctx); err != nil {
		return err
	}
	p.reading.cursor.From = s.at
	return p.letters.store.Reopen(ctx, s.it.Control, s.at.Letter)
}

// refuseAgain lets a lane wait again, and ends the release with it: the lanes
// behind it go on in the next.
func (d *draining) refuseAgain(ctx context.Context, w *heldLane, why *publisher.RouteError) {
	p := d.p
	before := w.route
	w.refused = true
	if p.held.lanes.hold(w, why.Route, why, time.Now()) && !before.refusedFor(why) && !why.Passing {
		p.held.sayAgain(ctx, why, "lane", w.name())
	}
	p.held.lanes.ready = append(p.held.lanes.ready, d.lanes[p.reading.cursor.Lane+1:]...)
	d.over = true
}
