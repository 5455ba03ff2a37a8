package relay

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/scripted"
)

// A walsender waits for standbys for a moment at each message: only one that has not moved
// between two looks is waited for, since the first of them.
func TestAShortWaitForStandbysIsNone(t *testing.T) {
	var s stalled
	require.Zero(t, s.look("", after(0)))
	require.Zero(t, s.look("0/10", after(5)))
	require.Zero(t, s.look("0/20", after(10)), "it has moved")
	require.Equal(t, after(10), s.look("0/20", after(15)))
	require.Equal(t, after(10), s.look("0/20", after(20)))
	require.Zero(t, s.look("0/30", after(25)))
	require.Zero(t, s.look("", after(30)), "it waits no more")
	require.Zero(t, s.look("0/30", after(35)))
	require.Equal(t, after(35), s.look("0/30", after(40)))
}

// Who is waited for is named: first who is not there, with what mends it.
func TestTheStandbysThatAreAwaitedAreNamed(t *testing.T) {
	type slot struct{ Name, Why, Made string }
	for name, tc := range map[string]struct {
		slots []any
		want  []string
	}{
		"one is away": {
			[]any{slot{"near", "", ""}, slot{"far", "no standby reads from it", ""}, slot{"`gone`", "there is no physical slot of that name", "SELECT made;"}},
			[]string{"far (no standby reads from it), 'gone' (there is no physical slot of that name)", "and its slot back: SELECT made;, or", "ALTER SYSTEM SET synchronized_standby_slots = 'near';"},
		},
		"all are there": {[]any{slot{"near", "", ""}, slot{"far", "", ""}}, []string{"waits for near, far; see in pg_stat_replication"}},
	} {
		t.Run(name, func(t *testing.T) {
			db := scripted.New(t)
			db.Returns("SlotHealth", outboxdb.SlotHealthRow{WalStatus: "reserved", AwaitsStandbys: "0/10"})
			db.Returns("synchronized_standby_slots", tc.slots...)
			var waits []Wait
			h := health{state: owner(db), counts: newCounts("orders"), log: slog.New(slog.DiscardHandler), report: func(kind string, all ...Wait) {
				if kind == WaitSlot {
					waits = all
				}
			}, countedAt: time.Now()}
			h.topics = &topics{state: h.state, counts: h.counts, log: h.log}
			require.NoError(t, h.look(t.Context()))
			require.Empty(t, waits)
			h.lookedAt = time.Time{}
			require.NoError(t, h.look(t.Context()))
			require.Len(t, waits, 1)
			require.Equal(t, h.state.Slot, waits[0].What)
			for _, words := range tc.want {
				require.Contains(t, waits[0].Detail, words)
			}
			db.Returns("SlotHealth", outboxdb.SlotHealthRow{WalStatus: "reserved"})
			h.lookedAt = time.Time{}
			require.NoError(t, h.look(t.Context()))
			require.Empty(t, waits)
		})
	}
}
