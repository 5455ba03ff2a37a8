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
)

// rollbackTimeout bounds a rollback after a failure, which must not depend on
// the delivery's own context. When it passes, the connection is closed.
const rollbackTimeout = 5 * time.Second

// begin opens a transaction that is bounded as Config says, in one round trip.
func (p *Processor) begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := p.db.BeginTx(ctx, pgx.TxOptions{BeginQuery: "BEGIN;\n" + p.settings})
	if err != nil {
		return nil, &infrastructureError{fmt.Errorf("begin transaction: %w", err)}
	}
	return tx, nil
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
	inside := context.WithValue(ctx, deliveryKey{}, &running{processor: p, inTx: true})
	if err := recovered(func() error { return handler(inside, guarded, ev) }); err != nil {
		return &HandlerError{Err: err}
	}
	// A handler that ignores its context returns nil after its time was over.
	if err := ctx.Err(); err != nil {
		return &HandlerError{Err: fmt.Errorf("returned after its context had ended: %w", err)}
	}
	if guarded.misused.Load() {
		return &HandlerError{Err: ErrHandlerTx}
	}
	conn := tx.Conn().PgConn()
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

// recovered turns a panic of what users write into an error with its stack.
func recovered(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return call()
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
