package consumer

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

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
func apply(ctx context.Context, handler TxHandler, tx pgx.Tx, ev Event) error {
	guarded := &handlerTx{Tx: tx}
	if err := recovered(func() error { return handler(ctx, guarded, ev) }); err != nil {
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
