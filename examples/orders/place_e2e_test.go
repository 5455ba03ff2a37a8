//go:build e2e

package orders_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/examples/orders"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// A call that is tried again with its key, because the answer of the first try was
// lost, or beside the first one, changes nothing: the statements that are no upserts
// are made once.
func TestPlaceTwice(t *testing.T) {
	db := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: db, Side: migrations.Outbox})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), orders.Schema)
	require.NoError(t, err)

	key, err := outbox.NewKey(orders.Namespace)
	require.NoError(t, err)
	order := orders.Order{ID: "o-1", Customer: "ada", Cents: 1000}
	errs := make(chan error)
	for range 4 {
		go func() { errs <- orders.Place(t.Context(), db, key, order) }()
	}
	for range 4 {
		require.NoError(t, <-errs)
	}
	require.NoError(t, orders.Place(t.Context(), db, key, order))
	for sql, want := range map[string]int{
		"SELECT count(*) FROM orders":                                   1,
		"SELECT cents FROM customers WHERE id = 'ada'":                  1000,
		"SELECT count(*) FROM onceward.outbox WHERE namespace = 'shop'": 1,
	} {
		var got int
		require.NoError(t, db.QueryRow(t.Context(), sql).Scan(&got))
		require.Equal(t, want, got, sql)
	}

	order.Cents = 2000
	require.ErrorIs(t, orders.Place(t.Context(), db, key, order), outbox.ErrKeyReused)
}
