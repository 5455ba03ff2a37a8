//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// TestIdempotentEffects: the statements of docs/idempotent-effects.md, as the page has
// them, twice, in any order and by two at once, are as once; the plain sum beside them is not.
func TestIdempotentEffects(t *testing.T) {
	server := postgres(t, "15")
	admin := connectTo(t, server.DSN("postgres"))
	_, err := admin.Exec(t.Context(), "CREATE DATABASE idempotent_effects")
	require.NoError(t, err)
	db, err := pgxpool.New(t.Context(), server.DSN("idempotent_effects"))
	require.NoError(t, err)
	t.Cleanup(func() {
		db.Close()
		_, err := admin.Exec(context.Background(), "DROP DATABASE idempotent_effects WITH (FORCE)")
		require.NoError(t, err)
	})
	exec := func(sql string, args ...any) int64 {
		tag, err := db.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
		return tag.RowsAffected()
	}
	value := func(sql string) (v string) {
		require.NoError(t, db.QueryRow(t.Context(), sql).Scan(&v))
		return v
	}
	exec(`CREATE TABLE balances (account text PRIMARY KEY, balance int NOT NULL, version int NOT NULL);
		CREATE TABLE entries (event text PRIMARY KEY, account text NOT NULL, amount int NOT NULL);
		CREATE TABLE accounts (id text PRIMARY KEY, balance int NOT NULL);
		CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL);
		INSERT INTO accounts VALUES ('a', 0), ('plain', 0); INSERT INTO orders VALUES ('o-1', 'placed')`)

	// What is, not what to add.
	sql := documented(t, "absolute")
	for i, order := range [][]int{{1, 2, 3}, {3, 2, 1}, {2, 3, 1}, {1, 3, 2}, {1, 1, 2, 2, 3, 3, 1, 2, 3}} {
		for _, version := range order {
			exec(sql, fmt.Sprint(i), 10*version, version)
		}
		require.Equal(t, "30", value(fmt.Sprintf("SELECT balance::text FROM balances WHERE account = '%d'", i)))
	}
	exec("DELETE FROM balances WHERE account = '0'")
	exec(sql, "0", 10, 1)
	require.Equal(t, "10", value("SELECT balance::text FROM balances WHERE account = '0'"), "a copy makes what was deleted again, as the page says")

	// One row for each event, and the sum beside it.
	for range 2 {
		exec(documented(t, "entry"), "e-0", "b", 5)
		exec("UPDATE accounts SET balance = balance + 5 WHERE id = 'plain'")
	}
	require.Equal(t, "5", value("SELECT sum(amount)::text FROM entries"))
	require.Equal(t, "10", value("SELECT balance::text FROM accounts WHERE id = 'plain'"))
	sum := documented(t, "sum")
	var both sync.WaitGroup
	for event := range 20 {
		for range 2 {
			both.Go(func() {
				_, err := db.Exec(t.Context(), sum, fmt.Sprint("e-", 1+event), "a", 5)
				require.NoError(t, err)
			})
		}
	}
	both.Wait()
	require.Equal(t, "100", value("SELECT balance::text FROM accounts WHERE id = 'a'"))

	// From one state to the next.
	require.EqualValues(t, 1, exec(documented(t, "state"), "o-1"))
	require.Zero(t, exec(documented(t, "state"), "o-1"))

	// The key of the next event, derived from this one's.
	m, err := migrations.New(migrations.Config{Pool: db, Side: migrations.Outbox})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	for _, want := range []outbox.Result{outbox.Enqueued, outbox.Duplicate} {
		next, err := outbox.ExternalKey("packing", key.String(), key.Time())
		require.NoError(t, err)
		require.NoError(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			got, err := outbox.Enqueue(t.Context(), tx, outbox.Event{Key: next, AggregateType: "parcel", AggregateID: "o-1", Type: "Packed", Payload: []byte(`{}`)})
			require.Equal(t, want, got)
			return err
		}))
	}
}
