package consumertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/record"
)

// scenes try the promises, in this order. Those that are not fresh go on in the world of the
// one before, if that was kept there.
var scenes = []struct {
	promise Promise
	needs   []Promise // what needs a broken one would tell nothing new
	fresh   bool
	try     func(ctx context.Context, w *world)
}{
	{Once, nil, true, once},
	{Session, nil, false, session},
	{NewKey, nil, false, newKey},
	{Copies, nil, true, copies},
	{Together, nil, false, together},
	{Crash, []Promise{Together}, false, func(ctx context.Context, w *world) { interrupted(ctx, w, true) }},
	{Cut, []Promise{Together}, false, func(ctx context.Context, w *world) { interrupted(ctx, w, false) }},
	{Order, nil, false, order},
	{AtOnce, []Promise{Together, Order}, false, atOnce},
	{Restart, nil, false, restarted},
	{RetryQueue, []Promise{Together, Restart}, false, retryQueue},
	{AfterWindow, []Promise{Together, Restart}, false, afterWindow},
}

// run tries the promises.
func (e *exercise) run(ctx context.Context) (err error) {
	var w *world
	defer func() { err = errors.Join(err, w.close(ctx)) }()
	failed := make(map[Promise]bool)
	for _, s := range scenes {
		if failed[Once] || slices.ContainsFunc(s.needs, func(p Promise) bool { return failed[p] }) {
			continue
		}
		if s.fresh || w.err != nil || w.late {
			if err = w.close(ctx); err != nil {
				return err
			}
			w = e.world()
			w.open(ctx)
		}
		if w.promise = s.promise; w.err == nil {
			s.try(ctx, w)
		}
		switch broken := (*BrokenError)(nil); {
		case errors.As(w.err, &broken):
			failed[s.promise] = true
			e.report.Broken = append(e.report.Broken, broken)
		case w.err != nil:
			return fmt.Errorf("try whether %s: %w", s.promise, w.err)
		}
	}
	e.report.Events = len(e.events)
	return nil
}

// How many events the scenes need that cut nothing.
const (
	ordered = 5 // of order
	few     = 3 // of those that show what they show with one, each
)

// once delivers events one after the other, undisturbed, and keeps what they leave.
func once(ctx context.Context, w *world) {
	const how = "once, undisturbed"
	w.reference = [][]string{w.effects(ctx)}
	for n, events := 0, 1; n < events && w.err == nil; n++ {
		recs := w.records(n)
		w.process.network.arm(fault{})
		w.apply(ctx, n, how, recs)
		if n == 0 && w.err == nil {
			w.measure(recs[0])
			events = w.needed()
		}
		w.next(1)
		w.reference = append(w.reference, w.effects(ctx))
		if differ(w.reference[n], w.reference[n+1]).none() {
			w.broken(n, how, "Effects reads the same lines as before", "let Effects read what the handler does. Where it does, that is not done when the handler returns nil: look for a goroutine that is not waited for, and for an error that is not returned.")
		}
	}
}

// measure counts the statements of the first delivery, and how many events it takes to cut
// before and behind each, and once more.
func (w *world) measure(rec record.Record) {
	_, w.report.Statements = w.process.network.disarm()
	if len(w.report.Statements) == 0 {
		w.err = errors.New("the delivery has not used the pool that Start was given; make the Processor with it. A handler of Router.AtLeastOnce that uses no pool has no statement at which it could be cut off: test it by calling it twice")
	}
	w.size = 1
	if w.process.router.Peek(rec).Batch != nil {
		w.size = few
	}
	w.cuts = w.size * (2*w.size*len(w.report.Statements) + 1)
}

// needed is how many events the scenes take that share a world, in their order.
func (w *world) needed() int {
	return few + w.size + 2*w.cuts + ordered + 2*w.size*count(w.report.Statements, commit) + few + few + few
}

// set takes so many events as are delivered together, and returns the last with its records.
func (w *world) set() (last int, recs []record.Record) {
	for range w.size {
		last = w.next(1)
		recs = append(recs, w.records(last)...)
	}
	return last, recs
}

// retried are the records as they come out of a retry queue.
func (w *world) retried(recs []record.Record) []record.Record {
	recs = slices.Clone(recs)
	for i := range recs {
		recs[i].Source = record.Source{Topic: topic + ".retry", Offset: w.offset}
		recs[i].Headers = append(slices.Clone(recs[i].Headers), record.Header{Name: "retry-count", Value: []byte("1")})
		w.offset++
	}
	return recs
}

// copies delivers an event five times: one after the other, at once, and at once to two
// processes.
func copies(ctx context.Context, w *world) {
	other, err := w.spawn(ctx)
	if err != nil {
		w.err = err
		return
	}
	for _, way := range []struct {
		how       string
		processes []*process // in turn; none: one delivery after the other
	}{
		{"five times, one after the other", nil},
		{"five times at once", []*process{w.process}},
		{"five times at once, to two processes", []*process{w.process, other}},
	} {
		n := w.next(1)
		recs := w.records(n, n, n, n, n)
		var all sync.WaitGroup
		for i, rec := range recs {
			if len(way.processes) > 0 {
				all.Go(func() { way.processes[i%len(way.processes)].deliver(ctx, rec) })
			}
		}
		all.Wait()
		for _, rec := range recs { // what was in progress comes again
			w.apply(ctx, n, way.how, []record.Record{rec})
		}
		w.expect(ctx, n, way.how)
	}
	w.err = errors.Join(w.err, other.stop())
}

// together delivers the events of a batch, undisturbed.
func together(ctx context.Context, w *world) {
	if w.size == 1 {
		return
	}
	how := fmt.Sprintf("%d events together, undisturbed", w.size)
	n, recs := w.set()
	w.apply(ctx, n, how, recs)
	w.expect(ctx, n, how)
}

// interrupted cuts one delivery after the other at each of its statements, before the
// server gets it and behind that, and delivers the events again. Crash: the process dies
// of it, at last when a delivery has ended.
func interrupted(ctx context.Context, w *world, crash bool) {
	what, then := "the connection was cut ", "; the process went on, and the message came again, out of a retry queue"
	if crash {
		what, then = "the process died ", "; it was started again, and the message came again"
	}
	over := false
	for at := 0; !over && w.err == nil && at*w.size < w.cuts; at++ {
		n, recs := w.set()
		p := w.process
		p.network.arm(fault{at: 1 + at/2, answer: at%2 == 1, crash: crash})
		p.deliver(ctx, recs...)
		struck, _ := p.network.disarm()
		if over = struck == ""; over {
			struck = "after the delivery had returned"
		}
		if crash {
			p.network.kill()
			w.restart(ctx)
		} else {
			recs = w.retried(recs)
		}
		w.bury(ctx, p)
		w.apply(ctx, n, what+struck+then, recs)
		w.expect(ctx, n, what+struck+then)
	}
}

// order delivers events in another order, and some of them again in between.
func order(ctx context.Context, w *world) {
	first := w.next(ordered)
	how := fmt.Sprintf("events %d to %d in the order +3, +1, +3 again, +4, +0, +1 again, +2, +4 again", first, first+ordered-1)
	for _, n := range []int{3, 1, 3, 4, 0, 1, 2, 4} {
		w.apply(ctx, first+n, how, w.records(first+n))
	}
	w.expect(ctx, first, how)
}

// restarted starts the process anew before each delivery.
func restarted(ctx context.Context, w *world) {
	const how = "to a process, and again to the next one"
	for range few {
		n := w.next(1)
		recs := w.records(n)
		for range 2 {
			w.restart(ctx)
			w.apply(ctx, n, how, recs)
		}
		w.expect(ctx, n, how)
	}
}

// newKey delivers another event that differs from one in its key alone.
func newKey(ctx context.Context, w *world) {
	const how = "once, and another event that differs in nothing but its key"
	if w.applied == 0 {
		n := w.next(1)
		w.apply(ctx, n, how, w.records(n))
	}
	n := w.applied - 1
	other := w.events[n]
	other.Key = w.key(len(w.events))
	w.apply(ctx, n, how, []record.Record{w.record(&other)})
	switch d := differ(w.effects(ctx), w.reference[w.applied]); {
	case d.none() && !w.Absolute:
		w.broken(n, how, "the second event has left no effect", "the handler takes equal content for the same event: leave that to the key. Where an event sets a state, so that the same content changes nothing, say Absolute.")
	case !d.none() && w.Absolute:
		w.broken(n, how, d.String(), "Absolute says that the same content changes nothing: write a state in place of a difference, or leave Absolute out.")
	}
}

// retryQueue delivers a copy of an event that was in another topic meanwhile.
func retryQueue(ctx context.Context, w *world) {
	n := w.next(few)
	recs := w.records(n, n+1, n+2)
	w.apply(ctx, n, "once, undisturbed", recs)
	class, window := w.window(ctx)
	delay := window
	if w.RetryDelay > 0 {
		delay = w.RetryDelay
	}
	w.pass(ctx, n, class, window, delay)
	w.late = delay > window
	if w.err != nil {
		return
	}
	how := fmt.Sprintf("once, and out of a retry queue %s later; class %q has a window of %s", delay, class, window)
	w.settle(ctx, n, how, w.retried(recs[:1]))
	w.expect(ctx, n, how)
}

// afterWindow delivers messages again that the group has finished, when their claims are
// gone.
func afterWindow(ctx context.Context, w *world) {
	n := w.next(few)
	recs := w.records(n, n+1, n+2)
	w.apply(ctx, n, "once, undisturbed", recs)
	if w.err != nil {
		return
	}
	known, err := w.process.router.Progress(ctx)
	if err == nil {
		mark := consumer.Mark{Topic: topic, TopicID: w.topicID, High: w.offset - 1}
		err = w.process.router.SaveProgress(ctx, known.History, []consumer.Mark{mark})
	}
	w.err = err
	class, window := w.window(ctx)
	how := fmt.Sprintf("once, and again %s later from the same place of the topic; class %q has a window of %s", window+time.Hour, class, window)
	w.pass(ctx, n, class, window, window+time.Hour)
	w.settle(ctx, n, how, recs)
	w.expect(ctx, n, how)
}
