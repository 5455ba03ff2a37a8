//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// onVersions runs a scenario on the oldest and the newest PostgreSQL.
func onVersions(t *testing.T, scenario func(t *testing.T, version string)) {
	for _, version := range versions {
		t.Run("PostgreSQL"+version, func(t *testing.T) { scenario(t, version) })
	}
}

// onAVersion runs a scenario on both in the long form, and on one of them in the short
// form: it takes long, and hangs little on PostgreSQL's version.
func onAVersion(t *testing.T, scenario func(t *testing.T, version string)) {
	for _, version := range versionsOf(t.Name()) {
		t.Run("PostgreSQL"+version, func(t *testing.T) { scenario(t, version) })
	}
}

// versionsOf are both in the long form, and one in the short form, always the same for a
// name.
func versionsOf(name string) []string {
	if full() {
		return versions
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(name))
	return versions[sum.Sum32()%2:][:1]
}

// full says whether the long form of a scenario is wanted (`make e2e-full`).
func full() bool { return os.Getenv("E2E_FULL") == "1" }

// ownEnvironment is an environment on a server of its own, for a scenario that restarts the
// server or sets what concerns the whole of it.
func ownEnvironment(t *testing.T, version string, settings map[string]string) *environment {
	t.Helper()
	return newEnvironmentOn(t, ownServer(t, version, settings))
}

// ownServer starts a server that is this test's alone.
func ownServer(t *testing.T, version string, settings map[string]string) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(t.Context(), pgserver.Options{Version: version, Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := leftovers(ctx, s); err != nil {
			t.Error(err)
		}
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// slot is the name of the relay's slot.
func (w *environment) slot() string { return "onceward_" + w.name }

// execute runs statements as the superuser.
func (w *environment) execute(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err, sql)
}

// streaming is an environment with both sides installed, the tables that writeOne needs,
// a topic, and a relay that holds the slot.
func streaming(t *testing.T, w *environment, config ...string) *relayProcess {
	t.Helper()
	w.install()
	w.createTopic(nil)
	w.execute(`CREATE TABLE counters (aggregate text PRIMARY KEY, n int NOT NULL); CREATE TABLE business (key text PRIMARY KEY);
		INSERT INTO counters VALUES ('a-0', 0); GRANT ALL ON counters, business TO PUBLIC`)
	return startRelay(t, w, config...)
}

// startRelay starts a relay and waits until it holds the slot. Its metrics are
// served on a free port.
func startRelay(t *testing.T, w *environment, config ...string) *relayProcess {
	t.Helper()
	r := w.newRelay(w.config(append([]string{`admin: {listen: "127.0.0.1:0"}`}, config...)...), "")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	return r
}

// verifyAll compares the whole topic with the whole table.
func verifyAll(t *testing.T, w *environment, ghosts map[string]string) (records, copies, committed int) {
	t.Helper()
	truth, err := readTruth(t.Context(), w.pool)
	require.NoError(t, err)
	all := w.records()
	found, copies := verify(all, truth, ghosts, w.partitions)
	require.Empty(t, summary(found))
	return len(all), copies, len(truth)
}

// bulk commits n events in one transaction, made by the server itself; the first
// has number `from`, which is a multiple of bulkAggregates. Their payloads are
// what the checker expects: per aggregate, n counts from 1.
func bulk(ctx context.Context, w *environment, from, n, size int) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
			SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(i / 65536 % 4096), 3, '0') || '8' || lpad(to_hex(i), 15, '0'))::uuid,
				$1, 'order', 'b-' || i % $2, 'OrderChanged',
				convert_to(format('{"writer":1000,"aggregate":"b-%s","n":%s,"pad":"%s"}', i % $2, i / $2 + 1, repeat('p', $3)), 'UTF8')
			FROM generate_series($4::int, $5::int) i`, w.name, bulkAggregates, size, from, from+n-1)
		if err != nil {
			return fmt.Errorf("insert %d events: %w", n, err)
		}
		return nil
	})
}

// bulkAggregates is the number of aggregates, b-0, b-1, …, over which bulk
// spreads its events.
const bulkAggregates = 100

// one commits one event of aggregate a-0.
func one(ctx context.Context, w *environment) error {
	return pgx.BeginFunc(ctx, w.app, func(tx pgx.Tx) error {
		_, err := (&writers{namespace: w.name}).row(ctx, tx, 0, "a-0")
		return err
	})
}
