//go:build e2e

package check_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/relay/check"
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
