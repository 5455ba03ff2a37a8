package statement

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// planned runs statements in a mode in which the server does not keep them prepared.
type planned struct {
	tx   pgx.Tx
	mode pgx.QueryExecMode
}

func (p planned) unprepared(args []any) []any { return append([]any{p.mode}, args...) }

// Exec implements consumerdb.DBTX.
func (p planned) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.tx.Exec(ctx, sql, p.unprepared(args)...)
}

// Query implements consumerdb.DBTX.
func (p planned) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.tx.Query(ctx, sql, p.unprepared(args)...)
}

// QueryRow implements consumerdb.DBTX.
func (p planned) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.tx.QueryRow(ctx, sql, p.unprepared(args)...)
}
