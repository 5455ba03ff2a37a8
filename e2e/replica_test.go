//go:build e2e

package e2e

import (
	"context"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/internal/loopback"
	"github.com/onceward/onceward/internal/pgserver"
)

// replicated is a primary and its standby: streaming replication, asynchronous,
// over a link that can be cut.
type replicated struct {
	t                *testing.T
	primary, standby *pgserver.Server
	link             *kafkaproxy.Link
}

func newReplicated(t *testing.T, version string) *replicated {
	t.Helper()
	ctx := t.Context()
	primary, err := pgserver.Start(ctx, pgserver.Options{Version: version})
	require.NoError(t, err)
	r := &replicated{t: t, primary: primary}
	stopAtTheEnd(t, primary)
	network := kafkaproxy.New()
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	r.link, err = network.AddPlain(ctx, loopback.Address(primary.Port()))
	require.NoError(t, err)

	require.NoError(t, primary.Halt(ctx, pgserver.Fast))
	dir := standbyDir(t)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	copied(t, primary.Dir()+"/.", dir)
	require.NoError(t, primary.Resume(ctx))
	r.standby, err = pgserver.Start(ctx, pgserver.Options{Version: version, Dir: asStandby(t, dir), Settings: map[string]string{"primary_conninfo": conninfo(t, primary, r.link)}})
	require.NoError(t, err)
	stopAtTheEnd(t, r.standby)
	return r
}

// eitherDSN leads to whichever of the two is the primary.
func (r *replicated) eitherDSN(w *environment, login string) string {
	u, err := url.Parse(w.dsn(login))
	require.NoError(r.t, err)
	u.Host = loopback.Address(r.primary.Port()) + "," + loopback.Address(r.standby.Port())
	q := u.Query()
	q.Set("target_session_attrs", "primary")
	u.RawQuery = q.Encode()
	return u.String()
}

// awaitStandby waits until the standby has everything that the primary has now.
func (r *replicated) awaitStandby(w *environment) {
	r.t.Helper()
	now := scalar[string](w, `SELECT pg_current_wal_lsn()::text`)
	standby := r.onStandby(w)
	defer standby.Close(context.Background())
	eventually(r.t, "the standby follows", time.Minute, func() bool {
		var there bool
		require.NoError(r.t, standby.QueryRow(r.t.Context(), `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, now).Scan(&there))
		return there
	})
}

// onStandby connects to the standby, which answers questions before it is
// promoted.
func (r *replicated) onStandby(w *environment) *pgx.Conn {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.standby.DSN(w.name))
	require.NoError(r.t, err)
	return conn
}

// hold keeps the standby where it is: what is committed from now on is on the
// primary alone.
func (r *replicated) hold() {
	r.link.Refuse(true)
	r.link.Cut()
}

// promote makes the standby the primary, and the environment's server.
func (r *replicated) promote(w *environment) {
	r.t.Helper()
	w.moveTo(r.standby)
	require.True(r.t, scalar[bool](w, `SELECT pg_promote()`))
}
