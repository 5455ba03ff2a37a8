//go:build e2e

package stream

import (
	"errors"
	"math"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/testoutbox"
)

func TestWaiting(t *testing.T) {
	onTables(t, map[string]func(*tables){
		"what waits is read back equal":          readBackEqual,
		"a row that is not visible or not there": notVisibleOrErased,
		"a session forgets what it reads again":  forgetsBeyond,
		"a relay that begins anew":               beginsAnew,
		"a lane that is held again":              heldAgain,
		"a release that the checkpoint knows":    releaseIsTakenUp,
		"a retry that waits":                     retryThatWaits,
		"a retry that waits and is moved":        retryIsMoved,
		"what is given up waits no more":         givenUpWaits,
		"a fenced session writes nothing":        fencedWaiting,
		"large headers":                          largeHeaders,
	})
}

// waits is a session's table, from a checkpoint.
func (b *tables) waits(start ledger.Checkpoint) *Table {
	b.T.Helper()
	pumps := b.Session()
	s := &Table{state: pumps, fit: outboxRows{pumps}.fit, start: &start}
	b.first = s.TakeUp
	b.reopen(start.Order)
	b.first = nil
	s.state = b.State
	return s
}

// enqueued is a row of the outbox, as the stream brings it.
func (b *tables) enqueued() *outbox.Row {
	b.T.Helper()
	id, err := uuid.NewV7()
	require.NoError(b.T, err)
	b.Exec(`INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, headers, traceparent)
		VALUES ($1, 'shop', 'order', 'A', 'Changed', '\x00ff', '{"a": "ü"}', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01')`, id)
	row, err := outboxRows{state.New(b.Conn, b.Slot)}.event(b.T.Context(), id)
	require.NoError(b.T, err)
	return row
}

func (b *tables) pageOf(s *Table, w *heldLane, from ledger.Place) []heldItem {
	b.T.Helper()
	items, err := s.page(b.T.Context(), w, from)
	require.NoError(b.T, err)
	return items
}

func orders() *heldLane { return &heldLane{of: ledger.Lane{Namespace: "shop", AggregateType: "order"}} }

func heldRow(w *heldLane, n uint32, row *outbox.Row) heldItem {
	return heldItem{lane: w, at: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: n}, id: row.ID, txID: row.TxID}
}

func readBackEqual(b *tables) {
	t := b.T
	s, w, row := b.waits(ledger.Checkpoint{}), orders(), b.enqueued()
	bad := &cdc.Item{Kind: cdc.KindEvent, Row: &outbox.Row{ID: testoutbox.ID(1), Payload: []byte{}}, Bad: errors.New("created_at: out of range")}
	replay := &cdc.Item{Kind: cdc.KindReplay, Row: row, Replay: &cdc.Replay{ID: testoutbox.ID(2), Mode: cdc.ModeReprocess, Group: "g", Topic: "t"}}
	control := &cdc.Item{Kind: cdc.KindControl, Control: &cdc.Control{ID: testoutbox.ID(3), Action: cdc.ActionEdit, LetterID: testoutbox.ID(4), Headers: []byte(`{}`)}}
	before := b.State.Written
	require.NoError(t, s.write(t.Context(), []heldItem{
		heldRow(w, 0, row),
		{lane: w, at: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 1}, id: testoutbox.ID(1), whole: bad},
		{lane: w, at: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 2}, id: testoutbox.ID(2), whole: replay},
		{lane: w, at: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 3, Letter: 7}, id: testoutbox.ID(3), whole: control},
	}))
	require.Greater(t, b.State.Written, before, "a standby that lacks it is found out")
	require.NotZero(t, w.id)
	got := b.pageOf(s, w, ledger.Place{})
	require.Len(t, got, 4)
	require.Equal(t, row, got[0].row)
	require.Equal(t, "created_at: out of range", got[1].whole.Bad.Error())
	require.Equal(t, bad.Row, got[1].whole.Row, "empty is not a tombstone")
	require.Equal(t, replay, got[2].whole)
	require.Equal(t, control, got[3].whole)
	require.EqualValues(t, 7, got[3].at.Letter)
	held, controls, err := s.load(t.Context())
	require.NoError(t, err)
	require.Len(t, held, 1)
	require.Equal(t, 4, held[0].events)
	require.Equal(t, "Changed", held[0].first)
	require.Equal(t, map[uuid.UUID]bool{testoutbox.ID(3): true}, controls)
	found, err := s.find(t.Context(), []uuid.UUID{row.ID, testoutbox.ID(99)})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, row, found[0].row)
}

func notVisibleOrErased(b *tables) {
	t := b.T
	s, w := b.waits(ledger.Checkpoint{}), orders()
	gone, again, dead := b.enqueued(), b.enqueued(), b.enqueued()
	tx, err := testoutbox.Connected(t, b.DSN).Begin(t.Context())
	require.NoError(t, err)
	open := *b.enqueued()
	open.ID, err = uuid.NewV7()
	require.NoError(t, err)
	require.NoError(t, tx.QueryRow(t.Context(), `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type)
		VALUES ($1, 'shop', 'order', 'A', 'Changed') RETURNING tx_id`, open.ID).Scan(&open.TxID))
	again.TxID++ // the id was used again by another transaction
	b.parks(letters.Dead{Row: dead, Commit: testoutbox.LSN(10), Class: letters.ClassRecord, Cause: "x"})
	require.NoError(t, s.write(t.Context(), []heldItem{heldRow(w, 0, gone), heldRow(w, 1, again), heldRow(w, 2, &open), heldRow(w, 3, dead)}))
	b.Exec("DELETE FROM onceward.outbox WHERE id = $1", gone.ID)
	status := func() (all []heldStatus) {
		for _, h := range b.pageOf(s, w, ledger.Place{}) {
			all = append(all, h.status)
		}
		return all
	}
	require.Equal(t, []heldStatus{heldErased, heldErased, heldInvisible, heldDead}, status())
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, []heldStatus{heldErased, heldErased, heldHere, heldDead}, status())
}

func forgetsBeyond(b *tables) {
	t := b.T
	s, w, row := b.waits(ledger.Checkpoint{}), orders(), b.enqueued()
	for n := range uint32(4) {
		require.NoError(t, s.write(t.Context(), []heldItem{heldRow(w, n, row)}))
	}
	left := func(start ledger.Checkpoint) int { return len(b.pageOf(b.waits(start), w, ledger.Place{})) }
	require.Equal(t, 4, left(ledger.Checkpoint{Order: testoutbox.LSN(11)}), "the whole transaction is before the checkpoint")
	require.Equal(t, 3, left(ledger.Checkpoint{Order: testoutbox.LSN(9), Reach: ledger.Reach{UpTo: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 3}}}))
	require.Equal(t, 3, left(ledger.Checkpoint{Order: testoutbox.LSN(9), Reach: ledger.Reach{UpTo: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 3, Letter: 5}}}), "in the middle of the fourth")
	require.Equal(t, 0, left(ledger.Checkpoint{Order: testoutbox.LSN(9)}))
	require.Equal(t, "0", b.Text("SELECT count(*)::text FROM onceward.lanes"))
}

// beginsAnew: from a position before what waits, which the stream leaves out then;
// an order keeps its place. Replays and bad rows the stream brings again.
func beginsAnew(b *tables) {
	t := b.T
	s, w := b.waits(ledger.Checkpoint{}), orders()
	rows := []*outbox.Row{b.enqueued(), b.enqueued(), b.enqueued(), b.enqueued()}
	repaired := heldItem{lane: w, at: ledger.Place{Commit: testoutbox.LSN(5) - 1, Ordinal: 1}, id: rows[0].ID, txID: rows[0].TxID, repairing: true, repair: testoutbox.ID(7)}
	control := &cdc.Item{Kind: cdc.KindControl, Control: &cdc.Control{ID: testoutbox.ID(3), Action: cdc.ActionRetry, Namespace: "shop", AggregateType: "order", AggregateID: []byte("A")}}
	replay := &cdc.Item{Kind: cdc.KindReplay, Row: rows[0], Replay: &cdc.Replay{ID: testoutbox.ID(4), Mode: cdc.ModeRedeliver}}
	bad := &cdc.Item{Kind: cdc.KindEvent, Row: &outbox.Row{ID: testoutbox.ID(5), Payload: []byte{}}, Bad: errors.New("created_at: out of range")}
	require.NoError(t, s.write(t.Context(), []heldItem{
		repaired, heldRow(w, 0, rows[1]), {lane: w, at: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 1}, id: testoutbox.ID(4), whole: replay}, heldRow(w, 2, rows[2]),
		{lane: w, at: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 3, Letter: 2}, id: testoutbox.ID(3), whole: control}, {lane: w, at: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 4}, id: testoutbox.ID(5), whole: bad},
	}))
	next := heldRow(w, 0, rows[3])
	next.at.Commit = testoutbox.LSN(11)
	require.NoError(t, s.write(t.Context(), []heldItem{next}))
	require.NoError(t, s.begin(t.Context(), 3, []*heldLane{w}))
	s.start = &ledger.Checkpoint{Reach: ledger.Reach{Release: 3, Cursor: ledger.Cursor{From: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 1}}}}
	require.NoError(t, s.BeginAnew(t.Context(), s.state.Queries, testoutbox.LSN(5)))
	s = b.waits(ledger.Checkpoint{Order: testoutbox.LSN(5)})
	got := b.pageOf(s, w, ledger.Place{})
	require.Len(t, got, 3, "the two before the cursor had ended")
	for i := range got {
		require.Equal(t, ledger.Place{Commit: testoutbox.LSN(5) - 1, Ordinal: uint32(i + 1)}, got[i].at, "from its first letter")
	}
	require.Equal(t, rows[2], got[0].row)
	require.Equal(t, control, got[1].whole, "in its place")
	require.Equal(t, rows[3], got[2].row)
	require.Equal(t, "0 1", b.Text("SELECT concat_ws(' ', (SELECT count(*) FROM onceward.releases), (SELECT count(*) FROM onceward.waiting_copies))"))
}

// heldAgain: a lane was released, which no checkpoint came to know, and refused again. A relay
// that begins anew has one lane of it, in the order of the stream.
func heldAgain(b *tables) {
	b.heldAgain(testoutbox.LSN(30), func() {})
	b.heldAgain(testoutbox.LSN(5), func() {}) // all of it is moved
	b.heldAgain(testoutbox.LSN(30), func() {  // so it was, by a dump that was adopted
		require.NoError(b.T, b.State.Queries.EndReleases(b.T.Context(), []string{b.Slot}))
		require.NoError(b.T, b.State.Queries.AdoptWaiting(b.T.Context(), []string{b.Slot}))
	})
}

func (b *tables) heldAgain(at pglogrepl.LSN, moves func()) {
	t := b.T
	s, other, first, again := b.waits(ledger.Checkpoint{}), &heldLane{of: ledger.Lane{Topic: "other"}}, orders(), orders()
	var rows []*outbox.Row
	for n := range uint32(5) {
		rows = append(rows, b.enqueued())
		w := first
		if n == 1 {
			require.NoError(t, s.begin(t.Context(), 3, []*heldLane{first}))
		}
		if n > 0 {
			w = again
		}
		require.NoError(t, s.write(t.Context(), []heldItem{heldRow(w, n, rows[n]), heldRow(other, n, rows[n])}))
	}
	control := &cdc.Item{Kind: cdc.KindControl, Control: &cdc.Control{ID: testoutbox.ID(3), Action: cdc.ActionRetry, Namespace: "shop", AggregateType: "order", AggregateID: []byte("A")}}
	require.NoError(t, s.write(t.Context(), []heldItem{{lane: again, at: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 5}, id: testoutbox.ID(3), whole: control}}))
	moves()
	require.NoError(t, s.BeginAnew(t.Context(), s.state.Queries, at))
	s = b.waits(ledger.Checkpoint{Order: at})
	held, controls, err := s.load(t.Context())
	require.NoError(t, err)
	require.Len(t, held, 2)
	require.Equal(t, map[uuid.UUID]bool{testoutbox.ID(3): true}, controls)
	for _, w := range held {
		got := b.pageOf(s, w, ledger.Place{})
		for i, row := range rows {
			require.Equal(t, row, got[i].row, "%s, %d", w.of, i)
		}
		if w.of.Topic == "" {
			require.Equal(t, control, got[len(rows)].whole)
		}
	}
	b.Exec("DELETE FROM onceward.waiting")
	b.Exec("DELETE FROM onceward.waiting_copies")
}

func releaseIsTakenUp(b *tables) {
	t := b.T
	for name, tc := range map[string]struct {
		start ledger.Checkpoint
		left  [2]int
	}{
		"not known":    {ledger.Checkpoint{Order: testoutbox.LSN(11), Reach: ledger.Reach{Release: 4, Cursor: ledger.Cursor{Lane: 2}}}, [2]int{3, 3}},
		"in a lane":    {ledger.Checkpoint{Order: testoutbox.LSN(11), Reach: ledger.Reach{Release: 5, Cursor: ledger.Cursor{From: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 2}}}}, [2]int{1, 3}},
		"in the next":  {ledger.Checkpoint{Order: testoutbox.LSN(11), Reach: ledger.Reach{Release: 5, Cursor: ledger.Cursor{Lane: 1, From: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 1}}}}, [2]int{0, 2}},
		"at its end":   {ledger.Checkpoint{Order: testoutbox.LSN(11), Reach: ledger.Reach{Release: 5, Cursor: ledger.Cursor{Lane: 2}}}, [2]int{0, 0}},
		"of a newer 1": {ledger.Checkpoint{Order: testoutbox.LSN(11), Reach: ledger.Reach{Release: 6}}, [2]int{3, 3}},
	} {
		s, one, two, row := b.waits(ledger.Checkpoint{}), orders(), &heldLane{of: ledger.Lane{Topic: "again"}}, b.enqueued()
		for n := range uint32(3) {
			require.NoError(t, s.write(t.Context(), []heldItem{heldRow(one, n, row), heldRow(two, n, row)}))
		}
		require.NoError(t, s.begin(t.Context(), 5, []*heldLane{one, two}))
		s = b.waits(tc.start)
		left := [2]int{len(b.pageOf(s, one, ledger.Place{})), len(b.pageOf(s, two, ledger.Place{}))}
		require.Equal(t, tc.left, left, name)
		require.Equal(t, "0", b.Text("SELECT count(*)::text FROM onceward.releases"), name)
		b.Exec("DELETE FROM onceward.waiting")
	}
}

// retryThatWaits: the letters behind those that are out are taken back when it is
// written down, and all are settled when it is forgotten, not by its position.
func retryThatWaits(b *tables) {
	t := b.T
	b.parks(deadRow(1, "A"), deadRow(2, "A"), deadRow(3, "A"))
	s, w := b.waits(ledger.Checkpoint{Order: testoutbox.LSN(9)}), orders()
	c := controlOf(10, cdc.ActionRetry, "A")
	_, err := b.Apply(t.Context(), c, nil, testoutbox.LSN(10), false)
	require.NoError(t, err)
	states := func() string {
		return b.Text("SELECT string_agg(state, ' ' ORDER BY letter_id) FROM onceward.dead_letters")
	}
	item := &cdc.Item{Kind: cdc.KindControl, Control: c}
	require.NoError(t, s.write(t.Context(), []heldItem{{lane: w, at: ledger.Place{Commit: testoutbox.LSN(10), Letter: 1}, id: c.ID, whole: item, reopen: c.ID}}))
	require.Equal(t, "retrying open open", states())
	require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(12)))
	require.Equal(t, "replayed open open", states(), "the first is out")

	require.NoError(t, s.begin(t.Context(), 1, []*heldLane{w}))
	_, err = b.Apply(t.Context(), c, nil, testoutbox.LSN(10), true)
	require.NoError(t, err)
	require.Equal(t, "replayed retrying retrying", states())
	require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(99)))
	require.Equal(t, "replayed retrying retrying", states(), "its position says nothing")
	half := ledger.Cursor{From: ledger.Place{Commit: testoutbox.LSN(10), Letter: 2}}
	require.NoError(t, s.forget(t.Context(), []*heldLane{w}, half))
	require.EqualValues(t, 2, b.pageOf(s, w, ledger.Place{})[0].at.Letter, "two are out")
	require.Equal(t, "replayed replayed retrying", states(), "they are, whatever becomes of the third")
	s = b.waits(ledger.Checkpoint{Order: testoutbox.LSN(12), Reach: ledger.Reach{Release: 1, Cursor: half}})
	require.Equal(t, "replayed replayed open", states(), "a crash: it acts again")
	_, err = b.Apply(t.Context(), c, nil, testoutbox.LSN(10), true)
	require.NoError(t, err)
	require.NoError(t, s.begin(t.Context(), 2, []*heldLane{w}))
	require.NoError(t, s.end(t.Context(), []*heldLane{w}, ledger.Cursor{Lane: 1}))
	require.Equal(t, "replayed replayed replayed", states())
	require.Equal(t, "0", b.Text("SELECT (SELECT count(*) FROM onceward.waiting) + (SELECT count(*) FROM onceward.waiting_copies) + (SELECT count(*) FROM onceward.lanes)::bigint || ''"))
}

// retryIsMoved: through a gap, and to another system, a retry that waits keeps its
// letters, those before it in its lane, at whatever position all of them stand now.
func retryIsMoved(b *tables) {
	t := b.T
	at := testoutbox.LSN(20)
	moved := func(n int, aggregate string) letters.Dead {
		return deadRow(n, aggregate, func(c *letters.Dead) { c.Commit = at })
	}
	b.parks(deadRow(1, "A"), moved(2, "A"), moved(3, "A"), deadRow(4, "B"), deadRow(5, "B"), moved(6, "B"), moved(7, "C"))
	s, w := b.waits(ledger.Checkpoint{Order: testoutbox.LSN(19)}), orders()
	c := controlOf(12, cdc.ActionRetry, "B") // it has acted, before it was refused
	_, err := b.Apply(t.Context(), c, nil, testoutbox.LSN(12), false)
	require.NoError(t, err)
	require.NoError(t, s.write(t.Context(), []heldItem{{
		lane: w, at: ledger.Place{Commit: testoutbox.LSN(12), Letter: 1}, id: c.ID, whole: &cdc.Item{Kind: cdc.KindControl, Control: c}, reopen: c.ID,
	}}))
	require.Equal(t, "1=open 4=retrying 5=open 2=open 3=open 6=open 7=open", b.states())
	require.NoError(t, s.BeginAnew(t.Context(), s.state.Queries, testoutbox.LSN(5)))
	require.NoError(t, letters.TakeBack(t.Context(), s.state.Queries, outboxdb.RelayState{Slot: b.Slot, ConfirmedLsn: testoutbox.LSN(5).String()}))
	b.waits(ledger.Checkpoint{Order: testoutbox.LSN(5)})
	require.Equal(t, "1=open 4=open 5=open 2=open 3=open 6=open 7=open", b.states())
	release := func(c *cdc.Control) []int {
		r, err := b.Apply(t.Context(), c, nil, at, true)
		require.NoError(t, err)
		if r == nil {
			return nil
		}
		return numbersOf(b.pages(r))
	}
	require.Equal(t, []int{4, 5}, release(c), "from its first letter; 6 came after it")
	require.Equal(t, []int{1, 2, 3}, release(controlOf(13, cdc.ActionRetry, "A")))
	require.Nil(t, release(controlOf(14, cdc.ActionDiscard, "C")))
	require.Equal(t, "1=retrying 4=retrying 5=retrying 2=retrying 3=retrying 6=open 7=discarded", b.states())
	require.Equal(t, []int{6}, release(controlOf(15, cdc.ActionRetry, 6)), "one letter")
}

// givenUpWaits: one that was given up is forgotten with its word, its lane when
// that is empty; what a session left is forgotten by the next.
func givenUpWaits(b *tables) {
	t := b.T
	s, one, two := b.waits(ledger.Checkpoint{Order: testoutbox.LSN(11)}), orders(), &heldLane{of: ledger.Lane{Topic: "again"}}
	rows := []*outbox.Row{b.enqueued(), b.enqueued(), b.enqueued()}
	replay := &cdc.Item{Kind: cdc.KindReplay, Row: rows[2], Replay: &cdc.Replay{ID: testoutbox.ID(2), Mode: cdc.ModeRedeliver, Topic: "again"}}
	require.NoError(t, s.write(t.Context(), []heldItem{
		heldRow(one, 0, rows[0]), heldRow(one, 1, rows[1]), {lane: two, at: ledger.Place{Commit: testoutbox.LSN(10), Ordinal: 2}, id: testoutbox.ID(2), whole: replay},
	}))
	b.Exec("UPDATE onceward.relay_state SET skip = ARRAY[$1, $2]::uuid[]", rows[0].ID, testoutbox.ID(2))
	found, err := s.find(t.Context(), []uuid.UUID{rows[0].ID, testoutbox.ID(2)})
	require.NoError(t, err)
	require.Len(t, found, 2)
	before := b.State.Written
	for i := range found {
		require.NoError(t, s.drop(t.Context(), &found[i]))
	}
	require.Equal(t, before+2, b.State.Written, "a standby that lacks it is found out")
	require.NoError(t, s.open(t.Context(), []*heldLane{two}))
	require.Len(t, b.pageOf(s, one, ledger.Place{}), 1)
	left := func() string {
		return b.Text(`SELECT concat_ws(' ', (SELECT count(*) FROM onceward.waiting), (SELECT count(*) FROM onceward.waiting_copies), (SELECT count(*) FROM onceward.lanes),
			(SELECT skip::text FROM onceward.relay_state))`)
	}
	require.Equal(t, "1 0 1 {}", left())

	b.parks(letters.Dead{Row: rows[1], Commit: testoutbox.LSN(10), Class: letters.ClassRecord, Cause: "x"})
	b.waits(ledger.Checkpoint{Order: testoutbox.LSN(11)})
	require.Equal(t, "0 0 0 {}", left(), "what has a letter has ended")
}

func fencedWaiting(b *tables) {
	t := b.T
	zombie, row := b.waits(ledger.Checkpoint{}), b.enqueued()
	b.waits(ledger.Checkpoint{})
	require.ErrorIs(t, zombie.write(t.Context(), []heldItem{heldRow(orders(), 0, row)}), state.ErrFenced)
	require.ErrorIs(t, zombie.begin(t.Context(), 1, nil), state.ErrFenced)
	require.ErrorIs(t, zombie.drop(t.Context(), &heldItem{lane: orders()}), state.ErrFenced)
	require.ErrorIs(t, zombie.open(t.Context(), []*heldLane{orders()}), state.ErrFenced)
	require.Equal(t, "0", b.Text("SELECT count(*)::text FROM onceward.waiting"))
}

// largeHeaders: a page of what waits, or of a gap, does not read the headers of all that may follow.
func largeHeaders(b *tables) {
	t, ctx := b.T, b.T.Context()
	const rows = 150
	s, w := b.waits(ledger.Checkpoint{}), orders()
	var items []heldItem
	for n := range rows {
		row := b.enqueued()
		items = append(items, heldRow(w, uint32(n), row))
	}
	require.NoError(t, s.write(ctx, items))
	b.Exec(`UPDATE onceward.outbox SET headers = jsonb_build_object('h', (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 12000)))`)
	b.Exec("VACUUM ANALYZE onceward.outbox")
	before := b.LargeReads("onceward.outbox")
	_, err := b.Conn.Exec(ctx, "SELECT sum(octet_length(headers::text)) FROM onceward.outbox")
	require.NoError(t, err)
	once := b.LargeReads("onceward.outbox") - before
	before += once
	read := 0
	for from := (ledger.Place{}); read < rows; {
		page := b.pageOf(s, w, from)
		require.NotEmpty(t, page)
		read += len(page)
		from = page[len(page)-1].at
		from.Ordinal++
	}
	lane := b.LargeReads("onceward.outbox") - before
	t.Logf("a lane: %d blocks, all once: %d", lane, once)
	require.Less(t, lane, 10*once, "a lane")
	b.Exec("DELETE FROM onceward.waiting")
	gap := uuid.Must(uuid.NewV7())
	require.NoError(t, b.State.Queries.InsertGap(ctx, outboxdb.InsertGapParams{
		GapID: gap, Slot: b.Slot, Cause: "WENT_BACK", Detail: "a test", FromSnapshot: snapshot.None, ToSnapshot: b.Text("SELECT pg_current_snapshot()::text"), Events: rows, State: "repairing",
	}))
	of := &gapRows{pumps: b.State}
	require.NoError(t, of.open(ctx, Gap{ID: gap, Cursor: math.MinInt64}))
	for read = 0; ; {
		page, _, err := of.next(ctx)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		read += len(page)
	}
	require.Equal(t, rows, read)
	require.Less(t, b.LargeReads("onceward.outbox")-before-lane, 10*once, "a gap")
}
