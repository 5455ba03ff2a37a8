//go:build e2e

package check_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/check"
	"github.com/onceward/onceward/relay"
)

func TestWhatAnOperatorPausedIsSeen(t *testing.T) {
	pool, cfg := ready(t)
	verdict := func() check.Verdict { return named(t, check.Run(t.Context(), cfg, nil), "operator's words") }
	say := func(sql string) {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.Equal(t, check.OK, verdict().Status)
	say(`INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
		VALUES ('onceward_orders', 'orders', current_database(), '1', 1, '0/10', 'onceward_orders')`)
	require.Equal(t, check.Verdict{Name: "operator's words", Status: check.OK}, verdict())
	say(`UPDATE onceward.relay_state SET paused_routes = '{a,b}'`)
	require.Equal(t, check.Warning, verdict().Status)
	require.Equal(t, "outboxctl resume --relay orders --route a --route b", verdict().Cure)
	say(`UPDATE onceward.relay_state SET paused = true`)
	require.Contains(t, verdict().Detail, "the relay is paused")
	require.Equal(t, "outboxctl resume --relay orders", verdict().Cure)
}

// TestATableThatIsMissingIsSeen, also one that the relay itself runs without.
func TestATableThatIsMissingIsSeen(t *testing.T) {
	pool, cfg := ready(t)
	verdict := func() check.Verdict { return named(t, check.Run(t.Context(), cfg, nil), "what processes say") }
	require.Equal(t, check.OK, verdict().Status)
	_, err := pool.Exec(t.Context(), "DROP TABLE onceward.relay_health")
	require.NoError(t, err)
	require.Equal(t, check.Warning, verdict().Status)
	require.Equal(t, "TABLE_MISSING", verdict().Code)
	require.Contains(t, verdict().Detail, "onceward.relay_health")
	require.Contains(t, verdict().Cure, "outboxctl migrate up --side outbox --relay orders")
}

// TestTheMaintenanceLoginIsTried: nothing else uses it before the partitions run out.
func TestTheMaintenanceLoginIsTried(t *testing.T) {
	pool, cfg := ready(t)
	verdict := func() check.Verdict { return named(t, check.Run(t.Context(), cfg, nil), "maintenance login") }
	require.Equal(t, check.OK, verdict().Status, "none is configured")
	file := filepath.Join(t.TempDir(), "dsn")
	write := func(role string) {
		require.NoError(t, os.WriteFile(file, []byte(pool.Config().ConnString()+"&user="+role), 0o600))
	}
	cfg.Postgres.MaintenanceDSNFile = file
	write(pool.Config().ConnConfig.User)
	require.Equal(t, check.OK, verdict().Status)
	write("nobody_of_that_name")
	v := verdict()
	require.Equal(t, []any{check.Warning, "LOGIN_REFUSED"}, []any{v.Status, v.Code})
	require.Contains(t, v.Cure, "the file of postgres.maintenance_dsn_file")
	require.NotContains(t, v.Cure, "postgres.dsn_file")
	role := "plain_" + pool.Config().ConnConfig.Database
	_, err := pool.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN PASSWORD '"+pool.Config().ConnConfig.Password+"'")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "DROP ROLE "+role)
		require.NoError(t, err)
	})
	write(role)
	v = verdict()
	require.Equal(t, []any{check.Warning, "MAINTENANCE_RIGHTS"}, []any{v.Status, v.Code})
	require.Contains(t, v.Detail, "role \""+role+"\" of postgres.maintenance_dsn_file")
	require.Contains(t, v.Cure, `GRANT "`+pool.Config().ConnConfig.User+`" TO "`+role+`";`)
	_, err = pool.Exec(t.Context(), "GRANT "+pool.Config().ConnConfig.User+" TO "+role) // who owns the tables here
	require.NoError(t, err)
	require.Equal(t, check.OK, verdict().Status)
	require.NoError(t, os.Remove(file))
	require.Contains(t, verdict().Detail, "postgres.maintenance_dsn_file")
}

// TestTheMaintenanceLoginLeadsHome: one that leads to another outbox would maintain that one.
func TestTheMaintenanceLoginLeadsHome(t *testing.T) {
	pool, cfg := ready(t)
	other, _ := ready(t)
	cfg.Postgres.MaintenanceDSNFile = filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(cfg.Postgres.MaintenanceDSNFile, []byte(other.Config().ConnString()), 0o600))
	v := named(t, check.Run(t.Context(), cfg, nil), "maintenance login")
	require.Equal(t, []any{check.Failed, relay.CodeMaintenanceElsewhere}, []any{v.Status, v.Code})
	require.Contains(t, v.Detail, `"`+other.Config().ConnConfig.Database+`"`)
	require.Contains(t, v.Detail, `"`+pool.Config().ConnConfig.Database+`"`)

	cfg.Outbox.Partitions.Ahead = 3
	_, err := pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE (SELECT 'DROP TABLE ' || string_agg(inhrelid::regclass::text, ', ') FROM pg_inherits
		WHERE inhparent = 'onceward.outbox'::regclass AND inhrelid::regclass::text > 'onceward.outbox_' || to_char(now() AT TIME ZONE 'UTC' + interval '3 days', 'YYYYMMDD')); END $$`)
	require.NoError(t, err)
	v = named(t, check.Run(t.Context(), cfg, nil), "partitions of today and ahead")
	require.Equal(t, check.Warning, v.Status)
	require.Contains(t, v.Cure, "set outbox.partitions.ahead, which is 3, to 7 or more; then outboxctl migrate up --side outbox")
}

// TestAHaltedProcessIsSeen: what it is halted at, and what to do about it; one that
// is gone, or halted by what another check finds, is not named.
func TestAHaltedProcessIsSeen(t *testing.T) {
	pool, cfg := ready(t)
	verdict := func() check.Verdict { return named(t, check.Run(t.Context(), cfg, nil), "what processes say") }
	_, err := pool.Exec(t.Context(), `INSERT INTO onceward.relay_health (slot, process, relay, state, since, code, detail, waits)
		VALUES ($1, 'p1', 'orders', 'halted', now(), 'HALTED', 'event x: too large: ''outboxctl list''; `+"`outboxctl skip x`"+`', '[]')`, cfg.SlotName())
	require.NoError(t, err)
	require.Equal(t, check.OK, verdict().Status, "it lives no more")
	alive, err := pgx.Connect(t.Context(), pool.Config().ConnString()+"&application_name=onceward%20process%20p1")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, alive.Close(context.Background())) })
	v := verdict()
	require.Equal(t, check.Failed, v.Status)
	require.Equal(t, "HALTED", v.Code)
	require.Contains(t, v.Detail, "process p1 is halted")
	require.Contains(t, v.Detail, "event x: too large")
	require.Equal(t, "outboxctl skip x", v.Cure, "a command of ours, and nothing else")
	_, err = pool.Exec(t.Context(), `UPDATE onceward.relay_health SET code = 'SLOT_LOST'`)
	require.NoError(t, err)
	require.Equal(t, check.OK, verdict().Status)
}

// TestASchemaOfALaterReleaseIsSeen: the relay starts over it, and what mends it is the
// relay's upgrade.
func TestASchemaOfALaterReleaseIsSeen(t *testing.T) {
	pool, cfg := ready(t)
	_, err := pool.Exec(t.Context(), "INSERT INTO onceward.outbox_migrations (version_id, is_applied) VALUES (4711, true)")
	require.NoError(t, err)
	v := named(t, check.Run(t.Context(), cfg, nil), "release of the schema")
	require.Equal(t, []any{check.Warning, "SCHEMA_AHEAD"}, []any{v.Status, v.Code})
	require.Contains(t, v.Detail, "its migration is 4711")
	require.Contains(t, v.Cure, "upgrade the relay")
	require.NotContains(t, v.Cure, "migrate up")
	_, err = pool.Exec(t.Context(), "ALTER TABLE onceward.relay_state RENAME COLUMN paused_routes TO resting")
	require.NoError(t, err)
	v = named(t, check.Run(t.Context(), cfg, nil), "operator's words")
	require.Equal(t, []any{check.Failed, "SCHEMA_OTHER"}, []any{v.Status, v.Code})
	require.Contains(t, v.Cure, "where it is newer than is known, upgrade the relay")
}
