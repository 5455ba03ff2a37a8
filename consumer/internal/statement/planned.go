package statement

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// planned runs statements that the server does not keep prepared.
type planned struct{ tx pgx.Tx }

// unprepared asks for a mode that works also in a pool that keeps no descriptions.
func (p planned) unprepared(args []any) []any {
	mode := pgx.QueryExecModeCacheDescribe
	if p.tx.Conn().Config().DescriptionCacheCapacity <= 0 {
		mode = pgx.QueryExecModeDescribeExec
	}
	return append([]any{mode}, args...)
}

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
