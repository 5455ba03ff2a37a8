package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// rollbackTimeout bounds a rollback after a failure, which must not depend on
// the delivery's own context. When it passes, the connection is closed.
const rollbackTimeout = 5 * time.Second

// HandleRecord reads the event of a Kafka record, from any client, and handles
// it. A record that breaks the wire contract is kept as a dead letter with the
// reason "malformed" and is [DeadLettered]: no later delivery could mend it.
// Record.Source must be set. Otherwise as [Router.Handle].
func (r *Router) HandleRecord(ctx context.Context, rec Record) (Outcome, error) {
	if rec.Source.Topic == "" {
		return 0, fmt.Errorf("%w: Record.Source.Topic is empty", ErrEvent)
	}
	ev, err := EventFromRecord(rec.Key, rec.Value, rec.Headers)
	if err != nil {
		return r.quarantine(ctx, rec, err)
	}
	ev.Source = rec.Source
	return r.Handle(ctx, ev)
}

// Handle delivers one event: it claims the event, runs the handler of its type
// and commits, in one transaction. It blocks until that is done, and waits for
// another delivery of the same key up to Config.LockTimeout.
//
// Acknowledge the message if and only if the error is nil and
// [Outcome.Acknowledges]. With an error nothing of this delivery is in the
// database, except after [ErrCommitUnknown] and [ErrTxEnded], where it may be;
// deliver again, unless [Permanent].
//
// A handler that fails again and again makes a dead letter of the event, as
// Config.Retry says. So does a mismatch, and an event outside the window of its
// [Class] unless that applies it; these are [DeadLettered]. For an event without
// Source there is no place for a letter: the outcome is [Mismatch] together with
// a [*MismatchError], [Replay] or [FromFuture], and the caller decides. A replay
// in the mode [ReplayReprocess] that is for another group and lies below the
// floor is a Replay without a letter.
func (r *Router) Handle(ctx context.Context, ev Event) (Outcome, error) {
	outcome, err := r.handle(ctx, ev)
	if err != nil {
		return outcome, fmt.Errorf("handle %s %s: %w", ev.Type, ev.Key, err)
	}
	if outcome == Processed || outcome == Duplicate {
		r.processor.applied(ctx, &ev)
	}
	return outcome, nil
}

func (r *Router) handle(ctx context.Context, ev Event) (Outcome, error) {
	if err := ev.validate(); err != nil {
		return 0, err
	}
	if r.err == nil && r.ignored[ev.Type] {
		return Ignored, nil
	}
	if fn := r.funcs[ev.Type]; fn != nil && r.err == nil {
		outcome, err := r.callFunc(ctx, fn, ev)
		if err != nil && outcome == 0 {
			return r.failed(ctx, ev, err)
		}
		return outcome, err
	}
	handler, err := r.route(ev.Type)
	if err != nil {
		return 0, err
	}
	outcome, err := r.deliver(ctx, handler, ev)
	if err != nil && outcome == 0 {
		return r.failed(ctx, ev, err)
	}
	return outcome, err
}

// deliver is one delivery.
func (r *Router) deliver(ctx context.Context, handler TxHandler, ev Event) (Outcome, error) {
	tx, err := r.steps.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer rollback(ctx, tx)
	outcome, err := r.deliverIn(ctx, tx, handler, ev)
	return outcome, judge(ctx, tx, err)
}

// deliverIn is one delivery in its transaction.
func (r *Router) deliverIn(ctx context.Context, tx pgx.Tx, handler TxHandler, ev Event) (Outcome, error) {
	claim, err := r.steps.claim(ctx, tx, ev)
	if err != nil {
		return 0, err
	}
	switch claim.Outcome {
	case Processed:
		ev.Late, ev.Unprotected = claim.Late, claim.Unprotected
		if err := r.steps.apply(ctx, handler, tx, ev); err != nil {
			return 0, err
		}
		if err := r.steps.commit(ctx, tx); err != nil {
			return 0, err
		}
		return Processed, nil
	case Mismatch:
		return r.mismatch(ctx, tx, ev, claim.Mismatch)
	case Replay, FromFuture:
		return r.outside(ctx, tx, ev, claim)
	default:
		return claim.Outcome, nil
	}
}

// begin opens a transaction that is bounded as Config says, in one round trip.
func (p *Processor) begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := p.db.BeginTx(ctx, pgx.TxOptions{BeginQuery: "BEGIN;\n" + p.settings})
	if err != nil {
		return nil, &infrastructureError{fmt.Errorf("begin transaction: %w", err)}
	}
	return tx, nil
}

// commit commits and tells the three kinds of failure apart: the server said
// no, the server was not asked, nobody knows.
func commit(ctx context.Context, tx pgx.Tx) error {
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback), errors.As(err, &pg) && !infrastructureCode(pg.Code):
		// A deferred constraint, or what a handler hid from apply.
		return &HandlerError{Err: fmt.Errorf("commit: %w", err)}
	case hasCode(err, "40001"), hasCode(err, "40P01"), pgconn.SafeToRetry(err):
		return &infrastructureError{fmt.Errorf("commit: %w", err)}
	}
	return &infrastructureError{fmt.Errorf("%w: %w", ErrCommitUnknown, err)}
}

// rollback undoes what was not committed; after a commit it does nothing. Its
// failure closes the connection, which undoes it too.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// judge marks an error as one of infrastructure when the delivery's context
// has ended or the connection is gone, whatever the error itself says. A
// connection that pgx closed because the handler's own deadline passed is the
// handler's failure.
func judge(ctx context.Context, tx pgx.Tx, err error) error {
	if err == nil || IsInfrastructure(err) {
		return err
	}
	own := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if ctx.Err() != nil || tx.Conn().IsClosed() && !own {
		return &infrastructureError{err}
	}
	return err
}
