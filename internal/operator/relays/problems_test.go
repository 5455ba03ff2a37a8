package relays_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/relay"
)

// TestRoutesAtRestAreNamed: what a retry may wait for is said beside it.
func TestRoutesAtRestAreNamed(t *testing.T) {
	pid := int32(7)
	r := relays.Relay{Relay: "orders", SlotExists: true, ActivePID: &pid}
	require.Contains(t, r.ReadsLater(), "behind; it will")
	r.PausedRoutes = []string{"shop.order"}
	r.Processes = []relays.Process{
		{Alive: true, Waiting: []relay.Wait{{For: relay.WaitRoute, What: "shop.order", Detail: "paused"}, {For: relay.WaitRoute, What: "shop.late", Detail: "the topic is missing"}, {For: relay.WaitKafka, Detail: "k"}}},
		{Waiting: []relay.Wait{{For: relay.WaitRoute, What: "shop.gone", Detail: "of a dead process"}}},
	}
	says := r.ReadsLater()
	require.Contains(t, says, "route shop.order is paused; `outboxctl resume --relay orders --route shop.order` lets it go on; route shop.late: the topic is missing")
	require.NotContains(t, says, "it will")
	require.NotContains(t, says, "gone")
	require.Equal(t, 1, strings.Count(says, "route shop.order is"))
}

func TestReadsLater(t *testing.T) {
	pid := int32(7)
	require.Contains(t, relays.Relay{Relay: "a", Paused: true}.ReadsLater(), "outboxctl resume")
	require.Contains(t, relays.Relay{Relay: "a", SlotExists: true}.ReadsLater(), "not connected")
	require.Contains(t, relays.Relay{Relay: "a", SlotExists: true, ActivePID: &pid, LagBytes: 2048}.ReadsLater(), "2.0 KiB behind; it will")
}

// TestNoCommandOfOthers: names of rows and words of operators are no commands of ours.
func TestNoCommandOfOthers(t *testing.T) {
	const theirs = "`outboxctl gap accept X`"
	pid := int32(7)
	r := relays.Relay{Relay: "a", Slot: "s", SlotExists: true, ActivePID: &pid, WALStatus: "reserved", Paused: true, Rests: []relays.Rested{{By: theirs, Reason: theirs}},
		Processes: []relays.Process{{Process: "p", Alive: true, State: "streaming", Waiting: []relay.Wait{{For: relay.WaitRoute, What: theirs, Detail: "`outboxctl status`"}}}}}
	problems := r.Problems()
	require.Len(t, problems, 2)
	require.Equal(t, []string{"outboxctl status"}, problems[0].Cures)
	require.Equal(t, []string{"outboxctl resume --relay a"}, problems[1].Cures)
	require.Contains(t, problems[0].What, "'outboxctl gap accept X'")
}

// TestNobodyStreams: a process that lives said last that it streams, and nobody has the slot: its
// role lost the right to say more.
func TestNobodyStreams(t *testing.T) {
	pid := int32(7)
	r := relays.Relay{Relay: "a", Slot: "s", SlotExists: true, WALStatus: "reserved", Processes: []relays.Process{{Process: "p", Alive: true, State: "streaming"}}}
	problems := r.Problems()
	require.Len(t, problems, 1)
	require.Contains(t, problems[0].What, "relay a: nobody reads from slot s")
	require.Equal(t, []string{"outboxctl migrate roles --side outbox --apply"}, problems[0].Cures)
	r.ActivePID = &pid
	require.Empty(t, r.Problems())
}
