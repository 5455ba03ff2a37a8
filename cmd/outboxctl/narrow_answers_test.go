package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/audit"
	"github.com/onceward/onceward/internal/operator/binding"
	"github.com/onceward/onceward/internal/operator/claims"
	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/fences"
	"github.com/onceward/onceward/internal/operator/gaps"
	"github.com/onceward/onceward/internal/operator/kafka"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/replay"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/operator/status"
	"github.com/onceward/onceward/internal/operator/windows"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/relay"
)

const (
	longKey   = "payments:01a20101-a14d-7d01-acac-1702a8503a9d"
	otherKey  = "payments:01a20101-a14e-7d02-b1b2-0203a4050607"
	longID    = "01a20101-a14d-7d01-acac-1702a8503a9d"
	longPlace = "payments.payment/11@1234567890"
	longError = "produce to topic payments.payment: kafka server: message was too large, server rejected it to avoid allocation error: 2097152 bytes"
	longWhy   = "the provider said that it had booked it twice, which its own statement of the day denies"
	longGroup = "invoice-printer"
)

var (
	at    = time.Date(2026, 11, 25, 22, 47, 54, 123_000_000, time.UTC)
	later = at.Add(17 * time.Minute)
	whoID = uuid.MustParse(longID)
	who   = "alice.operator"
	why   = longWhy
	pid   = int32(1234567)
)

// answers are reports as the commands print them, made by hand.
func answers() map[string]func(terminal.Screen) string {
	all := map[string]func(terminal.Screen) string{
		"audit": written(&audit.Report{Findings: []audit.Finding{{
			Check: "floors", Group: longGroup, Subject: "payments.*", Count: 3, What: "a floor lies below where claims are kept, so that a late duplicate is applied again",
			Do: fmt.Sprintf("`outboxctl windows raise %s 'payments.*' --reason \"…\"` raises it", longGroup),
		}}, Unfinished: []string{"claims of 2026-11-24"}}, printAudit),
		"config-check": written(configReport{File: "relay.yaml", Problems: operator.Problems("config: routes[0].topic: {tenant} is no variable; want one of {namespace}, {aggregate_type}, {event_type}")}, printConfig),
		"adopt":        written(&binding.Adopted{By: binding.ByDump, Relays: []string{"orders", "payments"}, InDoubt: 120000, Before: 17, GivenUp: 3}, printAdopted),
		"adopt-kafka":  written(&binding.AdoptedKafka{Kafka: binding.KafkaGap, Relay: "payments", Cluster: "MkU3OEVBNTcwNTJENDM2Qg", InDoubt: 12, Replayed: 2}, printAdoptedKafka),
		"retire":       written(&binding.Retired{Relay: "payments", Slot: "onceward_payments", SlotOf: "shop_staging", Letters: 4}, printRetired),
		"pause-route":  written(&relays.Resting{Relay: "payments", OfRoutes: true, PausedRoutes: []string{"payments.refund"}}, printResting),
		"pause":        written(&relays.Resting{Relay: "payments", Paused: true, PausedRoutes: []string{"payments.refund"}, NotKnown: []string{"paymnts.payment"}, Topics: []string{"payments.payment", "payments.refund", "payments.chargeback"}}, printResting),
		"skip":         written(&relays.Skipped{Key: longKey, Relay: "payments"}, printSkip),
		"skip-undo":    written(&relays.Undone{Key: longKey, Relay: "payments", GivenUp: true}, printUndo),
	}
	for _, more := range []map[string]func(terminal.Screen) string{ofEvents(), ofLetters(), ofRelays(), ofGroups(), ofGaps(), ofWindows()} {
		maps.Copy(all, more)
	}
	return all
}

func ofEvents() map[string]func(terminal.Screen) string {
	event := events.Event{Key: longKey, State: states.Pending, EventType: "PaymentAuthorized", AggregateType: "payment", AggregateID: longID, CreatedAt: at, AgeSeconds: 4711, Seq: 1234567}
	short := events.Event{Key: otherKey, State: states.Waiting, EventType: "Paid", AggregateType: "order", AggregateID: "17", CreatedAt: at, AgeSeconds: 60, Seq: 1234568}
	dead := event
	dead.State, dead.Letter = states.Dead, &events.LetterOf{Class: "too_large", Error: longError}
	life := &events.Life{
		Key: longKey, EventTime: at, State: states.Dead, Why: "relay payments could not publish it: " + longError,
		Row: &events.Row{AggregateType: "payment", AggregateID: longID, EventType: "PaymentAuthorized", ContentType: "application/json", Headers: json.RawMessage(`{"tenant":"northern-lights-trading-company","origin":"checkout"}`),
			Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", CreatedAt: at, TxID: 987654321, Seq: 1234567, PayloadBytes: 2 << 20, PayloadPreview: `{"payment":"` + longID + `","amount":{"value":"1299.00","currency":"EUR"},"method":"card"}…`},
		Relays:      []events.Account{{Relay: "payments", Slot: "onceward_payments", Known: true, State: states.Dead, PublishedAt: &later, Why: "it is parked: " + longError}},
		DeadLetters: []events.Letter{{Slot: "onceward_payments", State: states.LetterOpen, Class: "too_large", Error: longError, Attempts: 3, FirstAt: at, LastAt: later}},
		Replays:     []events.Replay{{ID: whoID, Mode: states.ModeRedeliver, RequestedAt: at, RequestedBy: who, Reason: longWhy}},
		Next:        letters.Next(longKey, states.LetterOpen),
		NotSearched: "the topic of the event is not known: no route of relay.yaml takes aggregates of type payment",
	}
	groups := *life
	groups.NotSearched, groups.Disagree = "", "the database says published, and the topic does not have it between 2026-11-25 and now"
	groups.Kafka = &kafka.Copies{Topic: "payments.payment", Copies: []kafka.Copy{{Partition: 11, Offset: 1234567890, Timestamp: at}, {Partition: 11, Offset: 1234567899, Timestamp: later, ReplayID: longID}}}
	groups.Groups = &[]events.Group{{Group: longGroup, Outcome: "applied", ProcessedAt: at}, {Group: "billing", Outcome: "duplicate", ProcessedAt: later, ReplayID: longID}}
	groups.Refused = []events.Refused{{Group: "billing", State: states.LetterOpen, Reason: "handler", Topic: "payments.payment", Partition: 11, Offset: 1234567890, Error: "no such account: " + longWhy, CreatedAt: at}}
	groups.Fences = someFences()[:1]
	return map[string]func(terminal.Screen) string{
		"list":      written(&events.List{State: states.Pending, Events: []events.Event{short, short}, Relays: []events.Snapshot{{Relay: "payments"}}, More: true, Problems: operator.Problems("relay payments is paused by alice.operator since 2026-11-25 22:47:54.123Z (the broker moves); `outboxctl resume --relay payments` lets it go on")}, printList),
		"list-long": written(&events.List{State: states.Pending, Events: []events.Event{event, short}, NotBegun: []string{"payments"}, Filled: []string{"outbox_p20261125"}}, printList),
		"list-dead": written(&events.List{State: states.Dead, Events: []events.Event{dead}, Relays: []events.Snapshot{{Relay: "payments", Known: true}}}, printList),
		"list-none": written(&events.List{State: states.Pending}, printList),
		"show":      written(life, printShow), "show-consumer": written(&groups, printShow),
		"replay": written(&replay.Result{Selected: 3, DryRun: true, Mode: states.ModeReprocess, Group: longGroup, Reason: longWhy, Kinds: []replay.Kind{{Namespace: "payments", AggregateType: "payment", EventType: "PaymentAuthorized", Events: 3}},
			LeftOut: []replay.Left{{State: states.Pending, Events: 1, Why: "some relay still owes it, and publishes it by itself as soon as it has come to it"}}}, printReplay),
		"replay-refused": written(&replay.Result{Problems: operator.Problems(longKey + ": its partition was dropped with the day 2026-11-01, and no row is there to be published once more")}, printReplay),
	}
}

func ofLetters() map[string]func(terminal.Screen) string {
	letter := letters.Letter{Key: longKey, Slot: "onceward_payments", State: states.LetterOpen, EventType: "PaymentAuthorized", AggregateType: "payment", AggregateID: longID, FirstAt: at, LastAt: later, CreatedAt: at, Attempts: 3, Class: "too_large", Error: longError, Position: "0/1A2B3C4D", Seq: 1234567, Holds: true}
	edited := letter
	edited.EditedAt, edited.Waits = &at, true
	whole := letters.WholeLetter{Letter: edited, EditedBy: &who, EditedWhy: &why, ContentType: "application/json", PayloadBytes: 2 << 20, PayloadPreview: `{"payment":"` + longID + `"}`}
	became := &letters.Became{Action: "discard", Letters: []letters.Outcome{{Key: longKey, Slot: "onceward_payments", Outcome: states.OutcomeFailed, Detail: longError}, {Key: otherKey, Slot: "onceward_payments", Outcome: states.OutcomePending}},
		Left: []letters.Remains{{Key: otherKey, AggregateType: "payment", AggregateID: longID, Letters: 2}}, Relays: operator.Problems("relay payments has not acted on it yet: no process of it is connected; it reads the order when one is started")}
	group := letters.GroupLetter{Group: longGroup, Place: longPlace, Key: longKey, EventType: "PaymentAuthorized", Cause: "handler", Error: "no such account: " + longWhy, Attempts: 5, State: states.LetterOpen, KeptAt: at, DecidedAt: &later, DecidedBy: &who, DecidedWhy: &why, Behind: 12}
	brief := letters.GroupLetter{Group: "billing", Place: "orders.order/3@4711", Key: otherKey, Cause: "late", Error: "its time is below the floor", State: states.LetterParked, KeptAt: at}
	actions := []operator.Action{{At: at, By: who, Action: "redrive", Group: longGroup, Target: longPlace, Reason: longWhy}}
	return map[string]func(terminal.Screen) string{
		"dead-list":          written(&letters.List{Letters: []letters.Letter{letter, edited}, More: true}, printDeadLetters),
		"dead-show":          written(&letters.Shown{Key: longKey, Letters: []letters.WholeLetter{whole}, Commands: []letters.Command{{Action: "retry", Aggregate: true, RequestedAt: at, RequestedBy: who, Reason: longWhy}}, Next: letters.Next(longKey, states.LetterOpen)[1:]}, printDeadShow),
		"dead-none":          written(&letters.Shown{Key: longKey}, printDeadShow),
		"dead-discard":       written(became, printDecided),
		"dead-refused":       written(&letters.Became{Problems: operator.Problems("letter " + longKey + " is discarded already: by " + who + ", because " + longWhy)}, printDecided),
		"dead-list-consumer": written(&letters.GroupList{Letters: []letters.GroupLetter{group, brief}}, printGroupLetters),
		"dead-show-consumer": written(&letters.GroupShown{Letters: []letters.WholeGroupLetter{{GroupLetter: group, TopicID: "q1Yd1vN2Q3mYw0x8g5dA4A", RecordKey: []byte(longID), Headers: json.RawMessage(`[["idempotency-key","cGF5bWVudHM6MDFhMjAxMDEtYTE0ZC03ZDAxLWFjYWMtMTcwMmE4NTAzYTlk"]]`), Tombstone: true}}, Actions: actions, Next: group.Next()}, printGroupLettersShown),
		"dead-redrive":       written(&letters.GroupBecame{Action: "redrive", Letters: []letters.GroupOutcome{{Group: longGroup, Place: longPlace, Key: longKey, Outcome: states.OutcomePending, Detail: "no member of the group runs that has the partition"}}}, printRedriven),
	}
}

func ofRelays() map[string]func(terminal.Screen) string {
	halted := relays.Process{Process: "relay-7d9f8b6c5-x2x4z/1/payments", Alive: true, State: "halted", Since: at, Error: longError, Waiting: []relay.Wait{{For: relay.WaitHalted, Since: at, Detail: "event " + longKey + ": " + longError}}}
	gone := relays.Process{Process: "relay-7d9f8b6c5-q9q9q/1/payments", State: "streaming", Since: at, Error: "the connection was lost"}
	held := relays.Process{Process: "relay-1/1/orders", Alive: true, State: "streaming", Since: at, Waiting: []relay.Wait{{For: "route", What: "orders.order", Events: 12, Since: at, Detail: "topic is not there, and topics.create is off"}}}
	report := &status.Report{Database: "shop", Rows: 1234567, Partitions: partitions.Extent{Count: 21, From: "2026-11-11", To: "2026-12-02", DaysAhead: 7},
		Relays: []relays.Relay{
			{Relay: "payments", Slot: "onceward_payments", Mode: "transactional", Epoch: 17, ConfirmedLSN: "0/1A2B3C4D", SlotExists: true, ActivePID: &pid, WALStatus: "reserved", RetainedBytes: 3 << 30, LagBytes: 2 << 20, Processes: []relays.Process{halted, gone}},
			{Relay: "orders", Slot: "onceward_orders", Mode: "idempotent", Epoch: 3, Processes: []relays.Process{held}},
		},
		DeadLetters: []status.LettersInState{{Slot: "onceward_payments", State: states.LetterOpen, Letters: 12}},
		Held:        []status.Held{{Namespace: "orders", AggregateType: "order", Events: 12, Orders: 2, Since: at}},
		Remade:      []status.RemadeTopic{{Topic: "payments.payment", Slot: "onceward_payments", Times: 2, Last: at, Records: 1234567}},
		Parked:      []status.Parked{{Slot: "onceward_payments", Namespace: "payments", AggregateType: "payment", AggregateID: longID, Letters: 12, Since: at, First: longKey, Class: "too_large", Error: longError}},
		Problems: operator.Problems(
			"relay payments is halted since 2026-11-25 22:47:54.123Z (process relay-7d9f8b6c5-x2x4z/1/payments): event "+longKey+" cannot be published: `outboxctl skip "+longKey+" --relay payments --reason \"…\"` leaves it out",
			"slot onceward_payments has 12 open dead letters; see `outboxctl dead list`",
		),
	}
	leaves := []partitions.Leaf{{Name: "outbox_p20261125", From: at, State: "open", Rows: 1234567, Bytes: 3 << 30}, {Name: "outbox_p20261124", From: at, State: "waits", Rows: -1, Bytes: 3 << 20, Why: "relay payments has not published all of it: 12 events are dead letters that nobody has decided about"}}
	return map[string]func(terminal.Screen) string{
		"status":               written(report, printStatus),
		"status-fresh":         written(&status.Report{Database: "shop", Rows: -1, Problems: operator.Problems("partitions reach only 0 days ahead; `outboxctl partitions maintain --config relay.yaml` makes more")}, printStatus),
		"partitions":           written(&partitions.Report{Ahead: 14, Keep: 7, DaysAhead: 6, Made: []string{"outbox_p20261202", "outbox_p20261203"}, Leaves: leaves, Problems: operator.Problems("partition outbox_p20261124 waits since 3 days: `outboxctl dead list` shows what for")}, printPartitions),
		"partitions-of-claims": written(&partitions.ClaimsReport{DaysAhead: 64, Bytes: 3 << 30, OverdueSeconds: 4711, Blocked: "2026-11-26 could not be made: another session holds the table", Floors: []partitions.Floor{{Group: longGroup, Class: "payments.payment.*", WindowSeconds: 604800, Before: at, After: at, Why: "the stream time of payments.payment/11 is behind: no record came for 3 days"}}, Leaves: leaves, Rows: []partitions.Expiry{{Table: "claims", Removed: 17, LagSeconds: 60}}}, printClaimPartitions),
		"migrate-status":       written(migrateStatusReport{Side: "outbox", Version: 7, Latest: 9, Pending: []string{"0008_relay_health_says_since_when.sql", "0009_letters_are_known_by_their_key.sql"}, Publications: []publicationReport{{Name: "onceward_payments", Faults: []string{"it publishes update and delete", "publish_via_partition_root is off"}}}, Missing: "onceward.relay_health is not there: `outboxctl migrate up --side outbox` makes it"}, printMigrateStatus),
		"migrate-roles":        written(rolesReport{Applied: true, Roles: []string{"shop_payments_producer"}, Namespace: "payments", Logins: []string{"CREATE ROLE shop LOGIN PASSWORD '…' IN ROLE shop_payments_producer"}, Warnings: []string{"role shop_payments_producer is a superuser: no right that is given or taken changes what it may do"}}, printRoles),
	}
}

func someFences() []fences.Fence {
	until := later.Add(time.Hour)
	return []fences.Fence{
		{ID: whoID, Key: longKey, Group: "billing", Name: "charge", Status: states.FencePending, Stuck: "the provider answered 409 Conflict: " + longWhy, Epoch: 3, LeaseUntil: later, BegunAt: at, ProviderKeyUntil: &until, ProviderKey: "idem-" + longID, Result: json.RawMessage(`{"charge":"ch_1"}`)},
		{ID: whoID, Key: otherKey, Group: "billing", Name: "charge", Status: states.FenceComplete, Epoch: 1, BegunAt: at, CompletedAt: &later},
	}
}

func ofGroups() map[string]func(terminal.Screen) string {
	report := &claims.Report{
		Key: longKey, EventTime: at,
		Claims:  []claims.Claim{{Group: longGroup, ID: whoID, ByArrival: true, Outcome: "applied", EventType: "PaymentAuthorized", ClaimedAt: at, Fingerprint: "9f86d081884c7d65", Result: json.RawMessage(`{"invoice":"2026-11-25/4711","printed":true}`)}},
		Tries:   []claims.Tries{{Group: "billing", Attempts: 5, LastError: longError}},
		Letters: []letters.GroupLetter{{Group: "billing", State: states.LetterOpen, Place: longPlace, Attempts: 5, Cause: "handler", Error: "no such account: " + longWhy}},
		Actions: []operator.Action{{At: at, By: who, Action: "processed forget", Group: "billing", Target: longKey, Reason: longWhy}},
		Notes:   []string{"group billing has forgotten it: a copy that comes again is applied; `outboxctl replay " + longKey + " --config FILE --reason \"…\"` sends one"},
	}
	return map[string]func(terminal.Screen) string{
		"processed-show":   written(report, printProcessed),
		"processed-none":   written(&claims.Report{Key: longKey, EventTime: at}, printProcessed),
		"processed-forget": written(&claims.Forgotten{Key: longKey, Group: longGroup, Forgotten: []uuid.UUID{whoID}, Notes: []string{"a copy that comes again is applied as if it were new, whatever the handler did before; fences of it stay"}}, printForgotten),
		"fences-list":      written(&fences.Report{Fences: someFences()}, printFenceReport),
		"fences-show":      written(&fences.Report{Key: longKey, Fences: someFences()[:1], Past: report.Actions}, printFenceReport),
		"fences-reconcile": written(&fences.Settled{Key: longKey, Group: longGroup, Name: "charge", Did: "made", Epoch: 4, Notes: []string{"the event is applied when a copy of it comes: `outboxctl replay " + longKey + " --config FILE --reason \"…\"` sends one"}}, printSettled),
	}
}

func ofGaps() map[string]func(terminal.Screen) string {
	left := int64(2)
	gap := gaps.Gap{Gap: whoID, Relay: "payments", Slot: "onceward_payments", Cause: "SLOT_LOST", Detail: "the server removed the slot, because it kept more log than max_slot_wal_keep_size allows", State: states.GapOpen, Events: 12, Left: &left, FoundAt: at, Note: "and no process of the relay is connected", Replays: 1,
		FirstEvents:  []events.Event{{Key: longKey, EventType: "PaymentAuthorized", AggregateType: "payment", AggregateID: longID, CreatedAt: at, Seq: 1234567}},
		FirstReplays: []gaps.Replay{{Replay: otherKey, Key: longKey, RequestedBy: who, RequestedAt: at}}}
	decided := gap
	decided.Left, decided.State, decided.DecidedBy, decided.DecidedWhy, decided.DecidedAt = nil, states.GapRepaired, &who, &why, &later
	return map[string]func(terminal.Screen) string{
		"gap-list": written(&gaps.Report{Gaps: []gaps.Gap{gap, decided}, Problems: operator.Problems("relay payments: gap " + whoID.String() + " (SLOT_LOST) of 12 events waits for a decision: `outboxctl gap show " + whoID.String() + "`")}, printGaps),
		"gap-show": written(&gap, printGap), "gap-show-repaired": written(&decided, printGap),
	}
}

func ofWindows() map[string]func(terminal.Screen) string {
	return map[string]func(terminal.Screen) string{
		"windows-list": written(&windows.Report{Windows: []windows.Window{
			{Group: longGroup, Class: "payments.payment.*", Window: "7d", Late: "dead_letter", Replay: "process", Floor: at, Behind: "3d1h17m", StreamTime: &at, Slowest: "payments.payment/11", Why: "no record of payments.payment/11 came for 3 days, and the group does not know how far it is", Wrong: true},
			{Group: "billing", Class: "*", Window: "30d", Keyed: "arrival", Floor: at, Behind: "0s"},
		}, OldestPartition: &at, Problems: operator.Problems("a class of group " + longGroup + " stands still: `outboxctl windows retire " + longGroup + " --topic payments.payment --reason \"…\"` forgets a topic that is gone")}, printWindows),
		"windows-advise": written(&windows.Advice{Windows: []windows.ClassAdvice{{Group: longGroup, Class: "payments.payment.*", Window: "7d", Seen: 12, Oldest: "5d3h", EventType: "PaymentAuthorized", TooSmall: true, Recommended: "11d", Ages: []windows.Age{{UpTo: "1m", Seen: 7}, {UpTo: "1h", Seen: 3}, {UpTo: "1d", Seen: 1}, {UpTo: "7d", Seen: 1}}, Replays: 3, OldestReplay: "12d"}}}, printAdvice),
		"windows-set":    written(&windows.Change{Group: longGroup, Class: "payments.payment.*", Changed: []string{"window 11d, was 7d"}, Notes: []string{"programs of the group that run take it within a minute; one that names another window in its configuration is refused at its next start"}}, printWindowChange),
		"windows-adopt":  written(&windows.Adoption{Group: longGroup, Classes: []string{"*"}, Floors: map[string]string{"*": "2026-11-01"}, Made: []string{"claims_p20261101", "claims_p20261125"}}, printAdoption),
	}
}
