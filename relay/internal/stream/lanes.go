package stream

import (
	"container/heap"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

// Bounds of the wait between two tries of a route that is held. Where many are,
// each waits longer, so that all tries together stay few.
const (
	holdMin   = 100 * time.Millisecond
	holdMax   = 5 * time.Second
	holdShare = 5 * time.Millisecond // × the routes that are held
	// holdAnswer: a try has the route looked up beside the stream, and the next one
	// sees the answer. Where the next is far away, one comes between.
	holdAnswer = 500 * time.Millisecond
)

// Bounds of what is held and not written down yet.
const (
	unwrittenBytes = 1 << 20
	unwrittenTime  = 100 * time.Millisecond
)

// heldLane is one lane that is held, from the refusal of an item until the last
// one that waits was handed over.
type heldLane struct {
	of    ledger.Lane
	id    int32 // in onceward.lanes; 0: not written down yet
	route *laneRoute
	// events wait in the table, fresh ones in memory only.
	events, fresh int
	first         string        // event type of the first
	known         bool          // it is that; else nobody can tell which route to ask
	retry         bool          // the first is a control that has acted
	refused       bool          // its last release ended at it
	page          int           // how many the last page of it had
	wait          time.Duration // of its route before it was released; zero once something went out
}

// asking is an event by which the lane's route is tried again, without content;
// without a Row nobody can tell which that is.
func (w *heldLane) asking() publisher.Event {
	if !w.known {
		return publisher.Event{}
	}
	return publisher.Event{Topic: w.of.Topic, Row: &outbox.Row{Namespace: w.of.Namespace,
		AggregateType: w.of.AggregateType, Type: w.first}}
}

// name is the lane in a log: names of rows may be as long as they like.
func (w *heldLane) name() string { return label.Foreign(label.Clip(w.of.String(), 2*label.MaxName)) }

func (w *heldLane) empty() bool { return w.events == 0 && w.fresh == 0 }

// laneRoute is what the publisher refuses, with the lanes that wait for it. It is
// tried as one.
type laneRoute struct {
	name  string
	why   *publisher.RouteError // nil: it waits since before this session
	lanes []*heldLane
	wait  time.Duration // before the next try
	next  time.Time     // of a try
	asked bool          // the last try was a question, the next sees the answer
	index int           // in the queue
}

// refusedFor reports whether the route is held for just that.
func (r *laneRoute) refusedFor(why *publisher.RouteError) bool {
	return r.why == why || r.why != nil && why != nil && *r.why == *why
}

func (r *laneRoute) reason() string {
	if r.why == nil {
		return "was held already when this session began, and has not been tried again yet"
	}
	return r.why.Error()
}

// heldItem is one item that waits.
type heldItem struct {
	lane *heldLane
	at   ledger.Place
	tag  uint64 // of one that is not written down yet
	txID uint64
	id   uuid.UUID
	// whole is the item where it cannot be read back equal.
	whole *cdc.Item
	// repairing: the repair of a gap met it, and its record names repair.
	repairing bool
	repair    uuid.UUID
	// reopen is the control whose letters from at.letter on are taken back.
	reopen uuid.UUID

	// Of one that is read back:

	row    *outbox.Row
	status heldStatus
}

// heldStatus is what became of an item meanwhile.
type heldStatus int

const (
	heldHere      heldStatus = iota
	heldInvisible            // its transaction is decoded and not visible yet
	heldErased               // its row is gone
	heldDead                 // it has a letter by now
)

// item is what waited.
func (h *heldItem) item() *cdc.Item {
	if h.whole != nil {
		return h.whole
	}
	return &cdc.Item{Kind: cdc.KindEvent, Row: h.row}
}

// size is what one that is not written down yet costs in memory, in bytes.
func (h *heldItem) size() int {
	const overhead = 160
	n := overhead
	if h.whole == nil {
		return n
	}
	if r := h.whole.Row; r != nil {
		n += 512 + len(r.AggregateID) + len(r.Payload) + len(r.Headers) + len(r.Traceparent) +
			len(r.Namespace) + len(r.AggregateType) + len(r.Type) + len(r.ContentType)
	}
	if c := h.whole.Control; c != nil {
		n += 512 + len(c.AggregateID) + len(c.Payload) + len(c.Headers) + len(c.Reason)
	}
	return n
}

// lanes knows what is held, and when it is tried again; what waits is in the
// table, but for what is not written down yet. It is pure, and owned by the
// pump's goroutine.
type lanes struct {
	byKey  map[ledger.Lane]*heldLane
	routes map[string]*laneRoute
	due    routeQueue
	ready  []*heldLane // whose route can be used again

	unwritten []heldItem // in the order of the stream
	bytes     int        // of them
	since     time.Time  // the first of them came
	changed   bool       // since it was shown last
}

func newLanes() *lanes {
	return &lanes{byKey: make(map[ledger.Lane]*heldLane), routes: make(map[string]*laneRoute)}
}

// any reports whether some lane is held.
func (l *lanes) any() bool { return len(l.byKey) > 0 }

// find returns the lane if it is held.
func (l *lanes) find(of ledger.Lane) *heldLane {
	if len(l.byKey) == 0 {
		return nil
	}
	return l.byKey[of]
}

// hold makes a lane wait for a route from now on, and reports whether that is
// news: the first lane that waits for it, or another reason.
func (l *lanes) hold(w *heldLane, route string, why *publisher.RouteError, now time.Time) (news bool) {
	r := l.routes[route]
	if r == nil {
		wait := max(holdMin, min(2*w.wait, holdMax))
		r = &laneRoute{name: route, wait: wait, next: now.Add(wait)}
		l.routes[route] = r
		heap.Push(&l.due, r)
		news = true
	}
	news = news || !r.refusedFor(why)
	r.why = why
	r.lanes = append(r.lanes, w)
	w.route = r
	l.byKey[w.of] = w
	l.changed = true
	return news
}

// add puts an item behind the others of its lane.
func (l *lanes) add(h heldItem, now time.Time) {
	if len(l.unwritten) == 0 {
		l.since = now
	}
	l.unwritten = append(l.unwritten, h)
	l.bytes += h.size()
	h.lane.fresh++
	l.changed = true
}

// toWrite reports whether what is held is to be written down now.
func (l *lanes) toWrite(now time.Time) bool {
	return len(l.unwritten) > 0 && (l.bytes >= unwrittenBytes || now.Sub(l.since) >= unwrittenTime)
}

// written forgets what was written down.
func (l *lanes) written() {
	for i := range l.unwritten {
		l.unwritten[i].lane.fresh--
		l.unwritten[i].lane.events++
	}
	clear(l.unwritten)
	l.unwritten, l.bytes = l.unwritten[:0], 0
}

// soon has the routes tried now that an operator paused.
func (l *lanes) soon(now time.Time) {
	for _, r := range l.routes {
		if r.why != nil && r.why.Wanted {
			r.next = now
			heap.Fix(&l.due, r.index)
		}
	}
}

// refused lets a route wait longer.
func (l *lanes) refused(r *laneRoute, why *publisher.RouteError, now time.Time) (news bool) {
	if r.asked = !r.asked && r.wait > holdMax; r.asked {
		r.next = now.Add(holdAnswer)
	} else {
		share := time.Duration(len(l.routes)) * holdShare
		r.wait = min(2*r.wait, max(holdMax, share))
		if !why.Passing {
			r.wait = max(r.wait, share)
		}
		r.next = now.Add(r.wait)
	}
	heap.Fix(&l.due, r.index)
	other := !r.refusedFor(why)
	news = other && r.why != nil
	l.changed = l.changed || other
	r.why = why
	return news
}

// usable makes the lanes of a route ready to be released.
func (l *lanes) usable(r *laneRoute) {
	heap.Remove(&l.due, r.index)
	delete(l.routes, r.name)
	for _, w := range r.lanes {
		w.wait = r.wait
	}
	l.ready = append(l.ready, r.lanes...)
	r.lanes = nil
	l.changed = true
}

// leave makes a lane ready by itself, whatever its route says, so that the release
// finds out what waits there now. One that is being released stays in the release.
func (l *lanes) leave(w *heldLane) {
	r := w.route
	i := slices.Index(r.lanes, w)
	if i < 0 {
		return // ready, or being released
	}
	if r.lanes = slices.Delete(r.lanes, i, i+1); len(r.lanes) == 0 {
		heap.Remove(&l.due, r.index)
		delete(l.routes, r.name)
	}
	w.wait = r.wait
	l.ready = append(l.ready, w)
	l.changed = true
}

// numbered returns the lane that is held with an id; nil when it is open.
func (l *lanes) numbered(id int32) *heldLane {
	for _, w := range l.byKey {
		if w.id == id {
			return w
		}
	}
	return nil
}

// opened forgets a lane of which nothing waits any more.
func (l *lanes) opened(w *heldLane) {
	delete(l.byKey, w.of)
	l.changed = true
}

// try returns the route whose next try has come; nil when there is none.
func (l *lanes) try(now time.Time) *laneRoute {
	if len(l.due) == 0 || now.Before(l.due[0].next) {
		return nil
	}
	return l.due[0]
}

// wake returns when something is due; zero when nothing is held.
func (l *lanes) wake() (at time.Time) {
	if len(l.due) > 0 {
		at = l.due[0].next
	}
	if len(l.unwritten) > 0 {
		if write := l.since.Add(unwrittenTime); at.IsZero() || write.Before(at) {
			at = write
		}
	}
	return at
}

// routeQueue is a heap of routes by their next try.
type routeQueue []*laneRoute

// Len implements [heap.Interface].
func (q routeQueue) Len() int { return len(q) }

// Less implements [heap.Interface].
func (q routeQueue) Less(i, j int) bool { return q[i].next.Before(q[j].next) }

// Swap implements [heap.Interface].
func (q routeQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements [heap.Interface].
func (q *routeQueue) Push(x any) {
	r, _ := x.(*laneRoute) // nothing else is pushed
	r.index = len(*q)
	*q = append(*q, r)
}

// Pop implements [heap.Interface].
func (q *routeQueue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = nil
	*q = (*q)[:len(*q)-1]
	return last
}
