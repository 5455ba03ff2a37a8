package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
)

// Receipt is what [Do] and [Fence] return: the outcome, and the result of the
// one time the effect was made.
type Receipt[R any] struct {
	// Outcome is Processed when this call made the effect, Duplicate when an
	// earlier one did. With [ErrNotApplied] it says why nothing was done; with
	// another error it says nothing.
	Outcome Outcome
	// Result is what was returned the first time; a duplicate gets it from the
	// database. It is stored as JSON, so R must survive that.
	Result R
	// AppliedAt is when the effect was made; zero when this call made it.
	AppliedAt time.Time
	// Late: the event's time lies below the floor of its class, and the group
	// sees it for the first time; with the outcome Replay the class refuses it.
	Late bool
	// Unprotected: a replay from below the floor that its class applies all the
	// same; its effect may have been made before.
	Unprotected bool
}

// ErrNotApplied is matched, through [errors.Is], by every [NotAppliedError].
var ErrNotApplied = errors.New("the event was not applied")

// NotAppliedError says that nothing was done for an event, now or before: do not
// answer as if it were. No later delivery changes that, but for FromFuture, whose time comes.
type NotAppliedError struct {
	// Outcome is DeadLettered for an event that was given up before, Replay for
	// one below the floor of its class, FromFuture for one whose time has not come.
	Outcome Outcome
	// Late: see [Receipt].
	Late bool
}

// Error implements error.
func (e *NotAppliedError) Error() string {
	if e.Outcome == DeadLettered {
		return "the event was not applied: it was given up before; redrive its dead letter"
	}
	if e.Outcome == FromFuture {
		return "the event was not applied: its time has not come by the database's clock; look at the sender's clock"
	}
	return "the event was not applied: its time lies below the floor of its class, where it may have been applied before"
}

// Is reports whether target is [ErrNotApplied].
func (e *NotAppliedError) Is(target error) bool { return target == ErrNotApplied }

// notApplied is the error of a claim that lets nothing be done, nil of others.
func notApplied(c Claim) error {
	if c.Mismatch != nil {
		return c.Mismatch
	}
	if c.Outcome == DeadLettered || c.Outcome == Replay || c.Outcome == FromFuture {
		return &NotAppliedError{Outcome: c.Outcome, Late: c.Late}
	}
	return nil
}

// Do applies an event once and remembers the result: claim, fn, its result and
// the commit are one transaction. For a duplicate fn is not called, and the
// first result is returned again. It is for receivers that answer, such as an
// HTTP handler; a consumer of a topic uses [Router.Tx].
//
// Within a handler of [Router.Func] or [Handle] it is an effect of the event,
// named "do": see [DoNamed].
//
// fn keeps the rules of a [TxHandler], and sets a role that it has changed back: its result is
// written behind it. The error matches [ErrInProgress] while another delivery holds the claim,
// [ErrNotApplied] when the event lies outside its window or was given up, and is a [*MismatchError]
// when the key is taken by an event with other content; otherwise as [Router.Handle].
func Do[R any](ctx context.Context, p *Processor, ev Event,
	fn func(ctx context.Context, tx pgx.Tx) (R, error)) (Receipt[R], error) {
	return DoNamed(ctx, p, ev, "do", fn)
}

// DoNamed is [Do] for an event with several effects: within a handler of
// [Router.Func] or [Handle] it makes the effect of this name once, in a
// transaction of its own, with a row of onceward.fences as [Fence] has. Outside
// of one the effect is the event, and the name means nothing.
func DoNamed[R any](ctx context.Context, p *Processor, ev Event, name string,
	fn func(ctx context.Context, tx pgx.Tx) (R, error)) (Receipt[R], error) {
	run, err := p.within(ctx, ev, name)
	var receipt Receipt[R]
	if err == nil {
		e := effect[R]{processor: p, item: p.effectOf(ev, run), run: run, name: name, fn: fn}
		receipt, err = e.do(ctx)
		err = run.finish(name, err)
	}
	if err != nil {
		return Receipt[R]{Outcome: receipt.Outcome, Late: receipt.Late}, fmt.Errorf("do %s %s: %w", ev.Type, ev.Key, err)
	}
	if run == nil {
		p.marks.applied(ctx, &ev)
	}
	return receipt, nil
}

// CountFailure counts the failure of an event from no topic, with the error that [Do] has
// returned for it outside of any delivery, as that of a [Router]'s event is counted. When
// it was the last that Config.Retry lets the event have, this is given up: it becomes a
// dead letter, and the outcome is DeadLettered; or Duplicate, where another delivery has
// applied it meanwhile. Otherwise the error is returned as it was given, as is one that is no
// failure of the handler; the event may come again.
//
// The place of the letter is from:NAMESPACE/0@NUMBER, with a number out of the key, and of a
// class that is keyed by content out of its claim. It has
// the event as a relay would have published it, whose redrive is [Router.Redrive]'s, with
// the handler of the event's type.
func CountFailure(ctx context.Context, p *Processor, ev Event, cause error) (Outcome, error) {
	if !isHandlers(cause) || ctx.Err() != nil || ev.Source.Topic != "" {
		return 0, cause
	}
	it, s := p.newItem(ev), NewRouter(p).steps
	it.handler = &handler{}
	if err := s.count(ctx, it, cause); err != nil {
		return 0, fmt.Errorf("count the failure of %s %s: %w", ev.Type, ev.Key, errors.Join(cause, err))
	}
	if outcome := it.delivery.Outcome; it.delivery.Err == nil && outcome != DeadLettered && outcome != Duplicate {
		return outcome, cause // neither there nor kept: a floor has passed it meanwhile
	}
	return it.delivery.Outcome, it.delivery.Err
}

// effect is one call of Do.
type effect[R any] struct {
	processor *Processor
	item      *item
	run       *running // nil: the effect is the event
	name      string
	fn        func(ctx context.Context, tx pgx.Tx) (R, error)
}

func (e *effect[R]) do(ctx context.Context) (r Receipt[R], err error) {
	p, it := e.processor, e.item
	if err := errors.Join(it.ev.validate(), it.ev.writable()); err != nil {
		return r, err
	}
	tx, err := p.windows.begin(ctx)
	if err != nil {
		return r, err
	}
	defer transaction.Rollback(ctx, tx)
	defer func() { err = judge(ctx, tx, err) }()
	if f := (fences{claimant{p, statement.On(tx)}}); e.run == nil {
		err = f.claimOne(ctx, it)
	} else {
		err = f.makeEffect(ctx, it, e.run, e.name)
	}
	if err != nil {
		return r, err
	}
	r = Receipt[R]{Outcome: it.claim.Outcome, AppliedAt: it.claim.AppliedAt, Late: it.claim.Late,
		Unprotected: it.claim.Unprotected}
	if !it.fresh() {
		return r, errors.Join(notApplied(it.claim), consumerdb.Decode(it.claim.Result, &r.Result), commit(ctx, tx))
	}
	handler := func(ctx context.Context, tx pgx.Tx, _ Event) (err error) {
		if r.Result, err = e.fn(ctx, tx); err != nil {
			return err
		}
		result, err := json.Marshal(r.Result)
		switch {
		case err != nil:
			return fmt.Errorf("encode the result for duplicates: %w", err)
		case e.run == nil:
			return claimant{p, statement.On(tx)}.complete(ctx, it.ev, result, it.claim.ids)
		}
		return statement.On(tx).ResultOfEffect(ctx,
			consumerdb.ResultOfEffectParams{Result: string(result), EventID: it.ev.Key.UUID(), ConsumerGroup: p.group,
				Name: e.name})
	}
	if err := p.calls.apply(ctx, nil, handler, tx, it.event()); err != nil {
		return r, err
	}
	return r, commit(ctx, tx)
}
