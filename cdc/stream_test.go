package cdc

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
)

var testID = uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")

// feed gives messages to the stream and returns the items.
func feed(t *testing.T, s *stream, messages ...[]byte) []Item {
	t.Helper()
	var items []Item
	for _, m := range messages {
		it, ok, err := s.change(m[0], m[1:])
		require.NoError(t, err)
		if ok {
			items = append(items, it)
		}
	}
	return items
}

func transactionOf(commit pglogrepl.LSN, xid uint32, rows ...testRow) [][]byte {
	out := [][]byte{beginMessage(commit, xid)}
	for _, row := range rows {
		out = append(out, insertMessage(outboxOID, outboxColumns(), row))
	}
	return append(out, commitMessage(commit, commit+8))
}

func TestStreamDeliversARowWhole(t *testing.T) {
	s := new(stream)
	feed(t, s, relationMessage(outboxOID, "outbox", outboxColumns()))
	items := feed(t, s, transactionOf(100, 7, newTestRow(testID, 7|1<<33, `{"n":1}`))...)
	require.Len(t, items, 2)
	row := items[0].Row
	require.Equal(t, KindEvent, items[0].Kind)
	require.Equal(t, testID, row.ID)
	require.Equal(t, "shop", row.Namespace)
	require.Equal(t, "order", row.AggregateType)
	require.Equal(t, "OrderPaid", row.Type)
	require.Equal(t, "application/json", row.ContentType)
	require.Equal(t, []byte("o-1"), row.AggregateID)
	require.Equal(t, []byte(`{"n":1}`), row.Payload)
	require.JSONEq(t, `{"a":"b"}`, string(row.Headers))
	require.Nil(t, row.Traceparent)
	require.Equal(t, testEpoch, row.CreatedAt)
	require.EqualValues(t, 7|1<<33, row.TxID)
	require.EqualValues(t, 42, row.Seq)
	require.Equal(t, Item{Kind: KindCommit, Commit: 100, End: 108, CommitTime: items[1].CommitTime}, items[1])
}

func TestStreamTellsNullFromEmpty(t *testing.T) {
	s := new(stream)
	feed(t, s, relationMessage(outboxOID, "outbox", outboxColumns()))
	tombstone := newTestRow(testID, 7, "")
	delete(tombstone, "payload")
	items := feed(t, s, transactionOf(100, 7, newTestRow(testID, 7, ""), tombstone)...)
	require.NotNil(t, items[0].Row.Payload)
	require.Empty(t, items[0].Row.Payload)
	require.Nil(t, items[1].Row.Payload)
}

func TestStreamMapsColumnsByName(t *testing.T) {
	cols := outboxColumns()
	for i, j := 0, len(cols)-1; i < j; i, j = i+1, j-1 {
		cols[i], cols[j] = cols[j], cols[i]
	}
	cols = append(cols, column{"added_later", 25})
	s := new(stream)
	feed(t, s, relationMessage(outboxOID, "outbox", cols), beginMessage(5, 7))
	row := newTestRow(testID, 7, "x")
	row["added_later"] = []byte("whatever")
	items := feed(t, s, insertMessage(outboxOID, cols, row))
	require.Equal(t, []byte("x"), items[0].Row.Payload)
	require.Equal(t, testID, items[0].Row.ID)
}

func TestStreamTakesVarcharForText(t *testing.T) {
	cols := altered(outboxColumns(), "aggregate_id", column{"aggregate_id", 1043})
	s := new(stream)
	feed(t, s, relationMessage(outboxOID, "outbox", cols), beginMessage(5, 7))
	items := feed(t, s, insertMessage(outboxOID, cols, newTestRow(testID, 7, "x")))
	require.Equal(t, []byte("o-1"), items[0].Row.AggregateID)
}

func TestStreamSkipsWhatHasEnded(t *testing.T) {
	s := &stream{skip: 208}
	feed(t, s, relationMessage(outboxOID, "outbox", outboxColumns()))
	require.Empty(t, feed(t, s, transactionOf(100, 7, newTestRow(testID, 7, "a"))...))
	require.Empty(t, feed(t, s, transactionOf(200, 8, newTestRow(testID, 8, "b"))...), "its commit end is the checkpoint")
	require.Len(t, feed(t, s, transactionOf(208, 9, newTestRow(testID, 9, "c"))...), 2, "begins where the checkpoint ends")
}

func TestStreamRefuses(t *testing.T) {
	relation := relationMessage(outboxOID, "outbox", outboxColumns())
	row := newTestRow(testID, 7, "x")
	noID := without(outboxColumns(), "id")
	noTxID := altered(outboxColumns(), "tx_id", column{"tx_id", 20})
	fragment := insertMessage(outboxOID, outboxColumns(), row)
	for name, tc := range map[string]struct {
		skip     pglogrepl.LSN
		messages [][]byte
		want     string
	}{
		"unknown message":      {0, [][]byte{{'?'}}, "unknown pgoutput message"},
		"row outside":          {0, [][]byte{relation, insertMessage(outboxOID, outboxColumns(), row)}, "outside a transaction"},
		"undescribed table":    {0, [][]byte{beginMessage(1, 7), insertMessage(1, outboxColumns(), row)}, "not described"},
		"begin in begin":       {0, [][]byte{beginMessage(1, 8), beginMessage(2, 9)}, "begins inside"},
		"commit without begin": {0, [][]byte{commitMessage(1, 2)}, "without its beginning"},
		"commit of another":    {0, [][]byte{beginMessage(1, 8), commitMessage(2, 3)}, "without its beginning"},
		"checkpoint cuts":      {104, [][]byte{beginMessage(100, 8), commitMessage(100, 108)}, "cuts through"},
		"id gone":              {0, [][]byte{relationMessage(outboxOID, "outbox", noID), beginMessage(1, 7), insertMessage(outboxOID, noID, row)}, "column id (uuid) is missing"},
		"tx_id retyped":        {0, [][]byte{relationMessage(outboxOID, "outbox", noTxID), beginMessage(1, 7), insertMessage(outboxOID, noTxID, row)}, "column tx_id has type oid 20, want xid8"},
		"row cut short":        {0, [][]byte{relation, beginMessage(1, 7), fragment[:len(fragment)-3]}, "decode Insert"},
		"other columns":        {0, [][]byte{relation, beginMessage(1, 7), insertMessage(outboxOID, noID, row)}, "the relation has"},
		"cut short":            {0, [][]byte{beginMessage(1, 7)[:9]}, "decode Begin"},
		"bytes left over":      {0, [][]byte{append(beginMessage(1, 7), 0)}, "left over"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stream{skip: tc.skip}
			var err error
			for _, m := range tc.messages {
				_, _, err = s.change(m[0], m[1:])
			}
			var decode *DecodeError
			require.ErrorAs(t, err, &decode)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestStreamIgnoresWhatIsNoEvent(t *testing.T) {
	s := new(stream)
	feed(t, s, relationMessage(outboxOID, "outbox", outboxColumns()), beginMessage(1, 7))
	for _, m := range [][]byte{{msgUpdate, 1}, {msgDelete, 1}, {msgTruncate, 1}} {
		require.Empty(t, feed(t, s, m))
	}
	require.EqualValues(t, 3, s.ignored)
	require.Empty(t, feed(t, s, new(message).u8(msgMessage).u8(0).u64(1).str("any").u32(2).raw([]byte("hi")).b, []byte{msgOrigin}, []byte{msgType}))
}

// A row of a table that is not the relay's is never passed over: a partition's rows
// come under its own name while publish_via_partition_root is off.
func TestStreamStopsAtAForeignRow(t *testing.T) {
	leaf := []column{{"x", 25}}
	s := new(stream)
	feed(t, s, relationMessage(1, "outbox_20261122", leaf), relationMessage(outboxOID, "outbox", outboxColumns()), beginMessage(1, 7))
	_, _, err := s.change(msgInsert, insertMessage(1, leaf, testRow{"x": nil})[1:])
	var foreign *ForeignRowError
	require.ErrorAs(t, err, &foreign)
	require.Equal(t, "onceward.outbox_20261122", foreign.Table)

	ended := &stream{skip: 0x9000}
	feed(t, ended, relationMessage(1, "outbox_20261122", leaf), beginMessage(0x100, 7), insertMessage(1, leaf, testRow{"x": nil}))
}

func TestStreamFindsMarkersAndRequests(t *testing.T) {
	ours := new(message).u64(7).u64(9).b
	s := new(stream)
	require.Equal(t, []Item{{Kind: KindMarker, Marker: Marker{Nonce: 7, ID: 9}}}, feed(t, s, logicalMessage(false, markerPrefix, ours)))
	require.Equal(t, []Item{{Kind: KindAsk, Commit: 1}}, feed(t, s, beginMessage(1, 7), logicalMessage(true, AskPrefix, nil)))
	require.Empty(t, feed(t, &stream{skip: 9}, beginMessage(1, 7), logicalMessage(true, AskPrefix, nil)), "part of a transaction that has ended")
	require.Empty(t, feed(t, s, logicalMessage(true, markerPrefix, ours), logicalMessage(false, markerPrefix, ours[1:]), logicalMessage(false, "someone.else", ours)),
		"a transactional marker may come late, a short one is no marker")
}

func TestStreamIdleOnlyBetweenTransactions(t *testing.T) {
	s := &stream{skip: 50}
	_, ok := s.idle(40)
	require.False(t, ok, "before the checkpoint")
	it, ok := s.idle(60)
	require.True(t, ok)
	require.Equal(t, Item{Kind: KindIdle, End: 60}, it)
	_, ok = s.idle(60)
	require.False(t, ok, "nothing new")
	feed(t, s, beginMessage(70, 7))
	_, ok = s.idle(65)
	require.False(t, ok, "inside a transaction")
	feed(t, s, commitMessage(70, 80))
	_, ok = s.idle(90)
	require.True(t, ok)
}

// FuzzStream: no bytes whatever make the decoder panic or read past the end, and
// an item is always whole in what its kind promises.
func FuzzStream(f *testing.F) {
	f.Add(byte(msgBegin), beginMessage(1, 7)[1:])
	f.Add(byte(msgCommit), commitMessage(1, 2)[1:])
	for _, m := range describe() {
		f.Add(m[0], m[1:])
	}
	f.Add(byte(msgInsert), insertMessage(outboxOID, outboxColumns(), newTestRow(testID, 7, "x"))[1:])
	f.Add(byte(msgInsert), insertMessage(replaysOID, columnsOf(&replaysTable), newTestReplay(testID, 7, ModeReprocess, "g"))[1:])
	f.Add(byte(msgInsert), insertMessage(controlsOID, columnsOf(&controlsTable), newTestControl(testID, 7, ActionRetry, testID))[1:])
	f.Add(byte(msgMessage), new(message).u8(0).u64(1).str("p").u32(2).raw([]byte("hi")).b)
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		s := new(stream)
		feed(t, s, append(describe(), beginMessage(1, 7))...)
		it, ok, err := s.change(kind, data)
		if err != nil || !ok {
			return
		}
		checkWhole(t, it, 7)
		again := new(stream)
		feed(t, again, append(describe(), beginMessage(1, 7))...)
		same, _, err := again.change(kind, slices.Clone(data))
		require.NoError(t, err)
		for i := range data { // the connection reuses its buffer
			data[i] ^= 0xff
		}
		require.Equal(t, same, it)
	})
}

// checkWhole demands what an item's kind promises, if its transaction is xid's.
func checkWhole(t require.TestingT, it Item, xid uint32) {
	var txID uint64
	switch it.Kind {
	case KindEvent:
		txID = it.Row.TxID
	case KindReplay:
		txID = it.Row.TxID
		if it.Bad == nil && it.Incomplete == nil {
			require.NoError(t, it.Replay.check())
		}
	case KindControl:
		require.Nil(t, it.Row)
		txID = it.Control.TxID
		if it.Bad == nil && it.Incomplete == nil {
			require.NoError(t, it.Control.check())
		}
	default:
		return
	}
	require.NotZero(t, it.Commit)
	require.True(t, txID&(1<<32-1) == uint64(xid) || it.Bad != nil, "a row of another transaction got through")
	require.True(t, it.Bad == nil || it.Incomplete == nil, "bad and incomplete")
}

func BenchmarkStreamInsert(b *testing.B) {
	s := new(stream)
	for _, m := range append(describe(), beginMessage(1, 7)) {
		_, _, err := s.change(m[0], m[1:])
		require.NoError(b, err)
	}
	m := insertMessage(outboxOID, outboxColumns(), newTestRow(testID, 7, "a payload of some length, as they are"))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok, err := s.change(m[0], m[1:]); !ok || err != nil {
			b.Fatal(err)
		}
	}
}

// The hot path: the memory of a row is the row and its bytes, whatever else the
// reader can decode.
func TestStreamAllocatesTheRowAndItsBytes(t *testing.T) {
	for table, tc := range map[*table]struct {
		row  testRow
		most float64
	}{
		&outboxTable:   {newTestRow(testID, 7, "a payload of some length, as they are"), 2},
		&replaysTable:  {newTestReplay(testID, 7, ModeReprocess, "group"), 4},
		&controlsTable: {newTestControl(testID, 7, ActionRetry, testID), 3},
	} {
		s := new(stream)
		feed(t, s, append(describe(), beginMessage(1, 7))...)
		m := insertMessage(oids[table], columnsOf(table), tc.row)
		allocs := testing.AllocsPerRun(1000, func() {
			if it, ok, err := s.change(m[0], m[1:]); !ok || err != nil || it.Bad != nil {
				t.Fatal(it.Bad, err)
			}
		})
		require.LessOrEqual(t, allocs, tc.most, table.name)
	}
}
