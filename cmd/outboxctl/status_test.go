package main

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/relay"
)

func TestProblems(t *testing.T) {
	pid := int32(7)
	well := relays.Relay{Relay: "a", Slot: "onceward_a", SlotExists: true, ActivePID: &pid, WALStatus: "reserved"}
	enough := partitions.Extent{DaysAhead: partitions.FewDaysAhead}
	require.Empty(t, (&statusReport{Relays: []relays.Relay{well}, Partitions: enough, DeadLetters: []deadLettersCount{{State: "replayed", Letters: 3}}}).problems())

	for name, tc := range map[string]struct {
		change func(*statusReport)
		want   string
	}{
		"nobody connected": {func(r *statusReport) { r.Relays[0].ActivePID = nil }, "relay a: no process of it is connected to PostgreSQL: start it, or look at its log and /readyz"},
		"lost":             {func(r *statusReport) { r.Relays[0].WALStatus = "lost" }, "slot onceward_a is lost"},
		"gone":             {func(r *statusReport) { r.Relays[0].SlotExists = false }, "its slot onceward_a is gone"},
		"orphan":           {func(r *statusReport) { r.Relays[0].Relay = "" }, "SELECT pg_catalog.pg_drop_replication_slot('onceward_a');"},
		"paused":           {func(r *statusReport) { r.Relays[0].Paused = true }, "relay a is paused; `outboxctl resume --relay a`"},
		"paused route":     {func(r *statusReport) { r.Relays[0].PausedRoutes = []string{"t"} }, "route t is paused; `outboxctl resume --relay a --route t`"},
		"told to skip":     {func(r *statusReport) { r.Relays[0].Skip = []uuid.UUID{{7}} }, "told to skip the event 07000000"},
		"nobody connected, dead": {func(r *statusReport) {
			r.Relays[0].ActivePID = nil
			r.Relays[0].Processes = []relays.Process{{Process: "h/1/a", State: "halted", Error: "SLOT_LOST: gone"}}
		}, "/readyz (the last one, h/1/a, wrote at 0001-01-01 00:00:00.000Z that it was halted: SLOT_LOST: gone)"},
		"kafka away at start": {func(r *statusReport) {
			r.Relays[0].ActivePID = nil
			r.Relays[0].Processes = []relays.Process{{Process: "h/1/a", Alive: true, State: "backoff", Waiting: []relay.Wait{{For: relay.WaitKafka, Detail: "no broker"}}}}
		}, "relay a is backoff, waits for kafka since"},
		"held route": {func(r *statusReport) {
			r.Relays[0].Processes = []relays.Process{
				{Process: "h/1/a", Alive: true, State: "streaming", Waiting: []relay.Wait{{For: relay.WaitRoute, What: "shop.order", Detail: "is missing", Events: 3}}},
				{Process: "h/2/b", Alive: true, State: "standby", Waiting: []relay.Wait{{For: relay.WaitStandby}}},
				{Process: "h/3/c", State: "streaming", Waiting: []relay.Wait{{For: relay.WaitKafka}}},
			}
		}, "waits for route shop.order since"},
		"halted without a slot": {func(r *statusReport) {
			r.Relays[0].SlotExists, r.Relays[0].ActivePID = false, nil
			r.Relays[0].Processes = []relays.Process{{Process: "h/1/a", Alive: true, State: "halted", Waiting: []relay.Wait{{For: relay.WaitHalted, Detail: "SLOT_MISSING: x"}}}}
		}, "relay a is halted since"},
		"asked at its first start": {func(r *statusReport) {
			r.Relays = []relays.Relay{{Relay: "b", Slot: "onceward_b", NotBegun: true, Processes: []relays.Process{{Process: "h/1/b", State: "halted", Alive: true, Waiting: []relay.Wait{{For: "halted", Detail: "OUTBOX_NOT_EMPTY: x"}}}}}}
		}, "relay b is halted since"},
		"asked at its first start, gone": {func(r *statusReport) {
			r.Relays = []relays.Relay{{Relay: "b", Slot: "onceward_b", NotBegun: true, Processes: []relays.Process{{Process: "h/1/b", State: "halted", Error: "OUTBOX_NOT_EMPTY: x"}}}}
		}, "relay b has not begun, and no process of it is connected to PostgreSQL: start it, or look at its log and /readyz (the last one, h/1/b,"},
		"repairs": {func(r *statusReport) {
			r.Gaps = []gapReport{{Relay: "a", Slot: "onceward_a", State: states.GapRepairing, Cause: "OTHER_KAFKA", Events: 7}}
			noteRepairs(r.Gaps, r.Relays)
		}, "relay a repairs gap"},
		"will repair": {func(r *statusReport) {
			r.Relays[0].Processes = []relays.Process{{Process: "h/1/a", Alive: true, State: "standby"}}
			r.Gaps = []gapReport{{Relay: "a", Slot: "onceward_a", State: states.GapRepairing, Cause: "OTHER_KAFKA", Events: 7}}
			noteRepairs(r.Gaps, r.Relays)
		}, "(OTHER_KAFKA) of 7 events once it runs"},
		"a kind is held":        {func(r *statusReport) { r.Held = []heldReport{{Namespace: "shop", AggregateType: "order"}} }, "1 kind of events waits for a route that cannot be used, the first is shop order"},
		"no partition of today": {func(r *statusReport) { r.Partitions = partitions.Extent{Count: 21, NoToday: true} }, "NO_PARTITION: onceward.outbox has no partition of today (UTC): every Enqueue fails. To mend it: outboxctl partitions maintain"},
		"few partitions":        {func(r *statusReport) { r.Partitions.DaysAhead = 6 }, "only 6 days ahead"},
		"dead letters":          {func(r *statusReport) { r.DeadLetters = []deadLettersCount{{"s", "open", 2}} }, "2 open dead letters"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &statusReport{Relays: []relays.Relay{well}, Partitions: enough}
			tc.change(r)
			problems := r.problems()
			require.Len(t, problems, 1)
			r.Problems = problems
			require.Contains(t, problems[0], tc.want)
			p := &page{}
			printStatus(p, r)
			require.Contains(t, p.text.String(), "! "+strings.Fields(problems[0])[0])
		})
	}
}

// TestStatusNamesProcesses: a relay that has processes and no row of state is there all
// the same.
func TestStatusNamesProcesses(t *testing.T) {
	got := []relays.Relay{
		{Slot: "onceward_a", Relay: "a", Processes: []relays.Process{{Process: "h/1/a"}}},
		{Slot: "onceward_b", Relay: "b", NotBegun: true, Processes: []relays.Process{{Process: "h/2/b"}, {Process: "h/3/b"}}},
	}
	p := &page{}
	printStatus(p, &statusReport{Relays: got, Parked: []parkedReport{{Slot: "onceward_b", Namespace: "shop", AggregateType: "order", AggregateID: "1"}}})
	require.NotContains(t, p.text.String(), "no relay is known here")
	require.Regexp(t, `h/3/b +b +not connected`, p.text.String(), "with several relays it is seen whose a process is")
	require.Regexp(t, `shop order 1 +onceward_b`, p.text.String())
}

func TestAboutRows(t *testing.T) {
	require.Equal(t, "not known yet", aboutRows(-1), "no partition was analyzed")
	require.Equal(t, "about 0 rows", aboutRows(0))
}

func TestRemadeRowsClaimNoExactCount(t *testing.T) {
	require.Equal(t, "at least 0", remadeRows([]remadeTopic{{Topic: "t", Times: 1}})[0][4], "a session that ended by an error is not counted")
}
