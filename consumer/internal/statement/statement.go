package statement

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// Queries are the statements of a delivery. Those that find rows of
// processed_events by their ids are planned each time: a plan that is kept for
// any ids locks every partition.
type Queries struct {
	*consumerdb.Queries
	ByID *consumerdb.Queries
	tx   pgx.Tx // nil where it is one of database/sql
}

// On returns those of a transaction of pgx.
func On(tx pgx.Tx) Queries {
	q := Queries{Queries: consumerdb.New(tx), tx: tx}
	q.ByID = q.Queries
	if tx.Conn().Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		q.ByID = consumerdb.New(planned{tx})
	}
	return q
}

// Behind runs a statement behind another one that has no parameters, in one round trip:
// what that sets bounds how long this one waits for its tables, which are locked before
// it begins.
func (q Queries) Behind(first string) *consumerdb.Queries {
	if q.tx == nil {
		return q.Queries
	}
	return consumerdb.New(behind{q.tx, first})
}

type behind struct {
	pgx.Tx
	first string
}

// QueryRow implements consumerdb.DBTX.
func (b behind) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	batch := &pgx.Batch{}
	batch.Queue(b.first)
	batch.Queue(sql, args...)
	return behindRow{b.Tx, b.SendBatch(ctx, batch)}
}

// behindRow is the row of the second statement.
type behindRow struct {
	tx      pgx.Tx
	results pgx.BatchResults
}

// Scan implements pgx.Row.
func (r behindRow) Scan(dest ...any) error {
	_, err := r.results.Exec()
	if err == nil {
		err = r.results.QueryRow().Scan(dest...)
	}
	err = cmp.Or(err, r.results.Close())
	conn, known := r.tx.Conn(), err == nil // pgx forgets what has failed
	if data := conn.PgConn().CustomData(); data[claimKnown] != known {
		data[claimKnown] = known && conn.Config().DefaultQueryExecMode != pgx.QueryExecModeDescribeExec
	}
	return err
}

// claimKnown marks a connection over which pgx has described the claim. It does that
// before it sends the two, and waits for the table, so that a transaction over another
// connection, or where pgx describes each time, is bounded from its beginning.
const claimKnown = "onceward claim"

// Described reports whether pgx has described the claim over a connection.
func Described(conn *pgx.Conn) bool { return conn.PgConn().CustomData()[claimKnown] == true }
