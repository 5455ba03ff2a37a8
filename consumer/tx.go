package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/consumer/internal/aside"
	"github.com/onceward/onceward/consumer/internal/sqlstate"
	"github.com/onceward/onceward/consumer/internal/transaction"
)

// calls are those of handlers, in which users' code runs.
type calls struct {
	*member
	inTx  running     // what handlers with a transaction have in their context
	watch aside.Watch // over those that do not return
}

// apply runs the handler, in its turn if there is one, and judges what it left behind. Only when
// apply returns nil may the transaction be committed.
func (c *calls) apply(ctx context.Context, turn *aside.Turn, handler TxHandler, tx pgx.Tx, ev Event) error {
	guarded := &transaction.Guarded{Tx: tx}
	inside, cancel := context.WithTimeoutCause(context.WithValue(ctx, deliveryKey{}, &c.inTx), c.handlerTimeout,
		ErrHandlerTimeout)
	defer cancel()
	err := c.call(inside, turn, tx, func() error { return handler(inside, guarded, ev) })
	if err == aside.ErrLeft || transaction.Abandoned(tx) { //nolint:errorlint // not what a handler says of itself
		return err
	}
	if err != nil {
		return blame(ctx, tx, timedOut(inside, err))
	}
	// A handler that ignores its context returns nil after its time was over.
	if ctx.Err() != nil {
		return &infrastructureError{&HandlerError{Err: fmt.Errorf("returned after its context had ended: %w", ctx.Err())}}
	}
	if inside.Err() != nil {
		return &HandlerError{Err: fmt.Errorf("returned after its context had ended: %w", context.Cause(inside))}
	}
	if guarded.Misused() {
		return &HandlerError{Err: ErrHandlerTx}
	}
	conn := tx.Conn().PgConn()
	if conn.IsClosed() { // and the handler kept silent of it
		return &infrastructureError{&HandlerError{Err: errBroken}}
	}
	if conn.IsBusy() {
		return &HandlerError{Err: ErrOpenQuery}
	}
	switch conn.TxStatus() {
	case 'E':
		return &HandlerError{Err: ErrSwallowed}
	case 'I':
		return &HandlerError{Err: ErrTxEnded}
	}
	return nil
}

// event runs the handler of an event that has effects outside, and judges by its error and
// by what Fence and Do have left: an error of theirs counts even when the handler hides it,
// for to end the event then would lose the effect. Only they can fail for infrastructure's
// reasons; what the handler does beside them is its own.
func (c *calls) event(ctx context.Context, it *item) error {
	run := &running{member: c.member, event: it.ev, inTx: it.handler.again}
	inside, cancel := context.WithTimeoutCause(context.WithValue(ctx, deliveryKey{}, run), c.handlerTimeout,
		ErrHandlerTimeout)
	defer cancel()
	began := time.Now()
	err := c.call(inside, nil, nil, func() error {
		c.handling.Store(it.ev.Key, run)
		defer c.handling.CompareAndDelete(it.ev.Key, run)
		return it.handler.fn(inside, it.ev)
	})
	c.tell(it.ev.Type, began)
	effects, failed := run.effects.End()
	if errors.Is(err, ErrNothingToDo) {
		effects, err = 1, nil
	}
	switch {
	case errors.Is(failed, ErrInProgress):
		return ErrInProgress
	case ctx.Err() != nil:
		return &infrastructureError{fmt.Errorf("its context ended: %w", errors.Join(ctx.Err(), err))}
	case failed != nil && errors.Is(context.Cause(inside), ErrHandlerTimeout): // whatever it broke in the effect
		return &HandlerError{Err: timedOut(inside, cmp.Or(err, failed))}
	case failed != nil && IsInfrastructure(failed):
		return &infrastructureError{errors.Join(err, failed)}
	case err != nil:
		return &HandlerError{Err: timedOut(inside, err)}
	case failed != nil:
		return &HandlerError{Err: failed}
	case effects == 0 && !it.handler.again:
		return &HandlerError{Err: ErrNoEffect}
	case inside.Err() != nil:
		return &HandlerError{Err: fmt.Errorf("returned after its context had ended: %w", context.Cause(inside))}
	}
	return nil
}

// timedOut says so of an error that came after the handler's time was over.
func timedOut(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), ErrHandlerTimeout) {
		return fmt.Errorf("%w: %w", ErrHandlerTimeout, err)
	}
	return err
}

// call calls a handler, in a turn of its own if it has none.
func (c *calls) call(inside context.Context, turn *aside.Turn, tx pgx.Tx, handler func() error) error {
	work := func(turn *aside.Turn) error {
		return turn.Call(inside, func() error { return recovered(handler) })
	}
	if turn != nil {
		return work(turn)
	}
	return c.bounded(inside, tx, work)
}

// bounded has work call handlers, and waits for it. With one that does not return, work and its
// transaction are left behind: the connection is cut, so that what either does with it fails.
func (c *calls) bounded(ctx context.Context, tx pgx.Tx, work func(*aside.Turn) error) error {
	late, err := c.watch.Run(ctx, c.handlerTimeout, work)
	if late && tx != nil {
		transaction.Abandon(tx)
		return &HandlerError{Err: err}
	}
	return err
}

// tell says how long a handler took.
func (c *calls) tell(eventType string, began time.Time) {
	if c.handled != nil {
		c.handled(c.group, eventType, time.Since(began))
	}
}

// blame says whose failure an error of a handler is: infrastructure's only when
// it is the delivery's own transaction that broke, and not by what the handler's
// statements did.
func blame(ctx context.Context, tx pgx.Tx, err error) error {
	failed := &HandlerError{Err: err}
	conn, over := tx.Conn(), errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, ErrHandlerTimeout)
	code, coded := sqlstate.Of(err)
	switch {
	case ctx.Err() != nil:
		return &infrastructureError{failed}
	case conn.IsClosed() && (coded && sqlstate.Handlers(code) || over):
		return failed // it waited too long, or its own deadline made pgx close the connection
	case conn.IsClosed(), conn.PgConn().TxStatus() == 'E' && coded && !sqlstate.Handlers(code):
		switch {
		case sqlstate.Conflict(code):
			failed.Err = fmt.Errorf("%w: %w", errConflict, err)
		case code != "57P02": // the crash of another session
			failed.Err = fmt.Errorf("%w: %w", errBroken, err)
		}
		return &infrastructureError{failed}
	}
	return failed
}

// recovered turns a panic of what users write into an error with its stack. That
// includes an error that cannot be read, such as a nil pointer of an error's type:
// it would take the process down later, and the next one with it.
func recovered(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	if err = call(); err != nil {
		_ = err.Error()
		_, _ = mark(err)
		_, _ = sqlstate.Of(err)
		_ = errors.Is(err, errAlone)
	}
	return err
}

// commit commits and tells the three kinds of failure apart: the server said
// no, the server was not asked, nobody knows. pgconn.SafeToRetry does not tell: pgx
// 5.12 says so of a connection that ended while the answer was waited for.
func commit(ctx context.Context, tx pgx.Tx) error {
	asked := ctx.Err() == nil && !tx.Conn().IsClosed()
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback), errors.As(err, &pg) && (!sqlstate.Infrastructure(pg.Code) || pg.Code == "25P03"):
		// A deferred constraint, what a handler hid from apply, or a pause of it that
		// was longer than the session may be idle.
		return &HandlerError{Err: fmt.Errorf("commit: %w", err)}
	case pg != nil && sqlstate.Conflict(pg.Code):
		return &infrastructureError{fmt.Errorf("commit: %w: %w", errConflict, err)}
	case !asked:
		return &infrastructureError{fmt.Errorf("commit: %w", err)}
	}
	return &infrastructureError{fmt.Errorf("%w: %w", ErrCommitUnknown, err)}
}

// judge marks an error of a statement of ours as one of infrastructure when the
// delivery's context has ended or the connection is gone, whatever the error itself says,
// or it says that a plan is stale or a statement was canceled, and names an installation
// that is not complete. What was judged before stays.
func judge(ctx context.Context, tx pgx.Tx, err error) error {
	if marked, _ := mark(err); err == nil || marked || transaction.Ended(tx) {
		return err
	}
	code, _ := sqlstate.Of(err)
	switch {
	case ctx.Err() != nil || tx.Conn().IsClosed(), code == "0A000", code == "26000", code == "57014":
		return &infrastructureError{err}
	case sqlstate.Installation(code):
		return unusable(err)
	}
	return err
}

// unusable judges the failure of a statement of ours outside the transaction of a
// delivery: an installation that is not complete is named, all else is infrastructure's.
func unusable(err error) error {
	if code, _ := sqlstate.Of(err); sqlstate.Installation(code) {
		return fmt.Errorf("%w: %w", ErrInstallation, err)
	}
	return &infrastructureError{err}
}
