package consumer

import (
	"context"
	"errors"
	"fmt"
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

// Batch registers the handler of an event type whose events share transactions:
// up to Max claims, handlers and one commit. An event still has its effect once,
// and one that fails takes no other with it; see [Router.HandleBatch]. What a
// handler sets with SET LOCAL, such as a role or a search_path, holds for the events
// behind it in the batch, and for the claims, too: it must not.
// Registration as in [Router.Tx].
func (r *Router) Batch(eventType string, options BatchOptions, h TxHandler) {
	if h == nil {
		r.fail(eventType, "the handler is nil")
		return
	}
	r.batch(eventType, options, &handler{tx: h})
}

// BatchSet is [Router.Batch] with a handler that takes all events of the type
// that follow one another in the batch at once.
func (r *Router) BatchSet(eventType string, options BatchOptions, h SetHandler) {
	if h == nil {
		r.fail(eventType, "the handler is nil")
		return
	}
	r.batch(eventType, options, &handler{set: h})
}

func (r *Router) batch(eventType string, options BatchOptions, h *handler) {
	if options.Max == 0 {
		options.Max = DefaultBatchMax
	}
	if options.Linger == 0 {
		options.Linger = DefaultBatchLinger
	}
	if options.Max < 0 || options.Max > maxBatch || options.Linger < 0 {
		r.fail(eventType, fmt.Sprintf("BatchOptions{Max: %d, Linger: %s}: want 1 to %d and 0 or more", options.Max, options.Linger, maxBatch))
		return
	}
	h.batch = &options
	r.register(eventType, h)
}

// Delivery is what became of one event of a batch.
type Delivery struct {
	Outcome Outcome // means nothing with an error
	Err     error
}

// Finished reports whether the message may be acknowledged.
func (d Delivery) Finished() bool { return d.Err == nil && d.Outcome.Acknowledges() }
