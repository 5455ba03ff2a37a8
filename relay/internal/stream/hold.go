package stream

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
)

// keeper keeps what is held. [Table] is the one, over the pump's own
// connection.
type keeper interface {
	// write writes items down, durably, all or none. Lanes without an id get one.
	write(ctx context.Context, items []heldItem) error
	// begin writes down that lanes are released from now on, in this order.
	begin(ctx context.Context, release int64, lanes []*heldLane) error
	// page reads the next items of a lane, none behind the last.
	page(ctx context.Context, w *heldLane, from ledger.Place) ([]heldItem, error)
	// forget deletes what a release has ended, which a durable checkpoint says.
	forget(ctx context.Context, lanes []*heldLane, at ledger.Cursor) error
	// end forgets a release that has come as far as at, after the same.
	end(ctx context.Context, lanes []*heldLane, at ledger.Cursor) error
	// drop forgets one that has ended beside every release, and a command of an
	// operator that said so.
	drop(ctx context.Context, h *heldItem) error
	// open forgets lanes of which nothing waits any more.
	open(ctx context.Context, lanes []*heldLane) error
	// last returns the highest ordinal of what waits at a position; 0 when nothing does.
	last(ctx context.Context, at pglogrepl.LSN) (uint32, error)
	// sort puts what a repair left at its place among what waits before the position,
	// by seq. No release may be under way.
	sort(ctx context.Context, before pglogrepl.LSN) error
	// find returns those of some events that wait.
	find(ctx context.Context, ids []uuid.UUID) ([]heldItem, error)
}

// hold lets a refused step wait, with all that follows it in its lane.
func (p *Pump) hold(ctx context.Context, s *step, why *publisher.RouteError) error {
	if w := p.lanes.find(s.lane()); w != nil {
		return p.queue(ctx, w, s)
	}
	w := &heldLane{of: s.lane(), retry: s.release != nil}
	w.first, w.known = s.first()
	if p.lanes.hold(w, why.Route, why, time.Now()) {
		p.sayHeld(ctx, s, w, why)
	}
	return p.queue(ctx, w, s)
}

// sayHeld logs a route that is held. Names of routes come from rows: of very many
// only the first are logged, and the health pages name no more either.
func (p *Pump) sayHeld(ctx context.Context, s *step, w *heldLane, why *publisher.RouteError) {
	switch n := len(p.lanes.routes); {
	case why.Passing:
		p.log.InfoContext(ctx, "route held for a moment", "reason", why, "lane", w.name())
	case why.Wanted && n <= shownRoutes:
		p.log.InfoContext(ctx, "route paused by an operator: its events wait, and whatever is of the same namespace and aggregate type; others go on", "reason", why, "lane", w.name())
	case n <= shownRoutes:
		p.log.ErrorContext(ctx, "route held: its events wait, and whatever is of the same namespace and aggregate type; others go on", "error", why, "lane", w.name(),
			"first", s.name(), "position", s.at.Commit.String())
	case n == shownRoutes+1:
		p.log.ErrorContext(ctx, "very many routes are held; the next are not logged one by one: `outboxctl list --state waiting` lists what waits", "routes", n, "error", why)
	}
}

// sayAgain logs a route that is held for another reason than before, or again
// while it is released.
func (p *Pump) sayAgain(ctx context.Context, why *publisher.RouteError, of ...any) {
	if why.Wanted {
		p.log.InfoContext(ctx, "route held still: paused by an operator", append(of, "reason", why)...)
		return
	}
	p.log.ErrorContext(ctx, "route still held", append(of, "error", why)...)
}

// queue puts a step behind its lane.
func (p *Pump) queue(ctx context.Context, w *heldLane, s *step) error {
	h := heldItem{lane: w, at: s.at, tag: s.tag}
	if c := s.it.Control; c != nil {
		h.id, h.txID = c.ID, c.TxID
	} else {
		h.id, h.txID = s.id(), s.it.Row.TxID
	}
	if s.repairing {
		h.repairing, h.repair, h.at = true, s.repair, p.repairPlace
		p.repairPlace = p.repairPlace.After()
	}
	if s.it.Kind != cdc.KindEvent || s.it.Bad != nil {
		it := *s.it // the batch that it came with is used again
		h.whole = &it
	}
	if s.release != nil { // part of it may be out, the rest is taken back
		if err := p.mode.handedAll(ctx); err != nil {
			return err
		}
		h.reopen = s.it.Control.ID
	}
	p.lanes.add(h, time.Now())
	if p.Commands().Skips(h.id) {
		p.skippedFor = nil // once more
	}
	if h.reopen == uuid.Nil && !p.lanes.toWrite(time.Now()) {
		return nil
	}
	return p.writeDown(ctx)
}

// writeDown writes what is held. It has ended then.
func (p *Pump) writeDown(ctx context.Context) error {
	items := p.lanes.unwritten
	if len(items) == 0 {
		return nil
	}
	fault.Crash(fault.BeforeWaiting)
	if err := p.keeper.write(ctx, items); err != nil {
		return err
	}
	fault.Crash(fault.AfterWaiting)
	for i := range items {
		if err := p.end(items[i].tag, ledger.Waiting); err != nil {
			return err
		}
	}
	p.counts.Waited(len(items))
	p.lanes.written()
	return nil
}

// retryHeld tries what is due, and goes on with the release.
func (p *Pump) retryHeld(ctx context.Context) error {
	if err := p.skipWaiting(ctx); err != nil {
		return err
	}
	if err := p.try(ctx); err != nil {
		return err
	}
	if p.release == nil && len(p.lanes.ready) > 0 {
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
		p.lanes.soon(time.Now())
	}
	for range maxTries {
		r := p.lanes.try(time.Now())
		if r == nil {
			return nil
		}
		err := p.usable(ctx, r.lanes[0].asking())
		var route *publisher.RouteError
		switch {
		case err == nil, errors.Is(err, publisher.ErrRecord), errors.Is(err, publisher.ErrPartitions):
			p.lanes.usable(r) // or the release finds what is wrong: it makes letters, and halts
		case errors.As(err, &route):
			if p.lanes.refused(r, route, time.Now()) && !route.Passing {
				p.sayAgain(ctx, route, "route", r.name)
			}
		default:
			return err
		}
	}
	return nil
}

// showEvery is the least time between two showings of what is held.
const showEvery = time.Second

// shownRoutes is how many routes are shown by name.
const shownRoutes = 100

// laneBytes is what a lane that is held takes in memory, with its route and what the
// publisher knows of its topic. It comes off the queue: the garbage collector has the
// same room then, and others go on as fast.
const laneBytes = 700

// show puts what is held into the metrics and the health pages.
func (p *Pump) show(now time.Time) {
	if !p.lanes.changed || now.Sub(p.shown) < showEvery && p.lanes.any() {
		return
	}
	p.lanes.changed, p.shown = false, now
	maps.DeleteFunc(p.named, func(name string, _ bool) bool { return p.lanes.routes[name] == nil })
	held := make(map[string]HeldRoute)
	for _, w := range p.lanes.byKey {
		name := w.route.name
		if !p.named[name] && len(p.named) >= shownRoutes {
			name = "others"
		} else {
			p.named[name] = true
		}
		shown, known := held[name]
		if !known {
			shown.Why = w.route.reason()
		}
		shown.Events += w.events + w.fresh
		held[name] = shown
	}
	p.counts.Holding(held)
	p.Holding(held)
	p.Lend(len(p.lanes.byKey) * laneBytes)
}

// takeUp lets wait what the last session left waiting.
func (p *Pump) takeUp(held []*heldLane) {
	now := time.Now()
	for _, w := range held {
		name := w.of.String()
		if first := w.asking(); first.Row != nil {
			name = p.routing.routeOf(first)
		}
		p.lanes.hold(w, name, nil, now)
	}
}
