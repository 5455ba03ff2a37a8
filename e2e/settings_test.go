//go:build e2e

package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/outbox"
)

// TestTheDatabaseHasAnotherClientEncoding: what a database or a role sets for everybody changes no byte of what the
// relay reads from the table and outboxctl says.
func TestTheDatabaseHasAnotherClientEncoding(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, "18")
	w.prepareTables()
	for _, setting := range []string{"client_encoding = 'LATIN1'", "standard_conforming_strings = off"} {
		w.execute("ALTER DATABASE " + w.name + " SET " + setting)
	}
	config, err := pgx.ParseConfig(w.server.DSN(w.name))
	require.NoError(t, err)
	enqueue := func() error {
		conn, err := pgx.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		defer conn.Close(t.Context())
		return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			key, err := outbox.NewKey(w.name)
			require.NoError(t, err)
			_, err = outbox.Enqueue(t.Context(), tx, outbox.Event{Key: key, AggregateType: "order", AggregateID: "kunde-✓", Type: "X",
				Payload: []byte("{}"), Headers: map[string]string{"tenant": "übung ✓"}})
			return err
		})
	}
	require.ErrorContains(t, enqueue(), "client_encoding = LATIN1", "what pgx would write is not what is to be written")
	require.ErrorContains(t, w.queued(config), "another client_encoding", "nor what it would by a batch")
	require.Zero(t, scalar[int](w, "SELECT count(*) FROM onceward.outbox"))
	written := 0
	write := func() {
		written++
		require.NoError(t, enqueue())
	}
	r := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return sessions(r) == 1 })
	config.RuntimeParams["client_encoding"] = "SQL_ASCII" // the server takes the bytes as they are
	write()
	config.RuntimeParams["client_encoding"] = "UTF8" // as the drivers of most languages do
	write()
	require.NoError(t, w.queued(config))
	config.RuntimeParams["client_encoding"] = "UNICODE" // its old name
	write()
	require.NoError(t, w.queued(config))
	caughtUp(t, w, r)
	outboxctl(t, w.dsn(operatorLogin), "pause", "--route", w.topic(), "--relay", w.name, "--reason", "x")
	eventually(t, "an event waits, once the relay has heard of the pause", 30*time.Second, func() bool {
		write()
		return scalar[int](w, "SELECT count(*) FROM onceward.waiting") > 0
	})
	outboxctl(t, w.dsn(operatorLogin), "resume", "--route", w.topic(), "--relay", w.name, "--reason", "x")
	eventually(t, "it does no more", 30*time.Second, func() bool { return scalar[int](w, "SELECT count(*) FROM onceward.waiting") == 0 })
	caughtUp(t, w, r)
	r.stop()
	var partitions []int32
	for _, m := range w.committed(w.topic()) {
		if string(m.Key) == "kunde-✓" {
			require.Equal(t, "übung ✓", headerOf(m, "tenant"))
			partitions = append(partitions, m.Partition)
		}
	}
	require.Len(t, partitions, written)
	require.Len(t, slices.Compact(partitions), 1)
	require.Equal(t, 1, sessions(r))
}

// queued enqueues an event of another aggregate by a batch, which is a transaction of its own.
func (w *environment) queued(config *pgx.ConnConfig) error {
	w.t.Helper()
	conn, err := pgx.ConnectConfig(w.t.Context(), config)
	require.NoError(w.t, err)
	defer conn.Close(w.t.Context())
	key, err := outbox.NewKey(w.name)
	require.NoError(w.t, err)
	batch := &pgx.Batch{}
	require.NoError(w.t, outbox.QueueEnqueue(batch, outbox.Event{Key: key, AggregateType: "order", AggregateID: "anderer-✓", Type: "X", Payload: []byte("{}")}, nil))
	return conn.SendBatch(w.t.Context(), batch).Close()
}

// TestTheRelayReadsCommitted: what waits for another's row goes on with it, whatever the database says.
func TestTheRelayReadsCommitted(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, "18")
	w.execute("ALTER DATABASE " + w.name + " SET default_transaction_isolation = serializable")
	for want, startup := range map[string]func(map[string]string){"serializable": func(map[string]string) {}, "read committed": pgconf.Startup} {
		config, err := pgx.ParseConfig(w.dsn(relayLogin))
		require.NoError(t, err)
		startup(config.RuntimeParams)
		conn, err := pgx.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		var is string
		err = conn.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&is)
		require.NoError(t, errors.Join(err, conn.Close(t.Context())))
		require.Equal(t, want, is)
	}
}

// TestTheRelayHasNoTimeLimitOfTheDatabase: a slot that is made waits for those who write, whatever bounds the
// statements of others.
func TestTheRelayHasNoTimeLimitOfTheDatabase(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, "18")
	w.prepareTables()
	for _, limit := range []string{"statement_timeout", "lock_timeout"} {
		w.execute("ALTER ROLE " + relayLogin + " IN DATABASE " + w.name + " SET " + limit + " = 200")
	}
	writer, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	defer writer.Rollback(context.WithoutCancel(t.Context()))
	_, err = writer.Exec(t.Context(), "SELECT pg_current_xact_id()")
	require.NoError(t, err)
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "")
	r.start()
	eventually(t, "the slot waits for the writer for longer than that", 30*time.Second, func() bool {
		return scalar[bool](w, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
			AND query LIKE '%pg_create_logical_replication_slot%' AND pid <> pg_backend_pid() AND query_start < now() - interval '1 s')`)
	})
	require.NoError(t, writer.Commit(t.Context()))
	eventually(t, "the relay streams", 30*time.Second, func() bool { return sessions(r) == 1 })
	r.stop()
}

// TestExactlyOnceUnderAQuota: what Kafka lets in slowly is committed in transactions that end in time. One of all
// that waits would be aborted by its coordinator, and so in every session after that. Where Kafka makes the relay wait
// for long, it says why, and a restart ends the wait once the quota is raised.
func TestExactlyOnceUnderAQuota(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, "18")
	const rate, events, bytes = 50_000, 1500, 1000
	quota := func(rate float64) {
		require.NoError(t, w.admin.AlterClientQuotas([]sarama.QuotaEntityComponent{{
			EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Name: "onceward-" + w.name,
		}}, sarama.ClientQuotasOp{Key: "producer_byte_rate", Value: rate}, false))
	}
	quota(rate)
	w.prepareTables()
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "").inMode("exactly-once")
	r.env = append(r.env, "ONCEWARD_KAFKA_COMPRESSION=none", "ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=10s")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return sessions(r) == 1 })
	require.NoError(t, bulk(t.Context(), w, 0, events, bytes))
	eventually(t, "all is in Kafka", 2*time.Minute, func() bool { return len(w.committed(w.topic())) >= events })
	require.Equal(t, 1, sessions(r))

	quota(rate / 100)
	require.NoError(t, bulk(t.Context(), w, events, events, bytes))
	eventually(t, "the relay says what it waits for", time.Minute, func() bool {
		waits := scalar[string](w, `SELECT COALESCE(string_agg(waits::text, ' '), '') FROM onceward.relay_health`)
		return strings.Contains(waits, "a quota is used up (producer_byte_rate or request_percentage of client id onceward-"+w.name+" ")
	})
	quota(rate * 100)
	r.kill()
	r.start()
	eventually(t, "a new connection does not wait", time.Minute, func() bool { return len(w.committed(w.topic())) >= 2*events })
	r.stop()
}
