package main

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay"
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
	require.Equal(t, relayReport{Slot: "onceward_a", Relay: "a", Epoch: 2, SlotExists: true, ActivePID: &pid, WALStatus: "reserved", RetainedBytes: 10, PausedRoutes: []string{}, Skip: []uuid.UUID{}}, got[0])
	require.False(t, got[1].SlotExists)
	require.Equal(t, "onceward_old", got[2].Slot)
	require.Empty(t, got[2].Relay, "a stranger's slot is none of ours, an orphan is")
	require.NotNil(t, joinSlots(nil, nil), "JSON shows [] and not null")
}

func TestProblems(t *testing.T) {
	pid := int32(7)
	well := relayReport{Relay: "a", Slot: "onceward_a", SlotExists: true, ActivePID: &pid, WALStatus: "reserved"}
	enough := partitionReport{DaysAhead: fewDaysAhead}
	require.Empty(t, (&statusReport{Relays: []relayReport{well}, Partitions: enough, DeadLetters: []deadLettersCount{{State: "replayed", Letters: 3}}}).problems())

	for name, tc := range map[string]struct {
		change func(*statusReport)
		want   string
	}{
		"nobody connected": {func(r *statusReport) { r.Relays[0].ActivePID = nil }, "nobody is connected to slot onceward_a"},
		"lost":             {func(r *statusReport) { r.Relays[0].WALStatus = "lost" }, "slot onceward_a is lost"},
		"gone":             {func(r *statusReport) { r.Relays[0].SlotExists = false }, "its slot onceward_a is gone"},
		"orphan":           {func(r *statusReport) { r.Relays[0].Relay = "" }, "SELECT pg_catalog.pg_drop_replication_slot('onceward_a');"},
		"paused":           {func(r *statusReport) { r.Relays[0].Paused = true }, "relay a is paused; `outboxctl resume --relay a`"},
		"paused route":     {func(r *statusReport) { r.Relays[0].PausedRoutes = []string{"t"} }, "route t is paused; `outboxctl resume --relay a --route t`"},
		"told to skip":     {func(r *statusReport) { r.Relays[0].Skip = []uuid.UUID{{7}} }, "told to skip the event 07000000"},
		"nobody connected, dead": {func(r *statusReport) {
			r.Relays[0].ActivePID = nil
			r.Relays[0].Processes = []processReport{{Process: "h/1/a", State: "halted", Error: "SLOT_LOST: gone"}}
		}, "start the relay (its last process, h/1/a, has ended; it was halted: SLOT_LOST: gone)"},
		"kafka away at start": {func(r *statusReport) {
			r.Relays[0].ActivePID = nil
			r.Relays[0].Processes = []processReport{{Process: "h/1/a", Alive: true, State: "backoff", Waiting: []relay.Wait{{For: relay.WaitKafka, Detail: "no broker"}}}}
		}, "relay a is backoff, waits for kafka since"},
		"held route": {func(r *statusReport) {
			r.Relays[0].Processes = []processReport{
				{Process: "h/1/a", Alive: true, State: "streaming", Waiting: []relay.Wait{{For: relay.WaitRoute, What: "shop.order", Detail: "is missing", Events: 3}}},
				{Process: "h/2/b", Alive: true, State: "standby", Waiting: []relay.Wait{{For: relay.WaitStandby}}},
				{Process: "h/3/c", State: "streaming", Waiting: []relay.Wait{{For: relay.WaitKafka}}},
			}
		}, "waits for route shop.order since"},
		"halted without a slot": {func(r *statusReport) {
			r.Relays[0].SlotExists, r.Relays[0].ActivePID = false, nil
			r.Relays[0].Processes = []processReport{{Process: "h/1/a", Alive: true, State: "halted", Waiting: []relay.Wait{{For: relay.WaitHalted, Detail: "SLOT_MISSING: x"}}}}
		}, "relay a is halted since"},
		"few partitions": {func(r *statusReport) { r.Partitions.DaysAhead = 6 }, "only 6 days ahead"},
		"dead letters":   {func(r *statusReport) { r.DeadLetters = []deadLettersCount{{"s", "open", 2}} }, "2 open dead letters"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &statusReport{Relays: []relayReport{well}, Partitions: enough}
			tc.change(r)
			problems := r.problems()
			require.Len(t, problems, 1)
			r.Problems = problems
			require.Contains(t, problems[0], tc.want)
			p := &page{}
			r.print(p)
			require.Contains(t, p.text.String(), "! "+strings.Fields(problems[0])[0])
		})
	}
}
