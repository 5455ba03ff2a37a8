package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

// poisonous is a sink that takes some events for poison.
func poisonous(ids map[uuid.UUID]bool) *fakeSink {
	sink := newFakeSink()
	sink.refuse = func(ev publisher.Event) error {
		if ids[ev.Row.ID] {
			return &publisher.RecordError{Field: "size", Detail: "too large"}
		}
		return nil
	}
	return sink
}

func of(aggregateID string) cdc.Item {
	it := event(200)
	it.Row.AggregateID = []byte(aggregateID)
	return it
}

func withPolicy(p *pipeline, policy string) *fakeMorgue {
	p.routing = newRouting(&Config{Routes: []RouteConfig{{Poison: policy}}}, publisher.Config{Routes: []publisher.Route{{Topic: "t"}}})
	return p.morgue.(*fakeMorgue)
}

func TestPoisonParksByThePolicyOfItsRoute(t *testing.T) {
	for policy, published := range map[string]int{PoisonParkAggregate: 2, PoisonPark: 3, "": 2} {
		a1, a2, b1, bad := of("a"), of("a"), of("b"), of("b")
		a0 := of("a")
		bad.Bad = errors.New("forged")
		sink := poisonous(map[uuid.UUID]bool{a1.Row.ID: true})
		p := testPipeline(sink)
		morgue := withPolicy(p, policy)
		require.NoError(t, p.take(t.Context(), []cdc.Item{a0, a1, a2, b1, bad}))
		require.NoError(t, p.turn(t.Context(), true))
		require.Len(t, sink.tags(), published, policy)
		require.Equal(t, classRecord, morgue.letters[a1.Row.ID].class)
		require.Equal(t, classBadRow, morgue.letters[bad.Row.ID].class)
		if policy != PoisonPark {
			require.Equal(t, classFollows, morgue.letters[a2.Row.ID].class)
		}
		now, err := p.status()
		require.NoError(t, err)
		require.EqualValues(t, 5, now.inFlight, "the first is not acknowledged")
		p.acknowledged(sink.tags())
		now, err = p.status()
		require.NoError(t, err)
		require.Zero(t, now.inFlight, "a letter is an end")
	}
}

func TestAnEventWithALetterHasEnded(t *testing.T) {
	sink := newFakeSink()
	p := testPipeline(sink)
	it := of("a")
	p.morgue.(*fakeMorgue).letters[it.Row.ID] = casualty{row: it.Row}
	require.NoError(t, p.take(t.Context(), []cdc.Item{it, commitAt(200)}))
	require.Empty(t, sink.tags())
	require.EqualValues(t, 208, position(t, p))
	require.Equal(t, 1, valueOf(p.metrics.skippedTotal.WithLabelValues(skippedByLetter)))
}

func TestAReplayGetsALetterOfItsOwnAndParksNothing(t *testing.T) {
	it, later := of("a"), of("a")
	replay := cdc.Item{Kind: cdc.KindReplay, Commit: 200, Row: it.Row, Replay: &cdc.Replay{ID: uuid.New(), Topic: "again", Mode: cdc.ModeReprocess, Group: "g"}}
	sink := poisonous(map[uuid.UUID]bool{it.Row.ID: true})
	p := testPipeline(sink)
	morgue := withPolicy(p, PoisonHalt)
	require.NoError(t, p.take(t.Context(), []cdc.Item{replay, later}))
	require.NoError(t, p.turn(t.Context(), true))
	require.Contains(t, morgue.letters, replay.Replay.ID)
	require.NotContains(t, morgue.letters, it.Row.ID)
	require.Equal(t, []uint64{1}, sink.tags())
	require.Nil(t, sink.got[0].Replay)
}

func TestAReplayIsPublishedAsOne(t *testing.T) {
	it := of("a")
	replay := cdc.Item{Kind: cdc.KindReplay, Commit: 200, Row: it.Row, Replay: &cdc.Replay{ID: uuid.New(), Topic: "again", Mode: cdc.ModeReprocess, Group: "g"}}
	sink := newFakeSink()
	require.NoError(t, testPipeline(sink).take(t.Context(), []cdc.Item{replay}))
	require.Equal(t, "again", sink.got[0].Topic)
	require.Equal(t, &record.Replay{ID: replay.Replay.ID, Mode: cdc.ModeReprocess, Group: "g"}, sink.got[0].Replay)
}

func TestHaltWaitsForTheWordSkip(t *testing.T) {
	for name, halt := range map[string]func(*pipeline){
		"policy halt":              func(p *pipeline) { withPolicy(p, PoisonHalt) },
		"halted by another's word": func(p *pipeline) { withPolicy(p, PoisonHalt) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, bad, next := of("z"), of("a"), of("a")
				sink := poisonous(map[uuid.UUID]bool{bad.Row.ID: true})
				p := testPipeline(sink)
				halt(p)
				morgue := p.morgue.(*fakeMorgue)
				var state atomic.Value
				p.tell = func(s State, err error) { state.Store(fmt.Sprint(s, " ", err)) }
				pumping(t, p, [][]cdc.Item{{first, bad, next}}, func() {
					<-time.After(time.Hour)
					require.Len(t, sink.tags(), 1)
					require.Contains(t, state.Load(), "halted")
					p.hear(words{skip: []uuid.UUID{uuid.New()}})
					<-time.After(time.Hour)
					require.Len(t, sink.tags(), 1)
					p.hear(words{skip: []uuid.UUID{bad.Row.ID}})
					<-time.After(2 * pulse)
					require.Equal(t, []uint64{0, 2}, sink.tags())
					require.Equal(t, []uuid.UUID{bad.Row.ID}, morgue.skipped)
					require.Contains(t, morgue.letters[bad.Row.ID].cause, "its route has the policy halt")
					require.NotContains(t, morgue.letters[bad.Row.ID].cause, "outboxctl skip", "it is skipped: the letter keeps no cure")
					require.Contains(t, state.Load(), "streaming")
				})
			})
		})
	}
}

// While the relay is halted, letters that were on their way are written.
func TestAHaltWritesTheLettersBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, behind, bad := of("a"), of("a"), typed(200, "user")
		sink := poisonous(map[uuid.UUID]bool{first.Row.ID: true, bad.Row.ID: true})
		p := testPipeline(sink)
		p.routing = newRouting(&Config{Routes: []RouteConfig{{Poison: PoisonHalt}, {}}}, publisher.Config{Routes: []publisher.Route{
			{Match: publisher.Match{AggregateType: "user"}, Topic: "t"}, {Topic: "t"},
		}})
		morgue := p.morgue.(*fakeMorgue)
		pumping(t, p, [][]cdc.Item{{first, behind, bad}}, func() {
			pass(time.Hour)
			require.Equal(t, []uuid.UUID{first.Row.ID, behind.Row.ID}, morgue.order)
		})
	})
}

func TestPauseAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		p := testPipeline(sink)
		var state atomic.Value
		p.tell = func(s State, _ error) { state.Store(s) }
		p.hear(words{paused: true})
		source := &trickle{every: time.Second, batches: [][]cdc.Item{{of("a")}, {of("a")}, {of("a")}}}
		running(t, p, source, func() {
			<-time.After(time.Hour)
			require.Equal(t, StatePaused, state.Load())
			require.LessOrEqual(t, len(sink.tags()), 1)
			p.hear(words{})
			<-time.After(time.Minute)
			require.Equal(t, []uint64{0, 1, 2}, sink.tags())
			require.Equal(t, StateStreaming, state.Load())
		})
	})
}

func TestAPausedRouteIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		p := testPipeline(sink)
		cfg := publisher.Config{Brokers: []string{"k:9092"}, Routes: []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}}}
		p.routing = newRouting(&Config{Routes: []RouteConfig{{}}}, cfg)
		p.hear(words{routes: []string{"shop.order"}})
		batch := []cdc.Item{typed(200, "order"), typed(200, "user"), typed(200, "order")}
		want := keysOfItems(batch[1], batch[0], batch[2])
		pumping(t, p, [][]cdc.Item{batch}, func() {
			<-time.After(time.Hour)
			require.Equal(t, want[:1], sink.keys(""))
			p.hear(words{})
			<-time.After(holdMax)
			require.Equal(t, want, sink.keys(""))
		})
	})
}

// fakeRelease gives letters one page each.
type fakeRelease struct {
	left            []*letter
	failed, skipped []uuid.UUID
	why             []string
	repeat          bool
}

func (r *fakeRelease) next(context.Context) ([]*letter, error) {
	if len(r.left) == 0 {
		return nil, nil
	}
	page := r.left
	r.left = nil
	return page, nil
}

func (r *fakeRelease) fail(_ context.Context, l *letter, _, cause string) error {
	r.why = append(r.why, cause)
	r.failed = append(r.failed, l.id)
	return nil
}

func (r *fakeRelease) again() bool { return r.repeat }

func (r *fakeRelease) skip(_ context.Context, l *letter) (bool, error) {
	r.skipped = append(r.skipped, l.id)
	return true, nil
}

func letterOf(index uint32, holds bool) *letter {
	it := of("a")
	return &letter{id: it.Row.ID, index: index, commit: 150, row: it.Row, holds: holds}
}

func retryOf(letters ...*letter) (cdc.Item, *fakeRelease) {
	r := &fakeRelease{left: letters}
	return cdc.Item{Kind: cdc.KindControl, Commit: 300, Control: &cdc.Control{
		ID: uuid.New(), Action: cdc.ActionRetry, Namespace: "shop", AggregateType: "order", AggregateID: []byte("a"),
	}}, r
}

func TestALetterThatFailsAgainTakesThoseBehindItAlong(t *testing.T) {
	letters := []*letter{letterOf(0, true), letterOf(1, true), letterOf(2, true), letterOf(3, false)}
	sink := poisonous(map[uuid.UUID]bool{letters[1].id: true})
	p := testPipeline(sink)
	control, released := retryOf(letters...)
	p.morgue.(*fakeMorgue).acted = func(*cdc.Control) pages { return released }
	require.NoError(t, p.take(t.Context(), []cdc.Item{control, commitAt(300)}))
	var out []uuid.UUID
	for _, ev := range sink.got {
		out = append(out, ev.Row.ID)
	}
	require.Equal(t, []uuid.UUID{letters[0].id, letters[3].id}, out)
	require.Equal(t, []uuid.UUID{letters[1].id}, released.failed)
	require.EqualValues(t, 308, position(t, p), "the control has ended")
}

func TestARetryWaitsWithItsLaneWhereItStopped(t *testing.T) {
	letters := []*letter{letterOf(0, true), letterOf(1, true), letterOf(2, true)}
	sink := newFakeSink()
	gone := false
	sink.refuse = func(publisher.Event) error {
		if gone {
			return &publisher.RouteError{Route: "shop.order", Reason: "does not exist"}
		}
		gone = true // after the first
		return nil
	}
	p := testPipeline(sink)
	control, _ := retryOf(letters...)
	p.morgue.(*fakeMorgue).acted = func(*cdc.Control) pages {
		_, again := retryOf(letters...)
		return again
	}
	require.NoError(t, p.take(t.Context(), []cdc.Item{control, typed(300, "order"), typed(300, "user"), commitAt(300)}))
	require.Len(t, sink.got, 1)
	require.NoError(t, p.writeDown(t.Context()))
	kept := slices.Clone(p.keeper.(*table).rows)
	require.Len(t, kept, 3)
	require.Equal(t, place{commit: 300}, kept[0].at)
	require.EqualValues(t, 1, kept[0].letter, "one letter is out")
	require.Equal(t, cdc.KindControl, kept[0].whole.Kind)
	require.Equal(t, place{commit: 300, ordinal: 2}, kept[2].at)
	sink.refuse = nil
	releaseAll(t, p)
	require.Len(t, sink.got, 5)
	behind := slices.IndexFunc(sink.got, func(ev publisher.Event) bool { return ev.Row.ID == kept[1].id })
	last := slices.IndexFunc(sink.got, func(ev publisher.Event) bool { return ev.Row.ID == letters[2].id })
	require.Less(t, last, behind, "before the event that came after the control")
}

// A session that breaks while a retry is held goes on behind the letters that
// were acknowledged before it was written down.
func TestABrokenRetryGoesOnBehindWhatIsOut(t *testing.T) {
	sink := newFakeSink()
	left := 2
	sink.refuse = func(publisher.Event) error {
		if left--; left < 0 {
			return &publisher.RouteError{Route: "shop.order", Reason: "does not exist"}
		}
		return nil
	}
	p := testPipeline(sink)
	control, released := retryOf(letterOf(0, true), letterOf(1, true), letterOf(2, true))
	p.morgue.(*fakeMorgue).acted = func(*cdc.Control) pages { return released }
	require.NoError(t, p.take(t.Context(), []cdc.Item{control, commitAt(300)}))
	require.Len(t, sink.got, 2)
	ended, err := p.mode.ended()
	require.NoError(t, err)
	require.EqualValues(t, 308, ended.order, "it is written down")
	kept := p.keeper.(*table)
	require.EqualValues(t, 2, kept.rows[0].letter)
	next := testPipeline(newFakeSink())
	next.began = ended
	next.morgue.(*fakeMorgue).acted = func(*cdc.Control) pages {
		_, again := retryOf(letterOf(0, true), letterOf(1, true), letterOf(2, true))
		return again
	}
	kept.takeUp(next)
	releaseAll(t, next)
	require.Len(t, next.sink.(*fakeSink).got, 1, "the third letter")
}

func TestARefusedEventIsPoisonInTheNextSession(t *testing.T) {
	it := of("a")
	var last owned
	last.learn(fmt.Errorf("session: %w", errors.Join(errors.New("x"), &publisher.RefusedError{Topic: "t", ID: it.Row.ID, Err: errors.New("too large for the broker")})))
	last.learn(&publisher.NarrowError{Topic: "t", Err: errors.New("x")})
	last.learn(&publisher.NarrowError{Topic: "t", Err: errors.New("x")})
	last.learn(nil)
	require.Equal(t, []string{"t"}, last.narrow)
	sink := newFakeSink()
	p := testPipeline(sink)
	p.refused = last.refused
	require.NoError(t, p.take(t.Context(), []cdc.Item{it}))
	require.NoError(t, p.turn(t.Context(), true))
	require.Empty(t, sink.tags())
	require.Contains(t, p.morgue.(*fakeMorgue).letters[it.Row.ID].cause, "too large for the broker")
}

func TestAPartitionChangeHaltsUntilTheNextStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		sink.refuse = func(publisher.Event) error { return &publisher.PartitionError{Topic: "t", From: 3, To: 6} }
		p := testPipeline(sink)
		var state atomic.Value
		p.tell = func(s State, err error) { state.Store(fmt.Sprint(s, " ", err)) }
		pumping(t, p, [][]cdc.Item{{of("a"), of("b")}}, func() {
			<-time.After(time.Hour)
			require.Contains(t, state.Load(), "halted")
			require.Contains(t, state.Load(), "from 3 to 6")
		})
	})
}

func TestFencesInARowNameTheRival(t *testing.T) {
	fenced := fmt.Errorf("commit: %w", publisher.ErrFenced)
	at := time.Now()
	var r rivalry
	session := func(err error, pause, lasted time.Duration) error {
		began := at.Add(pause)
		at = began.Add(lasted)
		return r.count(err, began, at)
	}
	for range 5 {
		require.NoError(t, session(fenced, time.Second, time.Second), "zombies of this database come all at once")
	}
	require.NoError(t, session(errors.New("connection reset"), time.Second, 30*time.Second))
	require.NoError(t, session(fenced, time.Second, time.Second))
	require.NoError(t, session(fenced, time.Minute, time.Second), "twice is no proof")
	require.NoError(t, session(fenced, time.Second, time.Minute), "a long session was no rival's")
	require.NoError(t, session(fenced, 15*time.Second, time.Second))
	err := session(fenced, 15*time.Second, time.Second)
	require.ErrorContains(t, err, "fenced 3 times in a row, within 32s, while this relay held its slot: another relay publishes with the same transactional id")
	require.True(t, permanent(err))
}

// Two relays that fence one another, with a relay's pauses between their
// sessions: each session lasts until the other relay has paused and started.
func TestRivalsFindOut(t *testing.T) {
	for seed := range uint64(100) {
		dice := rand.New(rand.NewPCG(seed, 0))
		var rivals [2]rivalry
		waits, at := [2]time.Duration{backoffMin, backoffMin}, time.Now()
		var found error
		for turn := 0; found == nil; turn++ {
			require.Less(t, turn, 50, "seed %d", seed)
			one, other := turn%2, 1-turn%2
			began := at
			at = began.Add(waits[other]/2 + time.Duration(dice.Int64N(int64(waits[other]+5*time.Second))))
			found = rivals[one].count(publisher.ErrFenced, began, at)
			waits[one] = min(2*waits[one], backoffMax)
		}
	}
}

// The counters reconcile: what was read was published, parked or skipped, or is
// in flight.
func TestCountersReconcile(t *testing.T) {
	g := quiet()
	p, m, _ := g.session(t)
	var batch []cdc.Item
	for i := range 5000 {
		it := typed(uint64(200+i/7*20), string(rune('a'+i%3)))
		it.Row.AggregateID = []byte(fmt.Sprint(i % 50))
		it.Row.Seq = int64(i)
		if i%100 == 99 {
			g.poison[it.Row.ID] = true
		}
		if i == 7 {
			p.hear(words{skip: []uuid.UUID{it.Row.ID}})
		}
		batch = append(batch, it)
	}
	batch = append(batch, cdc.Item{Kind: cdc.KindControl, Commit: 1 << 40, Control: &cdc.Control{ID: uuid.New(), Action: cdc.ActionDiscard}})
	g.missing["c"] = true
	sum := func() int {
		total := valueOf(p.metrics.publishedTotal) + valueOf(p.metrics.parkedTotal) + valueOf(p.metrics.rewoundTotal)
		for _, reason := range []string{skippedByLetter, skippedByWord, skippedByControl} {
			total += valueOf(p.metrics.skippedTotal.WithLabelValues(reason))
		}
		return total
	}
	require.NoError(t, p.take(t.Context(), batch))
	require.NoError(t, p.flush(t.Context()))
	now, err := m.status()
	require.NoError(t, err)
	require.Zero(t, now.owing)
	waits := len(g.table.rows)
	require.Greater(t, waits, 1000)
	require.Equal(t, valueOf(p.metrics.readTotal), sum()+waits)
	clear(g.missing)
	releaseAll(t, p)
	require.NoError(t, p.flush(t.Context()))
	require.Equal(t, 5001, valueOf(p.metrics.readTotal))
	require.Equal(t, 5001, sum())
	require.Positive(t, valueOf(p.metrics.parkedTotal))
}

// A control whose transaction has not ended acts again when it is read again: its
// letters were opened, and all of them are out. It does not wait with its lane,
// which is held since: a release would publish them once more.
func TestAControlThatActsAgainPassesItsHeldLane(t *testing.T) {
	letters := []*letter{letterOf(0, true), letterOf(1, true)}
	sink := newFakeSink()
	p := testPipeline(sink)
	control, _ := retryOf()
	acted := 0
	p.morgue.(*fakeMorgue).acted = func(*cdc.Control) pages {
		acted++
		_, again := retryOf(letters...)
		return again
	}
	kept := p.keeper.(*table)
	kept.lanes[1], kept.lastID = lane{namespace: "shop", aggregateType: "order"}, 1
	kept.rows = []tableRow{{lane: 1, at: place{commit: 300, ordinal: 1}, id: typed(300, "order").Row.ID}}
	p.began = checkpoint{order: 100, reach: reach{upto: place{commit: 300, ordinal: 2}}}
	kept.takeUp(p)
	require.NoError(t, p.take(t.Context(), []cdc.Item{control}))
	require.Equal(t, 1, acted)
	require.Empty(t, sink.got, "its letters are out")
	require.NoError(t, p.writeDown(t.Context()))
	require.Len(t, kept.rows, 1)
}
