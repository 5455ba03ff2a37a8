package statement

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/consumerdb"
)

// OnSQL returns those of a transaction of database/sql.
func OnSQL(tx *sql.Tx) Queries {
	q := consumerdb.New(sqlTx{tx})
	return Queries{Queries: q, ByID: q}
}

// sqlTx lets the queries of a claim run in a transaction of database/sql.
type sqlTx struct{ tx *sql.Tx }

// textArrays writes lists as PostgreSQL does, which every driver can send.
func textArrays(args []any) []any {
	for i, arg := range args {
		if list, ok := arg.([]string); ok {
			quoted := make([]string, len(list))
			for k, s := range list {
				quoted[k] = `"` + arrayEscape.Replace(s) + `"`
			}
			args[i] = "{" + strings.Join(quoted, ",") + "}"
		}
	}
	return args
}

var arrayEscape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// Exec implements consumerdb.DBTX.
func (t sqlTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	res, err := t.tx.ExecContext(ctx, query, textArrays(args)...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	n, err := res.RowsAffected()
	return pgconn.NewCommandTag(fmt.Sprintf("ROWS %d", n)), err
}

// Query implements consumerdb.DBTX.
func (t sqlTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	rows, err := t.tx.QueryContext(ctx, query, textArrays(args)...) //nolint:rowserrcheck // the caller closes and asks
	return sqlRows{rows: rows}, err
}

// QueryRow implements consumerdb.DBTX.
func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return sqlRow{t.tx.QueryRowContext(ctx, query, textArrays(args)...)}
}

// sqlRow says that there is no row as pgx does.
type sqlRow struct{ row *sql.Row }

func (r sqlRow) Scan(dest ...any) error {
	err := r.row.Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return pgx.ErrNoRows
	}
	return err
}

// sqlRows are rows as the generated code reads them; it asks for nothing of what
// the embedded interface would have to know.
type sqlRows struct {
	pgx.Rows
	rows *sql.Rows
}

func (r sqlRows) Close()                 { _ = r.rows.Close() }
func (r sqlRows) Err() error             { return r.rows.Err() }
func (r sqlRows) Next() bool             { return r.rows.Next() }
func (r sqlRows) Scan(dest ...any) error { return r.rows.Scan(dest...) }
