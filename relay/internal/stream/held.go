package stream

import (
	"context"
	"log/slog"
	"maps"
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

// held is what the pump holds: the lanes, what of them is to be written down, and
// what of them is shown.
type held struct {
	*progress
	out    *output
	lanes  *lanes
	keeper keeper
	hooks  *Hooks
	log    *slog.Logger

	repairPlace ledger.Place    // of the next event of a repair that waits
	skippedFor  []uuid.UUID     // what waits was looked through for these
	named       map[string]bool // routes that are shown by name
	shown       time.Time       // that was last
}

// hold lets a refused step wait, with all that follows it in its lane.
func (h *held) hold(ctx context.Context, s *step, why *publisher.RouteError) error {
	if w := h.lanes.find(s.lane()); w != nil {
		return h.queue(ctx, w, s)
	}
	w := &heldLane{of: s.lane(), retry: s.release != nil}
	w.first, w.known = s.first()
	if h.lanes.hold(w, why.Route, why, time.Now()) {
		h.sayHeld(ctx, s, w, why)
	}
	return h.queue(ctx, w, s)
}

// sayHeld logs a route that is held. Names of routes come from rows: of very many
// only the first are logged, and the health pages name no more either.
func (h *held) sayHeld(ctx context.Context, s *step, w *heldLane, why *publisher.RouteError) {
	switch n := len(h.lanes.routes); {
	case why.Passing:
		h.log.InfoContext(ctx, "route held for a moment", "reason", why, "lane", w.name())
	case why.Wanted && n <= shownRoutes:
		h.log.InfoContext(ctx, "route paused by an operator: its events wait, and whatever is of the same namespace and aggregate type; others go on", "reason", why, "lane", w.name())
	case n <= shownRoutes:
		h.log.ErrorContext(ctx, "route held: its events wait, and whatever is of the same namespace and aggregate type; others go on", "error", why, "lane", w.name(),
			"first", s.name(), "position", s.at.Commit.String())
	case n == shownRoutes+1:
		h.log.ErrorContext(ctx, "very many routes are held; the next are not logged one by one: `outboxctl list --state waiting` lists what waits", "routes", n, "error", why)
	}
}

// sayAgain logs a route that is held for another reason than before, or again
// while it is released.
func (h *held) sayAgain(ctx context.Context, why *publisher.RouteError, of ...any) {
	if why.Wanted {
		h.log.InfoContext(ctx, "route held still: paused by an operator", append(of, "reason", why)...)
		return
	}
	h.log.ErrorContext(ctx, "route still held", append(of, "error", why)...)
}

// queue puts a step behind its lane.
func (h *held) queue(ctx context.Context, w *heldLane, s *step) error {
	item := heldItem{lane: w, at: s.at, tag: s.tag}
	if c := s.it.Control; c != nil {
		item.id, item.txID = c.ID, c.TxID
	} else {
		item.id, item.txID = s.id(), s.it.Row.TxID
	}
	if s.repairing {
		item.repairing, item.repair, item.at = true, s.repair, h.repairPlace
		h.repairPlace = h.repairPlace.After()
	}
	if s.it.Kind != cdc.KindEvent || s.it.Bad != nil {
		it := *s.it // the batch that it came with is used again
		item.whole = &it
	}
	if s.release != nil { // part of it may be out, the rest is taken back
		if err := h.out.mode.lettersEnded(ctx); err != nil {
			return err
		}
		item.reopen = s.it.Control.ID
	}
	h.lanes.add(item, time.Now())
	if h.out.Commands().Skips(item.id) {
		h.skippedFor = nil // once more
	}
	if item.reopen == uuid.Nil && !h.lanes.toWrite(time.Now()) {
		return nil
	}
	return h.write(ctx)
}

// write writes what is held. It has ended then.
func (h *held) write(ctx context.Context) error {
	items := h.lanes.unwritten
	if len(items) == 0 {
		return nil
	}
	fault.Crash(fault.BeforeWaiting)
	if err := h.keeper.write(ctx, items); err != nil {
		return err
	}
	fault.Crash(fault.AfterWaiting)
	for i := range items {
		if err := h.end(items[i].tag, ledger.Waiting); err != nil {
			return err
		}
	}
	h.counts.Waited(len(items))
	h.lanes.written()
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
func (h *held) show(now time.Time) {
	if !h.lanes.changed || now.Sub(h.shown) < showEvery && h.lanes.any() {
		return
	}
	h.lanes.changed, h.shown = false, now
	maps.DeleteFunc(h.named, func(name string, _ bool) bool { return h.lanes.routes[name] == nil })
	held := make(map[string]HeldRoute)
	for _, w := range h.lanes.byKey {
		name := w.route.name
		if !h.named[name] && len(h.named) >= shownRoutes {
			name = "others"
		} else {
			h.named[name] = true
		}
		shown, known := held[name]
		if !known {
			shown.Why = w.route.reason()
		}
		shown.Events += w.events + w.fresh
		held[name] = shown
	}
	h.counts.Holding(held)
	h.hooks.Holding(held)
	h.hooks.Lend(len(h.lanes.byKey) * laneBytes)
}

// takeUp lets wait what the last session left waiting.
func (h *held) takeUp(held []*heldLane) {
	now := time.Now()
	for _, w := range held {
		name := w.of.String()
		if first := w.asking(); first.Row != nil {
			name = h.out.routing.routeOf(first)
		}
		h.lanes.hold(w, name, nil, now)
	}
}

// sayErased tells of an event that waited and whose row is gone.
func (h *held) sayErased(ctx context.Context, item *heldItem) {
	h.counts.Skipped(skippedErased)
	h.log.WarnContext(ctx, "event erased: it waited for its route, and its row is gone from onceward.outbox",
		"id", item.id.String(), "position", item.at.Commit.String(), "lane", item.lane.name())
}

// placeRepair finds the place at which events of a repair wait: before everything
// that the stream brings, where no checkpoint counts them as read again, and behind
// those that an earlier session left there.
func (h *held) placeRepair(ctx context.Context) error {
	h.repairPlace.Commit = h.out.mode.durable().Order - 1
	last, err := h.keeper.last(ctx, h.repairPlace.Commit)
	h.repairPlace.Ordinal = last + 1
	return err
}

// sortRepaired puts what the repair left waiting in its order among what waited
// before: that may be older, or newer.
func (h *held) sortRepaired(ctx context.Context) error {
	if !h.lanes.any() {
		return nil
	}
	if err := h.write(ctx); err != nil {
		return err
	}
	return h.keeper.sort(ctx, h.repairPlace.Commit+1)
}
