package transaction

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Exec runs a statement; the first one with BEGIN.
func (t *ownTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	results, err := t.first(ctx, sql, args)
	switch {
	case err != nil:
		return pgconn.CommandTag{}, err
	case results == nil:
		return t.Tx.Exec(ctx, sql, args...)
	}
	tag, err := results.Exec()
	return tag, cmp.Or(err, results.Close())
}

// Query asks for rows; the first statement goes with BEGIN.
func (t *ownTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	results, err := t.first(ctx, sql, args)
	switch {
	case err != nil:
		return nil, err
	case results == nil:
		return t.Tx.Query(ctx, sql, args...)
	}
	rows, err := results.Query()
	if err != nil {
		return nil, cmp.Or(results.Close(), err)
	}
	return &firstRows{Rows: rows, results: results}, nil
}

// QueryRow asks for a row; the first statement goes with BEGIN.
func (t *ownTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	results, err := t.first(ctx, sql, args)
	if err == nil && results == nil {
		return t.Tx.QueryRow(ctx, sql, args...)
	}
	return firstRow{results, err}
}

// firstRow is the row of a first statement, or why there is none.
type firstRow struct {
	results pgx.BatchResults
	err     error
}

// Scan implements pgx.Row.
func (r firstRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	err := r.results.QueryRow().Scan(dest...)
	return cmp.Or(err, r.results.Close())
}

// firstRows are those of a first statement. The connection is free behind the last one.
type firstRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error // of the batch
}

// Next implements pgx.Rows.
func (r *firstRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.Close()
	}
	return more
}

// Close implements pgx.Rows.
func (r *firstRows) Close() {
	r.Rows.Close()
	r.err = r.results.Close()
}

// Err implements pgx.Rows.
func (r *firstRows) Err() error { return cmp.Or(r.Rows.Err(), r.err) }

// first begins the transaction, unless it has begun, and sends its first statement. Without
// results that is left to the caller.
func (t *ownTx) first(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	if t.Tx != nil {
		return nil, nil //nolint:nilnil // the caller sends it
	}
	if !described(t.Conn(), sql, args) {
		return nil, t.begin(ctx)
	}
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	batch.Queue(t.bounds)
	batch.Queue(sql, args...)
	results := t.Conn().SendBatch(ctx, batch)
	t.Tx = results.Tx()
	for range 2 {
		if _, err := results.Exec(); err != nil {
			_ = results.Close()
			return nil, fmt.Errorf("begin transaction: %w", err)
		}
	}
	return results, nil
}

// begin begins the transaction, unless it has begun.
func (t *ownTx) begin(ctx context.Context) error {
	if t.Tx != nil {
		return nil
	}
	tx, err := t.Conn().BeginTx(ctx, pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED\n;" + t.bounds})
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	t.Tx = tx
	return nil
}

// statements is where a connection has those that pgx has described over it.
const statements = "onceward statements"

// described reports whether pgx has described a statement over a connection, and notes that
// it is about to. It does that before it sends a batch, so that BEGIN and the bounds would come
// after it has waited for the statement's tables: a first statement that is new to the
// connection, or that pgx describes each time, has BEGIN before it, in a round trip of its own.
func described(conn *pgx.Conn, sql string, args []any) bool {
	if len(args) > 0 {
		if _, option := args[0].(pgx.QueryExecMode); option { // no batch takes it
			return false
		}
	}
	if conn.Config().DefaultQueryExecMode == pgx.QueryExecModeDescribeExec {
		return false
	}
	data := conn.PgConn().CustomData()
	known, _ := data[statements].(map[string]bool)
	if known == nil {
		known = make(map[string]bool)
		data[statements] = known
	}
	was := known[sql]
	known[sql] = true
	return was
}

// Forget says that statements may have failed over a connection: pgx describes those again.
// Rollback says it, too.
func Forget(conn *pgx.Conn) { delete(conn.PgConn().CustomData(), statements) }
