package stream

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/scripted"
	"github.com/onceward/onceward/relay/internal/state"
)

// scriptedWaiting is onceward.waiting over a scripted PostgreSQL, of a session that
// begins from a checkpoint.
func scriptedWaiting(t *testing.T, start ledger.Checkpoint) (*scripted.Server, *Table) {
	db := scripted.New(t)
	db.Returns("LockEpoch", int64(7))
	db.Returns("CountLetters", int64(4))
	st := state.New(db.Connect(), "onceward_orders")
	st.Epoch = 7
	st.Conn.TypeMap().RegisterDefaultPgType([]uuid.UUID{}, "_uuid")
	return db, &Table{state: st, start: &start}
}

func TestWhatWaitsOfAnEpochThatIsOverChangesNothing(t *testing.T) {
	db, w := scriptedWaiting(t, ledger.Checkpoint{})
	db.On("LockEpoch", scripted.Fenced)
	require.ErrorIs(t, w.begin(t.Context(), 1, nil), state.ErrFenced)
	require.Equal(t, []string{"begin", "LockEpoch", "rollback"}, scripted.Names(db.Log()))
	require.Zero(t, w.state.Written)
}

// A session forgets what was written down beyond its checkpoint, which is read again;
// and of the release that was under way what its cursor has passed, if it is the one
// that the checkpoint knows: of another it has ended nothing.
func TestASessionForgetsWhatItsCheckpointSays(t *testing.T) {
	start := ledger.Checkpoint{Order: 200, Reach: ledger.Reach{UpTo: ledger.Place{Commit: 300, Ordinal: 2, Letter: 1}, Release: 4, Cursor: ledger.Cursor{Lane: 1, From: ledger.Place{Commit: 150, Ordinal: 3, Letter: 2}}}}
	beyond := "DeleteWaitingBeyond onceward_orders 0/C8 0/12C 2"
	for name, tc := range map[string]struct {
		Release []any
		want    []string
	}{
		"no release": {nil, []string{beyond, "LoadRelease onceward_orders", "DeleteWaitingDead onceward_orders", "DeleteEmptyLanes onceward_orders"}},
		"one that it does not know": {[]any{outboxdb.LoadReleaseRow{Release: 5, Lanes: []int32{11, 12, 13}}}, []string{
			beyond, "LoadRelease onceward_orders", "EndRelease onceward_orders", "DeleteWaitingDead onceward_orders", "DeleteEmptyLanes onceward_orders",
		}},
		"its own": {[]any{outboxdb.LoadReleaseRow{Release: 4, Lanes: []int32{11, 12, 13}}}, []string{
			beyond, "LoadRelease onceward_orders", "SettleWaited onceward_orders 12 0/96 3 2 {11}", "DeleteWaitingOf {11}",
			"DeleteWaitingBefore 12 0/96 3", "MarkCopy 2 12 0/96 3", "EndRelease onceward_orders", "DeleteWaitingDead onceward_orders", "DeleteEmptyLanes onceward_orders",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			db, w := scriptedWaiting(t, start)
			db.Returns("LoadRelease", tc.Release...)
			require.NoError(t, w.TakeUp(t.Context(), w.state.Queries))
			require.Equal(t, tc.want, db.Log())
		})
	}
}

// What a release has ended is deleted up to its cursor and no further.
func TestAReleaseForgetsUpToItsCursor(t *testing.T) {
	lanes := []*heldLane{{id: 11}, {id: 12}}
	for name, tc := range map[string]struct {
		at   ledger.Cursor
		want []string
	}{
		"nothing":        {ledger.Cursor{}, []string{"SettleWaited onceward_orders 11 0/0 0 0 {}"}},
		"some of a lane": {ledger.Cursor{From: ledger.Place{Commit: 150}}, []string{"SettleWaited onceward_orders 11 0/96 0 0 {}", "DeleteWaitingBefore 11 0/96 0"}},
		"a lane":         {ledger.Cursor{Lane: 1}, []string{"SettleWaited onceward_orders 12 0/0 0 0 {11}", "DeleteWaitingOf {11}"}},
		"all lanes":      {ledger.Cursor{Lane: 2}, []string{"SettleWaited onceward_orders 0 0/0 0 0 {11,12}", "DeleteWaitingOf {11,12}"}},
	} {
		t.Run(name, func(t *testing.T) {
			db, w := scriptedWaiting(t, ledger.Checkpoint{})
			require.NoError(t, w.forget(t.Context(), lanes, tc.at))
			log := db.Log()
			require.Equal(t, tc.want, log[2:len(log)-2])
			require.Equal(t, []string{"CountLetters", "commit"}, scripted.Names(log[len(log)-2:]))
			db.Forget()
			require.NoError(t, w.end(t.Context(), lanes, tc.at))
			log = db.Log()
			ended := []string{"DeleteLanes onceward_orders " + []string{"{}", "{11}", "{11,12}"}[tc.at.Lane], "EndRelease onceward_orders"}
			require.Equal(t, append(tc.want, ended...), log[2:len(log)-2])
		})
	}
}

// What is held is written in one transaction, its lanes with it, which have their
// number once that has committed; what cannot be read back equal is written whole,
// and the letters of a retry among it are taken back.
func TestWhatIsHeldIsWrittenInOneTransaction(t *testing.T) {
	db, w := scriptedWaiting(t, ledger.Checkpoint{})
	number := int32(20)
	db.On("InsertLane", func([]string) scripted.Reply { number++; return scripted.One(number) })
	a, b, known := &heldLane{of: ledger.Lane{Namespace: "shop", AggregateType: "a"}}, &heldLane{of: ledger.Lane{Topic: "b"}}, &heldLane{id: 7}
	control := retryAll(300, "a")
	items := []heldItem{
		{lane: a, at: ledger.Place{Commit: 300}, id: uuid.UUID{1}, txID: 41},
		{lane: b, at: ledger.Place{Commit: 300, Ordinal: 1}, id: uuid.UUID{2}, txID: 42},
		{lane: a, at: ledger.Place{Commit: 300, Ordinal: 2, Letter: 5}, id: control.Control.ID, whole: &control, reopen: control.Control.ID},
		{lane: known, at: ledger.Place{Commit: 308}, id: uuid.UUID{4}, txID: 43},
	}
	require.NoError(t, w.write(t.Context(), items))
	require.Equal(t, []string{"begin", "LockEpoch", "InsertLane", "InsertLane", "ReopenReleased", "InsertWaitingCopy", "InsertWaiting", "CountLetters", "commit"}, scripted.Names(db.Log()))
	require.Equal(t, []string{"ReopenReleased onceward_orders " + control.Control.ID.String() + " 5"}, db.Log("ReopenReleased"))
	require.Contains(t, db.Log("InsertWaiting")[0], "InsertWaiting {21,22,21,7} ")
	require.Contains(t, db.Log("InsertWaiting")[0], " {0,1,2,0} ")
	require.Equal(t, []int32{21, 22, 7}, []int32{a.id, b.id, known.id})

	db, w = scriptedWaiting(t, ledger.Checkpoint{})
	db.Returns("InsertLane", int32(21))
	db.On("InsertWaiting", func([]string) scripted.Reply { return scripted.Reply{Err: "no space left on device"} })
	a.id = 0
	require.ErrorContains(t, w.write(t.Context(), items[:1]), "no space left on device")
	require.Zero(t, a.id, "its row was not made")
	require.Equal(t, "rollback", db.Log()[len(db.Log())-1])
}

// What is read back is the row of its own transaction; absent, it is not visible yet
// or was erased, and another's row under the same id is no event of the stream.
func TestWhatWaitedIsReadBackOrErased(t *testing.T) {
	text := func(s string) *string { return &s }
	at := time.Now().UTC()
	there := outboxdb.ReadWaitingRow{
		Position: "0/12C", Ordinal: 2, ID: uuid.UUID{1}, TxID: 41, Written: true, RowTxID: pgtype.Uint64{Uint64: 41, Valid: true},
		Namespace: text("shop"), AggregateType: text("order"), AggregateID: text("a"), EventType: text("t"), ContentType: text("json"), CreatedAt: &at, Seq: 9,
	}
	w := &heldLane{id: 7}
	for name, tc := range map[string]struct {
		tweak func(*outboxdb.ReadWaitingRow)
		want  heldStatus
	}{
		"it is there":                     {func(*outboxdb.ReadWaitingRow) {}, heldHere},
		"not visible yet":                 {func(r *outboxdb.ReadWaitingRow) { r.RowTxID, r.Written = pgtype.Uint64{}, false }, heldInvisible},
		"deleted":                         {func(r *outboxdb.ReadWaitingRow) { r.RowTxID = pgtype.Uint64{} }, heldErased},
		"its id was used again":           {func(r *outboxdb.ReadWaitingRow) { r.RowTxID.Uint64 = 42 }, heldErased},
		"used by one that is seen before": {func(r *outboxdb.ReadWaitingRow) { r.RowTxID.Uint64, r.Written = 42, false }, heldErased},
		"it has a letter":                 {func(r *outboxdb.ReadWaitingRow) { r.Dead = true }, heldDead},
	} {
		t.Run(name, func(t *testing.T) {
			r := there
			tc.tweak(&r)
			h, err := readBack(w, &r)
			require.NoError(t, err)
			require.Equal(t, tc.want, h.status)
			require.Equal(t, ledger.Place{Commit: 300, Ordinal: 2}, h.at)
			require.Equal(t, tc.want == heldHere || tc.want == heldDead, h.row != nil)
		})
	}
	gap, r := uuid.New(), there
	r.Kind, r.Item = text(wholeRepair), gap[:]
	h, err := readBack(w, &r)
	require.NoError(t, err)
	require.True(t, h.repairing)
	require.Equal(t, gap, h.repair)
	require.NotNil(t, h.row, "the row itself is read")
	for _, it := range []cdc.Item{retryAll(300, "a"), {Kind: cdc.KindReplay, Row: of("a").Row, Replay: &cdc.Replay{ID: uuid.New(), Topic: "t"}}, {Kind: cdc.KindEvent, Row: of("b").Row, Bad: fmt.Errorf("no type")}} {
		kind, item, err := encodeItem(&it)
		require.NoError(t, err)
		r.Kind, r.Item, r.Letter, r.RowTxID = &kind, item, new(int64(4)), pgtype.Uint64{}
		h, err := readBack(w, &r)
		require.NoError(t, err)
		require.EqualValues(t, 4, h.at.Letter)
		require.Equal(t, heldHere, h.status)
		require.Equal(t, it.Kind, h.whole.Kind)
		require.Equal(t, it.Control, h.whole.Control)
		require.Equal(t, it.Replay, h.whole.Replay)
		require.Equal(t, it.Bad == nil, h.whole.Bad == nil)
	}
}
