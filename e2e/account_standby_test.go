//go:build e2e

package e2e

import (
	"context"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/internal/loopback"
	"github.com/onceward/onceward/internal/pgserver"
)

// standby follows the account's server by asynchronous streaming replication, over a
// link that can be cut.
type standby struct {
	server *pgserver.Server
	link   *kafkaproxy.Link
}

// physicalSlot keeps for the standby what it has not got yet.
const physicalSlot = "onceward_standby"

// accountSettings are those of each server of TestAccount.
var accountSettings = map[string]string{"wal_sender_timeout": "3s", "authentication_timeout": "10s", "min_wal_size": "32MB", "max_wal_size": "128MB"}

// accountServer starts the server of an account, which restores and promotions will
// replace, so that it is none of those that tests share. All servers end with the test.
func accountServer(t *testing.T, h *histories, version string) *pgserver.Server {
	t.Helper()
	server, err := pgserver.Start(t.Context(), pgserver.Options{Version: version, Settings: accountSettings})
	require.NoError(t, err)
	h.servers = append(h.servers, server)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		primary := h.servers[len(h.servers)-1]
		if h.standby != nil {
			primary = h.servers[len(h.servers)-2]
		}
		if err := leftovers(ctx, primary); err != nil && !t.Failed() {
			t.Error(err)
		}
		for _, s := range h.servers {
			require.NoError(t, s.Stop(ctx))
		}
		for _, dir := range h.dirs {
			require.NoError(t, os.RemoveAll(dir))
		}
	})
	return server
}

// makeStandby makes a standby of a copy of the storage. Since PostgreSQL 17 it takes the
// relays' slots over, and half of the times the relays wait for it, as the manual says.
func (a *accounting) makeStandby(s step) bool {
	if a.standby != nil || !a.may(standbyPromoted) || !a.answers() {
		return false
	}
	if !a.nemesis.sql(`SELECT pg_create_physical_replication_slot('` + physicalSlot + `', true)`) {
		return false
	}
	dir := standbyDir(a.t)
	a.dirs = append(a.dirs, dir)
	frozen(a.t, a.server, func() { copied(a.t, a.server.Dir()+"/.", dir) })
	link, err := a.network.AddPlain(a.t.Context(), loopback.Address(a.server.Port()))
	require.NoError(a.t, err)
	settings := map[string]string{"primary_conninfo": conninfo(a.t, a.server, link) + " dbname=" + a.name, "primary_slot_name": physicalSlot, "hot_standby_feedback": "on"}
	maps.Copy(settings, accountSettings)
	if a.server.Version() >= 17 {
		settings["sync_replication_slots"] = "on"
	}
	server, err := pgserver.Start(a.t.Context(), pgserver.Options{Version: strconv.Itoa(a.server.Version()), Dir: asStandby(a.t, dir), Settings: settings})
	require.NoError(a.t, err)
	a.servers = append(a.servers, server)
	a.standby = &standby{server: server, link: link}
	if a.server.Version() >= 17 && s.up {
		require.True(a.t, a.nemesis.sql(`ALTER SYSTEM SET synchronized_standby_slots = '`+physicalSlot+`'`) && a.nemesis.sql(`SELECT pg_reload_conf()`))
	}
	return true
}

// promoteStandby ends the primary for good, and makes the standby the server of
// everybody. Three of four times it lacks what was committed in the last moments.
func (a *accounting) promoteStandby(s step) bool {
	if a.standby == nil || !a.answers() || !a.follows() {
		return false
	}
	if _, ok := a.ends(); !ok {
		return false
	}
	if s.shape > 0 {
		a.standby.link.Refuse(true)
		a.standby.link.Cut()
		a.nemesis.until(time.Now().Add(s.lasting))
		if !a.answers() {
			return false
		}
	}
	was := a.present()
	was.rows = nil
	a.abandon(s, was, func() {
		ctx, old := a.t.Context(), a.server
		require.NoError(a.t, old.Halt(ctx, pgserver.Immediate))
		require.NoError(a.t, os.RemoveAll(old.DataDir()))
		a.t.Cleanup(a.pool.Close) // a transaction of it may be open still
		a.server = a.standby.server
		a.openPool()
		a.app = a.as(appLogin)
		a.load.pool = a.app
		a.postgres.Lead(loopback.Address(a.server.Port()))
		require.True(a.t, scalar[bool](a.environment, `SELECT pg_promote()`))
		a.standby = nil
	})
	return true
}

// follows waits until the standby has what the primary has now; false: it does not come.
func (a *accounting) follows() bool {
	now := scalar[string](a.environment, `SELECT pg_current_wal_insert_lsn()::text`)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if a.onStandby(`SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, now) {
			return true
		}
		a.nemesis.until(time.Now().Add(20 * time.Millisecond))
	}
	return false
}

// onStandby asks a question of the standby.
func (a *accounting) onStandby(question string, args ...any) (yes bool) {
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, a.standby.server.DSN(a.name))
	if err != nil {
		return false
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.QueryRow(ctx, question, args...).Scan(&yes) == nil && yes
}

// dropStandby ends the standby, if there is one.
func (a *accounting) dropStandby() {
	if a.standby == nil {
		return
	}
	require.NoError(a.t, a.standby.server.Halt(a.t.Context(), pgserver.Immediate))
	a.standby = nil
	last := len(a.servers) - 1
	require.NoError(a.t, a.servers[last].Stop(a.t.Context()))
	a.servers = a.servers[:last]
	a.forgetStandby()
}

// forgetStandby keeps nothing for a standby that is gone, and waits for it no more.
func (a *accounting) forgetStandby() {
	drop := `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_type = 'physical'`
	eventually(a.t, "the standby's slot is free", 10*time.Second, func() bool { return a.nemesis.sql(drop) })
	if a.server.Version() >= 17 {
		require.True(a.t, a.nemesis.sql(`ALTER SYSTEM RESET synchronized_standby_slots`) && a.nemesis.sql(`SELECT pg_reload_conf()`))
	}
}

// standbyDir is a folder for a server that may run as another user, who may not enter
// t.TempDir. The caller removes it.
func standbyDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "onceward-standby-") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// asStandby makes a copy of a server's folder that of a standby: without the slots, which
// a base backup has not.
func asStandby(t *testing.T, dir string) string {
	t.Helper()
	data := filepath.Join(dir, "data")
	slots, err := filepath.Glob(filepath.Join(data, "pg_replslot", "*"))
	require.NoError(t, err)
	for _, path := range append(slots, filepath.Join(data, "postmaster.pid")) {
		require.NoError(t, os.RemoveAll(path))
	}
	require.NoError(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644))
	return dir
}

// conninfo leads a standby to its primary, over a link.
func conninfo(t *testing.T, primary *pgserver.Server, link *kafkaproxy.Link) string {
	t.Helper()
	u, err := url.Parse(primary.DSN("postgres"))
	require.NoError(t, err)
	password, _ := u.User.Password()
	to, err := url.Parse("//" + link.Addr())
	require.NoError(t, err)
	return "host=" + to.Hostname() + " port=" + to.Port() + " user=" + u.User.Username() + " password=" + password + " sslmode=disable"
}
