package transaction

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// RollbackTimeout bounds a rollback after a failure, which must not depend on
// the delivery's own context. When it passes, the connection is closed.
const RollbackTimeout = 5 * time.Second

// Begin takes a connection for a transaction in READ COMMITTED, which begins with its first
// statement: BEGIN and the [Bounds] go before that, in the same round trip where pgx knows
// the statement over this connection already. One without statements never begins.
func Begin(ctx context.Context, db *pgxpool.Pool, bounds string) (pgx.Tx, error) {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin transaction: %w", err)
	}
	if err := Encoded(conn.Conn()); err != nil {
		_ = conn.Conn().Close(ctx) // the pool makes another one, which is as the database says by then
		conn.Release()
		return nil, fmt.Errorf("begin transaction: %w", err)
	}
	return &ownTx{held: &held{conn: conn}, bounds: bounds}, nil
}

// Encoded refuses a connection over which text becomes another: a database may be given another encoding while the
// program runs.
func Encoded(conn *pgx.Conn) error {
	switch encoding := conn.PgConn().ParameterStatus("client_encoding"); encoding {
	case "UTF8", "UNICODE", "SQL_ASCII", "": // some poolers do not say it
		return nil
	default:
		return fmt.Errorf("the connection has client_encoding = %s, and pgx writes UTF8: text would become another; "+
			"set client_encoding=UTF8 in the DSN, or for the role or the database, and connect anew, as a processor does by itself", encoding)
	}
}

// Rollback undoes what was not committed; after a commit it does nothing. Its
// failure closes the connection, which undoes it too.
func Rollback(ctx context.Context, tx pgx.Tx) {
	if Ended(tx) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// held is the connection of a delivery's transaction.
type held struct {
	conn      *pgxpool.Conn // nil once it was given back
	abandoned bool
}

// ownTx is a transaction of a delivery, or a savepoint of one. One whose handler
// does not return belongs to that handler, and is not touched any more.
type ownTx struct {
	pgx.Tx // nil until its first statement
	held   *held
	bounds string
	inner  bool // a savepoint
}

// Conn returns its connection.
func (t *ownTx) Conn() *pgx.Conn {
	if t.Tx == nil {
		return t.held.conn.Conn()
	}
	return t.Tx.Conn()
}

// Begin makes a savepoint.
func (t *ownTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	savepoint, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &ownTx{Tx: savepoint, held: t.held, inner: true}, nil
}

// Commit ends the transaction, or the savepoint.
func (t *ownTx) Commit(ctx context.Context) error {
	defer t.end()
	if t.Tx == nil {
		return nil
	}
	return t.Tx.Commit(ctx)
}

// Rollback undoes the transaction, or the savepoint; nothing after its end.
func (t *ownTx) Rollback(ctx context.Context) error {
	if t.held.conn == nil {
		return nil
	}
	defer t.end()
	if !t.inner {
		Forget(t.Conn())
	}
	if t.Tx == nil {
		return nil
	}
	return t.Tx.Rollback(ctx)
}

func (t *ownTx) end() {
	if !t.inner && t.held.conn != nil {
		t.held.conn.Release()
		t.held.conn = nil
	}
}

// Abandon leaves the transaction to a handler that does not return, and cuts its
// connection, of which the pool is told to make another one.
func Abandon(tx pgx.Tx) {
	t, ok := tx.(*ownTx)
	if !ok {
		return
	}
	t.held.abandoned = true
	_ = t.Conn().PgConn().Conn().Close()
	t.held.conn.Hijack()
	t.held.conn = nil
}

// Ended reports whether its connection was given back to the pool, or was abandoned: it is
// another's, and may not even be looked at.
func Ended(tx pgx.Tx) bool {
	own, ok := tx.(*ownTx)
	return ok && own.held.conn == nil
}

// Abandoned reports whether a handler has it for ever.
func Abandoned(tx pgx.Tx) bool {
	own, ok := tx.(*ownTx)
	return ok && own.held.abandoned
}
