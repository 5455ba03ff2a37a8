//go:build e2e

package check_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/check"
)

// TestWhatTheSlotWaitsForIsSeen: from PostgreSQL 17 on a standby that is away stops the
// relay, and a slot that was made without failover is on no standby.
func TestWhatTheSlotWaitsForIsSeen(t *testing.T) {
	pool, cfg := readyOn(t, "18")
	exec := func(ctx context.Context, statements ...string) {
		for _, sql := range statements {
			_, err := pool.Exec(ctx, sql)
			require.NoError(t, err, sql)
		}
	}
	awaits := func(slots string) {
		exec(t.Context(), "ALTER SYSTEM SET synchronized_standby_slots = '"+slots+"'", "SELECT pg_reload_conf()")
		require.Eventually(t, func() bool { // each session reads its settings between two statements
			var now string
			return pool.QueryRow(t.Context(), "SELECT current_setting('synchronized_standby_slots')").Scan(&now) == nil && now == slots
		}, 10*time.Second, 10*time.Millisecond)
	}
	t.Cleanup(func() {
		exec(context.Background(), "ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
	})
	verdict := func() check.Verdict { return named(t, check.Run(t.Context(), cfg, nil), "standbys of the slot") }
	require.Equal(t, check.Verdict{Name: "standbys of the slot", Status: check.OK}, verdict())

	exec(t.Context(), "SELECT pg_create_physical_replication_slot('near')")
	require.Equal(t, "STANDBYS_NOT_AWAITED", verdict().Code)
	awaits(`near, "gone"`)
	v := verdict()
	require.Equal(t, []any{check.Warning, "STANDBY_AWAY"}, []any{v.Status, v.Code})
	require.Contains(t, v.Detail, "near (no standby reads from it), gone (there is no physical slot of that name)")
	require.Contains(t, v.Cure, "ALTER SYSTEM SET synchronized_standby_slots = '';")
	cfg.Postgres.Slot.Failover = false
	require.Equal(t, check.OK, verdict().Status, "a slot without failover waits for none")
	exec(t.Context(), "SELECT pg_create_logical_replication_slot('"+cfg.SlotName()+"', 'pgoutput', false, false, true)")
	require.Equal(t, "STANDBY_AWAY", verdict().Code, "but this one does")
	awaits("")

	exec(t.Context(), "SELECT pg_drop_replication_slot('"+cfg.SlotName()+"')", "SELECT pg_create_logical_replication_slot('"+cfg.SlotName()+"', 'pgoutput')")
	require.Equal(t, check.OK, verdict().Status, "as it is wanted")
	cfg.Postgres.Slot.Failover = true
	v = verdict()
	require.Equal(t, []any{check.Warning, "SLOT_WITHOUT_FAILOVER"}, []any{v.Status, v.Code})
	require.Contains(t, v.Cure, "restart the relay")
}

// TestASlotThatIsNotMadeIsPrintedWithFailover: the statement makes the slot that the relay would.
func TestASlotThatIsNotMadeIsPrintedWithFailover(t *testing.T) {
	_, cfg := readyOn(t, "18")
	cfg.Postgres.Slot.Create = "never"
	for wanted, arguments := range map[bool]string{true: "'pgoutput', false, false, true);", false: "'pgoutput');"} {
		cfg.Postgres.Slot.Failover = wanted
		require.Contains(t, named(t, check.Run(t.Context(), cfg, nil), "replication slot").Cure, arguments)
	}
}
