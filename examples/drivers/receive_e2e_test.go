//go:build e2e

package drivers

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestEveryDriverReceives: an event is applied once, whichever driver its copies
// meet; below the floor too.
func TestEveryDriverReceives(t *testing.T) {
	w := newEnvironment(t)
	m, err := migrations.New(migrations.Config{Pool: w.pool, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), `CREATE TABLE receipts (key text)`)
	require.NoError(t, err)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: w.pool})
	require.NoError(t, err)
	drivers := map[string]*sql.DB{"pgx stdlib": w.std, "lib/pq": w.pq}
	for name, first := range drivers {
		for other, again := range drivers {
			for _, days := range []int{0, -30} {
				key, err := outbox.ExternalKey("shop", name+other, time.Now().AddDate(0, 0, days))
				require.NoError(t, err)
				ev := consumer.Event{Event: record.Event{Key: key, Type: "Paid"}, Source: consumer.Source{Topic: "shop.payment", Offset: 7}}
				got, err := receiveSQL(t.Context(), first, p, ev)
				require.NoError(t, err)
				require.Equal(t, consumer.Processed, got)
				ev.Source.Offset = 8
				got, err = receiveSQL(t.Context(), again, p, ev)
				require.NoError(t, err)
				require.Equal(t, consumer.Duplicate, got, "%s after %s", other, name)
				if days < 0 { // of such ones the claim may go before the mark has passed their offsets
					var copies int
					require.NoError(t, w.pool.QueryRow(t.Context(), `WITH gone AS (DELETE FROM onceward.ahead RETURNING kafka_offset)
						SELECT count(*) FROM gone WHERE kafka_offset IN (7, 8)`).Scan(&copies))
					require.Equal(t, 2, copies, "the offset of a copy is remembered")
				}
			}
		}
	}
	var receipts int
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT count(*) FROM receipts`).Scan(&receipts))
	require.Equal(t, 2*len(drivers)*len(drivers), receipts)

	_, err = w.pool.Exec(t.Context(), "DROP TABLE onceward."+partition.OfDay("processed_events", time.Now()).Name)
	require.NoError(t, err)
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	_, err = receiveSQL(t.Context(), w.pq, p, consumer.Event{Event: record.Event{Key: key, Type: "Paid"}})
	require.ErrorIs(t, err, consumer.ErrNoPartition)
}
