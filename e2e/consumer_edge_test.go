//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// TestClaimsAcrossAMonth: events to the millisecond before, on and after the edge
// of days and months are claimed once, each in the partition of its day; and when
// the floor has come to lie on a month's edge, nothing is applied again, with a claim or
// without; and of two that come for the first time the one before the edge is late.
func TestClaimsAcrossAMonth(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		t.Parallel()
		now := time.Now().UTC()
		month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		var times []time.Time
		for _, edge := range []time.Time{month.AddDate(0, -1, 0), month.AddDate(0, 0, -1), month} {
			for _, off := range []time.Duration{-12 * time.Hour, -time.Millisecond, 0, time.Millisecond} {
				times = append(times, edge.Add(off))
			}
		}
		g := newConsumerGroup(t, version, 1)
		g.window, g.healthy = max(time.Hour, now.Sub(month).Truncate(time.Millisecond)), true // now minus the window is the edge
		g.since(month.AddDate(0, -1, -1))
		i := 0
		g.times = func() time.Time {
			i++
			return times[i%len(times)]
		}
		const each = 20
		for range 2 {
			g.produce(each * len(times) / 2)
		}
		g.gather()
		g.harm(2 * time.Second)
		g.settle()
		g.rewind()
		g.start(2, 0)
		g.finish()
		require.Empty(t, g.claimViolations())
		g.inTheirPartitions()

		// Stream time goes on to now, and the floor with it to the month's edge.
		g.times = nil
		g.produce(200)
		g.finish()
		g.maintain()
		require.Equal(t, month, g.floor())
		require.Equal(t, month, g.oldestClaims())
		g.stop()
		g.rewind()
		g.start(1, 0)
		g.finish()
		// A finished fence outlives the claim: its event is known as a duplicate still.
		below := scalar[int](g.w, `SELECT count(*) FROM effects e WHERE split_part(key, ':', 2)::uuid < $1
			AND NOT EXISTS (SELECT FROM onceward.fences f WHERE f.event_id = split_part(e.key, ':', 2)::uuid)`, outbox.FirstID(month))
		require.Empty(t, g.reported(month), "what lies below is known to be finished by its offset")
		require.Equal(t, g.events, scalar[int](g.w, `SELECT count(*) FROM effects`))

		// Of two that come for the first time, the one before the edge is late.
		g.types, g.times = []string{"Tx"}, func() time.Time { return month }
		g.produce(1)
		g.times = func() time.Time { return month.Add(-time.Millisecond) }
		g.produce(1)
		g.finish()
		g.stop()
		require.Equal(t, g.events, scalar[int](g.w, `SELECT count(*) FROM effects`))
		require.Equal(t, month.Add(-time.Millisecond), outbox.IDTime(scalar[uuid.UUID](g.w, `SELECT split_part(key, ':', 2)::uuid FROM effects WHERE late`)).UTC())
		t.Logf("PostgreSQL %s: %d events about 3 edges of days and months, each once through %d kill -9; floor %s: %d below have no claim, and are not applied again", version, g.events, g.kills, month.Format(time.DateOnly), below)
	})
}

// reported counts the events before a time that have a letter, by reason; no
// other event may have one.
func (g *consumerGroup) reported(before time.Time) map[string]int {
	g.t.Helper()
	require.Zero(g.t, scalar[int](g.w, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE event_id >= $1`, outbox.FirstID(before)))
	rows, err := g.w.pool.Query(g.t.Context(), `SELECT reason, count(DISTINCT event_id)::int FROM onceward.consumer_dead_letters GROUP BY 1`)
	return g.byReason(rows, err)
}

// inTheirPartitions demands that each claim is in the partition of its day.
func (g *consumerGroup) inTheirPartitions() {
	g.t.Helper()
	rows, err := g.w.pool.Query(g.t.Context(), `SELECT tableoid::regclass::text, event_id FROM onceward.processed_events`)
	require.NoError(g.t, err)
	var table string
	var id uuid.UUID
	days := map[string]int{}
	_, err = pgx.ForEachRow(rows, []any{&table, &id}, func() error {
		require.Equal(g.t, "onceward."+partition.OfDay("processed_events", outbox.IDTime(id)).Name, table)
		days[table]++
		return nil
	})
	require.NoError(g.t, err)
	require.GreaterOrEqual(g.t, len(days), 5)
}

// TestEventsFromTheFuture: a producer's clock goes ahead by a month, and back.
// Its events of that time are reported and not applied, no floor follows them, and
// nothing that comes after is judged by them.
func TestEventsFromTheFuture(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		t.Parallel()
		const future, each = 30, 200
		g := newConsumerGroup(t, version, 1)
		g.window, g.healthy, g.types = day, true, []string{"Tx", "Batch", "Set"}
		g.since(time.Now().Add(-3 * day))
		g.start(2, 0)
		g.produce(each)
		ahead := time.Now().AddDate(0, 1, 0)
		g.times = func() time.Time { return ahead }
		g.produce(future)
		g.dead += future
		g.times = nil
		g.produce(each)
		workedOff(t, "records are not finished", g.lag)
		g.maintain()
		require.False(t, g.floor().After(partition.Day(time.Now().Add(-g.window))), "floor %s", g.floor())
		require.False(t, scalar[time.Time](g.w, `SELECT max(finished_time) FROM onceward.progress`).After(time.Now().Add(time.Minute)))
		g.produce(each)
		workedOff(t, "records are not finished", g.lag)

		// An operator may ask for them too soon.
		g.redrive("from-future")
		eventually(t, "they are open again", time.Minute, func() bool {
			return scalar[int](g.w, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'open' AND error LIKE '%has still not come%'`) ==
				scalar[int](g.w, `SELECT count(*) FROM onceward.consumer_dead_letters`)
		})
		g.stop()
		letters := scalar[int](g.w, `SELECT count(DISTINCT event_id) FROM onceward.consumer_dead_letters WHERE reason = 'from-future'`)
		require.Equal(t, future, letters)
		require.Equal(t, map[string]int{"from-future": scalar[int](g.w, `SELECT count(*) FROM onceward.consumer_dead_letters`)}, g.letters())
		require.Equal(t, 3*each, scalar[int](g.w, `SELECT count(*) FROM effects`))
		require.Zero(t, scalar[int](g.w, `SELECT count(*) FROM effects WHERE late`))
		t.Logf("PostgreSQL %s: %d events of a month ahead among %d: all of them reported, floor %s", version, future, g.events, g.floor().Format(time.DateOnly))
	})
}
