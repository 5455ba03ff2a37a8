package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
)

// Source delivers the committed stream. [cdc.Reader] is the one.
type Source interface {
	// Next waits for items and returns all there are, in commit order. The
	// slice is valid until the next call, which is given it for reuse.
	Next(ctx context.Context, used []cdc.Item) ([]cdc.Item, error)
}

// Sink publishes. [publisher.Publisher] is the one. It reports the tags of
// acknowledged events through a callback, in any order.
type Sink interface {
	// Publish hands one event over, and blocks while the sink is full.
	Publish(ctx context.Context, ev publisher.Event) error
	// Failed is closed when the sink can go on no more; Err says why.
	Failed() <-chan struct{}
	Err() error
}

// Bounds of the wait between two tries of an event whose route is held.
const (
	holdMin = 100 * time.Millisecond
	holdMax = 5 * time.Second
)

// pipeline moves events from the source to the sink and keeps the progress.
// pump runs in one goroutine; acknowledged is called from the sink's; the
// checkpoint's goroutine reads position.
type pipeline struct {
	sink    Sink
	log     *slog.Logger
	metrics *Metrics

	nonce uint64 // of the markers that are ours

	mu       sync.Mutex
	progress *cdc.Progress
	asked    bool  // somebody asked for a published snapshot
	err      error // a tag that the sink reported twice
}

func newPipeline(start pglogrepl.LSN, nonce uint64, log *slog.Logger, metrics *Metrics) *pipeline {
	return &pipeline{progress: cdc.NewProgress(start), nonce: nonce, log: log, metrics: metrics}
}

// pump hands over what the source delivers until either fails or ctx ends.
func (p *pipeline) pump(ctx context.Context, source Source) error {
	var batch []cdc.Item
	var commit pglogrepl.LSN
	var position string // text of commit; most transactions have many rows
	for {
		var err error
		if batch, err = source.Next(ctx, batch); err != nil {
			if errors.Is(err, io.EOF) {
				return nil // the source was told to stop
			}
			return err
		}
		tag, err := p.read(batch)
		if err != nil {
			return err
		}
		spoil(batch)
		for i := range batch {
			it := &batch[i]
			if it.Kind != cdc.KindEvent {
				continue
			}
			if it.Commit != commit || position == "" {
				commit, position = it.Commit, it.Commit.String()
			}
			if err := p.publish(ctx, publisher.Event{Row: it.Row, Tag: tag, Position: position}); err != nil {
				return err
			}
			tag++
		}
	}
}

// read records the whole batch in the progress, under one lock, before any of
// it is handed over. It returns the tag of the first event.
func (p *pipeline) read(batch []cdc.Item) (first uint64, err error) {
	events := 0
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range batch {
		if batch[i].Kind != cdc.KindEvent {
			if err := p.note(&batch[i]); err != nil {
				return 0, fmt.Errorf("read stream: %w", err)
			}
			continue
		}
		tag := p.progress.Read()
		if events == 0 {
			first = tag
		}
		events++
		if defect == defectConfirmEarly {
			_ = p.progress.End(tag)
		}
	}
	p.metrics.read(events)
	return first, nil
}

// note records an item that is no event. The caller holds the lock.
func (p *pipeline) note(it *cdc.Item) error {
	switch it.Kind {
	case cdc.KindMarker:
		if it.Marker.Nonce == p.nonce {
			p.progress.Mark(it.Marker.ID)
		}
		return nil
	case cdc.KindAsk:
		p.asked = true
		return nil
	default:
		return p.progress.Commit(it.End, it.CommitTime)
	}
}

// takeAsk reports whether somebody asked for a published snapshot since the last
// call.
func (p *pipeline) takeAsk() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked
	p.asked = false
	return asked
}

// publish hands one event over. While its route is held (the topic is missing,
// forbidden or too narrow) it tries again with a growing wait: nothing behind
// the event may pass it.
func (p *pipeline) publish(ctx context.Context, ev publisher.Event) error {
	err := p.sink.Publish(ctx, ev)
	if err == nil {
		return nil
	}
	var route *publisher.RouteError
	if !errors.As(err, &route) {
		return explain(ev, err)
	}
	p.metrics.holding(true)
	defer p.metrics.holding(false)
	for wait, said := holdMin, ""; ; wait = min(2*wait, holdMax) {
		if err.Error() != said {
			said = err.Error()
			p.log.ErrorContext(ctx, "route held: the event waits, and everything behind it", "error", err, "key", keyOf(ev), "position", ev.Position)
		}
		select {
		case <-time.After(wait):
		case <-p.sink.Failed():
			return p.sink.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
		if err = p.sink.Publish(ctx, ev); err == nil {
			p.log.InfoContext(ctx, "route released", "key", keyOf(ev), "position", ev.Position)
			return nil
		}
		if !errors.As(err, &route) {
			return explain(ev, err)
		}
	}
}

// acknowledged is the sink's callback.
func (p *pipeline) acknowledged(tags []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if defect == defectConfirmEarly {
		p.metrics.published(len(tags), time.Time{})
		return
	}
	for _, tag := range tags {
		if err := p.progress.End(tag); err != nil && p.err == nil {
			p.err = err
		}
	}
	p.metrics.published(len(tags), p.progress.Reached())
}

// status is what the checkpoint and the metrics need to know.
type status struct {
	position pglogrepl.LSN
	oldest   time.Time // commit time of the oldest transaction in flight
	inFlight uint64
	events   uint64 // read since the start
	marked   uint64 // the last marker before which everything has ended

	transactions uint64 // that the position has passed
}

func (p *pipeline) status() (status, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return status{
		position: p.progress.Position(), oldest: p.progress.Oldest(), inFlight: p.progress.InFlight(),
		events: p.progress.Events(), marked: p.progress.Marked(), transactions: p.progress.Transactions(),
	}, p.err
}

// explain adds the event to an error that ends the session.
func explain(ev publisher.Event, err error) error {
	if errors.Is(err, publisher.ErrRecord) {
		return fmt.Errorf("event %s (aggregate %s, commit at %s) cannot be published: %w", keyOf(ev), ev.Row.AggregateType, ev.Position, err)
	}
	return err
}

func keyOf(ev publisher.Event) string { return ev.Row.Namespace + ":" + ev.Row.ID.String() }
