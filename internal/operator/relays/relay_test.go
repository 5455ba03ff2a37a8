package relays

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
)

func TestJoinSlots(t *testing.T) {
	pid, reserved := int32(7), "reserved"
	got := joinSlots(
		[]outboxdb.RelayState{{Slot: "onceward_a", Relay: "a", Epoch: 2}, {Slot: "onceward_b", Relay: "b"}},
		[]outboxdb.SlotsRow{
			{Slot: "onceward_a", ActivePid: &pid, WalStatus: &reserved, RetainedBytes: 10},
			{Slot: "onceward_old", RetainedBytes: 20}, {Slot: "debezium", RetainedBytes: 30},
		})
	require.Len(t, got, 3)
	require.Equal(t, Relay{Slot: "onceward_a", Relay: "a", Epoch: 2, SlotExists: true, ActivePID: &pid, WALStatus: "reserved", RetainedBytes: 10, PausedRoutes: []string{}, Skip: []uuid.UUID{}}, got[0])
	require.False(t, got[1].SlotExists)
	require.Equal(t, "onceward_old", got[2].Slot)
	require.Empty(t, got[2].Relay, "a stranger's slot is none of ours, an orphan is")
	require.NotNil(t, joinSlots(nil, nil), "JSON shows [] and not null")
}

// began joins relays and processes as Read does.
func began(t *testing.T, states []outboxdb.RelayState, rows ...outboxdb.RelayHealthRow) []Relay {
	t.Helper()
	relays, err := joinProcesses(joinSlots(states, nil), rows)
	require.NoError(t, err)
	return relays
}

// TestJoinProcesses: a relay that is halted before its first start has ended has no
// row of state, and is there all the same.
func TestJoinProcesses(t *testing.T) {
	got := began(t, []outboxdb.RelayState{{Slot: "onceward_a", Relay: "a"}},
		outboxdb.RelayHealthRow{Slot: "onceward_a", Relay: "a", Process: "h/1/a", Waits: []byte(`[]`)},
		outboxdb.RelayHealthRow{Slot: "onceward_b", Relay: "b", Process: "h/2/b", Waits: []byte(`[]`)},
		outboxdb.RelayHealthRow{Slot: "onceward_b", Relay: "b", Process: "h/3/b", Waits: []byte(`[]`)})
	require.Len(t, got, 2)
	require.False(t, got[0].NotBegun)
	require.Len(t, got[0].Processes, 1)
	require.Equal(t, "b", got[1].Relay)
	require.True(t, got[1].NotBegun)
	require.Len(t, got[1].Processes, 2)

	_, err := joinProcesses(nil, []outboxdb.RelayHealthRow{{Waits: []byte(`{`)}})
	require.Error(t, err)
}
