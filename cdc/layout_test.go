package cdc

import (
	"maps"
	"testing"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

var (
	testReplayID  = uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-000000000001")
	testControlID = uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-000000000002")
)

// only feeds one row of a table in a transaction of xid 7 and returns its item.
func only(t *testing.T, of *table, cols []column, row testRow) Item {
	t.Helper()
	s := new(stream)
	items := feed(t, s, relationMessage(oids[of], of.name, cols), beginMessage(5, 7), insertMessage(oids[of], cols, row))
	require.Len(t, items, 1)
	require.Equal(t, of.kind, items[0].Kind)
	require.EqualValues(t, 5, items[0].Commit)
	checkWhole(t, items[0], 7)
	return items[0]
}

func TestStreamDeliversAReplayWhole(t *testing.T) {
	row := newTestReplay(testReplayID, 7, ModeReprocess, "billing")
	row["topic"] = []byte("elsewhere")
	it := only(t, &replaysTable, columnsOf(&replaysTable), row)
	require.NoError(t, it.Bad)
	require.NoError(t, it.Incomplete)
	require.Equal(t, &Replay{ID: testReplayID, Mode: "reprocess", Group: "billing", Topic: "elsewhere", Reason: "a hole", RequestedBy: "ada"}, it.Replay)
	require.Equal(t, testID, it.Row.ID, "the event's, not the replay's")
	require.Equal(t, []byte("a secret"), it.Row.Payload)
	require.Equal(t, testEpoch, it.Row.CreatedAt)
	require.EqualValues(t, 42, it.Row.Seq)
}

func TestStreamDeliversAControlWhole(t *testing.T) {
	letter := only(t, &controlsTable, columnsOf(&controlsTable), newTestControl(testControlID, 7, ActionEdit, testID))
	require.Equal(t, &Control{ID: testControlID, Action: "edit", LetterID: testID, Reason: "mended", RequestedBy: "ada", TxID: 7, Seq: 43}, letter.Control)
	row := newTestControl(testControlID, 7, ActionRetry, uuid.Nil)
	delete(row, "letter_id")
	row["namespace"], row["aggregate_type"], row["aggregate_id"] = []byte("shop"), []byte("order"), []byte("")
	aggregate := only(t, &controlsTable, columnsOf(&controlsTable), row)
	require.NoError(t, aggregate.Bad)
	require.NotNil(t, aggregate.Control.AggregateID, "an empty id is an id")
	require.Zero(t, aggregate.Control.LetterID)
	edit := newTestControl(testControlID, 7, ActionEdit, testID)
	edit["headers"], edit["payload_null"] = []byte("\x01{}"), []byte{1}
	it := only(t, &controlsTable, columnsOf(&controlsTable), edit)
	require.True(t, it.Control.PayloadNull)
	require.Equal(t, []byte("{}"), it.Control.Headers)
	older := without(columnsOf(&controlsTable), "payload_null")
	require.NoError(t, only(t, &controlsTable, older, edit).Incomplete)
}

// A row that breaks the contract by itself is delivered, with its id: what is
// wrong with one row must not stop all others for ever.
func TestStreamDeliversBadRows(t *testing.T) {
	change := func(row testRow, name string, value []byte) testRow {
		row[name] = value
		if value == nil {
			delete(row, name)
		}
		return row
	}
	event := func(name string, value []byte) testRow { return change(newTestRow(testID, 7, "x"), name, value) }
	replay := func(name string, value []byte) testRow {
		return change(newTestReplay(testReplayID, 7, ModeRedeliver, ""), name, value)
	}
	control := func(name string, value []byte) testRow {
		return change(newTestControl(testControlID, 7, ActionRetry, testID), name, value)
	}
	of := func(id string, row testRow) testRow { return change(row, id, []byte(id)) }
	forged := new(message).u64(8).b
	for name, tc := range map[string]struct {
		table *table
		row   testRow
		want  string
	}{
		"forged event":         {&outboxTable, event("tx_id", forged), "forged"},
		"required NULL":        {&outboxTable, event("aggregate_id", nil), "column aggregate_id is NULL"},
		"tx_id NULL":           {&outboxTable, event("tx_id", nil), "forged"},
		"infinite time":        {&outboxTable, event("created_at", new(message).u64(1<<63-1).b), "created_at is infinite"},
		"minus infinity":       {&outboxTable, event("created_at", new(message).u64(1<<63).b), "created_at is infinite"},
		"before the year 1":    {&outboxTable, event("created_at", micros(minTimestamp-1)), "created_at is infinite or absurd"},
		"forged replay":        {&replaysTable, replay("tx_id", forged), "forged"},
		"replay of no event":   {&replaysTable, replay("id", nil), "column id is NULL"},
		"unknown mode":         {&replaysTable, replay("mode", []byte("undo")), `mode is "undo"`},
		"reprocess by nobody":  {&replaysTable, replay("mode", []byte(ModeReprocess)), "names no replay_group"},
		"redeliver to a group": {&replaysTable, replay("replay_group", []byte("g")), "names a replay_group"},
		"forged control":       {&controlsTable, control("tx_id", forged), "forged"},
		"unknown action":       {&controlsTable, control("action", []byte("drop")), `action is "drop"`},
		"about nothing":        {&controlsTable, control("letter_id", nil), "want letter_id, or else the aggregate"},
		"about both":           {&controlsTable, of("aggregate_id", control("namespace", []byte("shop"))), "want letter_id, or else the aggregate"},
		"half an aggregate":    {&controlsTable, of("aggregate_id", of("namespace", control("letter_id", nil))), "no aggregate_type"},
		"edit of an aggregate": {&controlsTable, of("aggregate_id", of("aggregate_type", of("namespace", change(newTestControl(testControlID, 7, ActionEdit, testID), "letter_id", nil)))), "an edit is of one letter"},
		"payload and none":     {&controlsTable, of("payload", control("payload_null", []byte{1})), "payload_null"},
	} {
		t.Run(name, func(t *testing.T) {
			it := only(t, tc.table, columnsOf(tc.table), tc.row)
			require.ErrorContains(t, it.Bad, tc.want)
			require.NoError(t, it.Incomplete)
			requireID(t, it)
			require.NotContains(t, it.Bad.Error(), "secret", "a payload in an error")
		})
	}
	earliest := only(t, &outboxTable, outboxColumns(), event("created_at", micros(minTimestamp)))
	require.NoError(t, earliest.Bad)
	require.Equal(t, 1, earliest.Row.CreatedAt.Year())
	_, err := earliest.Row.CreatedAt.MarshalText()
	require.NoError(t, err)
	latest := only(t, &outboxTable, outboxColumns(), event("created_at", micros(maxTimestamp)))
	require.NoError(t, latest.Bad)
	_, err = time.Parse(time.RFC3339Nano, latest.Row.CreatedAt.Format(time.RFC3339Nano))
	require.NoError(t, err)
}

func micros(us int64) []byte { return new(message).u64(uint64(us)).b }

// requireID demands that an item can be told from all others.
func requireID(t *testing.T, it Item) {
	t.Helper()
	switch it.Kind {
	case KindReplay:
		require.Equal(t, testReplayID, it.Replay.ID)
	case KindControl:
		require.Equal(t, testControlID, it.Control.ID)
	default:
		require.Equal(t, testID, it.Row.ID)
	}
}

// A row that was written while its table lacked a needed column, or had another
// type, comes with what there is, and says so; the next layout counts again.
func TestStreamDeliversIncompleteRows(t *testing.T) {
	rows := map[*table]testRow{
		&outboxTable:   newTestRow(testID, 7, "x"),
		&replaysTable:  newTestReplay(testReplayID, 7, ModeRedeliver, ""),
		&controlsTable: newTestControl(testControlID, 7, ActionRetry, testID),
	}
	for of, row := range rows {
		for f, use := range of.uses {
			if use != required && use != nullable {
				continue
			}
			spec := fieldSpecs[f]
			for what, cols := range map[string][]column{
				"is missing":         without(columnsOf(of), spec.name),
				"(" + spec.typ + ")": altered(columnsOf(of), spec.name, column{"renamed", spec.oid}),
				"has type oid 3802":  altered(columnsOf(of), spec.name, column{spec.name, map[bool]uint32{true: 3801, false: 3802}[spec.oid == 3802]}),
			} {
				it := only(t, of, cols, row)
				require.NoError(t, it.Bad)
				var layout *LayoutError
				require.ErrorAs(t, it.Incomplete, &layout)
				require.Equal(t, "onceward."+of.name, layout.Table)
				require.Equal(t, spec.name, layout.Column)
				if spec.oid != 3802 {
					require.ErrorContains(t, it.Incomplete, what)
				}
				requireID(t, it)
			}
		}
	}
	s := new(stream)
	away := without(outboxColumns(), "event_type")
	row := rows[&outboxTable]
	items := feed(t, s, relationMessage(outboxOID, "outbox", away), beginMessage(5, 7), insertMessage(outboxOID, away, row),
		relationMessage(outboxOID, "outbox", outboxColumns()), insertMessage(outboxOID, outboxColumns(), row))
	require.Error(t, items[0].Incomplete)
	require.Empty(t, items[0].Row.Type)
	require.Equal(t, []byte("x"), items[0].Row.Payload, "what there is")
	require.NoError(t, items[1].Incomplete)
	require.Equal(t, "OrderPaid", items[1].Row.Type)
	forged := newTestRow(testID, 8, "x")
	it := only(t, &outboxTable, away, forged)
	require.ErrorContains(t, it.Bad, "forged", "worse than incomplete: the table holds no other truth")
}

// A layout that cannot tell rows apart stops at the first row that counts, not
// at the description, and not for rows that have ended.
func TestStreamForgivesALayoutWithoutRows(t *testing.T) {
	s := &stream{skip: 108}
	noID := without(outboxColumns(), "id")
	require.Empty(t, feed(t, s, beginMessage(100, 7), relationMessage(outboxOID, "outbox", noID),
		insertMessage(outboxOID, noID, newTestRow(testID, 7, "x")), commitMessage(100, 108)))
	require.Len(t, feed(t, s, append([][]byte{relationMessage(outboxOID, "outbox", outboxColumns())}, transactionOf(200, 8, newTestRow(testID, 8, "x"))...)...), 2)
}

// The weight of an item is at least what it holds, so that the queue's limit is
// one.
func TestItemWeighsWhatItHolds(t *testing.T) {
	big := string(make([]byte, 10_000))
	for of, fields := range map[*table][]string{
		&outboxTable:   {"namespace", "aggregate_type", "aggregate_id", "event_type", "payload", "content_type", "traceparent"},
		&replaysTable:  {"namespace", "aggregate_id", "payload", "traceparent", "replay_group", "topic", "reason", "requested_by", "mode"},
		&controlsTable: {"namespace", "aggregate_type", "aggregate_id", "payload", "reason", "requested_by", "action"},
	} {
		small := map[*table]testRow{
			&outboxTable: newTestRow(testID, 7, ""), &replaysTable: newTestReplay(testReplayID, 7, ModeRedeliver, ""), &controlsTable: newTestControl(testControlID, 7, ActionRetry, testID),
		}[of]
		for _, name := range fields {
			row := maps.Clone(small)
			row[name] = []byte(big)
			it := only(t, of, columnsOf(of), row)
			require.GreaterOrEqual(t, it.size(), len(big)+itemOverhead, "%s.%s", of.name, name)
		}
		unneeded := maps.Clone(small)
		unneeded["not_needed"] = []byte(big)
		it := only(t, of, columnsOf(of), unneeded)
		require.Less(t, it.size(), 2000, "%s: a column that nobody needs is not kept", of.name)
	}
}

// The constants of the weight follow the structs when they grow.
func TestOverheadCoversTheStructs(t *testing.T) {
	require.GreaterOrEqual(t, uintptr(itemOverhead), unsafe.Sizeof(Item{})+unsafe.Sizeof(outbox.Row{}))
	require.GreaterOrEqual(t, uintptr(replayOverhead), unsafe.Sizeof(Replay{}))
	require.GreaterOrEqual(t, uintptr(controlOverhead), unsafe.Sizeof(Control{}))
}

// FuzzLayout: a table may be described in any way and its row be of any bytes:
// nothing panics, and an item is whole, bad, incomplete or an error.
func FuzzLayout(f *testing.F) {
	for _, of := range publishedTables {
		row := newTestReplay(testReplayID, 7, ModeReprocess, "g")
		row["control_id"], row["action"] = testControlID[:], []byte(ActionRetry)
		for _, cols := range [][]column{columnsOf(of), columnsOf(of)[3:], altered(columnsOf(of), "seq", column{"seq", 23})} {
			f.Add(relationMessage(oids[of], of.name, cols)[1:], insertMessage(oids[of], cols, row)[1:])
		}
	}
	f.Fuzz(func(t *testing.T, described, inserted []byte) {
		s := new(stream)
		feed(t, s, beginMessage(1, 7))
		if _, _, err := s.change(msgRelation, described); err != nil {
			return
		}
		if it, ok, err := s.change(msgInsert, inserted); ok && err == nil {
			checkWhole(t, it, 7)
			require.GreaterOrEqual(t, it.size(), itemOverhead)
		}
	})
}
