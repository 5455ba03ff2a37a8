//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// TestCheckSeesThatNoRoomIsLeft: where every slot or every walsender of the server
// is taken, `relay check` says before the start what the relay says at it.
func TestCheckSeesThatNoRoomIsLeft(t *testing.T) {
	t.Parallel()
	w := ownEnvironment(t, versions[0], map[string]string{"max_replication_slots": "1", "max_wal_senders": "1"})
	w.install()
	r := staying(w)
	says := func(code string) {
		t.Helper()
		out, exit := relayCheck(t, r.config)
		require.Contains(t, out, code+": ")
		require.Equal(t, 3, exit, out)
	}
	fine := func() {
		t.Helper()
		out, exit := relayCheck(t, r.config)
		require.Zero(t, exit, out)
	}
	free := func() {
		t.Helper()
		eventually(t, "the slot is free", 10*time.Second, func() bool {
			return !scalar[bool](w, `SELECT coalesce(bool_or(active), false) FROM pg_replication_slots`)
		})
	}
	fine()
	for _, when := range []string{"before the first start", "after the slot is gone"} {
		w.execute(`SELECT pg_create_physical_replication_slot('other')`)
		says("SLOTS_EXHAUSTED")
		r.start()
		halted(t, r, "SLOTS_EXHAUSTED")
		w.execute(`SELECT pg_drop_replication_slot('other')`)
		eventually(t, "the relay streams "+when, 30*time.Second, func() bool { return readyz(t, r).State == "streaming" })
		fine()
		r.stop()
		free()
		w.execute(`SELECT pg_drop_replication_slot($1)`, w.slot())
		r = w.newRelay(r.config, "")
		r.env = staying(w).env
	}

	conf, err := pgconn.ParseConfig(w.server.DSN(w.name))
	require.NoError(t, err)
	conf.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(t.Context(), conf)
	require.NoError(t, err)
	says("TOO_MANY_CONNECTIONS")
	r.start()
	eventually(t, "the relay says it", 30*time.Second, func() bool { return r.logs("TOO_MANY_CONNECTIONS: ") })
	require.NoError(t, conn.Close(t.Context()))
	eventually(t, "the relay streams", time.Minute, func() bool { return readyz(t, r).State == "streaming" })
	r.stop()
}
