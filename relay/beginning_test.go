package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/scripted"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
)

// insertedGap is the gap that was written down; none where it is empty.
func (db *installed) insertedGap(t *testing.T) string {
	t.Helper()
	gaps := db.Log("InsertGap")
	require.LessOrEqual(t, len(gaps), 1)
	return strings.Join(gaps, "")
}

// creates says whether the slot was made, or dropped.
func (db *installed) creates() (made, dropped bool) {
	for _, asked := range db.Log() {
		made = made || strings.Contains(asked, "pg_create_logical_replication_slot")
		dropped = dropped || strings.Contains(asked, "pg_drop_replication_slot")
	}
	return made, dropped
}

// makes scripts what the server has of the slot once it was made anew.
func (db *installed) makes() {
	db.On("pg_create_logical_replication_slot", func([]string) scripted.Reply {
		db.slot = []any{slotRow{"pgoutput", true, "reserved", true, "shop", false}}
		return scripted.One("onceward_orders")
	})
	db.On("pg_drop_replication_slot", func([]string) scripted.Reply { db.slot = nil; return scripted.One("") })
}

// A slot that is gone though its relay has begun is made anew with a gap, never in
// silence: what was written meanwhile was not sent.
func TestASlotThatIsGoneIsAGap(t *testing.T) {
	for name, tc := range map[string]struct {
		slot   []any
		last   owned
		stops  string // without the right to make a slot
		code   string
		before bool // it is dropped first
	}{
		"dropped":                          {nil, owned{}, cdc.CodeSlotMissing, cdc.CodeSlotMissing, false},
		"invalidated":                      {[]any{slotRow{"pgoutput", true, "lost", true, "shop", false}}, owned{}, cdc.CodeSlotLost, cdc.CodeSlotLost, true},
		"lost with a tick that was seen":   {nil, owned{Known: beginning.Known{SystemID: "7000", Timeline: 1, Tick: 31}}, cdc.CodeSlotMissing, beginning.CodeWentBack, false},
		"lost with a letter that was made": {nil, owned{Known: beginning.Known{SystemID: "7000", Timeline: 1, Tick: 30, Letters: 1}}, cdc.CodeSlotMissing, beginning.CodeLettersLost, false},
	} {
		t.Run(name, func(t *testing.T) {
			db := newInstalled(t)
			db.slot = tc.slot
			db.makes()
			db.Returns("LastPublished", "40:40:")
			db.Returns("CountGap", int64(3))
			state := "repairing"
			if tc.code == beginning.CodeWentBack {
				state = "open"
			}
			s, err := db.open(t, &tc.last, nil)
			require.NoError(t, err)
			gap := db.insertedGap(t)
			require.Contains(t, gap, " onceward_orders "+tc.code+" ")
			require.True(t, strings.HasSuffix(gap, " 40:40: 50:50: 3 "+state), gap)
			made, dropped := db.creates()
			require.True(t, made)
			require.Equal(t, tc.before, dropped)
			order(t, db.Log(), "AssignTransaction", "PassedBy", "TakeSnapshot", "FilledLeaves", "CountGap", "START_REPLICATION", "BumpEpoch", "InsertGap")
			require.True(t, s.begin.Anew())

			db = newInstalled(t)
			db.slot = tc.slot
			_, err = db.open(t, &owned{}, func(c *Config) { c.Postgres.Slot.Create = "never" })
			var start *cdc.StartError
			require.ErrorAs(t, err, &start)
			require.Equal(t, tc.stops, start.Code)
			made, dropped = db.creates()
			require.False(t, made || dropped)
			require.Empty(t, db.insertedGap(t))
		})
	}
}

// The first start over a table with rows is decided by an operator, and no slot is
// made before: one that waits for a person pins the log.
func TestAFirstStartOverRowsIsAsked(t *testing.T) {
	for name, tc := range map[string]struct {
		start string
		rows  int64
		asks  bool
		state string
	}{
		"ask, rows": {StartAsk, 5, true, ""},
		"ask, none": {StartAsk, 0, false, "repaired"},
		"now, rows": {StartNow, 5, false, "before"},
		"all, rows": {StartAll, 5, false, "repairing"},
	} {
		t.Run(name, func(t *testing.T) {
			db := newInstalled(t)
			db.slot = nil
			db.makes()
			db.Returns("Began", false)
			began := false
			db.On("LoadRelayState", func([]string) scripted.Reply {
				if !began {
					return scripted.Reply{}
				}
				return scripted.One(db.row)
			})
			db.On("InsertRelayState", func([]string) scripted.Reply { began, db.row.Epoch = true, 0; return scripted.Reply{Changed: 1} })
			db.Returns("CountOutbox", tc.rows)
			db.Returns("CountGap", tc.rows)
			db.Returns("SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots", false)
			_, err := db.open(t, &owned{}, func(c *Config) { c.Outbox.Start = tc.start })
			made, _ := db.creates()
			if tc.asks {
				var field *FieldError
				require.ErrorAs(t, err, &field)
				require.Contains(t, field.Error(), "onceward.outbox holds 5 events")
				require.Contains(t, field.Error(), "no slot was made")
				require.False(t, made)
				return
			}
			require.NoError(t, err)
			require.True(t, made)
			require.True(t, strings.HasSuffix(db.insertedGap(t), fmt.Sprintf(" %s %s 50:50: %d %s", "committed before the relay began", snapshot.None, tc.rows, tc.state)), db.insertedGap(t))
		})
	}
}

// A gap is written down by the session after the one that found it, if nobody was
// there in between: another has found it too, or will.
func TestAGapIsWrittenDownOnce(t *testing.T) {
	for epoch, written := range map[int64]bool{6: true, 5: false} {
		db := newInstalled(t)
		db.Returns("LastPublished", "40:40:")
		db.Returns("CountGap", int64(3))
		last := owned{gap: &beginning.GapError{Code: beginning.CodeSlotAdvanced, What: "the slot was advanced", Tick: 31, Letters: 4, Epoch: epoch}, ended: ledger.Checkpoint{Order: 300}}
		s, err := db.open(t, &last, nil)
		require.NoError(t, err)
		require.Equal(t, written, db.insertedGap(t) != "")
		require.Equal(t, written, last.gap == nil, "what is written down is forgotten")
		require.Equal(t, written, s.begin.Anew())
	}
}

// A beginning is written in one transaction: what was under way is taken back, what
// waits is kept, the checkpoint is the slot's position above all that was known, and
// the end of the gap is the published snapshot.
func TestABeginningIsOneTransaction(t *testing.T) {
	db := newInstalled(t)
	db.Returns("LastPublished", "40:40:")
	db.Returns("CountGap", int64(3))
	last := owned{gap: &beginning.GapError{Code: beginning.CodeSlotAdvanced, What: "the slot was advanced", Tick: 31, Letters: 4, Epoch: 6}}
	_, err := db.open(t, &last, nil)
	require.NoError(t, err)
	log := db.Log()
	from, to := slices.Index(log, "begin"), slices.Index(log, "commit")
	require.Equal(t, []string{
		"LoadRelease", "DeleteWholeBeyond", "JoinLanes", "LastOrdinal", "MoveWaiting", "RestartRetries", "SettleLetters", "TakeBackLetters", "BeginAnew", "InsertGap", "ListGaps", "SavePublished",
	}, scripted.Names(log[from+1:to]))
	require.Contains(t, db.Log("BeginAnew")[0], "BeginAnew 0/C8 1 31 ")
	require.Contains(t, db.Log("BeginAnew")[0], " 4 ", "the writes of letters that were known")
	require.Contains(t, db.Log("SavePublished")[0], "SavePublished 50:50: ")
}

// Nothing is begun at a slot that another had, or made anew, while this one waited
// for open transactions.
func TestABeginningThatAnotherOvertookIsVoid(t *testing.T) {
	for name, overtake := range map[string]func(*installed){
		"another session":   func(db *installed) { db.row.Epoch++ },
		"another position":  func(db *installed) { db.row.ConfirmedLsn = "0/C9" },
		"nobody: it begins": func(*installed) {},
	} {
		t.Run(name, func(t *testing.T) {
			db := newInstalled(t)
			db.Returns("LastPublished", "40:40:")
			db.Returns("CountGap", int64(3))
			db.On("PassedBy", func([]string) scripted.Reply { overtake(db); return scripted.One(true) })
			_, err := db.open(t, &owned{gap: &beginning.GapError{Code: beginning.CodeSlotAdvanced, Epoch: 6}}, nil)
			if strings.HasPrefix(name, "nobody") {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, state.ErrFenced)
			require.Empty(t, db.insertedGap(t))
		})
	}
}

// A producer settles what an exactly-once relay left open before a gap is written down,
// which makes relay_state idempotent. Any other beginning does not wait for Kafka.
func TestTheProducerComesWhereItIsNeeded(t *testing.T) {
	for mode, want := range map[string][]string{
		ModeExactlyOnce: {"BumpEpoch", "InitProducerID", "InsertGap"},
		ModeIdempotent:  {"BumpEpoch", "InsertGap", "InitProducerID"},
	} {
		t.Run(mode, func(t *testing.T) {
			db := newInstalled(t)
			db.producers()
			db.row.Mode = mode
			db.Returns("LastPublished", "40:40:")
			db.Returns("CountGap", int64(3))
			_, _ = db.open(t, &owned{gap: &beginning.GapError{Code: beginning.CodeSlotAdvanced, Epoch: 6}}, exactlyOnceMode) // the script's row stays as it was
			order(t, db.Log(), want...)
		})
	}
}

// A gap that an operator has to decide about stops the relay by name; those that are
// to be repaired are, from where the repair has come, and the stream leaves out what
// is of the newest.
func TestAGapThatIsOpenStopsTheRelay(t *testing.T) {
	one, two := uuid.New(), uuid.New()
	row := func(id uuid.UUID, state string) outboxdb.GapsOfSlotRow {
		return outboxdb.GapsOfSlotRow{GapID: id, Cause: beginning.CodeWentBack, Detail: "the database went back", Events: 3, State: state, Cursor: 20, FoundAt: time.Now().UTC()}
	}
	db := newInstalled(t)
	db.producers()
	db.Returns("GapsOfSlot", row(one, "repairing"), row(two, "open"))
	_, err := db.open(t, &owned{}, exactlyOnceMode)
	var start *cdc.StartError
	require.ErrorAs(t, err, &start)
	require.Equal(t, beginning.CodeWentBack, start.Code)
	require.Contains(t, start.Cure, "outboxctl gap repair "+two.String())
	require.NotContains(t, scripted.Names(db.Log()), "InitProducerID", "it would fence whoever publishes rightly")

	db = newInstalled(t)
	db.Returns("GapsOfSlot", row(one, "repairing"), row(two, "repairing"))
	db.Returns("LastGap", "50:60:55")
	s, err := db.open(t, &owned{}, nil)
	require.NoError(t, err)
	require.Equal(t, []stream.Gap{{ID: one, Cause: beginning.CodeWentBack, Cursor: 20, Events: 3}, {ID: two, Cause: beginning.CodeWentBack, Cursor: 20, Events: 3}}, s.conf.Repairs)
	require.True(t, s.conf.Covered.Sees(54))
	require.False(t, s.conf.Covered.Sees(55))
}

// What a session meets before it begins, and what looks as before once it is mended,
// is written down by the epoch that the row has.
func TestWhatLooksAsBeforeOnceMendedIsWrittenDown(t *testing.T) {
	leaf := "outbox_20261122"
	for name, tc := range map[string]struct {
		script func(*installed)
		code   string
		known  string
	}{
		"a partition is not logged": {func(db *installed) {
			db.Returns("has_schema_privilege", struct {
				Unlogged *string
				Usable   bool
			}{&leaf, true})
		}, cdc.CodeTableUnlogged, "unlogged"},
		"a partition was filled": {func(db *installed) { db.Returns("FilledLeaves", outboxdb.FilledLeavesRow{Leaf: leaf}) }, CodePartitionFilled, "filled"},
	} {
		t.Run(name, func(t *testing.T) {
			db := newInstalled(t)
			tc.script(db)
			_, err := db.open(t, &owned{}, nil)
			var start *cdc.StartError
			require.ErrorAs(t, err, &start)
			require.Equal(t, tc.code, start.Code)
			require.Equal(t, []string{"SavePublicationCatalog " + tc.known + " onceward_orders 6"}, db.Log("SavePublicationCatalog"))
			require.NotContains(t, db.Log(), "START_REPLICATION")
		})
	}
}

// A copy of the database is named before its slot, which it does not have.
func TestAnotherSystemIsNamedBeforeItsSlot(t *testing.T) {
	db := newInstalled(t)
	db.slot = nil
	db.makes()
	db.row.SystemIdentifier = "6999"
	_, err := db.open(t, &owned{}, nil)
	var start *cdc.StartError
	require.ErrorAs(t, err, &start)
	require.Equal(t, beginning.CodeOtherSystem, start.Code)
	made, _ := db.creates()
	require.False(t, made)
}

// Log that the server would refuse to decode is passed before the end of the gap is
// measured, so that what is in it is of the gap.
func TestLogThatCannotBeDecodedIsPassed(t *testing.T) {
	for _, advance := range []bool{true, false} {
		db := newInstalled(t)
		db.Returns("LastPublished", "40:40:")
		db.Returns("CountGap", int64(3))
		var passed []string
		db.On("pg_replication_slot_advance", func([]string) scripted.Reply {
			passed = scripted.Names(db.Log())
			db.row.ConfirmedLsn = "0/D0"
			return scripted.One("")
		})
		_, err := db.open(t, &owned{gap: &beginning.GapError{Code: beginning.CodePublicationChanged, Epoch: 6, Advance: advance}}, nil)
		require.NoError(t, err)
		require.Equal(t, advance, passed != nil)
		require.NotContains(t, passed, "AssignTransaction")
		at := map[bool]string{true: "0/D0", false: "0/C8"}[advance]
		require.Contains(t, db.Log("BeginAnew")[0], "BeginAnew "+at+" ")
	}
}
