package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer/internal/sqlstate"
	"github.com/onceward/onceward/consumer/internal/statement"
)

// rollbackTimeout bounds a rollback after a failure, which must not depend on
// the delivery's own context. When it passes, the connection is closed.
const rollbackTimeout = 5 * time.Second

// begin opens a transaction that is bounded as Config says, in one round trip.
func (p *Processor) begin(ctx context.Context) (pgx.Tx, error) { return p.beginIn(ctx, p.bounds.all) }

// beginIn is begin for other bounds.
func (p *Processor) beginIn(ctx context.Context, bounds string) (pgx.Tx, error) {
	if p.windows.lost.CompareAndSwap(true, false) {
		if err := p.register(ctx); err != nil {
			p.windows.lost.Store(true)
			return nil, unusable(err)
		}
	}
	conn, err := p.db.Acquire(ctx)
	if err != nil {
		return nil, &infrastructureError{fmt.Errorf("begin transaction: %w", err)}
	}
	if !statement.Described(conn.Conn()) {
		bounds = p.bounds.all
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED;\n" + bounds})
	if err != nil {
		conn.Release()
		return nil, &infrastructureError{fmt.Errorf("begin transaction: %w", err)}
	}
	return &ownTx{Tx: tx, held: &held{conn: conn}}, nil
}

// held is the connection of a delivery's transaction.
type held struct {
	conn      *pgxpool.Conn // nil once it was given back
	abandoned bool
}

// ownTx is a transaction of a delivery, or a savepoint of one. One whose handler
// does not return belongs to that handler, and is not touched any more.
type ownTx struct {
	pgx.Tx
	held  *held
	inner bool // a savepoint
}

// Begin makes a savepoint.
func (t *ownTx) Begin(ctx context.Context) (pgx.Tx, error) {
	savepoint, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &ownTx{Tx: savepoint, held: t.held, inner: true}, nil
}

// Commit ends the transaction, or the savepoint.
func (t *ownTx) Commit(ctx context.Context) error {
	defer t.end()
	return t.Tx.Commit(ctx)
}

// Rollback undoes the transaction, or the savepoint; nothing after its end.
func (t *ownTx) Rollback(ctx context.Context) error {
	if t.held.abandoned {
		return nil
	}
	defer t.end()
	return t.Tx.Rollback(ctx)
}

func (t *ownTx) end() {
	if !t.inner && t.held.conn != nil {
		t.held.conn.Release()
		t.held.conn = nil
	}
}

// abandon leaves the transaction to a handler that does not return, and cuts its
// connection, of which the pool is told to make another one.
func (t *ownTx) abandon() {
	t.held.abandoned = true
	_ = t.Conn().PgConn().Conn().Close()
	t.held.conn.Hijack()
	t.held.conn = nil
}

func isAbandoned(tx pgx.Tx) bool {
	own, ok := tx.(*ownTx)
	return ok && own.held.abandoned
}

// handlerTx is the transaction as a handler sees it. Begin gives a savepoint,
// as always in pgx, which the handler may end as it likes; the transaction
// itself ends after the handler has returned.
type handlerTx struct {
	pgx.Tx
	misused atomic.Bool
}

// Commit refuses. The refusal is remembered, because a handler that ignores it
// may have meant what follows to be outside the transaction.
func (t *handlerTx) Commit(context.Context) error {
	t.misused.Store(true)
	return ErrHandlerTx
}

// Rollback refuses. The refusal is remembered: a handler that calls it and
// returns nil does not want its effect, and must not have it committed.
func (t *handlerTx) Rollback(context.Context) error {
	t.misused.Store(true)
	return ErrHandlerTx
}

// apply runs the handler and judges what it left behind. Only when apply
// returns nil may the transaction be committed.
func (p *Processor) apply(ctx context.Context, handler TxHandler, tx pgx.Tx, ev Event) error {
	guarded := &handlerTx{Tx: tx}
	inside, cancel := context.WithTimeoutCause(context.WithValue(ctx, deliveryKey{}, &running{processor: p, inTx: true}), p.handlerTimeout, ErrHandlerTimeout)
	defer cancel()
	err := p.bounded(inside, tx, func() error { return handler(inside, guarded, ev) })
	if isAbandoned(tx) {
		return &HandlerError{Err: err}
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
	if guarded.misused.Load() {
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

// timedOut says so of an error that came after the handler's time was over.
func timedOut(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), ErrHandlerTimeout) {
		return fmt.Errorf("%w: %w", ErrHandlerTimeout, err)
	}
	return err
}

// handlerGrace is how long a handler may take to return after its context ended.
const handlerGrace = 5 * time.Second

// bounded calls a handler and waits for it, but not much longer than its context.
// One that does not return is left behind with its transaction, whose connection is
// cut: what it does with that fails.
func (p *Processor) bounded(ctx context.Context, tx pgx.Tx, call func() error) error {
	done := apart(call)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(handlerGrace)
	defer grace.Stop()
	select {
	case err := <-done:
		return err
	case <-grace.C:
	}
	if own, ok := tx.(*ownTx); ok {
		own.abandon()
	}
	p.stuckHandlers.Add(1)
	go func() {
		defer p.stuckHandlers.Add(-1)
		<-done //nolint:errcheck // nobody waits for it any more
	}()
	return fmt.Errorf("%w: it does not return %s after its context has ended, and is left behind; look for a call without ctx", context.Cause(ctx), handlerGrace)
}

// tell says how long a handler took.
func (p *Processor) tell(eventType string, began time.Time) {
	if p.handled != nil {
		p.handled(p.group, eventType, time.Since(began))
	}
}

// StuckHandlers counts the handlers of this process that did not return after
// their time was over, and are still running.
func (p *Processor) StuckHandlers() int { return int(p.stuckHandlers.Load()) }

// blame says whose failure an error of a handler is: infrastructure's only when
// it is the delivery's own transaction that broke, and not by what the handler's
// statements did.
func blame(ctx context.Context, tx pgx.Tx, err error) error {
	failed := &HandlerError{Err: err}
	conn, over := tx.Conn(), errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, ErrHandlerTimeout)
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

// apart calls what users write in a goroutine of its own, which it may end; see recovered.
func apart(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("it has ended its goroutine (runtime.Goexit)")
		defer func() { done <- err }()
		err = recovered(call)
	}()
	return done
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
	case sqlstate.Is(err, "40001"), sqlstate.Is(err, "40P01"), !asked:
		return &infrastructureError{fmt.Errorf("commit: %w", err)}
	}
	return &infrastructureError{fmt.Errorf("%w: %w", ErrCommitUnknown, err)}
}

// rollback undoes what was not committed; after a commit it does nothing. Its
// failure closes the connection, which undoes it too.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // ErrTxClosed after a commit
}

// judge marks an error of a statement of ours as one of infrastructure when the
// delivery's context has ended or the connection is gone, whatever the error
// itself says, and names an installation that is not complete. What was judged
// before stays.
func judge(ctx context.Context, tx pgx.Tx, err error) error {
	if marked, _ := mark(err); err == nil || marked || isAbandoned(tx) {
		return err
	}
	code, _ := sqlstate.Of(err)
	switch {
	case ctx.Err() != nil || tx.Conn().IsClosed():
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
