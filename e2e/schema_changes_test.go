//go:build e2e

package e2e

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// harmless are the changes of the outbox that no event may suffer from.
var harmless = []string{
	`ALTER TABLE onceward.outbox ADD COLUMN note text DEFAULT 'a default'`,
	`ALTER TABLE onceward.outbox RENAME COLUMN note TO remark`,
	`ALTER TABLE onceward.outbox ALTER COLUMN remark DROP DEFAULT, ALTER COLUMN remark TYPE integer USING 7`, // a rewrite
	// A needed one moves to the end; its rights go with the old one.
	`ALTER TABLE onceward.outbox DROP COLUMN headers, ADD COLUMN headers jsonb; GRANT INSERT (headers), SELECT (headers) ON onceward.outbox TO ` + appLogin,
	`ALTER TABLE onceward.outbox ALTER COLUMN remark TYPE bytea USING '\x00', ALTER COLUMN remark SET DEFAULT '\x01'`,
	`ALTER TABLE onceward.outbox DROP COLUMN remark`,
}

// TestSchemaChangesMidStream: columns are added, renamed, retyped, moved and
// dropped under the load of writers, first while the relay reads, then while it
// is away and has the old rows still before it. No event is misread.
func TestSchemaChangesMidStream(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		w.install()
		w.createTopic(nil)
		r := startRelay(t, w, "checkpoint_interval: 50ms")
		load := &writers{pool: w.app, seed: 5, count: 4, aggregates: 40, target: 12_000, namespace: w.name}
		written := make(chan error, 1)
		go func() { written <- load.run(t.Context()) }()
		for i, sql := range harmless {
			waitFor(t, load, written, 900*int64(i+1))
			w.alter(sql)
		}
		waitFor(t, load, written, 6000)
		r.kill()
		for i, sql := range harmless {
			waitFor(t, load, written, 6000+600*int64(i+1))
			w.alter(sql)
		}
		r.start()
		require.NoError(t, <-written)
		caughtUp(t, w, r)
		r.stop()
		truth, err := readTruth(t.Context(), w.pool)
		require.NoError(t, err)
		records := w.records()
		found, copies := verify(records, truth, load.ghosts, w.partitions)
		require.Empty(t, summary(found))
		for _, m := range records { // the moved column, which the table has lost for old rows
			require.Equal(t, "übung", headerOf(m, "tenant"))
		}
		t.Logf("PostgreSQL %s: %d changes of the table, %d events, %d records, %d extra copies, none misread", version, 2*len(harmless), len(truth), len(records), copies)
	})
}

// waitFor waits until the writers have committed that much.
func waitFor(t *testing.T, load *writers, ended chan error, events int64) {
	t.Helper()
	eventually(t, "the writers go on", time.Minute, func() bool { return load.committed.Load() >= events || len(ended) > 0 })
	if load.committed.Load() < events {
		require.NoError(t, <-ended)
	}
}

// alter changes a table that others write to, as an operator should: it gives up
// waiting for the lock before the writers behind it deadlock, and tries again.
func (w *environment) alter(sql string) {
	w.t.Helper()
	for range 200 {
		err := pgx.BeginFunc(w.t.Context(), w.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(w.t.Context(), "SET LOCAL lock_timeout = '100ms'; "+sql)
			return err
		})
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "55P03" {
			continue
		}
		require.NoError(w.t, err, sql)
		return
	}
	w.t.Fatalf("no lock for %s", sql)
}

// TestNeededColumnChanged: a row that was written while a needed column has
// another name, or a type with other bytes, stops the relay, which names the
// column; the slot does not pass the row. Once the column is as it was, the row
// arrives by itself, in its place. varchar has the bytes of text, and stops
// nothing.
func TestNeededColumnChanged(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, change, back, insert, says string }{
		{"Renamed", `ALTER TABLE onceward.outbox RENAME COLUMN event_type TO kind`, `ALTER TABLE onceward.outbox RENAME COLUMN kind TO event_type`, "kind", "column event_type (text) is missing"},
		{"Retyped", `ALTER TABLE onceward.outbox ALTER COLUMN aggregate_id TYPE char(8)`, `ALTER TABLE onceward.outbox ALTER COLUMN aggregate_id TYPE text`, "event_type", "column aggregate_id has type oid 1042, want text"},
		{"Varchar", `ALTER TABLE onceward.outbox ALTER COLUMN aggregate_id TYPE varchar(200)`, "", "event_type", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onVersions(t, func(t *testing.T, version string) {
				w := newEnvironment(t, version)
				r := streaming(t, w, "checkpoint_interval: 50ms")
				caughtUp(t, w, r)
				w.alter(tc.change)
				between := `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, ` + tc.insert + `, payload)
					SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '7000800000000000000' || 1)::uuid, $1, 'order', 'b-0', 'OrderChanged', '{"writer":1,"aggregate":"b-0","n":1,"pad":""}'`
				w.execute(between, w.name)
				if tc.says == "" {
					caughtUp(t, w, r)
					r.stop()
					records, _, committed := verifyAll(t, w, nil)
					require.Equal(t, committed, records)
					return
				}
				require.Contains(t, r.wait(30*time.Second), tc.says)
				eventually(t, "the server has ended the last statement of the relay that is gone", 30*time.Second, func() bool {
					return scalar[int](w, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1`, relayLogin) == 0
				})
				before := scalar[string](w, `SELECT confirmed_lsn::text FROM onceward.relay_state`)
				r.start()
				require.Contains(t, r.wait(30*time.Second), tc.says, "it stays found")
				require.Equal(t, before, scalar[string](w, `SELECT confirmed_lsn::text FROM onceward.relay_state`))
				w.alter(tc.back)
				r.start()
				caughtUp(t, w, r)
				r.stop()
				records, _, committed := verifyAll(t, w, nil)
				require.GreaterOrEqual(t, records, committed)
			})
		})
	}
}

// TestNeededColumnAwayForAWhile: as above, but nothing was written meanwhile,
// because no application can: the relay does not even notice.
func TestNeededColumnAwayForAWhile(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		r := streaming(t, w, "checkpoint_interval: 50ms")
		caughtUp(t, w, r)
		w.alter(`ALTER TABLE onceward.outbox RENAME COLUMN event_type TO kind`)
		require.ErrorContains(t, one(t.Context(), w), "event_type")
		w.alter(`ALTER TABLE onceward.outbox RENAME COLUMN kind TO event_type`)
		caughtUp(t, w, r)
		require.Equal(t, 1, sessions(r))
		r.stop()
		records, _, committed := verifyAll(t, w, nil)
		require.Equal(t, committed, records)
	})
}

// TestOnlyInsertsAreEvents: what the owner updates, deletes and truncates is
// nobody's event.
func TestOnlyInsertsAreEvents(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		r := streaming(t, w, "checkpoint_interval: 50ms")
		caughtUp(t, w, r)
		for range 5 {
			writeOne(t, w)
		}
		w.execute(`UPDATE onceward.outbox SET payload = 'updated', event_type = 'Updated'`)
		w.execute(`WITH one AS (SELECT id FROM onceward.outbox LIMIT 1) DELETE FROM onceward.outbox o USING one WHERE o.id = one.id`)
		w.execute(`TRUNCATE onceward.outbox`)
		caughtUp(t, w, r)
		for _, m := range w.records() {
			require.Equal(t, "OrderChanged", headerOf(m, "event-type"))
		}
		require.EqualValues(t, 7, w.ends(), "five, and two of caughtUp")
		require.Equal(t, 1, sessions(r))
		r.stop()
	})
}
