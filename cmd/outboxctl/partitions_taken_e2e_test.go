//go:build e2e

package main

import (
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/partition"
)

// TestADetachedDayIsNamed: a partition that was detached by hand keeps its own day from
// being made, and no other: each program that makes days says so, and what it prints
// mends it and loses nothing.
func TestADetachedDayIsNamed(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	day := func(n int) string {
		return partition.OfDay("outbox", time.Now().AddDate(0, 0, n)).Name
	}
	covered := func(n int) (is bool) {
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT COALESCE((SELECT relispartition FROM pg_class WHERE oid = to_regclass('onceward.' || $1)), false)", day(n)).Scan(&is))
		return is
	}
	enqueue(t, pool, "{}")
	exec(t, pool, "ALTER TABLE onceward.outbox DETACH PARTITION onceward."+day(0))
	taken := `"onceward"."` + day(0) + `" exists and is not attached, so that its day cannot be made`
	exec(t, pool, "DROP TABLE onceward."+day(14))
	code, stdout, _ := call(t, "partitions", "status", "--ahead", "14")
	require.Equal(t, exitWrong, code)
	require.Contains(t, stdout, taken)
	require.Contains(t, stdout, "missing 1 partition: "+day(14))
	code, _, stderr := call(t, "migrate", "up", "--side", "outbox")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, taken)
	require.True(t, covered(14), "the other days are made")
	require.Contains(t, fine(t, "migrate", "up", "--side", "outbox", "--dry-run"), taken)

	// Where a relay would look for a row of it, it is attached again.
	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
		SELECT 's', 'r', 'd', system_identifier::text, 1, '0/1', 'p' FROM pg_control_system()`)
	exec(t, pool, `INSERT INTO onceward.published_snapshots (slot, snapshot, taken_at) VALUES ('s', pg_current_snapshot(), now())`)
	exec(t, pool, `WITH lane AS (INSERT INTO onceward.lanes (slot, namespace, aggregate_type, topic) VALUES ('s', 'n', 't', '') RETURNING id)
		INSERT INTO onceward.waiting (lane, id, tx_id, position, ordinal) SELECT lane.id, o.id, o.tx_id, '0/1', 1 FROM lane, onceward.`+day(0)+` o`)
	_, _, stderr = call(t, "partitions", "maintain", "--ahead", "14")
	cure := regexp.MustCompile(`ALTER TABLE [^;]*;`).FindString(stderr)
	require.Contains(t, cure, `ALTER TABLE "onceward"."outbox" ATTACH PARTITION "onceward"."`+day(0)+`" FOR VALUES FROM ('`)
	exec(t, pool, cure)
	require.True(t, covered(0))
	exec(t, pool, "ALTER TABLE onceward.outbox DETACH PARTITION onceward."+day(0)+"; DELETE FROM onceward.waiting")

	exec(t, pool, "DROP TABLE onceward."+day(13))
	code, stdout, stderr = call(t, "partitions", "maintain", "--ahead", "14")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stdout, "made 1 partition: "+day(13))
	require.True(t, covered(13))
	cures := regexp.MustCompile(`ALTER TABLE [^;]*;`).FindAllString(stderr, -1)
	require.Len(t, cures, 2, stderr)
	var report partitions.Report
	_, stdout, _ = call(t, "partitions", "status", "--ahead", "14", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	require.Equal(t, []string{cures[0], `outboxctl partitions adopt NAME --reason "…"`, cures[1], "outboxctl partitions maintain --config relay.yaml"},
		report.Problems[0].Cures)
	require.Contains(t, cures[0], `ATTACH PARTITION "onceward"."`+day(0)+`"`, "what keeps its events in the account comes first")
	require.Regexp(t, "ATTACH .*`outboxctl partitions adopt NAME .*no command finds its events any more: `ALTER TABLE .* RENAME", stderr)
	exec(t, pool, cures[0]+" ALTER TABLE onceward.outbox DETACH PARTITION onceward."+day(0))
	cure = cures[1]
	require.Equal(t, `ALTER TABLE "onceward"."`+day(0)+`" RENAME TO "`+day(0)+`_detached";`, cure, stderr)
	exec(t, pool, cure)
	require.Contains(t, fine(t, "partitions", "maintain"), "made ")
	require.True(t, covered(0))
	fine(t, "partitions", "status")
	enqueue(t, pool, "{}")
	var rows int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM onceward."+day(0)+"_detached").Scan(&rows))
	require.Equal(t, 1, rows, "nothing is lost")

	// One of a day that is over, too, though that is not made anew once its name is free.
	exec(t, pool, "ALTER TABLE onceward.outbox DETACH PARTITION onceward."+day(-1))
	require.Contains(t, wrong(t, "partitions", "status"), `"onceward"."`+day(-1)+`" exists and is not attached`)
	exec(t, pool, "ALTER TABLE onceward."+day(-1)+" RENAME TO kept")
	fine(t, "partitions", "maintain")
	require.False(t, covered(-1))
	fine(t, "partitions", "status")
}

// TestAnEventOfADetachedDay: a partition that somebody detaches while it is open has events
// that nobody publishes. Who asks for one is told so, and what is printed brings it back.
func TestAnEventOfADetachedDay(t *testing.T) {
	pool, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	key := enqueue(t, pool, "{}")
	leaf := partition.OfDay("outbox", key.Time()).Name
	dropped := newKey(t, "orders").String()
	require.Contains(t, wrong(t, "show", dropped), "it may have been dropped with its day")
	exec(t, pool, "ALTER TABLE onceward.outbox DETACH PARTITION onceward."+leaf)
	require.Contains(t, wrong(t, "show", key.String()), "and its partition "+leaf+" is detached: its rows are not in the outbox")
	life := decode[events.Life](t, wrong(t, "show", key.String(), "-o", "json"))
	var seq int64
	require.NoError(t, pool.QueryRow(t.Context(), regexp.MustCompile(`SELECT [^']*'[^']*'`).FindString(life.Why)).Scan(&seq), life.Why)
	require.Len(t, life.Next, 3)
	require.Equal(t, "outboxctl partitions adopt "+leaf+` --reason "…"`, life.Next[2])

	exec(t, pool, life.Next[1])
	require.Contains(t, fine(t, "show", key.String()), "pending: ")
	reader, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer reader.Rollback(t.Context())
	_, err = reader.Exec(t.Context(), "SELECT FROM onceward.outbox")
	require.NoError(t, err)
	hand, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer hand.Release()
	_, err = hand.Exec(t.Context(), "SET lock_timeout = '100ms'")
	require.NoError(t, err)
	_, err = hand.Exec(t.Context(), "ALTER TABLE onceward.outbox DETACH PARTITION onceward."+leaf+" CONCURRENTLY")
	require.ErrorContains(t, err, "lock timeout")
	require.NoError(t, reader.Rollback(t.Context()))
	life = decode[events.Life](t, wrong(t, "show", key.String(), "-o", "json"))
	require.Contains(t, life.Why, "is being detached")
	_, err = hand.Exec(t.Context(), life.Next[1])
	require.NoError(t, err, life.Next[1])
	fine(t, "show", key.String())
}
