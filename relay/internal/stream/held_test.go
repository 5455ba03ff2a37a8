package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

// typed is an event of an aggregate type.
func typed(commit uint64, aggregateType string) cdc.Item {
	it := event(lsn(commit))
	it.Row.AggregateType = aggregateType
	return it
}

// missing is a sink without the topics of some aggregate types.
func missing(gone *atomic.Pointer[[]string]) func(publisher.Event) error {
	return func(ev publisher.Event) error {
		if slices.Contains(*gone.Load(), ev.Row.AggregateType) {
			return &publisher.RouteError{Topic: "shop." + ev.Row.AggregateType, Route: "shop." + ev.Row.AggregateType, Reason: "does not exist"}
		}
		return nil
	}
}

// keys are the ids of what a sink was given, of one aggregate type or of all.
func (s *fakeSink) keys(aggregateType string) (ids []uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ev := range s.got {
		if aggregateType == "" || ev.Row.AggregateType == aggregateType {
			ids = append(ids, ev.Row.ID)
		}
	}
	return ids
}

func keysOfItems(items ...cdc.Item) (ids []uuid.UUID) {
	for _, it := range items {
		ids = append(ids, it.Row.ID)
	}
	return ids
}

// pumping runs the pump until the test's function returns.
func pumping(t *testing.T, p *Pump, batches [][]cdc.Item, during func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, &fakeSource{batches: batches}) }()
	during()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// save makes the present state of an idempotent pipeline its checkpoint.
func save(t require.TestingT, p *Pump) ledger.Checkpoint {
	c, err := p.mode.ended()
	require.NoError(t, err)
	p.mode.(*idempotent).saved.Store(&c)
	return c
}

// releaseAll publishes everything that waits, with a checkpoint wherever one is due.
func releaseAll(t require.TestingT, p *Pump) {
	for range 10_000 {
		if !p.held.lanes.any() && p.releases.current == nil {
			return
		}
		for _, r := range p.held.lanes.due {
			r.next = time.Time{}
		}
		require.NoError(t, p.turn(context.Background(), true))
		if sink, ok := p.sink.(*fakeSink); ok {
			acknowledgeAll(p, sink)
			save(t, p)
			continue
		}
		require.NoError(t, p.Flush(context.Background()))
	}
	require.Fail(t, "it does not end")
}

// acknowledgeAll acknowledges what was not.
func acknowledgeAll(p *Pump, sink *fakeSink) {
	tags := sink.tags()
	fresh := tags[sink.acked:]
	sink.acked = len(tags)
	p.Acknowledged(slices.DeleteFunc(fresh, func(tag uint64) bool { return tag == noTag }))
}

func TestAHeldRouteHoldsItsLaneOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		var gone atomic.Pointer[[]string]
		gone.Store(&[]string{"order"})
		sink.refuse = missing(&gone)
		p := testPump(sink)
		batch := []cdc.Item{typed(200, "order"), typed(200, "user"), typed(200, "order"), commitAt(200), typed(300, "user"), typed(300, "order"), commitAt(300)}
		want := keysOfItems(batch[1], batch[4], batch[0], batch[2], batch[5])
		pumping(t, p, [][]cdc.Item{batch}, func() {
			<-time.After(time.Hour)
			require.Equal(t, want[:2], sink.keys(""))
			require.EqualValues(t, 100, position(t, p))
			acknowledgeAll(p, sink)
			require.EqualValues(t, 308, position(t, p), "what is held is written down")
			save(t, p)
			gone.Store(&[]string{})
			<-time.After(holdMax)
			require.Equal(t, want, sink.keys(""), "in order")
			acknowledgeAll(p, sink)
			save(t, p)
			<-time.After(time.Second)
			require.Equal(t, ledger.Reach{UpTo: ledger.Place{Commit: 300, Ordinal: 2}, Release: 1, Cursor: ledger.Cursor{Lane: 1}}, save(t, p).Reach)
		})
		require.False(t, p.held.lanes.any())
		require.Nil(t, p.releases.current)
		require.Empty(t, p.held.keeper.(*table).rows)
		require.Empty(t, p.held.keeper.(*table).lanes)
	})
}

func TestWhatIsReadDuringTheReleaseComesAfterIt(t *testing.T) {
	sink := newFakeSink()
	var gone atomic.Pointer[[]string]
	gone.Store(&[]string{"order", "bill"})
	sink.refuse = missing(&gone)
	p := testPump(sink)
	batch := []cdc.Item{typed(200, "order"), typed(200, "bill")}
	for range 6 {
		batch = append(batch, typed(200, "order"))
	}
	require.NoError(t, p.take(t.Context(), batch))
	require.Len(t, p.held.lanes.byKey, 2)
	gone.Store(&[]string{"bill"})
	for _, r := range p.held.lanes.due {
		r.next = time.Time{}
	}
	p.releases.spent = 0
	require.NoError(t, p.turn(t.Context(), false))
	require.Len(t, sink.keys("order"), 3, "one page")
	late := typed(200, "order")
	require.NoError(t, p.take(t.Context(), []cdc.Item{late, typed(200, "bill")}))
	require.Len(t, sink.keys("order"), 3)
	gone.Store(&[]string{})
	releaseAll(t, p)
	got := sink.keys("order")
	require.Len(t, got, 8)
	require.Equal(t, late.Row.ID, got[7])
	require.Len(t, sink.keys("bill"), 2)
}

// A stop amid a page of a release knows what of it has ended, though the item that it
// cut off has a tag: none of them is published again.
func TestAStopInsideAReleaseKnowsWhatHasEnded(t *testing.T) {
	sink := newFakeSink()
	gone := true
	stop := errors.New("stopped")
	sink.refuse = func(publisher.Event) error {
		switch {
		case gone:
			return &publisher.RouteError{Route: "order", Reason: "missing"}
		case len(sink.keys("order")) == 2:
			return stop
		}
		return nil
	}
	p := testPump(sink)
	require.NoError(t, p.take(t.Context(), []cdc.Item{typed(200, "order"), typed(200, "order"), typed(200, "order"), typed(200, "order")}))
	gone = false
	for _, r := range p.held.lanes.due {
		r.next = time.Time{}
	}
	p.releases.spent = 0
	require.ErrorIs(t, p.turn(t.Context(), false), stop)
	require.Len(t, sink.keys("order"), 2)
	acknowledgeAll(p, sink)
	require.NoError(t, p.Flush(t.Context()))
	s, err := p.status()
	require.NoError(t, err)
	require.Equal(t, ledger.Cursor{From: ledger.Place{Commit: 200, Ordinal: 2}}, s.Reach.Cursor)
	save(t, p)
	require.Len(t, p.held.keeper.(*table).rows, 4)
	require.NoError(t, p.Conclude(t.Context()))
	require.Len(t, p.held.keeper.(*table).rows, 2, "what is published does not wait until the next start")
}

// A stop right behind a release leaves nothing of it: neither its rows, nor the lane, nor
// the release.
func TestAStopBehindAReleaseLeavesNothingWaiting(t *testing.T) {
	sink := newFakeSink()
	var gone atomic.Pointer[[]string]
	gone.Store(&[]string{"order"})
	sink.refuse = missing(&gone)
	p := testPump(sink)
	require.NoError(t, p.take(t.Context(), []cdc.Item{typed(200, "order"), commitAt(200)}))
	require.NoError(t, p.turn(t.Context(), true))
	gone.Store(&[]string{})
	for p.releases.current == nil || !p.releases.current.over {
		for _, r := range p.held.lanes.due {
			r.next = time.Time{}
		}
		require.NoError(t, p.turn(t.Context(), true))
	}
	acknowledgeAll(p, sink)
	require.NoError(t, p.Flush(t.Context()))
	save(t, p)
	rows := p.held.keeper.(*table)
	require.Len(t, rows.rows, 1)
	require.NoError(t, p.Conclude(t.Context()))
	require.Empty(t, rows.rows)
	require.Empty(t, rows.lanes)
	require.Nil(t, p.releases.current)
}

// However many lanes are held, with however much in them: others go on, and it
// costs memory and checkpoint nothing.
func TestManyLanesThatWaitCostNothing(t *testing.T) {
	sink := newFakeSink()
	sink.refuse = func(ev publisher.Event) error {
		if ev.Row.AggregateType != "user" {
			return &publisher.RouteError{Route: ev.Row.AggregateType, Reason: "does not exist"}
		}
		return nil
	}
	p := testPump(sink)
	const names, each = 20_000, 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p.held.keeper = countedKeeper{}
	at := uint64(200)
	for round := range each {
		for n := 0; n < names; n += 100 {
			var batch []cdc.Item
			for i := range 100 {
				row := &outbox.Row{ID: uuid.New(), Namespace: "shop", AggregateType: fmt.Sprint("type-", n+i), Type: "Changed", Payload: make([]byte, 100)}
				batch = append(batch, cdc.Item{Kind: cdc.KindEvent, Commit: lsn(at), Row: row}, commitAt(lsn(at)))
				at += 16
			}
			if round == each-1 && n == 0 {
				batch = append(batch, typed(at, "user"), commitAt(lsn(at)))
				at += 16
			}
			require.NoError(t, p.take(t.Context(), batch))
			require.LessOrEqual(t, p.held.lanes.bytes, unwrittenBytes)
			require.NoError(t, p.turn(t.Context(), false))
		}
	}
	require.NoError(t, p.held.write(t.Context()))
	require.Len(t, sink.tags(), 1, "the user does not wait")
	acknowledgeAll(p, sink)
	c := save(t, p)
	require.Equal(t, lsn(at-8), c.Order)
	require.Zero(t, p.ledger.InFlight())
	c.Timeline, c.Tick, c.Letters, c.Session = 1000, 1e12, 1e12, 1<<54
	require.Less(t, len(c.Meta()), 200)
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d lanes, %d events: %d KiB", len(p.held.lanes.byKey), names*each, grown>>10)
	require.Less(t, grown, int64(names*1500), "per lane, whatever waits in it")
	lent := -1
	p.Lend = func(bytes int) { lent = bytes }
	p.held.lanes.changed, p.held.shown = true, time.Time{}
	p.held.show(time.Now())
	require.Equal(t, names*laneBytes, lent, "of the queue")
	require.InDelta(t, grown, lent, float64(lent)/2)
	runtime.KeepAlive(p)
}

// countedKeeper keeps nothing.
type countedKeeper struct{ keeper }

func (countedKeeper) write(context.Context, []heldItem) error { return nil }

func TestWhatIsHeldIsWrittenDownBeforeItIsLarge(t *testing.T) {
	sink := newFakeSink()
	sink.refuse = func(publisher.Event) error { return &publisher.RouteError{Route: "t", Reason: "missing"} }
	p := testPump(sink)
	bad := typed(200, "order") // a bad row is kept whole
	bad.Row.Payload = make([]byte, unwrittenBytes)
	require.NoError(t, p.take(t.Context(), []cdc.Item{typed(200, "order")}))
	require.Empty(t, p.held.keeper.(*table).rows)
	bad.Bad = fmt.Errorf("bad")
	require.NoError(t, p.take(t.Context(), []cdc.Item{bad}))
	require.Len(t, p.held.keeper.(*table).rows, 2)
	require.Zero(t, p.held.lanes.bytes)
}

func TestACommitThatIsNotVisibleIsWaitedForAndAnErasedRowEnds(t *testing.T) {
	sink := newFakeSink()
	var gone atomic.Pointer[[]string]
	gone.Store(&[]string{"order"})
	sink.refuse = missing(&gone)
	p := testPump(sink)
	batch := []cdc.Item{typed(200, "order"), typed(200, "order"), typed(300, "order")}
	require.NoError(t, p.take(t.Context(), batch))
	kept := p.held.keeper.(*table)
	madeRows.Delete(batch[0].Row.ID)
	kept.hidden = map[uuid.UUID]bool{batch[1].Row.ID: true}
	gone.Store(&[]string{})
	for range 100 {
		for _, r := range p.held.lanes.due {
			r.next = time.Time{}
		}
		require.NoError(t, p.turn(t.Context(), true))
	}
	require.Empty(t, sink.tags(), "the second waits, and the third behind it")
	require.Equal(t, 1, tallyOf(p).skips[skippedErased])
	kept.hidden = nil
	p.releases.current.paused = time.Time{}
	releaseAll(t, p)
	require.Equal(t, keysOfItems(batch[1:]...), sink.keys(""))
	require.EqualValues(t, 1, p.ledger.Ends()[ledger.Erased])
	require.EqualValues(t, 3, p.ledger.Ends()[ledger.Waiting])
}

// A release that publishes nothing ends all the same, though the stream is silent
// and its position stands.
func TestAReleaseOfErasedRowsEndsBesideASilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := quiet()
		g.missing["order"] = true
		p, _, _ := g.session(t)
		batch := single(200)
		running(t, p, &trickle{every: time.Second, batches: [][]cdc.Item{batch}}, func() {
			pass(time.Minute)
			_, _, saved := g.seen()
			require.EqualValues(t, 208, saved)
			madeRows.Delete(batch[0].Row.ID)
			g.mu.Lock()
			delete(g.missing, "order")
			g.mu.Unlock()
			pass(time.Minute)
		})
		require.Empty(t, g.visible)
		require.Empty(t, g.table.rows)
		require.Nil(t, p.releases.current)
		require.False(t, p.held.lanes.any())
	})
}
