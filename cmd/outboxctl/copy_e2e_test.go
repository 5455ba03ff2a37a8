//go:build e2e

package main

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/status"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/partition"
)

// ranWith writes what a relay that runs, and one that has not begun, leave in a database.
const ranWith = `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication, kafka_cluster)
	SELECT 'onceward_' || current_database(), 'shop', 'd', system_identifier::text, 1, '0/1', 'p', 'before' FROM pg_control_system();
	INSERT INTO onceward.published_snapshots (slot, snapshot, taken_at) SELECT slot, '1:1:', now() FROM onceward.relay_state;
	INSERT INTO onceward.relay_health (slot, process, relay, state, since, code, detail, waits)
	SELECT slot, 'h/1/' || slot, 'shop', 'streaming', now(), '', '', '[]' FROM onceward.relay_state;
	INSERT INTO onceward.relay_health (slot, process, relay, state, since, code, detail, waits)
	SELECT slot || '_2', 'h/2/' || slot, 'second', 'halted', now(), 'OUTBOX_NOT_EMPTY', 'x', '[{"for": "halted", "since": "2026-01-02T03:04:05Z", "detail": "x"}]' FROM onceward.relay_state`

// copyOf makes a copy of a database on its server, and returns a pool over it.
func copyOf(t *testing.T, original *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	conf := original.Config().ConnConfig.Copy()
	name, of := conf.Database+"_copy", conf.Database
	conf.Database = "postgres"
	admin, err := pgx.ConnectConfig(t.Context(), conf)
	require.NoError(t, err)
	original.Reset() // nobody may be connected to what is copied
	_, err = admin.Exec(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+of)
	require.NoError(t, err)
	config := original.Config()
	config.ConnConfig.Database = name
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		pool.Close()
		_, err := admin.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
		require.NoError(t, admin.Close(context.Background()))
	})
	return pool
}

// runsOn is what the relay of a database has there while it runs: its slot, from which it
// streams, and a session of each process.
func runsOn(t *testing.T, original *pgxpool.Pool, slot string) {
	t.Helper()
	exec(t, original, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
	conf := original.Config().ConnConfig.Config.Copy()
	conf.RuntimeParams["replication"], conf.RuntimeParams["application_name"] = "database", "onceward relay "+slot
	streams, err := pgconn.ConnectConfig(t.Context(), conf)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := original.Exec(context.Background(), "SELECT pg_terminate_backend(active_pid, 60000) FROM pg_replication_slots WHERE slot_name = $1", slot)
		require.NoError(t, err)
		_, err = original.Exec(context.Background(), "SELECT pg_drop_replication_slot($1)", slot)
		require.NoError(t, err)
		_ = streams.Close(context.Background())
	})
	require.NoError(t, pglogrepl.StartReplication(t.Context(), streams, slot, 0,
		pglogrepl.StartReplicationOptions{PluginArgs: []string{"proto_version '1'", "publication_names 'p'"}}))
	for _, process := range []string{"h/1/", "h/2/"} {
		conf := original.Config().ConnConfig.Copy()
		conf.RuntimeParams["application_name"] = "onceward process " + process + slot
		lives, err := pgx.ConnectConfig(t.Context(), conf)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, lives.Close(context.Background())) })
	}
}

// TestACopyBesideItsLivingOriginal: pg_stat_activity and pg_replication_slots are the whole
// server's. What runs for the original is not taken for the copy's: its status is not well,
// and what it prints does what it says while the original runs, and does nothing to it.
func TestACopyBesideItsLivingOriginal(t *testing.T) {
	original, _ := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, original, ranWith)
	of, slot := original.Config().ConnConfig.Database, "onceward_"+original.Config().ConnConfig.Database
	duplicate := copyOf(t, original)
	runsOn(t, original, slot)

	well := look(t, exitWrong) // the second one asks
	require.Len(t, well.Problems, 1, "%v", well.Problems)
	require.Equal(t, "halted", well.Problems[0].Check)
	require.NotNil(t, well.Relays[0].ActivePID)

	inDatabase(t, duplicate.Config().ConnConfig.Database)
	seen := look(t, exitWrong)
	require.Len(t, seen.Relays, 2)
	for _, r := range seen.Relays {
		require.Nil(t, r.ActivePID)
		require.Len(t, r.Processes, 1)
		require.False(t, r.Processes[0].Alive, "%s is the original's", r.Processes[0].Process)
	}
	require.Len(t, seen.Problems, 2, "%v", seen.Problems)
	elsewhere, notBegun := seen.Problems[0], seen.Problems[1]
	require.Equal(t, []string{"slot-elsewhere", "SLOT_FOREIGN", "shop", slot}, []string{elsewhere.Check, elsewhere.Code, elsewhere.Relay, elsewhere.Slot})
	require.Contains(t, elsewhere.What, "slot "+slot+" belongs to database "+of+", and the relay that uses it is that database's: this database is a copy")
	require.Equal(t, "no-process", notBegun.Check)

	q := outboxdb.New(duplicate)
	streams, err := q.StreamingSlot(t.Context(), []string{slot})
	require.NoError(t, err)
	require.Empty(t, streams, "adopt waits for nobody of another database")
	pid, err := q.SlotActive(t.Context(), slot)
	require.NoError(t, err)
	require.Zero(t, pid, "no relay stands by for one of another database")
	fine(t, "adopt", "--kafka", "continue", "--cluster", "after", "--relay", "shop", "--reason", "copied", "--yes")

	exec(t, duplicate, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position,
		error_class, error) SELECT slot, gen_random_uuid(), 'n', 't', 'a', 'e', 'c', now(), '5', 1, '0/1', 'c', 'e' FROM onceward.relay_state`)
	for _, problem := range []string{elsewhere.What, notBegun.What} {
		command := regexp.MustCompile("`outboxctl (retire [^`]*)`").FindStringSubmatch(problem)
		require.NotNil(t, command, problem)
		fine(t, append(strings.Fields(strings.ReplaceAll(command[1], `"…"`, "copied")), "--yes")...)
	}
	require.Empty(t, look(t, exitFine).Relays)
	require.Equal(t, []string{"from cluster before to after: 0 events in doubt, 0 dead letters open again", "relay shop, 1 dead letter discarded", "relay second, 0 dead letters discarded"},
		column[string](&installation{t: t, pool: duplicate}, "SELECT target FROM onceward.relay_actions WHERE target <> '' ORDER BY action_id"))
	inDatabase(t, of)
	require.Equal(t, well.Problems, look(t, exitWrong).Problems, "the original runs on")

	holds, err := original.Begin(t.Context())
	require.NoError(t, err)
	defer holds.Rollback(context.Background())
	_, err = holds.Exec(t.Context(), "LOCK TABLE onceward.outbox IN SHARE MODE")
	require.NoError(t, err)
	require.Contains(t, holders(t, original), "(pid ")
	require.Empty(t, holders(t, duplicate), "a lock on the table of that number in another database")
}

// look is what status says in JSON.
func look(t *testing.T, want int) (report status.Report) {
	t.Helper()
	code, stdout, stderr := call(t, "status", "-o", "json")
	require.Equal(t, want, code, "%s%s", stdout, stderr)
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	return report
}

func holders(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	return partition.Holders(t.Context(), conn.Conn(), "onceward.outbox", "", 0)
}

// inDatabase has the commands that follow look into another database of the server.
func inDatabase(t *testing.T, name string) {
	t.Helper()
	u, err := url.Parse(os.Getenv(dsnVariable))
	require.NoError(t, err)
	u.Path = "/" + name
	t.Setenv(dsnVariable, u.String())
}
