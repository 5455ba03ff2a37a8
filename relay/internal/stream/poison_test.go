package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/state"
)

// poisonous is a sink that takes some events for poison.
func poisonous(ids map[uuid.UUID]bool) *fakeSink {
	sink := newFakeSink()
	sink.refuse = func(ev publisher.Event) error {
		if ids[ev.Row.ID] {
			return &record.RowError{Field: "size", Detail: "too large"}
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

func withPolicy(p *Pump, policy string) *fakeLetters {
	p.routing = NewRouting("", []string{cmp.Or(policy, PolicyParkAggregate)}, publisher.Config{Routes: []publisher.Route{{Topic: "t"}}})
	return p.letters.store.(*fakeLetters)
}

func TestPoisonParksByThePolicyOfItsRoute(t *testing.T) {
	for policy, published := range map[string]int{PolicyParkAggregate: 2, PolicyPark: 3, "": 2} {
		a1, a2, b1, bad := of("a"), of("a"), of("b"), of("b")
		a0 := of("a")
		bad.Bad = errors.New("forged")
		sink := poisonous(map[uuid.UUID]bool{a1.Row.ID: true})
		p := testPump(sink)
		kept := withPolicy(p, policy)
		require.NoError(t, p.take(t.Context(), []cdc.Item{a0, a1, a2, b1, bad}))
		require.NoError(t, p.turn(t.Context(), true))
		require.Len(t, sink.tags(), published, policy)
		require.Equal(t, letters.ClassRecord, kept.letters[a1.Row.ID].Class)
		require.Equal(t, letters.ClassBadRow, kept.letters[bad.Row.ID].Class)
		if policy != PolicyPark {
			require.Equal(t, letters.ClassFollows, kept.letters[a2.Row.ID].Class)
		}
		now, err := p.status()
		require.NoError(t, err)
		require.EqualValues(t, 5, now.InFlight, "the first is not acknowledged")
		p.Acknowledged(sink.tags())
		now, err = p.status()
		require.NoError(t, err)
		require.Zero(t, now.InFlight, "a letter is an end")
	}
}

func TestAnEventWithALetterHasEnded(t *testing.T) {
	sink := newFakeSink()
	p := testPump(sink)
	it := of("a")
	p.letters.store.(*fakeLetters).letters[it.Row.ID] = letters.Dead{Row: it.Row}
	require.NoError(t, p.take(t.Context(), []cdc.Item{it, commitAt(200)}))
	require.Empty(t, sink.tags())
	require.EqualValues(t, 208, position(t, p))
	require.Equal(t, 1, tallyOf(p).skips[skippedByLetter])
}

func TestAReplayGetsALetterOfItsOwnAndParksNothing(t *testing.T) {
	it, later := of("a"), of("a")
	replay := cdc.Item{Kind: cdc.KindReplay, Commit: 200, Row: it.Row, Replay: &cdc.Replay{ID: uuid.New(), Topic: "again", Mode: cdc.ModeReprocess, Group: "g"}}
	sink := poisonous(map[uuid.UUID]bool{it.Row.ID: true})
	p := testPump(sink)
	kept := withPolicy(p, PolicyHalt)
	require.NoError(t, p.take(t.Context(), []cdc.Item{replay, later}))
	require.NoError(t, p.turn(t.Context(), true))
	require.Contains(t, kept.letters, replay.Replay.ID)
	require.NotContains(t, kept.letters, it.Row.ID)
	require.Equal(t, []uint64{1}, sink.tags())
	require.Nil(t, sink.got[0].Replay)
}

func TestAReplayIsPublishedAsOne(t *testing.T) {
	it := of("a")
	replay := cdc.Item{Kind: cdc.KindReplay, Commit: 200, Row: it.Row, Replay: &cdc.Replay{ID: uuid.New(), Topic: "again", Mode: cdc.ModeReprocess, Group: "g"}}
	sink := newFakeSink()
	require.NoError(t, testPump(sink).take(t.Context(), []cdc.Item{replay}))
	require.Equal(t, "again", sink.got[0].Topic)
	require.Equal(t, &record.Replay{ID: replay.Replay.ID, Mode: cdc.ModeReprocess, Group: "g"}, sink.got[0].Replay)
}

func TestHaltWaitsForTheWordSkip(t *testing.T) {
	for name, halt := range map[string]func(*Pump){
		"policy halt":              func(p *Pump) { withPolicy(p, PolicyHalt) },
		"halted by another's word": func(p *Pump) { withPolicy(p, PolicyHalt) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, bad, next := of("z"), of("a"), of("a")
				sink := poisonous(map[uuid.UUID]bool{bad.Row.ID: true})
				p := testPump(sink)
				halt(p)
				kept := p.letters.store.(*fakeLetters)
				var states atomic.Value
				p.Tell = func(s Phase, err error) { states.Store(fmt.Sprint(s, " ", err)) }
				pumping(t, p, [][]cdc.Item{{first, bad, next}}, func() {
					<-time.After(time.Hour)
					require.Len(t, sink.tags(), 1)
					require.Contains(t, states.Load(), "halted")
					p.SetCommands(state.Commands{Skip: []uuid.UUID{uuid.New()}})
					<-time.After(time.Hour)
					require.Len(t, sink.tags(), 1)
					p.SetCommands(state.Commands{Skip: []uuid.UUID{bad.Row.ID}})
					<-time.After(2 * pulse)
					require.Equal(t, []uint64{0, 2}, sink.tags())
					require.Equal(t, []uuid.UUID{bad.Row.ID}, kept.skipped)
					require.Contains(t, kept.letters[bad.Row.ID].Cause, "its route has the policy halt")
					require.NotContains(t, kept.letters[bad.Row.ID].Cause, "outboxctl skip", "it is skipped: the letter keeps no cure")
					require.Contains(t, states.Load(), "streaming")
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
		p := testPump(sink)
		p.routing = NewRouting("", []string{PolicyHalt, PolicyParkAggregate}, publisher.Config{Routes: []publisher.Route{
			{Match: publisher.Match{AggregateType: "user"}, Topic: "t"}, {Topic: "t"},
		}})
		kept := p.letters.store.(*fakeLetters)
		pumping(t, p, [][]cdc.Item{{first, behind, bad}}, func() {
			pass(time.Hour)
			require.Equal(t, []uuid.UUID{first.Row.ID, behind.Row.ID}, kept.order)
		})
	})
}

func TestPauseAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		p := testPump(sink)
		var states atomic.Value
		p.Tell = func(s Phase, _ error) { states.Store(s) }
		p.SetCommands(state.Commands{Paused: true})
		source := &trickle{every: time.Second, batches: [][]cdc.Item{{of("a")}, {of("a")}, {of("a")}}}
		running(t, p, source, func() {
			<-time.After(time.Hour)
			require.Equal(t, phasePaused, states.Load())
			require.Empty(t, sink.tags(), "it was paused when it began")
			p.SetCommands(state.Commands{})
			<-time.After(time.Minute)
			require.Equal(t, []uint64{0, 1, 2}, sink.tags())
			require.Equal(t, phaseStreams, states.Load())
		})
	})
}

func TestAPausedRouteIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		p := testPump(sink)
		cfg := publisher.Config{Brokers: []string{"k:9092"}, Routes: []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}}}
		p.routing = NewRouting("", []string{PolicyParkAggregate}, cfg)
		p.SetCommands(state.Commands{Routes: []string{"shop.order"}})
		batch := []cdc.Item{typed(200, "order"), typed(200, "user"), typed(200, "order")}
		want := keysOfItems(batch[1], batch[0], batch[2])
		pumping(t, p, [][]cdc.Item{batch}, func() {
			<-time.After(time.Hour)
			require.Equal(t, want[:1], sink.keys(""))
			p.SetCommands(state.Commands{})
			<-time.After(holdMax)
			require.Equal(t, want, sink.keys(""))
		})
	})
}

// fakeRelease gives letters one page each.
type fakeRelease struct {
	left            []*letters.Letter
	failed, skipped []uuid.UUID
	why             []string
	repeat          bool
}

func (r *fakeRelease) Next(context.Context) ([]*letters.Letter, error) {
	if len(r.left) == 0 {
		return nil, nil
	}
	page := r.left
	r.left = nil
	return page, nil
}

func (r *fakeRelease) Fail(_ context.Context, l *letters.Letter, _, cause string) error {
	r.why = append(r.why, cause)
	r.failed = append(r.failed, l.ID)
	return nil
}

func (r *fakeRelease) Again() bool { return r.repeat }

func (r *fakeRelease) Skip(_ context.Context, l *letters.Letter) (bool, error) {
	r.skipped = append(r.skipped, l.ID)
	return true, nil
}

func letterOf(index uint32, holds bool) *letters.Letter {
	it := of("a")
	return &letters.Letter{ID: it.Row.ID, Index: index, Commit: 150, Row: it.Row, Holds: holds}
}

func retryOf(letters ...*letters.Letter) (cdc.Item, *fakeRelease) {
	r := &fakeRelease{left: letters}
	return cdc.Item{Kind: cdc.KindControl, Commit: 300, Control: &cdc.Control{
		ID: uuid.New(), Action: cdc.ActionRetry, Namespace: "shop", AggregateType: "order", AggregateID: []byte("a"),
	}}, r
}

func TestALetterThatFailsAgainTakesThoseBehindItAlong(t *testing.T) {
	letters := []*letters.Letter{letterOf(0, true), letterOf(1, true), letterOf(2, true), letterOf(3, false)}
	sink := poisonous(map[uuid.UUID]bool{letters[1].ID: true})
	p := testPump(sink)
	control, released := retryOf(letters...)
	p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages { return released }
	require.NoError(t, p.take(t.Context(), []cdc.Item{control, commitAt(300)}))
	var out []uuid.UUID
	for _, ev := range sink.got {
		out = append(out, ev.Row.ID)
	}
	require.Equal(t, []uuid.UUID{letters[0].ID, letters[3].ID}, out)
	require.Equal(t, []uuid.UUID{letters[1].ID}, released.failed)
	require.EqualValues(t, 308, position(t, p), "the control has ended")
}

func TestARetryWaitsWithItsLaneWhereItStopped(t *testing.T) {
	letters := []*letters.Letter{letterOf(0, true), letterOf(1, true), letterOf(2, true)}
	sink := newFakeSink()
	gone := false
	sink.refuse = func(publisher.Event) error {
		if gone {
			return &publisher.RouteError{Route: "shop.order", Reason: "does not exist"}
		}
		gone = true // after the first
		return nil
	}
	p := testPump(sink)
	control, _ := retryOf(letters...)
	p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages {
		_, again := retryOf(letters...)
		return again
	}
	require.NoError(t, p.take(t.Context(), []cdc.Item{control, typed(300, "order"), typed(300, "user"), commitAt(300)}))
	require.Len(t, sink.got, 1)
	require.NoError(t, p.held.write(t.Context()))
	kept := slices.Clone(p.held.keeper.(*table).rows)
	require.Len(t, kept, 3)
	require.Equal(t, ledger.Place{Commit: 300}, kept[0].at)
	require.EqualValues(t, 1, kept[0].letter, "one letter is out")
	require.Equal(t, cdc.KindControl, kept[0].whole.Kind)
	require.Equal(t, ledger.Place{Commit: 300, Ordinal: 2}, kept[2].at)
	sink.refuse = nil
	releaseAll(t, p)
	require.Len(t, sink.got, 5)
	behind := slices.IndexFunc(sink.got, func(ev publisher.Event) bool { return ev.Row.ID == kept[1].id })
	last := slices.IndexFunc(sink.got, func(ev publisher.Event) bool { return ev.Row.ID == letters[2].ID })
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
	p := testPump(sink)
	control, released := retryOf(letterOf(0, true), letterOf(1, true), letterOf(2, true))
	p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages { return released }
	require.NoError(t, p.take(t.Context(), []cdc.Item{control, commitAt(300)}))
	require.Len(t, sink.got, 2)
	ended, err := p.mode.ended()
	require.NoError(t, err)
	require.EqualValues(t, 308, ended.Order, "it is written down")
	kept := p.held.keeper.(*table)
	require.EqualValues(t, 2, kept.rows[0].letter)
	next := testPump(newFakeSink())
	next.reading.began = ended
	next.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages {
		_, again := retryOf(letterOf(0, true), letterOf(1, true), letterOf(2, true))
		return again
	}
	kept.takeUp(next)
	releaseAll(t, next)
	require.Len(t, next.sink.(*fakeSink).got, 1, "the third letter")
}

func TestARefusedEventIsPoisonInTheNextSession(t *testing.T) {
	it := of("a")
	var known Refused
	known.Learn(fmt.Errorf("session: %w", errors.Join(errors.New("x"), &publisher.RefusedError{Topic: "t", ID: it.Row.ID, Err: errors.New("too large for the broker")})))
	sink := newFakeSink()
	p := testPump(sink)
	p.letters.refused = known
	require.NoError(t, p.take(t.Context(), []cdc.Item{it}))
	require.NoError(t, p.turn(t.Context(), true))
	require.Empty(t, sink.tags())
	require.Contains(t, p.letters.store.(*fakeLetters).letters[it.Row.ID].Cause, "too large for the broker")
}

func TestAPartitionChangeHaltsUntilTheNextStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		sink.refuse = func(publisher.Event) error { return &publisher.PartitionError{Topic: "t", From: 3, To: 6} }
		p := testPump(sink)
		var states atomic.Value
		p.Tell = func(s Phase, err error) { states.Store(fmt.Sprint(s, " ", err)) }
		pumping(t, p, [][]cdc.Item{{of("a"), of("b")}}, func() {
			<-time.After(time.Hour)
			require.Contains(t, states.Load(), "halted")
			require.Contains(t, states.Load(), "from 3 to 6")
		})
	})
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
			p.SetCommands(state.Commands{Skip: []uuid.UUID{it.Row.ID}})
		}
		batch = append(batch, it)
	}
	batch = append(batch, cdc.Item{Kind: cdc.KindControl, Commit: 1 << 40, Control: &cdc.Control{ID: uuid.New(), Action: cdc.ActionDiscard}})
	g.missing["c"] = true
	sum := func() int {
		total := tallyOf(p).publishedEvents + tallyOf(p).parkedEvents
		for _, reason := range []string{skippedByLetter, skippedByCommand, SkippedByControl} {
			total += tallyOf(p).skips[reason]
		}
		return total
	}
	require.NoError(t, p.take(t.Context(), batch))
	require.NoError(t, p.Flush(t.Context()))
	now, err := m.status()
	require.NoError(t, err)
	require.Zero(t, now.Owing)
	waits := len(g.table.rows)
	require.Greater(t, waits, 1000)
	require.Equal(t, tallyOf(p).readEvents, sum()+waits)
	clear(g.missing)
	releaseAll(t, p)
	require.NoError(t, p.Flush(t.Context()))
	require.Equal(t, 5001, tallyOf(p).readEvents)
	require.Equal(t, 5001, sum())
	require.Positive(t, tallyOf(p).parkedEvents)
}

// A control whose transaction has not ended acts again when it is read again: its
// letters were opened, and all of them are out. It does not wait with its lane,
// which is held since: a release would publish them once more.
func TestAControlThatActsAgainPassesItsHeldLane(t *testing.T) {
	letters := []*letters.Letter{letterOf(0, true), letterOf(1, true)}
	sink := newFakeSink()
	p := testPump(sink)
	control, _ := retryOf()
	acted := 0
	p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages {
		acted++
		_, again := retryOf(letters...)
		return again
	}
	kept := p.held.keeper.(*table)
	kept.lanes[1], kept.lastID = ledger.Lane{Namespace: "shop", AggregateType: "order"}, 1
	kept.rows = []tableRow{{lane: 1, at: ledger.Place{Commit: 300, Ordinal: 1}, id: typed(300, "order").Row.ID}}
	p.reading.began = ledger.Checkpoint{Order: 100, Reach: ledger.Reach{UpTo: ledger.Place{Commit: 300, Ordinal: 2}}}
	kept.takeUp(p)
	require.NoError(t, p.take(t.Context(), []cdc.Item{control}))
	require.Equal(t, 1, acted)
	require.Empty(t, sink.got, "its letters are out")
	require.NoError(t, p.held.write(t.Context()))
	require.Len(t, kept.rows, 1)
}
