package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/internal/secret"
)

// Database is the way of everything that an operator asks or orders to PostgreSQL. A pooler may stand in it,
// which refuses startup parameters that it does not know and gives the next
// statement another server connection. So each statement is in a transaction, which
// is pinned: one that is not in a transaction of its command gets one of its own.
type Database struct {
	Pool *pgxpool.Pool
	Name string // as the server calls it
}

// Open opens a pool to a database. The caller closes it.
func Open(ctx context.Context, text string) (*Database, error) {
	cfg, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, Unclear("%v", secret.ParseError("connection string", err))
	}
	cfg.MaxConns = 4
	cfg.ConnConfig.RuntimeParams["application_name"] = "outboxctl"
	pgconf.Text(cfg.ConnConfig.RuntimeParams)
	// A pooler may keep no prepared statement; and without types no list of ids can be sent.
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	db := &Database{Pool: pool}
	// Nothing pins the path here: the query names no type, for one of public could be meant.
	err = pool.QueryRow(ctx, "SELECT pg_catalog.current_database()", pgx.QueryExecModeSimpleProtocol).Scan(&db.Name)
	if err != nil {
		db.Close()
		err = cdc.DSNAt(cdc.ExplainConnect(err, &cfg.ConnConfig.Config), "that outboxctl is given, by --dsn, --dsn-file or OUTBOXCTL_DSN")
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return db, nil
}

// Close closes the connections.
func (d *Database) Close() { d.Pool.Close() }

// Begin begins a pinned transaction.
func (d *Database) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := d.Pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: pgconf.Begin})
	if err != nil {
		return nil, err
	}
	return committing{tx}, nil
}

// BeginTx begins a pinned transaction with options.
func (d *Database) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := d.Pool.BeginTx(ctx, options)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, pgconf.Local); err != nil {
		return nil, errors.Join(fmt.Errorf("pin the transaction: %w", err), tx.Rollback(context.WithoutCancel(ctx)))
	}
	return committing{tx}, nil
}

// commitTimeout is how long an interrupted command waits for a commit that it began.
const commitTimeout = 30 * time.Second

// committing is a transaction whose commit is not begun once its command has been
// interrupted, and not interrupted once it has begun: whoever presses ^C is told what
// was done, and not that nobody knows.
type committing struct{ pgx.Tx }

// Commit implements pgx.Tx.
func (t committing) Commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return errors.Join(err, t.Rollback(context.WithoutCancel(ctx)))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	return t.Tx.Commit(ctx)
}

// Direct lends a connection for work that cannot be in one transaction, such as a
// concurrent detach. Its statements name all that they call with the schema.
func (d *Database) Direct(ctx context.Context, work func(*pgx.Conn) error) error {
	return d.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return work(conn.Conn()) })
}

// Exec executes a statement in a transaction of its own.
func (d *Database) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = pgx.BeginFunc(ctx, d, func(tx pgx.Tx) (err error) {
		tag, err = tx.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

// Query queries in a transaction of its own, which ends with the rows: what it
// changed counts when Err of the rows is nil.
func (d *Database) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx, err := d.Begin(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, sql, args...)
	end := ending(ctx, tx)
	if err != nil {
		return nil, end(err)
	}
	return &pinnedRows{Rows: rows, end: end}, nil
}

// QueryRow is [database.Query] for one row.
func (d *Database) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := d.Query(ctx, sql, args...)
	return pinnedRow{rows, err}
}

// SendBatch sends a batch in a transaction of its own, which ends with it.
func (d *Database) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	tx, err := d.Begin(ctx)
	if err != nil {
		return failedBatch{err}
	}
	return &pinnedBatch{BatchResults: tx.SendBatch(ctx, batch), end: ending(ctx, tx)}
}

// ending commits a transaction, or undoes it after an error.
func ending(ctx context.Context, tx pgx.Tx) func(error) error {
	return func(err error) error {
		if err == nil {
			return tx.Commit(ctx)
		}
		return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
}

// pinnedRows end their transaction when they are closed, as they close themselves
// after the last.
type pinnedRows struct {
	pgx.Rows
	end   func(error) error
	ended bool
	err   error
}

// Next implements pgx.Rows.
func (r *pinnedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close implements pgx.Rows.
func (r *pinnedRows) Close() {
	r.Rows.Close()
	if !r.ended {
		r.ended, r.err = true, r.end(r.Rows.Err())
	}
}

// Err implements pgx.Rows.
func (r *pinnedRows) Err() error {
	if r.ended {
		return r.err
	}
	return r.Rows.Err()
}

// pinnedRow is the first of the rows.
type pinnedRow struct {
	rows pgx.Rows
	err  error
}

// Scan implements pgx.Row.
func (r pinnedRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// pinnedBatch ends its transaction when it is closed.
type pinnedBatch struct {
	pgx.BatchResults
	end func(error) error
}

// Close implements pgx.BatchResults.
func (b *pinnedBatch) Close() error { return b.end(b.BatchResults.Close()) }

// failedBatch is a batch that could not be sent.
type failedBatch struct{ err error }

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b failedBatch) Query() (pgx.Rows, error)         { return nil, b.err }
func (b failedBatch) QueryRow() pgx.Row                { return pinnedRow{err: b.err} }
func (b failedBatch) Close() error                     { return b.err }
func (b failedBatch) Tx() pgx.Tx                       { return nil }
