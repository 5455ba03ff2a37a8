package statement

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// planned runs statements that the server does not keep prepared.
type planned struct{ tx pgx.Tx }

func unprepared(args []any) []any { return append([]any{pgx.QueryExecModeCacheDescribe}, args...) }

// Exec implements consumerdb.DBTX.
func (p planned) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.tx.Exec(ctx, sql, unprepared(args)...)
}

// Query implements consumerdb.DBTX.
func (p planned) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.tx.Query(ctx, sql, unprepared(args)...)
}

// QueryRow implements consumerdb.DBTX.
func (p planned) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.tx.QueryRow(ctx, sql, unprepared(args)...)
}
