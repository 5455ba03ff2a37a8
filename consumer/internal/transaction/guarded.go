package transaction

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// ErrEnded: the handler called Commit or Rollback of its transaction.
var ErrEnded = errors.New("the handler may not end its transaction; return nil to commit and an error to roll back")

// Guarded is the transaction as a handler sees it. Begin gives a savepoint,
// as always in pgx, which the handler may end as it likes; the transaction
// itself ends after the handler has returned.
type Guarded struct {
	pgx.Tx
	misused atomic.Bool
}

// Commit refuses. The refusal is remembered, because a handler that ignores it
// may have meant what follows to be outside the transaction.
func (t *Guarded) Commit(context.Context) error {
	t.misused.Store(true)
	return ErrEnded
}

// Rollback refuses. The refusal is remembered: a handler that calls it and
// returns nil does not want its effect, and must not have it committed.
func (t *Guarded) Rollback(context.Context) error {
	t.misused.Store(true)
	return ErrEnded
}

// Misused reports whether the handler has called one of them.
func (t *Guarded) Misused() bool { return t.misused.Load() }
