package stream

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/state"
)

// holding is a pipeline without the topics of some aggregate types, which deals
// with a batch.
func holding(t *testing.T, batch []cdc.Item, gone ...string) (*Pump, *fakeSink, *atomic.Pointer[[]string]) {
	t.Helper()
	sink := newFakeSink()
	var missed atomic.Pointer[[]string]
	missed.Store(&gone)
	sink.refuse = missing(&missed)
	p := testPump(sink)
	require.NoError(t, p.take(t.Context(), batch))
	require.NoError(t, p.held.write(t.Context()))
	return p, sink, &missed
}

func (p *Pump) told(ids ...uuid.UUID) { p.last.Store(&state.Commands{Skip: ids}) }

// What is given up while it waits ends at once, and so does its lane when it was
// the last: the topic need not ever be there.
func TestSkipEndsWhatWaits(t *testing.T) {
	batch := []cdc.Item{typed(200, "typo"), typed(200, "order"), typed(200, "typo"), commitAt(200)}
	p, sink, _ := holding(t, batch, "typo", "order")
	kept := p.held.keeper.(*table)
	p.told(batch[0].Row.ID)
	require.NoError(t, p.turn(t.Context(), true))
	require.Len(t, kept.rows, 2, "the other one waits on")
	require.Equal(t, 1, p.held.lanes.find(ledger.Lane{Namespace: "shop", AggregateType: "typo"}).events)
	save(t, p)
	releaseTurns(t, p)
	p.told(batch[0].Row.ID, batch[2].Row.ID)
	releaseTurns(t, p)
	require.Equal(t, keysOfItems(batch[0], batch[2]), p.letters.store.(*fakeLetters).skipped)
	require.Len(t, kept.rows, 1)
	require.Equal(t, map[int32]ledger.Lane{2: {Namespace: "shop", AggregateType: "order"}}, kept.lanes)
	require.Len(t, p.held.lanes.byKey, 1)
	require.Len(t, p.held.lanes.routes, 1)
	require.Len(t, p.held.lanes.due, 1)
	require.Empty(t, sink.got)

	// The lane of the next event is another one.
	next := typed(300, "typo")
	require.NoError(t, p.take(t.Context(), []cdc.Item{next, commitAt(300)}))
	require.NoError(t, p.held.write(t.Context()))
	require.Equal(t, ledger.Lane{Namespace: "shop", AggregateType: "typo"}, kept.lanes[3])
	sink.refuse = nil
	releaseAll(t, p)
	require.ElementsMatch(t, keysOfItems(batch[1], next), sink.keys(""))
}

// releaseTurns lets releases begin and end, with a checkpoint at each turn.
func releaseTurns(t *testing.T, p *Pump) {
	t.Helper()
	for range 10 {
		require.NoError(t, p.turn(t.Context(), true))
		acknowledgeAll(p, p.sink.(*fakeSink))
		save(t, p)
	}
	require.Nil(t, p.releases.current)
	require.Empty(t, p.held.lanes.ready)
}

// Types of events of one aggregate type go to topics of their own: with the first
// one given up, the lane waits for the route of the next.
func TestSkipOfTheFirstAsksForTheNext(t *testing.T) {
	first, next := typed(200, "order"), typed(200, "order")
	first.Row.Type, next.Row.Type = "Gone", "There"
	sink := newFakeSink()
	sink.refuse = func(ev publisher.Event) error {
		if ev.Row.Type == "Gone" {
			return &publisher.RouteError{Route: "gone", Topic: "gone", Reason: "does not exist"}
		}
		return nil
	}
	p := testPump(sink)
	require.NoError(t, p.take(t.Context(), []cdc.Item{first, next, commitAt(200)}))
	p.told(first.Row.ID)
	releaseTurns(t, p)
	require.Equal(t, keysOfItems(next), sink.keys(""))
	require.False(t, p.held.lanes.any())
	require.Empty(t, p.held.keeper.(*table).lanes)
}

// What a release has handed over is published, whatever the word says; its rows
// are there until a checkpoint is beyond them, and so is their lane.
func TestSkipBesideARelease(t *testing.T) {
	var batch []cdc.Item
	for range 4 {
		batch = append(batch, typed(200, "order"))
	}
	p, sink, gone := holding(t, append(batch, commitAt(200)), "order")
	sink.refuse = func(ev publisher.Event) error {
		if len(sink.got) == 3 {
			return &publisher.RouteError{Route: "shop.order", Topic: "shop.order", Reason: "is gone again"}
		}
		return missing(gone)(ev)
	}
	gone.Store(&[]string{})
	for _, r := range p.held.lanes.due {
		r.next = time.Time{}
	}
	p.releases.spent = time.Hour
	require.NoError(t, p.turn(t.Context(), true))
	require.Len(t, sink.got, 3)
	require.True(t, p.releases.current.over, "refused at the fourth")
	p.told(batch[0].Row.ID, batch[3].Row.ID)
	require.NoError(t, p.turn(t.Context(), true))
	require.Equal(t, keysOfItems(batch[3]), p.letters.store.(*fakeLetters).skipped)
	kept := p.held.keeper.(*table)
	require.Len(t, kept.rows, 3, "no checkpoint is beyond them")
	require.Len(t, kept.lanes, 1)
	releaseTurns(t, p)
	require.Empty(t, kept.rows)
	require.Empty(t, kept.lanes)
	require.False(t, p.held.lanes.any())
	require.Equal(t, keysOfItems(batch[:3]...), sink.keys(""))
}

// A skip is state: a relay that is paused carries it out too.
func TestSkipWhileTheRelayIsPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batch := []cdc.Item{typed(200, "typo"), typed(200, "typo"), commitAt(200)}
		p, sink, _ := holding(t, batch, "typo")
		m, kept := p.letters.store.(*fakeLetters), p.held.keeper.(*table)
		p.SetCommands(state.Commands{Paused: true})
		pumping(t, p, nil, func() {
			pass(time.Minute)
			p.SetCommands(state.Commands{Paused: true, Skip: []uuid.UUID{batch[0].Row.ID}})
			pass(2 * pulse)
			require.Equal(t, []uuid.UUID{batch[0].Row.ID}, m.skipped)
			require.Len(t, kept.rows, 1, "the other one waits on")
			require.Empty(t, sink.got)
		})
	})
}

// So does one that is halted, at an event or for good, and what came to wait just before
// is written down.
func TestSkipWhileTheRelayIsHalted(t *testing.T) {
	for name, refusal := range map[string]error{
		"at an event": publisher.ErrRecord, "for good": &publisher.PartitionError{Topic: "shop.user", From: 3, To: 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				batch := []cdc.Item{typed(200, "typo"), typed(200, "typo"), typed(200, "user"), commitAt(200)}
				sink, gone := newFakeSink(), atomic.Pointer[[]string]{}
				gone.Store(&[]string{"typo"})
				sink.refuse = func(ev publisher.Event) error {
					if ev.Row.AggregateType == "user" {
						return refusal
					}
					return missing(&gone)(ev)
				}
				p := testPump(sink)
				m, kept := withPolicy(p, PolicyHalt), p.held.keeper.(*table)
				shown := make(chan int, 100)
				p.Holding = func(held map[string]HeldRoute) { shown <- held["shop.typo"].Events }
				pumping(t, p, [][]cdc.Item{batch}, func() {
					pass(time.Minute)
					require.Len(t, kept.rows, 2)
					require.Equal(t, 2, <-shown)
					p.SetCommands(state.Commands{Skip: []uuid.UUID{batch[0].Row.ID}})
					pass(2 * pulse)
					require.Equal(t, []uuid.UUID{batch[0].Row.ID}, m.skipped)
					require.Len(t, kept.rows, 1, "the other one waits on")
					require.Equal(t, 1, <-shown)
					require.Empty(t, sink.got)
				})
			})
		})
	}
}

// Where a release is halted, what is in hand of it is not given up beside it; what waits
// elsewhere is.
func TestSkipWhileAReleaseIsHalted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batch := []cdc.Item{typed(200, "typo"), typed(200, "user"), typed(200, "user"), typed(200, "typo"), commitAt(200)}
		p, sink, gone := holding(t, batch, "typo", "user")
		m, kept := withPolicy(p, PolicyHalt), p.held.keeper.(*table)
		bad := batch[1].Row.ID
		sink.refuse = func(ev publisher.Event) error {
			if ev.Row.ID == bad {
				return publisher.ErrRecord
			}
			return missing(gone)(ev)
		}
		gone.Store(&[]string{"typo"})
		pumping(t, p, nil, func() {
			pass(time.Minute)
			skip := []uuid.UUID{batch[0].Row.ID, batch[2].Row.ID}
			p.SetCommands(state.Commands{Skip: skip})
			pass(2 * pulse)
			require.Equal(t, skip[:1], m.skipped)
			require.Len(t, kept.rows, 3)
			p.SetCommands(state.Commands{Skip: append(skip, bad)})
			pass(time.Minute)
			require.Equal(t, []uuid.UUID{batch[0].Row.ID, bad, batch[2].Row.ID}, m.skipped, "each once")
			require.Empty(t, sink.got)
		})
	})
}

// A command that was taken back after the relay had read it is not carried out.
func TestSkipThatWasTakenBack(t *testing.T) {
	batch := []cdc.Item{typed(200, "order"), commitAt(200)}
	p, sink, gone := holding(t, batch, "order")
	id := batch[0].Row.ID
	m := p.letters.store.(*fakeLetters)
	m.takenBack = map[uuid.UUID]bool{id: true}
	p.told(id)
	releaseTurns(t, p)
	require.Len(t, p.held.keeper.(*table).rows, 1)
	gone.Store(&[]string{})
	releaseAll(t, p)
	require.Equal(t, []uuid.UUID{id}, sink.keys(""))
	require.Empty(t, m.skipped)
	read := typed(300, "order")
	m.takenBack[read.Row.ID] = true
	p.told(read.Row.ID)
	require.NoError(t, p.take(t.Context(), []cdc.Item{read, commitAt(300)}))
	require.Equal(t, []uuid.UUID{id, read.Row.ID}, sink.keys(""), "the stream's neither")
}

func TestAHaltedRelayHearsThatASkipWasTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		it := of("a")
		p := testPump(poisonous(map[uuid.UUID]bool{it.Row.ID: true}))
		m := withPolicy(p, PolicyHalt)
		m.takenBack = map[uuid.UUID]bool{it.Row.ID: true}
		pumping(t, p, [][]cdc.Item{{it, commitAt(200)}}, func() {
			pass(time.Minute)
			p.SetCommands(state.Commands{Skip: []uuid.UUID{it.Row.ID}})
			pass(time.Minute)
			require.Empty(t, m.skipped)
			p.SetCommands(state.Commands{})
			pass(time.Minute)
			m.mu.Lock()
			m.takenBack = nil
			m.mu.Unlock()
			p.SetCommands(state.Commands{Skip: []uuid.UUID{it.Row.ID}})
			pass(2 * pulse)
			require.Equal(t, []uuid.UUID{it.Row.ID}, m.skipped)
		})
	})
}

// Two of a lane given up at once, of several that wait for one route: the release
// has the lane once. Twice, a checkpoint of the second time covered what came behind
// the first.
func TestTwoSkipsOfALaneThatSharesItsRoute(t *testing.T) {
	batch := []cdc.Item{typed(200, "order"), typed(200, "order"), typed(200, "order"), typed(200, "user"), commitAt(200)}
	sink := newFakeSink()
	sink.refuse = func(publisher.Event) error {
		return &publisher.RouteError{Route: "shop.all", Topic: "shop.all", Reason: "does not exist"}
	}
	p := testPump(sink)
	require.NoError(t, p.take(t.Context(), batch))
	require.NoError(t, p.held.write(t.Context()))
	p.told(keysOfItems(batch[:2]...)...)
	require.NoError(t, p.releases.skipWaiting(t.Context()))
	require.Len(t, p.held.lanes.ready, 1)
	require.Len(t, p.held.lanes.routes["shop.all"].lanes, 1)
	sink.refuse = nil
	releaseAll(t, p)
	require.ElementsMatch(t, keysOfItems(batch[2:4]...), sink.keys(""))
}

// One whose commit is not visible yet is given up once it is; one whose row is
// gone waits no more.
func TestSkipOfWhatCannotBeRead(t *testing.T) {
	late, gone := typed(200, "order"), typed(200, "typo")
	p, _, _ := holding(t, []cdc.Item{late, gone, commitAt(200)}, "order", "typo")
	kept := p.held.keeper.(*table)
	kept.hidden = map[uuid.UUID]bool{late.Row.ID: true}
	madeRows.Delete(gone.Row.ID)
	p.told(late.Row.ID, gone.Row.ID)
	releaseTurns(t, p)
	m := p.letters.store.(*fakeLetters)
	require.Empty(t, m.skipped)
	require.Len(t, kept.rows, 1)
	require.Len(t, kept.lanes, 1)
	clear(kept.hidden)
	releaseTurns(t, p)
	require.Equal(t, []uuid.UUID{late.Row.ID}, m.skipped)
	require.Empty(t, kept.rows)
	require.Empty(t, kept.lanes)
	require.False(t, p.held.lanes.any())
}

// A session that ends between the letter and the rest leaves that to the next one.
func TestSkipIsEndedByTheNextSession(t *testing.T) {
	batch := []cdc.Item{typed(200, "order"), commitAt(200)}
	p, _, _ := holding(t, batch, "order")
	kept := p.held.keeper.(*table)
	kept.dead = func(id uuid.UUID) bool { return id == batch[0].Row.ID }
	acknowledgeAll(p, p.sink.(*fakeSink))
	next := testPump(newFakeSink())
	next.reading.began = save(t, p)
	kept.takeUp(next)
	require.Empty(t, kept.rows)
	require.False(t, next.held.lanes.any())
}
