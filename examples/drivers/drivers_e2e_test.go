//go:build e2e

package drivers

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	entdialect "entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/outboxtest"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// environment is one database with everybody's way into it.
type environment struct {
	pool *pgxpool.Pool
	std  *sql.DB // pgx stdlib
	pq   *sql.DB // lib/pq
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	pool := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `CREATE TABLE payments (invoice text PRIMARY KEY, key text UNIQUE)`)
	require.NoError(t, err)
	w := &environment{pool: pool, std: stdlib.OpenDBFromPool(pool)}
	c := pool.Config().ConnConfig
	w.pq, err = sql.Open("postgres", fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=disable", c.Host, c.Port, c.User, c.Password, c.Database))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, w.std.Close())
		require.NoError(t, w.pq.Close())
	})
	return w
}

func openGorm(t *testing.T, db *sql.DB, prepare bool) *gorm.DB {
	t.Helper()
	g, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: db}), &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard})
	require.NoError(t, err)
	return g
}

// pays are all ways to do the same.
func (w *environment) pays(t *testing.T) map[string]func(context.Context, payment) error {
	t.Helper()
	plain, prepared := openGorm(t, w.std, false), openGorm(t, w.std, true)
	pays := map[string]func(context.Context, payment) error{
		"pgx":                func(ctx context.Context, p payment) error { return payPgx(ctx, w.pool, p) },
		"pgx, many":          func(ctx context.Context, p payment) error { return payAllPgx(ctx, w.pool, []payment{p}) },
		"pgx, batch":         func(ctx context.Context, p payment) error { return payPgxBatch(ctx, w.pool, p) },
		"sqlc":               func(ctx context.Context, p payment) error { return paySqlc(ctx, w.pool, p) },
		"gorm":               func(ctx context.Context, p payment) error { return payGorm(ctx, plain, p) },
		"gorm, prepared":     func(ctx context.Context, p payment) error { return payGorm(ctx, prepared, p) },
		"database/sql: pgx":  func(ctx context.Context, p payment) error { return paySQL(ctx, w.std, p) },
		"database/sql: pq":   func(ctx context.Context, p payment) error { return paySQL(ctx, w.pq, p) },
		"sqlx on pgx stdlib": func(ctx context.Context, p payment) error { return paySqlx(ctx, sqlx.NewDb(w.std, "pgx"), p) },
		"sqlx on lib/pq":     func(ctx context.Context, p payment) error { return paySqlx(ctx, sqlx.NewDb(w.pq, "postgres"), p) },
	}
	for name, db := range map[string]*sql.DB{"pgx stdlib": w.std, "lib/pq": w.pq} {
		pays["bun on "+name] = func(ctx context.Context, p payment) error {
			return payBun(ctx, bun.NewDB(db, pgdialect.New()), p)
		}
		pays["ent on "+name] = func(ctx context.Context, p payment) error {
			return payEnt(ctx, entsql.OpenDB(entdialect.Postgres, db), p)
		}
	}
	return pays
}

func newPayment(t *testing.T, invoice string) payment {
	t.Helper()
	key, err := outbox.NewKey("billing")
	require.NoError(t, err)
	return payment{Key: key, Invoice: invoice}
}

func TestEveryDriver(t *testing.T) {
	w := newEnvironment(t)
	for name, pay := range w.pays(t) {
		t.Run(name, func(t *testing.T) {
			_, err := w.pool.Exec(t.Context(), `TRUNCATE payments, onceward.outbox`)
			require.NoError(t, err)
			first := newPayment(t, "inv-7")
			require.NoError(t, pay(t.Context(), first))
			require.NoError(t, pay(t.Context(), first), "the same request again")
			outboxtest.RequireEnqueued(t, outboxtest.AllEvents(t, w.pool), paid(first))

			// The business row is refused after the event was written: both go.
			require.Error(t, pay(t.Context(), newPayment(t, "inv-7")), "paid already, by another request")
			outboxtest.RequireEnqueued(t, outboxtest.AllEvents(t, w.pool), paid(first))

			reused := newPayment(t, "inv-8")
			reused.Key = first.Key
			require.ErrorIs(t, pay(t.Context(), reused), outbox.ErrKeyReused)

			old := newPayment(t, "inv-9")
			old.Key, err = outbox.ExternalKey("billing", "evt_1", time.Now().AddDate(-1, 0, 0))
			require.NoError(t, err)
			require.ErrorIs(t, pay(t.Context(), old), outbox.ErrOutOfWindow)

			var payments int
			require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT count(*) FROM payments`).Scan(&payments))
			require.Equal(t, 1, payments)
			outboxtest.RequireEnqueued(t, outboxtest.AllEvents(t, w.pool), paid(first))
		})
	}
}

// What is no transaction is refused, whoever hands it out.
func TestNoDriverEnqueuesOutsideATransaction(t *testing.T) {
	w := newEnvironment(t)
	ev := paid(newPayment(t, "inv-7"))
	_, err := New(w.pool).Enqueue(t.Context(), ev)
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	for name, tx := range map[string]outbox.SQLTx{
		"database/sql":   w.pq,
		"sqlx":           sqlx.NewDb(w.pq, "postgres"),
		"gorm":           openGorm(t, w.std, false).Statement.ConnPool,
		"gorm, prepared": openGorm(t, w.std, true).Statement.ConnPool,
		"bun":            bun.NewDB(w.pq, pgdialect.New()),
		"ent":            entsql.OpenDB(entdialect.Postgres, w.pq),
	} {
		_, err := outbox.EnqueueSQL(t.Context(), tx, ev)
		require.ErrorIs(t, err, outbox.ErrNoTransaction, name)
	}
	err = bun.NewDB(w.std, pgdialect.New()).RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := outbox.EnqueueSQL(ctx, tx, ev)
		return err
	})
	require.ErrorContains(t, err, "give EnqueueSQL the *sql.Tx inside of it")
	require.Empty(t, outboxtest.AllEvents(t, w.pool))
}

// A CHECK of the user's own has SQLSTATE 23514 like a missing partition has, and is
// not taken for one, with either driver.
func TestAForeignCheckIsNotTheWindow(t *testing.T) {
	w := newEnvironment(t)
	_, err := w.pool.Exec(t.Context(), `ALTER TABLE onceward.outbox ADD CONSTRAINT no_seven CHECK (aggregate_id <> 'inv-7')`)
	require.NoError(t, err)
	for name, db := range map[string]*sql.DB{"pgx stdlib": w.std, "lib/pq": w.pq} {
		err := paySQL(t.Context(), db, newPayment(t, "inv-7"))
		require.ErrorContains(t, err, "no_seven", name)
		require.NotErrorIs(t, err, outbox.ErrOutOfWindow, name)
	}
}
