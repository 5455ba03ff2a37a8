package status

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/gaps"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/relay"
)

func TestProblems(t *testing.T) {
	pid := int32(7)
	well := relays.Relay{Relay: "a", Slot: "onceward_a", SlotExists: true, ActivePID: &pid, WALStatus: "reserved"}
	enough := partitions.Extent{DaysAhead: partition.FewAhead}
	require.Empty(t, (&Report{Relays: []relays.Relay{well}, Partitions: enough, DeadLetters: []LettersInState{{State: "replayed", Letters: 3}}}).problems())

	for name, tc := range map[string]struct {
		change func(*Report)
		want   string
	}{
		"nobody connected": {func(r *Report) { r.Relays[0].ActivePID = nil }, "relay a: no process of it is connected to PostgreSQL: start it, or look at its log and /readyz"},
		"a stranger has it": {func(r *Report) {
			r.Relays[0].SlotTaken = "SLOT_TAKEN: slot onceward_a is held by PID 7"
			r.Relays[0].Processes = []relays.Process{{Process: "h/1/a", Alive: true, State: "standby", Waiting: []relay.Wait{{For: relay.WaitStandby}, {For: relay.WaitSlot, Detail: "SLOT_TAKEN"}}}}
		}, "relay a: SLOT_TAKEN: slot onceward_a is held by PID 7"},
		"lost":         {func(r *Report) { r.Relays[0].WALStatus = "lost" }, "slot onceward_a is lost"},
		"gone":         {func(r *Report) { r.Relays[0].SlotExists = false }, "its slot onceward_a is gone"},
		"orphan":       {func(r *Report) { r.Relays[0].Relay = "" }, "SELECT pg_catalog.pg_drop_replication_slot('onceward_a');"},
		"paused":       {func(r *Report) { r.Relays[0].Paused = true }, "relay a is paused; `outboxctl resume --relay a`"},
		"paused route": {func(r *Report) { r.Relays[0].PausedRoutes = []string{"t"} }, "route t is paused; `outboxctl resume --relay a --route t`"},
		"told to skip": {func(r *Report) { r.Relays[0].Skip = []uuid.UUID{{7}} }, "told to skip the event 07000000"},
		"nobody connected, dead": {func(r *Report) {
			r.Relays[0].ActivePID = nil
			r.Relays[0].Processes = []relays.Process{{Process: "h/1/a", State: "halted", Error: "SLOT_LOST: gone"}}
		}, "/readyz (the last one, h/1/a, wrote at 0001-01-01 00:00:00.000Z that it was halted: SLOT_LOST: gone)"},
		"kafka away at start": {func(r *Report) {
			r.Relays[0].ActivePID = nil
			r.Relays[0].Processes = []relays.Process{{Process: "h/1/a", Alive: true, State: "backoff", Waiting: []relay.Wait{{For: relay.WaitKafka, Detail: "no broker"}}}}
		}, "relay a is backoff, waits for kafka since"},
		"held route": {func(r *Report) {
			r.Relays[0].Processes = []relays.Process{
				{Process: "h/1/a", Alive: true, State: "streaming", Waiting: []relay.Wait{{For: relay.WaitRoute, What: "shop.order", Detail: "is missing", Events: 3}}},
				{Process: "h/2/b", Alive: true, State: "standby", Waiting: []relay.Wait{{For: relay.WaitStandby}}},
				{Process: "h/3/c", State: "streaming", Waiting: []relay.Wait{{For: relay.WaitKafka}}},
			}
		}, "waits for route shop.order since"},
		"halted without a slot": {func(r *Report) {
			r.Relays[0].SlotExists, r.Relays[0].ActivePID = false, nil
			r.Relays[0].Processes = []relays.Process{{Process: "h/1/a", Alive: true, State: "halted", Waiting: []relay.Wait{{For: relay.WaitHalted, Detail: "SLOT_MISSING: x"}}}}
		}, "relay a is halted since"},
		"asked at its first start": {func(r *Report) {
			r.Relays = []relays.Relay{{Relay: "b", Slot: "onceward_b", NotBegun: true, Processes: []relays.Process{{Process: "h/1/b", State: "halted", Alive: true, Waiting: []relay.Wait{{For: "halted", Detail: "OUTBOX_NOT_EMPTY: x"}}}}}}
		}, "relay b is halted since"},
		"asked at its first start, gone": {func(r *Report) {
			r.Relays = []relays.Relay{{Relay: "b", Slot: "onceward_b", NotBegun: true, Processes: []relays.Process{{Process: "h/1/b", State: "halted", Error: "OUTBOX_NOT_EMPTY: x"}}}}
		}, "relay b has not begun, and no process of it is connected to PostgreSQL: start it, or look at its log and /readyz (the last one, h/1/b,"},
		"repairs": {func(r *Report) {
			r.Gaps = []gaps.Gap{{Relay: "a", Slot: "onceward_a", State: states.GapRepairing, Cause: "OTHER_KAFKA", Events: 7}}
			gaps.NoteRepairs(r.Gaps, r.Relays)
		}, "relay a repairs gap"},
		"will repair": {func(r *Report) {
			r.Relays[0].Processes = []relays.Process{{Process: "h/1/a", Alive: true, State: "standby"}}
			r.Gaps = []gaps.Gap{{Relay: "a", Slot: "onceward_a", State: states.GapRepairing, Cause: "OTHER_KAFKA", Events: 7}}
			gaps.NoteRepairs(r.Gaps, r.Relays)
		}, "(OTHER_KAFKA) of 7 events once it runs"},
		"a topic is mistyped":   {func(r *Report) { r.Held = []Held{{Slot: "s", Topic: "a`b", Events: 3, First: "orders:1"}} }, "the first is replays to a`b; /readyz of the relay says why; where topic a'b of replays is not to be made, `outboxctl skip orders:1 --slot s --reason \"…\"` gives up the first of 3"},
		"a kind is held":        {func(r *Report) { r.Held = []Held{{Namespace: "shop", AggregateType: "order"}} }, "1 kind of events waits for a route that cannot be used, the first is shop order"},
		"no partition of today": {func(r *Report) { r.Partitions = partitions.Extent{Count: 21, NoToday: true} }, "NO_PARTITION: onceward.outbox has no partition of today (UTC): every Enqueue fails. To mend it: outboxctl partitions maintain --config relay.yaml"},
		"few partitions":        {func(r *Report) { r.Partitions.DaysAhead = 6 }, "only 6 days ahead"},
		"nobody's event":        {func(r *Report) { r.Relays, r.nobodys = nil, 1 }, "no relay is known, and onceward.outbox holds 1 event: nobody publishes"},
		"nobody's events":       {func(r *Report) { r.Relays, r.nobodys = nil, maxNobodys+1 }, "holds more than 1000 events: nobody publishes"},
		"dead letters":          {func(r *Report) { r.DeadLetters = []LettersInState{{"s", "open", 2}} }, "2 open dead letters"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Report{Relays: []relays.Relay{well}, Partitions: enough}
			tc.change(r)
			problems := r.problems()
			require.Len(t, problems, 1)
			require.Contains(t, problems[0].What, tc.want)
			require.NotEmpty(t, problems[0].Check)
		})
	}
}

// TestAProblemSaysWhoseItIs, for programs that read JSON.
func TestAProblemSaysWhoseItIs(t *testing.T) {
	pid := int32(7)
	r := &Report{Partitions: partitions.Extent{DaysAhead: partition.FewAhead}, Relays: []relays.Relay{{
		Relay: "a", Slot: "onceward_a", SlotExists: true, ActivePID: &pid, Paused: true,
		Processes: []relays.Process{{Process: "h/1/a", Alive: true, State: "halted", Code: "SLOT_LOST", Waiting: []relay.Wait{{For: relay.WaitHalted, Detail: "gone"}}}},
	}}}
	problems := r.problems()
	require.Len(t, problems, 2)
	halted, paused := problems[0], problems[1]
	require.Equal(t, []string{"halted", "SLOT_LOST", "a", "onceward_a"}, []string{halted.Check, halted.Code, halted.Relay, halted.Slot})
	require.Equal(t, operator.NewProblem("relay a is paused; `outboxctl resume --relay a` lets it go on").Of("paused", "a", "onceward_a"), paused)
	require.Equal(t, []string{"outboxctl resume --relay a"}, paused.Cures)
}
