package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/transaction"
)

// HandleRecord reads the event of a Kafka record, from any client, and handles
// it. A record that breaks the wire contract is kept as a dead letter with the
// reason "malformed" and is [DeadLettered]: no later delivery could mend it.
// Record.Source must be set. Otherwise as [Router.Handle].
func (r *Router) HandleRecord(ctx context.Context, rec Record) (Outcome, error) {
	if rec.Source.Topic == "" {
		return 0, fmt.Errorf("%w: Record.Source.Topic is empty", ErrEvent)
	}
	ev, err := r.processor.parse(rec)
	if err != nil {
		d := r.quarantine(ctx, letter{record: rec, reason: reasonMalformed, cause: err})
		return d.Outcome, d.Err
	}
	return r.Handle(ctx, ev)
}

// Handle delivers one event: it claims the event, runs the handler of its type
// and commits, in one transaction; that of [Router.Func] runs before the claim.
// It blocks until that is done, and waits for another delivery of the same key up
// to Config.LockTimeout.
//
// Acknowledge the message if and only if the error is nil and
// [Outcome.Acknowledges]. With an error nothing of this delivery is in the
// database, except after [ErrCommitUnknown] and [ErrTxEnded], where it may be, and
// the effects of a Func handler that are complete; deliver again, unless
// [Permanent].
//
// A handler that fails again and again makes a dead letter of the event, as
// Config.Retry says. So does a mismatch, and an event outside the window of its
// [Class] unless that applies it; these are [DeadLettered]. For an event without
// Source there is no place for a letter: the outcome is [Mismatch] together with
// a [*MismatchError], [Replay] or [FromFuture], and the caller decides. A replay
// in the mode [record.ReplayReprocess] that is for another group and lies below the
// floor is a Replay without a letter.
func (r *Router) Handle(ctx context.Context, ev Event) (Outcome, error) {
	d := r.handle(ctx, ev)
	if d.Err != nil {
		return d.Outcome, fmt.Errorf("handle %s %s: %w", ev.Type, ev.Key, d.Err)
	}
	if d.Outcome == Processed || d.Outcome == Duplicate {
		r.processor.marks.applied(ctx, &ev)
	}
	return d.Outcome, nil
}

func (r *Router) handle(ctx context.Context, ev Event) Delivery {
	if err := ev.validate(); err != nil {
		return Delivery{Err: err}
	}
	h, err := r.route(ev.Type)
	switch {
	case errors.Is(err, ErrNoHandler) && r.unknown == UnknownDeadLetter && ev.Source.Topic != "":
		return r.unhandled(ctx, ev, err)
	case err != nil:
		return Delivery{Err: err}
	case h.ignored:
		return Delivery{Outcome: Ignored}
	}
	it := r.processor.newItem(ev)
	it.handler = h
	r.deliver(ctx, []*item{it})
	return it.delivery
}

// unhandled gives up an event without a handler, so that no program that has one
// applies it beside its letter. One of no class cannot be claimed.
func (r *Router) unhandled(ctx context.Context, ev Event, cause error) Delivery {
	if r.processor.windows.index(ev.Type) < 0 {
		return r.quarantine(ctx, letter{record: ev.record(), event: ev, reason: reasonNoHandler, cause: cause})
	}
	it := r.processor.newItem(ev)
	it.handler = &handler{}
	_, err := r.inTx(ctx, []*item{it}, func(tx pgx.Tx) (int, error) {
		return 1, r.giveUp(ctx, tx, it, givenUp(it, reasonNoHandler, cause, 0))
	})
	return it.after(err)
}

// HandleBatch delivers events, in their order, whose types were registered with
// [Router.Batch] or [Router.BatchSet], and returns what became of each. They
// share a transaction: claims, handlers, commit. When a handler fails all is
// rolled back, and the events are tried again in small transactions with a
// savepoint around each:
//
//   - one that fails has its attempt counted and its claim taken back, and
//     later events of its aggregate are [ErrHeldBack]; other aggregates go on;
//   - one that cannot share a transaction (no partition for its time, a claim
//     held elsewhere, [ErrClock], a deferred constraint that fails at the commit) is
//     delivered alone, as are its neighbours;
//   - one that has used up its attempts, or is marked by [DeadLetter], becomes a
//     dead letter in the transaction of its neighbours.
//
// A failure of the connection or of the server fails all events that were not
// committed by then; deliver them again. Of two events with one key in the batch
// the second is a Duplicate, or a mismatch.
func (r *Router) HandleBatch(ctx context.Context, evs []Event) []Delivery {
	all, good := make([]*item, len(evs)), make([]*item, 0, len(evs))
	for i := range evs {
		all[i] = &item{ev: evs[i]}
		if err := evs[i].validate(); err != nil {
			all[i].delivery.Err = err
			continue
		}
		h, err := r.route(evs[i].Type)
		if err == nil && h.batch == nil {
			err = fmt.Errorf("%w %q of group %q that takes batches; register one with Router.Batch", ErrNoHandler, evs[i].Type, r.Group())
		}
		if err != nil {
			all[i].delivery.Err = err
			continue
		}
		all[i] = r.processor.newItem(evs[i])
		all[i].handler = h
		good = append(good, all[i])
	}
	r.deliver(ctx, good)
	deliveries := make([]Delivery, len(evs))
	for i, it := range all {
		if deliveries[i] = it.delivery; it.delivery.Err != nil {
			deliveries[i].Err = fmt.Errorf("handle %s %s: %w", it.ev.Type, it.ev.Key, it.delivery.Err)
		}
	}
	return deliveries
}

// deliver delivers the items, each as far as it gets, and leaves in each what
// became of it. Several share transactions; one of a Func handler comes alone.
func (r *Router) deliver(ctx context.Context, items []*item) {
	switch {
	case len(items) == 0:
		return
	case !r.processor.breaks.owedBy(items):
	case len(items) > 1:
		r.alone(ctx, items)
		return
	case r.pay(ctx, items[0]):
		return
	}
	if items[0].handler.fn != nil {
		r.outside(ctx, items[0])
		return
	}
	err := r.together(ctx, items)
	switch {
	case err == nil:
	case len(items) > 1 && (cannotShare(err) || r.processor.breaks.again(ctx, items, err)):
		r.alone(ctx, items)
	case len(items) == 1:
		r.failed(ctx, items[0], err)
	case isHandlers(err):
		r.isolate(ctx, items)
	default:
		fail(items, err)
	}
}

// isHandlers reports whether an error is a failure of the handler alone.
func isHandlers(err error) bool {
	var handler *HandlerError
	return errors.As(err, &handler) && !IsInfrastructure(err)
}

// inTx runs one transaction over the items, and makes their endings count when it
// was committed. work says how many of them are finished.
func (r *Router) inTx(ctx context.Context, items []*item, work func(tx pgx.Tx) (int, error)) (finished int, err error) {
	return r.inTxOf(ctx, r.processor.bounds.All, items, work)
}

// claiming is inTx for work that begins with the claim of its items, which bounds the
// transaction, unless something is locked before.
func (r *Router) claiming(ctx context.Context, items []*item, work func(tx pgx.Tx) (int, error)) (finished int, err error) {
	if items[0].redrive != nil || r.processor.retry.OnLetter == LetterPark {
		return r.inTx(ctx, items, work)
	}
	return r.inTxOf(ctx, r.processor.bounds.Session, items, work)
}

func (r *Router) inTxOf(ctx context.Context, bounds string, items []*item, work func(tx pgx.Tx) (int, error)) (finished int, err error) {
	for _, it := range items {
		it.reset()
	}
	tx, err := r.steps.begin(ctx, bounds)
	if err != nil {
		return 0, err
	}
	defer transaction.Rollback(ctx, tx)
	defer func() { err = judge(ctx, tx, err) }()
	if items[0].redrive != nil {
		if err := r.processor.letters.lock(ctx, tx, items[0].redrive); err != nil {
			return 0, err
		}
	}
	if finished, err = work(tx); err != nil {
		return 0, err
	}
	if err := r.write(ctx, tx, items[:finished]); err != nil {
		return 0, err
	}
	if err := r.steps.commit(ctx, tx); err != nil {
		return 0, err
	}
	for _, it := range items[:finished] {
		it.delivery = Delivery{Outcome: it.end.outcome, Err: it.end.err}
		switch l := it.end.letter; {
		case l != nil:
			r.processor.letters.announce(ctx, *l)
		case it.end.outcome == Processed:
			r.processor.letters.brake.Applied()
		}
		if it.delivery.Finished() {
			r.processor.breaks.Finish(it.id)
		}
	}
	return finished, nil
}

// together is the transaction without savepoints: all or nothing.
func (r *Router) together(ctx context.Context, items []*item) error {
	_, err := r.claiming(ctx, items, func(tx pgx.Tx) (int, error) {
		if err := r.steps.claim(ctx, tx, items); err != nil {
			return 0, err
		}
		for first := 0; first < len(items); {
			next := runOf(items, first)
			if err := r.one(ctx, tx, items[first:next]); err != nil {
				return 0, err
			}
			if err := r.holdBackBehind(ctx, tx, items[first], items[next:]); err != nil {
				return 0, err
			}
			first = next
		}
		return len(items), nil
	})
	return err
}

// runOf returns the end of the run of fresh items that one call handles: more
// than one only for a set handler.
func runOf(items []*item, first int) int {
	next := first + 1
	for items[first].fresh() && items[first].handler.set != nil && next < len(items) && items[next].fresh() && items[next].handler == items[first].handler {
		next++
	}
	return next
}

// one applies the items of a run, or refuses the one that is not fresh.
func (r *Router) one(ctx context.Context, tx pgx.Tx, run []*item) (err error) {
	if !run[0].fresh() {
		run[0].end, err = r.refuse(run[0])
		return err
	}
	handler := run[0].handler.single
	if run[0].handler.set != nil {
		evs := make([]Event, len(run))
		for i, it := range run {
			evs[i] = it.event()
		}
		handler = func(ctx context.Context, tx pgx.Tx, _ Event) error { return run[0].handler.set(ctx, tx, evs) }
	}
	began := time.Now()
	err = r.steps.apply(ctx, handler, tx, run[0].event())
	r.processor.calls.tell(run[0].ev.Type, began)
	if err != nil {
		for _, it := range run {
			it.broke = errors.Is(err, errBroken)
		}
		return err
	}
	for _, it := range run {
		it.end = ending{outcome: Processed}
	}
	return nil
}

// fail gives the error to all items that have none and are not finished.
func fail(items []*item, err error) {
	for _, it := range items {
		if it.delivery.Err == nil && it.delivery.Outcome == 0 {
			it.delivery.Err = err
		}
	}
}

// Peek is what can be told of a record before it is handled.
type Peek struct {
	// EventTime is the time by which the event counts towards stream time: that
	// inside its key, or of now when its class is keyed by arrival; zero for a
	// malformed record and for a time that has not come yet.
	EventTime time.Time
	// Batch is not nil when the record's event shares a transaction with others,
	// see [Router.HandleRecords].
	Batch *BatchOptions
}

// Peek looks at a record. It asks nobody.
func (r *Router) Peek(rec Record) Peek {
	ev, err := r.processor.parse(rec)
	if err != nil {
		return Peek{}
	}
	p := Peek{EventTime: r.processor.windows.timeOf(&ev)}
	r.processor.marks.reads.Raise(rec.Source.Topic, rec.Source.Partition, p.EventTime)
	if h := r.find(ev.Type); h != nil {
		p.Batch = h.batch
	}
	return p
}

// HandleRecords delivers the events of several records of one partition, in
// their order, as [Router.HandleBatch] does; each must be one whose [Peek] has a
// Batch.
func (r *Router) HandleRecords(ctx context.Context, recs []Record) []Delivery {
	evs := make([]Event, len(recs))
	for i, rec := range recs {
		// One that cannot be read is refused by HandleBatch for want of a key.
		evs[i], _ = r.processor.parse(rec)
	}
	return r.HandleBatch(ctx, evs)
}
