package relay

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
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
		for _, name := range *gone.Load() {
			if ev.Row.AggregateType == name {
				return &publisher.RouteError{Topic: "shop." + name, Route: "shop." + name, Reason: "does not exist"}
			}
		}
		return nil
	}
}

func types(sink *fakeSink) string {
	sink.mu.Lock()
	defer sink.mu.Unlock()
	var names []string
	for _, ev := range sink.got {
		names = append(names, fmt.Sprint(ev.Row.AggregateType, ev.Tag))
	}
	return strings.Join(names, " ")
}

// pumping runs the pump until the test's function returns.
func pumping(t *testing.T, p *pipeline, batches [][]cdc.Item, during func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.pump(ctx, &fakeSource{batches: batches}) }()
	during()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestAHeldRouteHoldsItsLaneOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		var gone atomic.Pointer[[]string]
		gone.Store(&[]string{"order"})
		sink.refuse = missing(&gone)
		p := testPipeline(sink)
		batch := []cdc.Item{typed(200, "order"), typed(200, "user"), typed(200, "order"), commitAt(200), typed(300, "user"), typed(300, "order"), commitAt(300)}
		pumping(t, p, [][]cdc.Item{batch}, func() {
			<-time.After(time.Hour)
			require.Equal(t, "user1 user3", types(sink))
			p.acknowledged([]uint64{1, 3})
			require.EqualValues(t, 100, position(t, p), "what is held has not ended")
			gone.Store(&[]string{})
			<-time.After(holdMax)
			require.Equal(t, "user1 user3 order0 order2 order4", types(sink), "in order")
			p.acknowledged([]uint64{0, 2, 4})
			require.EqualValues(t, 308, position(t, p))
		})
		require.False(t, p.lanes.any())
		require.Zero(t, p.lanes.bytes)
	})
}

func TestWhatIsReadDuringTheReleaseComesAfterIt(t *testing.T) {
	sink := newFakeSink()
	var gone atomic.Pointer[[]string]
	gone.Store(&[]string{"order", "bill"})
	sink.refuse = missing(&gone)
	p := testPipeline(sink)
	require.NoError(t, p.take(t.Context(), []cdc.Item{typed(200, "order"), typed(200, "bill"), typed(200, "order")}))
	require.Len(t, p.lanes.all, 2)
	gone.Store(&[]string{"bill"})
	require.NoError(t, p.retry(t.Context(), p.lanes.all[0]))
	require.NoError(t, p.take(t.Context(), []cdc.Item{typed(200, "order"), typed(200, "bill")}))
	require.Equal(t, "order0 order2 order3", types(sink))
	require.Len(t, p.lanes.tags(), 2)
	require.Equal(t, map[lane]place{{namespace: "shop", aggregateType: "bill"}: {commit: 200, ordinal: 1}}, p.lanes.heads())
}

func TestBeyondTheLimitEverythingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		var gone atomic.Pointer[[]string]
		gone.Store(&[]string{"order"})
		sink.refuse = missing(&gone)
		p := testPipeline(sink)
		big := typed(200, "order")
		big.Row.Payload = make([]byte, 1<<20)
		pumping(t, p, [][]cdc.Item{{typed(200, "user"), big, typed(200, "user")}}, func() {
			<-time.After(time.Hour)
			require.Equal(t, "user0", types(sink))
			gone.Store(&[]string{})
			<-time.After(holdMax)
			require.Equal(t, "user0 order1 user2", types(sink))
		})
	})
}

func TestMoreLanesThanTheCheckpointHasRoomForWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		var gone atomic.Pointer[[]string]
		var names []string
		var batch []cdc.Item
		for i := range 200 {
			names = append(names, fmt.Sprintf("aggregate-type-%d", i))
			batch = append(batch, typed(200, names[i]))
		}
		gone.Store(&names)
		sink.refuse = missing(&gone)
		p := testPipeline(sink)
		pumping(t, p, [][]cdc.Item{append(batch, typed(200, "user"))}, func() {
			<-time.After(time.Hour)
			require.Empty(t, types(sink), "the user waits behind a lane that does not fit")
			c := checkpoint{horizon: p.horizon()}
			require.LessOrEqual(t, len(c.meta()), metaLimit)
			require.Greater(t, len(p.lanes.all), 20)
			gone.Store(&[]string{})
			<-time.After(holdMax)
			require.Len(t, sink.tags(), 201)
		})
	})
}

func TestTheWaitOfALaneGrowsToItsBound(t *testing.T) {
	var w waiting
	w.wait = holdMin
	now := time.Unix(0, 0)
	var waits []time.Duration
	for range 8 {
		w.refused(now)
		waits = append(waits, w.next.Sub(now))
	}
	require.Equal(t, []time.Duration{200e6, 400e6, 800e6, 1600e6, 3200e6, 5e9, 5e9, 5e9}, waits)
}

// A reconnect of an idempotent session loses nothing, whatever was acknowledged
// and held.
func TestAnIdempotentReconnectGoesOnWhereEachLaneStood(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []cdc.Item
		for i := range rapid.Uint64Range(1, 8).Draw(t, "transactions") {
			commit := 200 + 20*i
			for range rapid.IntRange(0, 4).Draw(t, "events") {
				stream = append(stream, typed(commit, string(rune('a'+rapid.IntRange(0, 2).Draw(t, "type")))))
			}
			stream = append(stream, commitAt(lsn(commit)))
		}
		var gone atomic.Pointer[[]string]
		gone.Store(&[]string{})
		acked := map[uuid.UUID]bool{}
		began := horizon{order: 100}
		for last := range 4 {
			sink := newFakeSink()
			sink.refuse = missing(&gone)
			p := testPipeline(sink)
			p.progress, p.began = cdc.NewProgress(began.order), began
			for _, it := range stream {
				if it.Commit < began.order {
					continue
				}
				if rapid.IntRange(0, 5).Draw(t, "topics") == 0 && last < 3 {
					gone.Store(&[]string{string(rune('a' + rapid.IntRange(0, 3).Draw(t, "missing")))})
				}
				require.NoError(t, p.take(t.Context(), []cdc.Item{it}))
			}
			if last == 3 {
				gone.Store(&[]string{})
			}
			for _, w := range append([]*waiting(nil), p.lanes.all...) {
				require.NoError(t, p.retry(t.Context(), w))
			}
			for _, ev := range sink.got {
				if last == 3 || rapid.IntRange(0, 3).Draw(t, "acknowledged") > 0 {
					p.acknowledged([]uint64{ev.Tag})
					acked[ev.Row.ID] = true
				}
			}
			var err error
			began, err = p.mode.ended(p)
			require.NoError(t, err)
			for _, it := range stream { // the rule never covers what was not acknowledged
				if it.Row != nil && !acked[it.Row.ID] {
					s := step{it: &it, at: placeIn(stream, it.Row.ID)}
					require.False(t, began.ended(s.at, s.lane()), "%s counts as ended", s.at)
				}
			}
		}
		require.True(t, everyAcked(stream, acked))
	})
}

func everyAcked(stream []cdc.Item, acked map[uuid.UUID]bool) bool {
	for _, it := range stream {
		if it.Row != nil && !acked[it.Row.ID] {
			return false
		}
	}
	return true
}

func placeIn(stream []cdc.Item, id uuid.UUID) (at place) {
	for _, it := range stream {
		if it.Row == nil {
			continue
		}
		if it.Commit != at.commit {
			at = place{commit: it.Commit}
		}
		if it.Row.ID == id {
			return at
		}
		at.ordinal++
	}
	return at
}
