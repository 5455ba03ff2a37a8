package beginning

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/scripted"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
)

// ownBeginner is that of a session that owns the slot.
func ownBeginner(t *testing.T) (*scripted.Server, *Beginner) {
	t.Helper()
	db := scripted.New(t)
	owner := state.New(db.Connect(), "onceward_orders")
	owner.Epoch = 7
	db.Forget()
	return db, New(Config{Relay: "orders", Slot: "onceward_orders"}, slog.New(slog.DiscardHandler), owner, Told{})
}

func TestTheCheckpointIsBoundToItsServer(t *testing.T) {
	good := func() binding {
		return binding{
			slot: "onceward_orders", row: outboxdb.RelayState{Slot: "onceward_orders", SystemIdentifier: "7000", Timeline: 2, Tick: 9},
			system: pglogrepl.IdentifySystemResult{SystemID: "7000", Timeline: 2, XLogPos: 500}, kept: ledger.Checkpoint{Order: 400, Timeline: 2, Tick: 9}, slotPosition: 300,
			last: Known{SystemID: "7000", Timeline: 2, Tick: 9},
		}
	}
	for name, fits := range map[string]func(*binding){
		"as it was":                      func(*binding) {},
		"the slot stands at it":          func(b *binding) { b.slotPosition = 400 },
		"a fresh process knows no tick":  func(b *binding) { b.last, b.row.Tick, b.kept.Tick = Known{}, 0, 0 },
		"another relay has gone on":      func(b *binding) { b.row.Tick = 12 },
		"a failover behind it":           func(b *binding) { b.kept.Timeline, b.switched = 1, 400 },
		"a failover; ticks may be lower": func(b *binding) { b.kept.Timeline, b.switched, b.row.Tick = 1, 450, 3 },
		"a failover, and the promoted one lacks the last session": func(b *binding) {
			b.kept.Timeline, b.switched, b.kept.Strange = 1, 400, true
		},
		"behind a gap that is known":      func(b *binding) { b.kept.Gap, b.gap = 790, 790 },
		"the database has a later gap":    func(b *binding) { b.kept.Gap, b.gap = 790, 800 },
		"this process was on another one": func(b *binding) { b.last.Timeline, b.row.Tick, b.kept.Tick = 1, 3, 3 },
	} {
		b := good()
		fits(&b)
		require.NoError(t, b.check(), name)
	}
	for code, broken := range map[string]func(*binding){
		CodeOtherSystem:         func(b *binding) { b.system.SystemID = "7001" },
		CodeOtherTimeline:       func(b *binding) { b.kept.Timeline, b.switched = 1, 399 },
		CodeCheckpointBeyondLog: func(b *binding) { b.system.XLogPos = 399 },
		CodeWentBack:            func(b *binding) { b.row.Tick = 8 },
		CodeSlotAdvanced:        func(b *binding) { b.slotPosition = 401 },
		CodeLettersLost:         func(b *binding) { b.row.DeadLetters, b.kept.Letters = 4, 5 },

		CodeWentBack + " or has a copy":         func(b *binding) { b.last, b.kept.Strange = Known{}, true },
		CodeWentBack + " says Kafka":            func(b *binding) { b.last, b.row.Tick = Known{}, 8 },
		CodeLettersLost + " on a new timeline":  func(b *binding) { b.kept.Timeline, b.switched, b.kept.Letters = 1, 450, 1 },
		CodeLettersLost + " knows this process": func(b *binding) { b.last.Letters = 1 },
		CodeOtherTimeline + " cuts through a transaction": func(b *binding) {
			b.kept.Timeline, b.switched, b.kept.UpTo = 1, 400, ledger.Place{Commit: 401, Ordinal: 2}
		},
		CodeSlotAdvanced + " and the gap was lost in a failover": func(b *binding) {
			b.kept.Timeline, b.switched, b.kept.Strange, b.kept.Gap, b.gap = 1, 400, true, 790, 740
			b.slotPosition = 400
		},
		CodeWentBack + " to a standby whose slot was made anew": func(b *binding) {
			b.kept.Timeline, b.switched, b.row.Tick, b.kept.Tick, b.slotPosition = 1, 450, 8, 8, 480
		},
		CodeCheckpointBeyondLog + " with a part": func(b *binding) { b.kept.UpTo = ledger.Place{Commit: 501, Ordinal: 2} },
	} {
		code, _, _ = strings.Cut(code, " ")
		b := good()
		broken(&b)
		err := b.check()
		require.ErrorContains(t, err, code+": ")
		require.ErrorContains(t, err, "onceward_orders")
		if code == CodeOtherSystem {
			var start *cdc.StartError
			require.ErrorAs(t, err, &start)
			require.False(t, start.Passing, "transaction ids of another system mean nothing here")
			continue
		}
		gap := gapOf(err)
		require.NotNil(t, gap, code)
		require.GreaterOrEqual(t, gap.Tick, b.kept.Tick, "the new beginning lies above what was known")
	}
	b := good()
	b.row.ConfirmedLsn, b.row.Tick = adoptedAt, 8
	gap := gapOf(b.check())
	require.NotNil(t, gap, "a relay that was adopted")
	require.Equal(t, CodeOtherSystem, gap.Code)
	require.True(t, gap.Advance, "what its slot keeps may be of tables that were dropped")
	require.EqualValues(t, 9, gap.Tick)
}

// A slot that is gone is the gap, unless this process knows that the database went back
// in time with it.
func TestAMissingSlotIsToldByWhatIsRemembered(t *testing.T) {
	missing := &cdc.StartError{Code: cdc.CodeSlotMissing, What: "slot s does not exist"}
	row := func() outboxdb.RelayState {
		return outboxdb.RelayState{Slot: "s", SystemIdentifier: "7000", Tick: 9, DeadLetters: 5}
	}
	last := Known{SystemID: "7000", Timeline: 1, Tick: 9, Letters: 5}
	for name, c := range map[string]struct {
		row  func(*outboxdb.RelayState)
		last Known
		code string
	}{
		"as it was":                 {func(*outboxdb.RelayState) {}, last, cdc.CodeSlotMissing},
		"another relay has gone on": {func(r *outboxdb.RelayState) { r.Tick, r.DeadLetters = 12, 7 }, last, cdc.CodeSlotMissing},
		"a fresh process":           {func(r *outboxdb.RelayState) { r.Tick, r.DeadLetters = 0, 0 }, Known{}, cdc.CodeSlotMissing},
		"it was on another system":  {func(r *outboxdb.RelayState) { r.SystemIdentifier, r.Tick = "7001", 1 }, last, cdc.CodeSlotMissing},
		"a tick is missing":         {func(r *outboxdb.RelayState) { r.Tick, r.DeadLetters = 8, 4 }, last, CodeWentBack},
		"a letter is missing":       {func(r *outboxdb.RelayState) { r.DeadLetters = 4 }, last, CodeLettersLost},
	} {
		r := row()
		c.row(&r)
		gap := c.last.slotGone(missing, r)
		require.Equal(t, c.code, gap.Code, name)
		require.Equal(t, c.code == CodeWentBack, gap.asked(), name)
		require.Contains(t, gap.What, "slot s does not exist", name)
		if c.last.SystemID == r.SystemIdentifier {
			require.Equal(t, []int64{9, 5}, []int64{gap.Tick, gap.Letters}, "the new beginning lies above what was known")
		}
	}
}

// What the stream brings under another name than the outbox's is read from the
// table, and the log is passed: it would bring the same row again.
func TestAForeignRowIsAGap(t *testing.T) {
	gap := gapOf(fmt.Errorf("read: %w", &cdc.DecodeError{Err: &cdc.ForeignRowError{Table: "onceward.outbox_20261122"}}))
	require.NotNil(t, gap)
	require.Equal(t, CodePublicationChanged, gap.Code)
	require.True(t, gap.Advance)
	require.ErrorContains(t, gap, "onceward.outbox_20261122")
}

// What `adopt --kafka gap` left is one gap of the next session, unless a gap was
// found already: the barrier of that covers it.
func TestAdoptedLeavesAGap(t *testing.T) {
	require.Nil(t, adopted(outboxdb.RelayState{}, nil))
	found := adopted(outboxdb.RelayState{KafkaGap: true, Epoch: 7}, nil)
	require.Equal(t, CodeOtherKafka, found.Code)
	require.EqualValues(t, 7, found.Epoch)
	require.False(t, found.asked(), "who adopted the cluster has decided")
	lost := &GapError{Code: cdc.CodeSlotLost}
	require.Same(t, lost, adopted(outboxdb.RelayState{KafkaGap: true}, lost))
}

// What becomes of a gap is decided by what made it and by the policy.
func TestWhatBecomesOfAGap(t *testing.T) {
	caused := func(code string) *GapError { return &GapError{Code: code, What: "x"} }
	for name, tc := range map[string]struct {
		cause  *GapError
		policy string
		start  string
		last   string
		events int64
		want   string
		from   string
	}{
		"repaired by itself":            {cause: caused(CodeSlotAdvanced), last: "40:40:", events: 3, want: gapRepairing},
		"an operator wants to be asked": {cause: caused(CodeSlotAdvanced), policy: GapAsk, last: "40:40:", events: 3, want: gapOpen},
		"nothing is in it":              {cause: caused(CodeWentBack), policy: GapAsk, last: "40:40:", want: gapRepaired},
		"the database went back":        {cause: caused(CodeWentBack), last: "40:40:", events: 3, want: gapOpen},
		"another timeline":              {cause: caused(CodeOtherTimeline), last: "40:40:", events: 3, want: gapOpen},
		"beyond the log":                {cause: caused(CodeCheckpointBeyondLog), last: "40:40:", events: 3, want: gapOpen},
		"nothing is proved here":        {cause: caused(CodeOtherSystem), last: snapshot.None, events: 3, want: gapOpen},
		"another Kafka":                 {cause: caused(CodeOtherKafka), policy: GapAsk, last: "40:40:", events: 3, want: gapRepairing},
		"the first start, now":          {start: StartNow, events: 3, want: gapBefore, from: snapshot.None},
		"the first start, all":          {start: StartAll, policy: GapAsk, events: 3, want: gapRepairing, from: snapshot.None},
	} {
		t.Run(name, func(t *testing.T) {
			db, s := ownBeginner(t)
			s.conf.Gap, s.conf.Start = cmp.Or(tc.policy, GapRepair), cmp.Or(tc.start, StartAsk)
			db.Returns("LastPublished", tc.last)
			db.Returns("CountGap", tc.events)
			s.beginning = &beginning{cause: tc.cause, end: snapshot.Snapshot{Text: "50:50:"}}
			g, err := s.measure(t.Context())
			require.NoError(t, err)
			require.Equal(t, tc.want, g.State)
			require.Equal(t, cmp.Or(tc.from, tc.last), g.FromSnapshot)
			require.Equal(t, "50:50:", g.ToSnapshot)
			require.Equal(t, []string{"CountGap " + g.FromSnapshot + " 50:50: onceward_orders"}, db.Log("CountGap"))
		})
	}
}

// The session that meets a gap says of which epoch it is: only the one after it
// writes it down.
func TestAGapIsOfTheSessionThatFoundIt(t *testing.T) {
	_, s := ownBeginner(t)
	var gap *GapError
	require.ErrorAs(t, s.FoundIn(fmt.Errorf("read: %w", &cdc.ForeignRowError{Table: "onceward.outbox_20261122"})), &gap)
	require.EqualValues(t, 7, gap.Epoch)
	for name, tc := range map[string]struct {
		err   error
		found bool
	}{
		"the stream met a time without the publication": {&cdc.StartError{Code: cdc.CodePublicationMissing, Err: fmt.Errorf("x")}, true},
		"the publication is missing now":                {&cdc.StartError{Code: cdc.CodePublicationMissing}, false},
		"a connection broke":                            {fmt.Errorf("connection reset"), false},
	} {
		require.Equal(t, tc.found, gapOf(s.FoundIn(tc.err)) != nil, name)
	}
}

// How far a repair has come, Kafka or the database knows.
func TestARepairGoesOnWhereItIsKnownToBe(t *testing.T) {
	s, one, two := &Beginner{}, uuid.New(), uuid.New()
	from := s.RepairFrom([]stream.Gap{{ID: one, Cursor: 20}, {ID: two, Cursor: 20}}, ledger.Repair{Gap: two, Cursor: 30})
	require.Equal(t, []int64{20, 30}, []int64{from[0].Cursor, from[1].Cursor})
	from = s.RepairFrom([]stream.Gap{{ID: one, Cursor: 20}}, ledger.Repair{Gap: one, Cursor: 10})
	require.EqualValues(t, 20, from[0].Cursor, "the database knows of more")
	require.Equal(t, map[uuid.UUID]bool{one: true}, s.repairs)
}
