package outboxtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/internal/statement"
)

// SQL returns the recorder as what [outbox.EnqueueSQL] takes. Both sides hold the
// same events.
func (r *Recorder) SQL() outbox.SQLTx { return sqlRecorder{r} }

type sqlRecorder struct{ r *Recorder }

// ExecContext implements [outbox.SQLTx].
func (s sqlRecorder) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := s.r.Exec(ctx, query, args...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

// QueryContext implements [outbox.SQLTx]. Rows come from database/sql only, so
// there is a database behind them for as long as this call, which knows one
// answer.
func (s sqlRecorder) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if query != statement.Compare {
		return nil, fmt.Errorf("%w: %s", ErrStatement, query)
	}
	var same bool
	if err := s.r.QueryRow(ctx, query, args...).Scan(&same); err != nil {
		return nil, err
	}
	db := sql.OpenDB(answer(same))
	rows, err := db.QueryContext(ctx, query)
	return rows, errors.Join(err, db.Close()) // rows in use stay readable
}

// answer is a database that answers every query with one boolean.
type answer bool

func (a answer) Connect(context.Context) (driver.Conn, error) { return a, nil }
func (a answer) Driver() driver.Driver                        { return nil }
func (a answer) Close() error                                 { return nil }
func (a answer) Prepare(string) (driver.Stmt, error)          { return nil, ErrStatement }
func (a answer) Begin() (driver.Tx, error)                    { return nil, ErrStatement }

func (a answer) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &answerRow{value: bool(a)}, nil
}

type answerRow struct{ value, read bool }

func (r *answerRow) Columns() []string { return []string{"same"} }
func (r *answerRow) Close() error      { return nil }

func (r *answerRow) Next(dest []driver.Value) error {
	if r.read {
		return io.EOF
	}
	dest[0], r.read = r.value, true
	return nil
}
