package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Defaults and bounds of [BatchOptions].
const (
	DefaultBatchMax    = 100
	DefaultBatchLinger = 20 * time.Millisecond
	maxBatch           = 10_000
)

// ErrHeldBack: an earlier event of the same aggregate was not finished, so that
// this one was not tried.
var ErrHeldBack = errors.New("held back behind an earlier event of its aggregate")

// BatchOptions say how many events share a transaction. The zero value means
// the defaults.
type BatchOptions struct {
	// Max is the most events in one transaction. Default [DefaultBatchMax], at
	// most 10,000.
	Max int
	// Linger is how long a batch that is not full waits for more. Default
	// [DefaultBatchLinger].
	Linger time.Duration
}

// SetHandler applies the effects of several events with one transaction, in
// which they are claimed already; as a [TxHandler] otherwise. The events are in
// the order of their partition. When it fails it is called again with one event
// at a time, so that the one at fault is found.
type SetHandler func(ctx context.Context, tx pgx.Tx, evs []Event) error

// batchHandler is one of the two kinds.
type batchHandler struct {
	options BatchOptions
	each    TxHandler
	set     SetHandler
}

// single handles one event.
func (h *batchHandler) single(ctx context.Context, tx pgx.Tx, ev Event) error {
	if h.set != nil {
		return h.set(ctx, tx, []Event{ev})
	}
	return h.each(ctx, tx, ev)
}

// Batch registers the handler of an event type whose events share transactions:
// up to Max claims, handlers and one commit. An event still has its effect once,
// and one that fails takes no other with it; see [Router.HandleBatch].
// Registration as in [Router.Tx].
func (r *Router) Batch(eventType string, options BatchOptions, handler TxHandler) {
	if handler == nil {
		r.fail(eventType, "the handler is nil")
		return
	}
	r.batch(eventType, &batchHandler{options: options, each: handler})
}

// BatchSet is [Router.Batch] with a handler that takes all events of the type
// that follow one another in the batch at once.
func (r *Router) BatchSet(eventType string, options BatchOptions, handler SetHandler) {
	if handler == nil {
		r.fail(eventType, "the handler is nil")
		return
	}
	r.batch(eventType, &batchHandler{options: options, set: handler})
}

func (r *Router) batch(eventType string, h *batchHandler) {
	if h.options.Max == 0 {
		h.options.Max = DefaultBatchMax
	}
	if h.options.Linger == 0 {
		h.options.Linger = DefaultBatchLinger
	}
	if h.options.Max < 0 || h.options.Max > maxBatch || h.options.Linger < 0 {
		r.fail(eventType, fmt.Sprintf("BatchOptions{Max: %d, Linger: %s}: want 1 to %d and 0 or more", h.options.Max, h.options.Linger, maxBatch))
		return
	}
	if r.free(eventType) && r.classed(eventType) {
		r.batches[eventType] = h
	}
}

// Delivery is what became of one event of a batch.
type Delivery struct {
	Outcome Outcome // means nothing with an error
	Err     error
}

// Finished reports whether the message may be acknowledged.
func (d Delivery) Finished() bool { return d.Err == nil && d.Outcome.Acknowledges() }

// HandleBatch delivers events, in their order, whose types were registered with
// [Router.Batch] or [Router.BatchSet], and returns what became of each. They
// share a transaction: claims, handlers, commit. When a handler fails all is
// rolled back, and the events are tried again in small transactions with a
// savepoint around each:
//
//   - one that fails has its attempt counted and its claim taken back, and
//     later events of its aggregate are [ErrHeldBack]; other aggregates go on;
//   - one that cannot share a transaction (no partition for its time, a claim
//     held elsewhere) is delivered alone, as are its neighbours;
//   - one that has used up its attempts, or is marked by [DeadLetter], becomes a
//     dead letter in the transaction of its neighbours.
//
// A failure of the connection or of the server fails all events that were not
// committed by then; deliver them again. Of two events with one key in the batch
// the second is a Duplicate, or a mismatch.
func (r *Router) HandleBatch(ctx context.Context, evs []Event) []Delivery {
	deliveries := make([]Delivery, len(evs))
	b := &batch{router: r, items: make([]*item, 0, len(evs))}
	for i := range evs {
		it := &item{ev: evs[i], delivery: &deliveries[i]}
		if it.err = r.prepare(it); it.err != nil {
			it.delivery.Err = it.err
			continue
		}
		b.items = append(b.items, it)
	}
	b.run(ctx)
	for i := range deliveries {
		if d := &deliveries[i]; d.Err != nil {
			d.Err = fmt.Errorf("handle %s %s: %w", evs[i].Type, evs[i].Key, d.Err)
		}
	}
	return deliveries
}

// prepare finds the handler of an event.
func (r *Router) prepare(it *item) error {
	if err := it.ev.validate(); err != nil {
		return err
	}
	if r.err != nil {
		return r.err
	}
	if it.handler = r.batches[it.ev.Type]; it.handler == nil {
		return fmt.Errorf("%w %q of group %q that takes batches; register one with Router.Batch", ErrNoHandler, it.ev.Type, r.Group())
	}
	it.id, it.fingerprint = r.processor.claimID(it.ev), FingerprintOf(it.ev)
	return nil
}

// run delivers the items.
func (b *batch) run(ctx context.Context) {
	if len(b.items) == 0 {
		return
	}
	err := b.optimistic(ctx, b.items)
	var handler *HandlerError
	switch {
	case err == nil:
	case errors.Is(err, errAlone):
		b.alone(ctx, b.items)
	case errors.As(err, &handler) && !IsInfrastructure(err):
		b.isolate(ctx)
	default:
		fail(b.items, err)
	}
}

// isolate delivers the items in small transactions, each as far as it gets.
func (b *batch) isolate(ctx context.Context) {
	held := make(map[string]bool)
	rest := b.items
	for len(rest) > 0 {
		rest = slices.DeleteFunc(rest, func(it *item) bool {
			if it.delivery.Err == nil && held[string(it.ev.AggregateID)] {
				it.delivery.Err = ErrHeldBack
			}
			return it.delivery.Err != nil
		})
		chunk := rest[:min(len(rest), maxSavepoints)]
		if len(chunk) == 0 {
			return
		}
		finished, err := b.isolating(ctx, chunk)
		if errors.Is(err, errAlone) {
			b.alone(ctx, chunk)
			finished, err = len(chunk), nil
			for _, it := range chunk {
				held[string(it.ev.AggregateID)] = held[string(it.ev.AggregateID)] || !it.delivery.Finished()
			}
		}
		if err != nil {
			fail(rest[finished:], err)
			return
		}
		if finished < len(chunk) && chunk[finished].delivery.Err != nil {
			held[string(chunk[finished].ev.AggregateID)] = true
		}
		rest = rest[finished:]
	}
}

// alone delivers the items one by one, each in a transaction of its own.
func (b *batch) alone(ctx context.Context, items []*item) {
	held := make(map[string]bool)
	for _, it := range items {
		if held[string(it.ev.AggregateID)] {
			it.delivery.Err = ErrHeldBack
			continue
		}
		it.delivery.Outcome, it.delivery.Err = b.router.handle(ctx, it.ev)
		held[string(it.ev.AggregateID)] = !it.delivery.Finished()
	}
}

// fail gives the error to all items that have none.
func fail(items []*item, err error) {
	for _, it := range items {
		if it.delivery.Err == nil && it.delivery.Outcome == 0 {
			it.delivery.Err = err
		}
	}
}
