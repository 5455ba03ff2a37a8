//go:build e2e

package e2e

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// strangeStream holds a relay's slot, as pg_recvlogical does.
func strangeStream(t *testing.T, w *environment) {
	t.Helper()
	conf, err := pgconn.ParseConfig(w.server.DSN(w.name))
	require.NoError(t, err)
	conf.RuntimeParams["replication"], conf.RuntimeParams["application_name"] = "database", "pg_recvlogical"
	conf.RuntimeParams["wal_sender_timeout"] = "0"
	stream, err := pgconn.ConnectConfig(t.Context(), conf)
	require.NoError(t, err)
	t.Cleanup(func() { _ = stream.Close(context.Background()) })
	eventually(t, "the stranger has the slot", 30*time.Second, func() bool {
		return pglogrepl.StartReplication(t.Context(), stream, w.slot(), 0,
			pglogrepl.StartReplicationOptions{PluginArgs: []string{"proto_version '1'", "publication_names '" + w.slot() + "'"}}) == nil
	})
}

// TestAStrangerHoldsTheSlot: a session that is no relay's takes the slot while the relay is
// away. Nobody publishes, and status, relay check, /readyz and the log of the relay's
// processes name that session; the statement that they print lets the relay go on.
func TestAStrangerHoldsTheSlot(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[0])
	config := w.config(`admin: {listen: "127.0.0.1:0"}`)
	first := w.newRelay(config, "")
	first.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return first.logs("slot taken") })
	first.stop()
	strangeStream(t, w)

	const says = `(application_name "pg_recvlogical", role "postgres"), which is no process of this relay`
	code, out := statusOf(t, w)
	require.Equal(t, 3, code)
	require.Contains(t, out, "SLOT_TAKEN: slot "+w.slot()+" is held by PID ")
	require.Contains(t, out, says)
	require.Contains(t, out, "no process of it is connected to PostgreSQL")

	relay := w.newRelay(config, "")
	relay.start()
	eventually(t, "/readyz names it", 30*time.Second, func() bool { return waitsFor(t, relay, "slot") != nil })
	require.Contains(t, waitsFor(t, relay, "slot").Detail, says)
	code, out = checked(t, relay)
	require.NotZero(t, code)
	require.Regexp(t, `failed +replication connection`, out)
	require.Contains(t, out, "SLOT_TAKEN")
	eventually(t, "its log warns", 30*time.Second, func() bool { return relay.logs("which is no process of this relay") })
	require.Contains(t, relay.log(), "nothing can be read from the replication slot yet")
	code, out = statusOf(t, w)
	require.Equal(t, 3, code)
	require.Equal(t, 1, strings.Count(out, "! relay "+w.name), "it is said once: %s", out)

	printed := regexp.MustCompile(`SELECT pg_catalog\.pg_terminate_backend\(\d+, 5000\);`).FindString(out)
	require.NotEmpty(t, printed, out)
	w.execute(printed)
	eventually(t, "the relay takes over", 30*time.Second, func() bool { return relay.logs("slot taken") })
	require.Nil(t, waitsFor(t, relay, "slot"))
	code, _ = checked(t, relay)
	require.Zero(t, code)
	relay.stop()
}
