//go:build e2e

package e2e

import (
	"errors"
	"slices"
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

// TestExactlyOnceUnderAQuota: what Kafka lets in slowly is committed in transactions that end in time. One of all
// that waits would be aborted by its coordinator, and so in every session after that.
func TestExactlyOnceUnderAQuota(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, "18")
	const rate, events, bytes = 50_000, 1500, 1000
	require.NoError(t, w.admin.AlterClientQuotas([]sarama.QuotaEntityComponent{{
		EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Name: "onceward-" + w.name,
	}}, sarama.ClientQuotasOp{Key: "producer_byte_rate", Value: rate}, false))
	w.prepareTables()
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "").inMode("exactly-once")
	r.env = append(r.env, "ONCEWARD_KAFKA_COMPRESSION=none", "ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=10s")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return sessions(r) == 1 })
	require.NoError(t, bulk(t.Context(), w, 0, events, bytes))
	eventually(t, "all is in Kafka", 2*time.Minute, func() bool { return len(w.committed(w.topic())) >= events })
	require.Equal(t, 1, sessions(r))
	r.stop()
}
