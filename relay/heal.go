package relay

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
)

// hold lets a refused step wait, with all that follows it in its lane. What does
// not fit into the checkpoint is not held: everything waits with it.
func (p *pipeline) hold(ctx context.Context, s step, why *publisher.RouteError) error {
	of := s.lane()
	for !p.fits(of, s.at) {
		if err := p.rest(ctx); err != nil {
			return err
		}
		err := p.deliver(ctx, &s)
		if !errors.As(err, &why) {
			return err
		}
	}
	w := p.lanes.hold(of, time.Now())
	p.refuse(ctx, w, &s, why)
	return p.queue(ctx, w, s)
}

// fits reports whether the checkpoint has room for one more lane.
func (p *pipeline) fits(of lane, at place) bool {
	heads := p.lanes.heads()
	if heads == nil {
		heads = make(map[lane]place, 1)
	}
	heads[of] = at
	const widest = 1 << 62 // every number as long as it can be
	c := checkpoint{horizon: p.began.move(p.began.order, p.next, heads), timeline: 1 << 30, tick: widest, letters: widest, epoch: widest}
	return len(c.meta())+len("FFFFFFFF/FFFFFFFF,4294967295,4294967295") <= metaLimit
}

// queue puts a step behind its lane. When that is too much, everything waits.
func (p *pipeline) queue(ctx context.Context, w *waiting, s step) error {
	s.size = weight(s.it)
	p.lanes.add(w, s)
	p.next = s.at.after()
	for p.lanes.full() {
		if err := p.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// weight is what a step costs in memory while it is held, in bytes.
func weight(it *cdc.Item) int {
	const overhead = 512
	n := overhead
	if r := it.Row; r != nil {
		n += len(r.AggregateID) + len(r.Payload) + len(r.Headers) + len(r.Traceparent) + len(r.Namespace) + len(r.AggregateType) + len(r.Type) + len(r.ContentType)
	}
	if c := it.Control; c != nil {
		n += len(c.AggregateID) + len(c.Payload) + len(c.Headers) + len(c.Reason)
	}
	return n
}

// rest waits until something is due, and does it.
func (p *pipeline) rest(ctx context.Context) error {
	timer := time.NewTimer(time.Until(p.wake(time.Now())))
	defer timer.Stop()
	select {
	case <-timer.C:
		return p.turn(ctx, true)
	case <-p.sink.Failed():
		return p.sink.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// heal tries the lanes whose time has come.
func (p *pipeline) heal(ctx context.Context) error {
	for {
		w := p.lanes.due(time.Now())
		if w == nil {
			return nil
		}
		if err := p.retry(ctx, w); err != nil {
			return err
		}
	}
}

// retry publishes what waits in a lane, in order, until all of it is out or one
// is refused again.
func (p *pipeline) retry(ctx context.Context, w *waiting) error {
	for n := 0; len(w.steps) > 0; n++ {
		err := p.deliver(ctx, &w.steps[0])
		var route *publisher.RouteError
		if errors.As(err, &route) {
			p.refuse(ctx, w, &w.steps[0], route)
			return nil
		}
		if err != nil {
			return err
		}
		p.lanes.pop(w)
		if n%64 == 63 {
			if err := p.settle(ctx, false); err != nil {
				return err
			}
		}
	}
	p.lanes.release(w)
	p.show()
	p.log.InfoContext(ctx, "route released: all that waited for it was handed over", "lane", clip(w.of.String(), 2*maxName), "route", w.route)
	return nil
}

// refuse notes that a lane waits on, with its first step, and says so when the
// reason is a new one.
func (p *pipeline) refuse(ctx context.Context, w *waiting, first *step, why *publisher.RouteError) {
	w.refused(time.Now())
	if w.why == why.Error() {
		return
	}
	w.route, w.why = why.Route, why.Error()
	p.show()
	if why.Passing {
		p.log.InfoContext(ctx, "route held for a moment", "reason", why, "lane", w.of.String())
		return
	}
	p.log.ErrorContext(ctx, "route held: its events wait, and those behind them of the same aggregates; others go on", "error", why, "lane", clip(w.of.String(), 2*maxName),
		"first", first.name(), "position", first.at.commit.String())
}

// show puts what is held into the metrics and the health pages.
func (p *pipeline) show() {
	held := make(map[string]heldRoute, len(p.lanes.all))
	for _, w := range p.lanes.all {
		held[w.route] = heldRoute{why: w.why, events: held[w.route].events + len(w.steps)}
	}
	p.metrics.holding(held)
	p.holding(held)
}
