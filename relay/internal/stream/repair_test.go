package stream

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/snapshot"
)

// fakeGaps serves the rows of one gap, two a page.
type fakeGaps struct {
	rows   []*outbox.Row
	moved  []ledger.Repair
	closed bool
	read   int
}

func (g *fakeGaps) open(_ context.Context, of Gap) error {
	for g.read < len(g.rows) && g.rows[g.read].Seq <= of.Cursor {
		g.read++
	}
	return nil
}

func (g *fakeGaps) next(context.Context) ([]*outbox.Row, bool, error) {
	page := g.rows[g.read:min(g.read+2, len(g.rows))]
	g.read += len(page)
	return page, g.read == len(g.rows) || g.rows[g.read].Seq > page[len(page)-1].Seq, nil
}

func (g *fakeGaps) behind(_ context.Context, of Gap) (n int64, err error) {
	for _, row := range g.rows {
		if row.Seq <= of.Cursor {
			n++
		}
	}
	return n, nil
}

func (g *fakeGaps) move(_ context.Context, to ledger.Repair, done bool) error {
	g.moved, g.closed = append(g.moved, to), done
	return nil
}

// flushing is an idempotent mode whose sink acknowledges at once.
type flushing struct {
	*idempotent
	flushes int
}

func (f *flushing) flush(context.Context) error { f.flushes++; return nil }

func repairing(sink *fakeSink, n int) (*Pump, *fakeGaps, uuid.UUID) {
	p := testPump(sink)
	p.mode = &flushing{idempotent: &idempotent{progress: p.progress, watch: p.watch, saved: savedAt(p.reading.began)}}
	rows := &fakeGaps{}
	for i := range n {
		rows.rows = append(rows.rows, &outbox.Row{ID: uuid.New(), Namespace: "shop", AggregateType: "order", AggregateID: []byte("A"), Seq: int64(10 * (i + 1))})
	}
	id := uuid.New()
	p.gaps, p.repairs = rows, []Gap{{ID: id, Cause: "SLOT_ADVANCED"}}
	return p, rows, id
}

// A gap is counted when it is found. What is gone by its repair was never published,
// and the log does not say that it was.
func TestARepairSaysHowManyOfTheCountedItPublished(t *testing.T) {
	for name, c := range map[string]struct {
		Counted, cursor int64
		said            string
	}{
		"all":                 {5, 0, `level=WARN msg="the gap is repaired" .*events=5 earlier_sessions=0 counted=5\n`},
		"all, behind a crash": {5, 20, `level=WARN msg="the gap is repaired" .*events=3 earlier_sessions=2 counted=5\n`},
		"rows are gone":       {8, 0, `level=WARN msg="the gap is repaired, but not all .*events=5 earlier_sessions=0 counted=8 missing=3`},
		"all of the rest is gone, behind a crash": {4000, 50, `level=WARN msg="the gap is repaired, but not all .*events=0 earlier_sessions=5 counted=4000 missing=3995`},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, _ := repairing(newFakeSink(), 5)
			p.repairs[0].Events, p.repairs[0].Cursor = c.Counted, c.cursor
			var said strings.Builder
			p.log = slog.New(slog.NewTextHandler(&said, nil))
			require.NoError(t, p.Repair(t.Context()))
			require.Regexp(t, c.said, said.String())
		})
	}
}

func TestARepairPublishesPageByPage(t *testing.T) {
	sink := newFakeSink()
	p, rows, id := repairing(sink, 5)
	require.NoError(t, p.Repair(t.Context()))
	require.Len(t, sink.got, 5)
	for i, ev := range sink.got {
		require.Equal(t, rows.rows[i], ev.Row)
		require.Equal(t, id, ev.RepairID)
	}
	require.Equal(t, []ledger.Repair{{Gap: id, Cursor: 20}, {Gap: id, Cursor: 40}, {Gap: id, Cursor: 50}, {Gap: id, Cursor: 50}}, rows.moved, "the cursor follows what was flushed")
	require.True(t, rows.closed)
	require.Equal(t, 3, p.mode.(*flushing).flushes)
	require.Zero(t, p.reading.repaired, "nothing of it stands in later checkpoints")
}

// Rows of partitions that somebody filled may share their seq: no checkpoint is past
// it before the last of them is published.
func TestTheCursorOfARepairIsNotWithinASeq(t *testing.T) {
	for _, c := range []struct{ seqs, moved []int64 }{
		{[]int64{10, 20, 20, 20, 20, 30}, []int64{10, 10, 30, 30}},
		{[]int64{7, 7, 7, 7, 7}, []int64{math.MinInt64, math.MinInt64, 7, 7}},
		{[]int64{-5, 0, 0, 0, 1}, []int64{-5, 0, 1, 1}},
	} {
		sink := newFakeSink()
		p, rows, _ := repairing(sink, len(c.seqs))
		p.repairs[0].Cursor = math.MinInt64
		for i, seq := range c.seqs {
			rows.rows[i].Seq = seq
		}
		sink.refuse = func(ev publisher.Event) error {
			require.Less(t, p.reading.cut().Repair.Cursor, ev.Row.Seq)
			return nil
		}
		require.NoError(t, p.Repair(t.Context()))
		require.Len(t, sink.got, len(c.seqs))
		var moved []int64
		for _, m := range rows.moved {
			moved = append(moved, m.Cursor)
		}
		require.Equal(t, c.moved, moved)
	}
}

func TestARepairGoesOnFromItsCursor(t *testing.T) {
	sink := newFakeSink()
	p, rows, _ := repairing(sink, 5)
	p.repairs[0].Cursor, p.repairs[0].First = 30, true
	require.NoError(t, p.Repair(t.Context()))
	require.Len(t, sink.got, 2)
	require.Equal(t, rows.rows[3], sink.got[0].Row)
	require.Zero(t, sink.got[0].RepairID, "what a first start publishes was published by nobody before")
}

// Kafka keeps the cursor of one repair. Those of others are written down before it is
// that of another gap.
func TestTheCursorsOfSeveralGapsAreWrittenDownFirst(t *testing.T) {
	sink := newFakeSink()
	p, rows, first := repairing(sink, 2)
	p.repairs[0].Cursor = math.MinInt64
	second := Gap{ID: uuid.New(), Cause: "SLOT_MISSING", Cursor: 20}
	p.repairs = append(p.repairs, second)
	sink.refuse = func(publisher.Event) error {
		require.Equal(t, []ledger.Repair{{Gap: first, Cursor: math.MinInt64}, {Gap: second.ID, Cursor: 20}}, rows.moved[:2])
		return nil
	}
	require.NoError(t, p.Repair(t.Context()))
	require.Len(t, sink.got, 2)
}

// What meets a held route waits there, behind what a session before left and
// before what the stream brings, and the repair goes on. It goes out as what it is.
func TestARepairPassesAHeldRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		p, rows, id := repairing(sink, 3)
		k := newTable()
		p.held.keeper = k
		mended := time.Now().Add(time.Minute)
		for _, i := range []int{1, 2} {
			rows.rows[i].AggregateType = "late"
			madeRows.Store(rows.rows[i].ID, rows.rows[i])
		}
		sink.refuse = func(ev publisher.Event) error {
			if ev.Row.AggregateType == "late" && time.Now().Before(mended) {
				return &publisher.RouteError{Route: "shop.late", Reason: "topic is missing"}
			}
			return nil
		}
		p.repairs[0].Events = 3
		var said strings.Builder
		p.log = slog.New(slog.NewTextHandler(&said, nil))
		require.NoError(t, p.Repair(t.Context()))
		require.Contains(t, said.String(), "events=1 earlier_sessions=0 counted=3 waiting=2\n")
		require.True(t, time.Now().Before(mended))
		require.True(t, rows.closed)
		require.Len(t, sink.got, 1)
		require.NoError(t, p.held.write(t.Context()))
		require.Len(t, k.rows, 2)
		at := ledger.Place{Commit: p.reading.began.Order - 1, Ordinal: 1}
		require.Equal(t, []ledger.Place{at, at.After()}, []ledger.Place{k.rows[0].at, k.rows[1].at})
		k.restart(&p.reading.began)
		require.Len(t, k.rows, 2, "no checkpoint takes them for read again")
		require.NoError(t, p.held.placeRepair(t.Context()))
		require.Equal(t, at.After().After(), p.held.repairPlace)
		pass(time.Until(mended) + holdMax)
		require.NoError(t, p.turn(t.Context(), true))
		require.Len(t, sink.got, 3)
		for i, ev := range sink.got {
			require.Equal(t, rows.rows[i].ID, ev.Row.ID)
			require.Equal(t, id, ev.RepairID)
		}
	})
}

// Where no more aggregates of a type may be parked, its events of a repair wait and
// say so, and the repair goes on with others.
func TestARepairPassesAFullPark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		p, rows, _ := repairing(sink, 4)
		k := newTable()
		p.held.keeper = k
		p.routing = NewRouting("", []string{PolicyParkAggregate}, publisher.Config{Routes: []publisher.Route{{Topic: "t"}}})
		kept := p.letters.store.(*fakeLetters)
		kept.limit = 1
		require.NoError(t, kept.Write(t.Context(), letters.Dead{Row: &outbox.Row{ID: uuid.New(), Namespace: "shop", AggregateType: "order", AggregateID: []byte("other")}, Holds: true, Class: letters.ClassBadRow}))
		rows.rows[3].AggregateType = "invoice"
		sink.refuse = func(ev publisher.Event) error {
			if ev.Row == rows.rows[1] {
				return &record.RowError{Field: "size"}
			}
			return nil
		}
		var shown map[string]HeldRoute
		p.Holding = func(held map[string]HeldRoute) { shown = held }
		require.NoError(t, p.Repair(t.Context()))
		require.True(t, rows.closed)
		require.Len(t, sink.got, 2, "one before the event and one of another type")
		require.Contains(t, shown["shop/order"].Why, "max_parked_aggregates")
	})
}

// An event of a repair that can never be published becomes a letter, and the
// repair goes on.
func TestARepairLeavesLetters(t *testing.T) {
	sink := newFakeSink()
	p, rows, _ := repairing(sink, 3)
	p.routing = NewRouting("", []string{PolicyPark}, publisher.Config{Routes: []publisher.Route{{Topic: "t"}}})
	sink.refuse = func(ev publisher.Event) error {
		if ev.Row == rows.rows[1] {
			return &record.RowError{Field: "size"}
		}
		return nil
	}
	p.repairs[0].Events = 3
	var said strings.Builder
	p.log = slog.New(slog.NewTextHandler(&said, nil))
	require.NoError(t, p.Repair(t.Context()))
	require.Len(t, sink.got, 2)
	require.Contains(t, p.letters.store.(*fakeLetters).letters, rows.rows[1].ID)
	require.True(t, rows.closed)
	require.Regexp(t, "but some of its events became dead letters: see `outboxctl dead list`\".* events=2 earlier_sessions=0 counted=3 letters=1\n", said.String())
}

// A repaired event follows the letters of its aggregate that are older, also those
// that stand beyond where the stream begins: its letter sorts behind them.
func TestARepairStaysBehindLettersBeyondTheStream(t *testing.T) {
	sink := newFakeSink()
	p, rows, _ := repairing(sink, 1)
	kept := p.letters.store.(*fakeLetters)
	older := *rows.rows[0]
	older.ID, older.Seq = uuid.New(), rows.rows[0].Seq-1
	require.NoError(t, kept.Write(t.Context(), letters.Dead{Row: &older, Commit: 500, Class: letters.ClassBadRow, Cause: "bad", Holds: true}))
	require.NoError(t, p.Repair(t.Context()))
	require.Empty(t, sink.got)
	require.NoError(t, p.letters.write(t.Context()))
	require.EqualValues(t, 500, kept.letters[rows.rows[0].ID].Commit)
}

// A repaired event that is older than the letters of its aggregate is published before
// them; one that is between them gets its place there. The stream, from which it would
// have its own place, begins behind all of them.
func TestARepairComesBeforeNewerLetters(t *testing.T) {
	sink := newFakeSink()
	p, rows, _ := repairing(sink, 3) // of seq 10, 20, 30
	kept := p.letters.store.(*fakeLetters)
	p.reading.began.Order = 900
	for seq, at := range map[int64]pglogrepl.LSN{15: 500, 25: 600} {
		dead := *rows.rows[0]
		dead.ID, dead.Seq = uuid.New(), seq
		require.NoError(t, kept.Write(t.Context(), letters.Dead{Row: &dead, Commit: at, Class: letters.ClassBadRow, Cause: "bad", Holds: true}))
	}
	require.NoError(t, p.Repair(t.Context()))
	require.NoError(t, p.letters.write(t.Context()))
	require.Len(t, sink.got, 1)
	require.Equal(t, rows.rows[0], sink.got[0].Row)
	require.EqualValues(t, 500, kept.letters[rows.rows[1].ID].Commit)
	require.EqualValues(t, 600, kept.letters[rows.rows[2].ID].Commit)
}

// The stream leaves out what is visible in the end of the newest gap: it is of the
// gap, or was published from the table. A row whose tx_id is not its own is not
// judged by it.
func TestTheStreamLeavesOutWhatIsCovered(t *testing.T) {
	sink := newFakeSink()
	p := testPump(sink)
	p.reading.covered = sees(t, "10:20:15")
	var batch []cdc.Item
	for _, xid := range []uint64{9, 14, 15, 20} {
		it := event(200)
		it.Row.TxID = xid
		batch = append(batch, it)
	}
	forged := event(200)
	forged.Row.TxID, forged.Bad = 3, errors.New("forged")
	batch = append(batch, forged, commitAt(200))
	require.NoError(t, p.take(t.Context(), batch))
	require.Len(t, sink.got, 2)
	require.EqualValues(t, 15, sink.got[0].Row.TxID)
	require.EqualValues(t, 20, sink.got[1].Row.TxID)
	require.NoError(t, p.settle(t.Context(), true))
	require.Contains(t, p.letters.store.(*fakeLetters).letters, forged.Row.ID)
	for _, tag := range sink.tags() {
		require.NoError(t, p.end(tag, ledger.Acknowledged))
	}
	now, err := p.status()
	require.NoError(t, err)
	require.EqualValues(t, 208, now.Position, "what is left out has ended")
}

// What the stream leaves out is not read from the table, from which retention may
// have dropped it: the relay would never get past it.
func TestWhatIsCoveredNeedsNotBeComplete(t *testing.T) {
	sink := newFakeSink()
	p := testPump(sink)
	p.reading.covered = sees(t, "10:10:")
	p.reading.rows = noRows{}
	covered, other := event(200), event(200)
	covered.Row.TxID, covered.Incomplete = 9, &cdc.LayoutError{}
	other.Row.TxID, other.Incomplete = 10, &cdc.LayoutError{}
	require.NoError(t, p.take(t.Context(), []cdc.Item{covered, commitAt(200)}))
	require.Empty(t, sink.got)
	require.ErrorIs(t, p.take(t.Context(), []cdc.Item{other, commitAt(300)}), errNoRow)
}

func sees(t *testing.T, text string) snapshot.Visible {
	t.Helper()
	v, err := snapshot.Parse(text)
	require.NoError(t, err)
	return v
}

type noRows struct{}

var errNoRow = errors.New("it is not there any more")

func (noRows) event(context.Context, uuid.UUID) (*outbox.Row, error) { return nil, errNoRow }
func (noRows) fit(context.Context) error                             { return nil }
