package stream

import (
	"cmp"
	"context"
	"errors"
	"slices"
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

// begin starts a release of the lanes that are ready, those with the least first, but
// those last that the release before was refused at: each of them ends one.
func (p *Pump) begin(ctx context.Context) error {
	if err := p.held.write(ctx); err != nil { // each has its number then
		return err
	}
	var ready, empty []*heldLane
	for _, w := range p.held.lanes.ready {
		if w.empty() {
			empty = append(empty, w)
		} else {
			ready = append(ready, w)
		}
	}
	p.held.lanes.ready = nil
	if err := p.openEmpty(ctx, empty); err != nil || len(ready) == 0 {
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
	if err := p.held.keeper.begin(ctx, p.reading.release+1, ready); err != nil {
		return err
	}
	fault.Crash(fault.AfterRelease)
	p.reading.release++
	p.reading.cursor = ledger.Cursor{}
	p.release = &draining{p: p, lanes: ready, began: time.Now()}
	p.reading.mark()
	return nil
}

// openEmpty opens lanes of which all that waited was given up. No release is under
// way: what another one had handed over of them is forgotten by now.
func (p *Pump) openEmpty(ctx context.Context, empty []*heldLane) error {
	if len(empty) == 0 {
		return nil
	}
	if err := p.held.keeper.open(ctx, empty); err != nil {
		return err
	}
	for _, w := range empty {
		p.held.lanes.opened(w)
		p.log.InfoContext(ctx, "route released: nothing waits for it any more", "lane", w.name(), "route", w.route.name)
	}
	return nil
}

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
		if time.Since(began) >= p.spent {
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
	p.release = nil
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

// drainShare: a release has one such part of the time that the stream had.
const drainShare = 3

// drainPoll is how often a release that is over looks for its checkpoint.
const drainPoll = 20 * time.Millisecond

// drainWake returns when the release has something to do; zero when there is
// none.
func (p *Pump) drainWake(now time.Time) time.Time {
	switch {
	case p.release == nil && len(p.held.lanes.ready) > 0:
		return now
	case p.release == nil:
		return time.Time{}
	case p.release.over:
		return now.Add(drainPoll)
	}
	if p.release.paused.After(now) {
		return p.release.paused
	}
	return now
}

// retryHeld tries what is due, and goes on with the release.
func (p *Pump) retryHeld(ctx context.Context) error {
	if err := p.skipWaiting(ctx); err != nil {
		return err
	}
	if err := p.try(ctx); err != nil {
		return err
	}
	if p.release == nil && len(p.held.lanes.ready) > 0 {
		if err := p.begin(ctx); err != nil {
			return err
		}
	}
	if p.release == nil {
		return nil
	}
	return p.release.advance(ctx)
}

// maxTries bounds how many routes are tried between two looks at the stream.
const maxTries = 64

// try asks whether the routes whose time has come can be used again.
func (p *Pump) try(ctx context.Context) error {
	if now := p.Commands(); !slices.Equal(now.Routes, p.pausedFor) {
		p.pausedFor = now.Routes
		p.held.lanes.soon(time.Now())
	}
	for range maxTries {
		r := p.held.lanes.try(time.Now())
		if r == nil {
			return nil
		}
		err := p.usable(ctx, r.lanes[0].asking())
		var route *publisher.RouteError
		switch {
		case err == nil, errors.Is(err, publisher.ErrRecord), errors.Is(err, publisher.ErrPartitions):
			p.held.lanes.usable(r) // or the release finds what is wrong: it makes letters, and halts
		case errors.As(err, &route):
			if p.held.lanes.refused(r, route, time.Now()) && !route.Passing {
				p.held.sayAgain(ctx, route, "route", r.name)
			}
		default:
			return err
		}
	}
	return nil
}
