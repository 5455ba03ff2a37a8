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

// few is how many events the promises need that cut nothing.
const few = 5

// run tries all promises.
func (e *exercise) run(ctx context.Context) error {
	for _, p := range []struct {
		promise Promise
		try     func(ctx context.Context, w *world) error
	}{
		{Once, once},
		{Copies, copies},
		{Crash, func(ctx context.Context, w *world) error { return interrupted(ctx, w, true) }},
		{Cut, func(ctx context.Context, w *world) error { return interrupted(ctx, w, false) }},
		{Order, order},
		{Restart, restarted},
		{RetryQueue, retryQueue},
		{AfterWindow, afterWindow},
		{NewKey, newKey},
	} {
		err := e.in(ctx, p.promise, p.try)
		if broken := (*BrokenError)(nil); errors.As(err, &broken) {
			e.report.Broken = append(e.report.Broken, broken)
			if p.promise == Once {
				break // there is nothing to compare with
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.promise, err)
		}
	}
	e.report.Events = len(e.events)
	return nil
}

// once delivers events one after the other, undisturbed, and keeps what they leave.
func once(ctx context.Context, w *world) error {
	const how = "once, undisturbed"
	before, err := w.effects(ctx)
	if err != nil {
		return err
	}
	w.reference = append(w.reference, before)
	for n, events := 0, few; n < events; n++ {
		recs, err := w.records(n)
		if err != nil {
			return err
		}
		w.process.network.arm(fault{})
		if err := w.apply(ctx, n, how, recs); err != nil {
			return err
		}
		if n == 0 {
			if events, err = w.measure(recs[0]); err != nil {
				return err
			}
		}
		after, err := w.effects(ctx)
		if err != nil {
			return err
		}
		if differ(after, before).none() {
			return w.broken(n, how, "Effects reads the same lines as before", "either Effects does not read what the handler does, or it is not done when the handler returns: wait for goroutines, and return every error.")
		}
		w.reference, before = append(w.reference, after), after
	}
	return nil
}

// measure counts the statements of the first delivery, and returns how many events it
// takes to cut before and behind each, and once more.
func (w *world) measure(rec record.Record) (events int, err error) {
	_, w.report.Statements = w.process.network.disarm()
	if len(w.report.Statements) == 0 {
		return 0, errors.New("the delivery has used no connection of the pool that Start was given; make the Processor with it, and do not set its tracer")
	}
	w.size = 1
	if w.process.router.Peek(rec).Batch != nil {
		w.size = 3
	}
	return max(few, w.size*(2*w.size*len(w.report.Statements)+1)), nil
}

// copies delivers an event five times: one after the other, at once, and at once to two
// processes.
func copies(ctx context.Context, w *world) error {
	other, err := w.spawn(ctx)
	if err != nil {
		return err
	}
	for n, way := range []struct {
		how       string
		processes []*process // in turn; none: one delivery after the other
	}{
		{"five times, one after the other", nil},
		{"five times at once", []*process{w.process}},
		{"five times at once, to two processes", []*process{w.process, other}},
	} {
		recs, err := w.records(n, n, n, n, n)
		if err != nil {
			break
		}
		var all sync.WaitGroup
		for i, rec := range recs {
			if len(way.processes) > 0 {
				all.Go(func() { way.processes[i%len(way.processes)].deliver(ctx, []record.Record{rec}) })
			}
		}
		all.Wait()
		for _, rec := range recs { // what was in progress comes again
			if err == nil {
				err = w.apply(ctx, n, way.how, []record.Record{rec})
			}
		}
		if err == nil {
			err = w.expect(ctx, n, way.how, n+1)
		}
		if err != nil {
			return errors.Join(err, other.stop())
		}
	}
	return errors.Join(err, other.stop())
}

// interrupted cuts one delivery after the other at each of its statements, before the
// server gets it and behind that, and delivers the events again. Crash: the process dies
// of it, also once after a delivery has ended.
func interrupted(ctx context.Context, w *world, crash bool) error {
	what, then := "the connection was cut ", "; the process went on, and the message came again"
	if crash {
		what, then = "the process died ", "; it was started again, and the message came again"
	}
	for n, at := 0, 0; n+w.size < len(w.reference); at++ {
		events := make([]int, w.size)
		for i := range events {
			events[i] = n + i
		}
		recs, err := w.records(events...)
		if err != nil {
			return err
		}
		p := w.process
		p.network.arm(fault{at: 1 + at/2, answer: at%2 == 1, crash: crash})
		p.deliver(ctx, recs)
		struck, _ := p.network.disarm()
		over := struck == ""
		if over {
			struck = "after the delivery had returned"
		}
		if crash {
			p.network.kill()
			err = w.restart(ctx)
		}
		if err == nil {
			err = w.bury(ctx, p)
		}
		if err == nil {
			err = w.apply(ctx, n, what+struck+then, recs)
		}
		n += w.size
		if err == nil {
			err = w.expect(ctx, n-1, what+struck+then, n)
		}
		if err != nil || over {
			return err
		}
	}
	return errors.New("a delivery that is cut off has more statements than one that is not; exercise a handler whose statements are the same for each event")
}

// order delivers events in another order, and some of them again in between.
func order(ctx context.Context, w *world) error {
	const how = "in the order 3, 1, 3 again, 4, 0, 1 again, 2, 4 again"
	for _, n := range []int{3, 1, 3, 4, 0, 1, 2, 4} {
		recs, err := w.records(n)
		if err == nil {
			err = w.apply(ctx, n, how, recs)
		}
		if err != nil {
			return err
		}
	}
	return w.expect(ctx, 4, how, few)
}

// restarted starts the process anew before each delivery.
func restarted(ctx context.Context, w *world) error {
	const how = "by one process, and again by the next one"
	for n := range few {
		recs, err := w.records(n)
		for range 2 {
			if err == nil {
				err = w.restart(ctx)
			}
			if err == nil {
				err = w.apply(ctx, n, how, recs)
			}
		}
		if err == nil {
			err = w.expect(ctx, n, how, n+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// three applies events 0 to 2, with which the scenes that come later begin.
func three(ctx context.Context, w *world) ([]record.Record, error) {
	recs, err := w.records(0, 1, 2)
	if err == nil {
		err = w.apply(ctx, 0, "events 0 to 2, undisturbed", recs)
	}
	return recs, err
}

// retryQueue delivers a copy of the first event that stood in another topic meanwhile.
func retryQueue(ctx context.Context, w *world) error {
	recs, err := three(ctx, w)
	if err != nil {
		return err
	}
	class, window, err := w.window(ctx)
	if err != nil {
		return err
	}
	delay := window
	if w.RetryDelay > 0 {
		delay = w.RetryDelay
	}
	if err = w.pass(ctx, class, window, delay); err == nil {
		err = w.restart(ctx)
	}
	if err != nil {
		return err
	}
	again := recs[0]
	again.Source = record.Source{Topic: topic + ".retry"}
	again.Headers = append(slices.Clone(again.Headers), record.Header{Name: "retry-count", Value: []byte("1")})
	how := fmt.Sprintf("once, and out of a retry queue %s later; class %q has a window of %s", delay, class, window)
	if _, err := w.settle(ctx, 0, how, []record.Record{again}); err != nil {
		return err
	}
	return w.expect(ctx, 0, how, 3)
}

// afterWindow delivers messages again that the group has finished, when their claims are
// gone.
func afterWindow(ctx context.Context, w *world) error {
	recs, err := three(ctx, w)
	if err != nil {
		return err
	}
	known, err := w.process.router.Progress(ctx)
	if err == nil {
		err = w.process.router.SaveProgress(ctx, known.History,
			[]consumer.Mark{{Topic: topic, TopicID: w.topicID, High: w.offset - 1, FinishedTime: w.events[2].Key.Time()}})
	}
	if err != nil {
		return fmt.Errorf("save marks: %w", err)
	}
	class, window, err := w.window(ctx)
	if err == nil {
		err = w.pass(ctx, class, window, window+time.Hour)
	}
	if err == nil {
		err = w.restart(ctx)
	}
	if err != nil {
		return err
	}
	how := fmt.Sprintf("once, and again %s later from the same place of its topic; class %q has a window of %s", window+time.Hour, class, window)
	if _, err := w.settle(ctx, 0, how, recs); err != nil {
		return err
	}
	return w.expect(ctx, 0, how, 3)
}

// newKey delivers another event that differs from the first in its key alone.
func newKey(ctx context.Context, w *world) error {
	const how = "once, and another event that differs in nothing but its key"
	recs, err := w.records(0)
	if err == nil {
		err = w.apply(ctx, 0, how, recs)
	}
	if err != nil {
		return err
	}
	ev := w.events[0]
	if err := w.rekey(&ev, few); err != nil {
		return err
	}
	rec, err := encode(&ev)
	if err != nil {
		return err
	}
	rec.Source = record.Source{Topic: topic, Offset: w.offset, TopicID: w.topicID}
	if err := w.apply(ctx, 0, how, []record.Record{rec}); err != nil {
		return err
	}
	got, err := w.effects(ctx)
	if err != nil {
		return err
	}
	switch d := differ(got, w.reference[1]); {
	case d.none() && !w.Absolute:
		return w.broken(0, how, "the second event has left no effect", "the handler takes equal content for the same event. Leave that to the key; where an event sets a state, so that the same content changes nothing, say Absolute.")
	case !d.none() && w.Absolute:
		return w.broken(0, how, d.String(), "Service.Absolute says that the same content changes nothing. Write an absolute state instead of a difference, or leave Absolute out.")
	}
	return nil
}
