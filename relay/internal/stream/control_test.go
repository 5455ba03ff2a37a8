package stream

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/state"
)

// A letter that the broker refuses, which is known only when the session has
// ended with it: the next session opens it again, and the one after that, with
// another retry, asks the broker again.
func TestALetterThatTheBrokerRefusesAgainIsOpenAgainOnce(t *testing.T) {
	x, other := letterOf(0, true), of("b")
	var last Refused
	var log strings.Builder
	acted := map[uuid.UUID]bool{}
	session := func(control cdc.Item) (*fakeSink, *fakeRelease) {
		sink := newFakeSink()
		p := testPump(sink)
		p.log = slog.New(slog.NewTextHandler(&log, nil))
		p.letters.refused = last
		released := &fakeRelease{left: []*letters.Letter{x}, repeat: acted[control.Control.ID]}
		acted[control.Control.ID] = true
		p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages { return released }
		other.Commit = 300
		read := cdc.Item{Kind: cdc.KindEvent, Commit: 150, Row: x.Row} // the letter's own event, which is read again
		p.letters.store.(*fakeLetters).letters[x.ID] = letters.Dead{Row: x.Row}
		require.NoError(t, p.take(t.Context(), []cdc.Item{read, commitAt(150), control, other, commitAt(300)}))
		return sink, released
	}
	first, _ := retryOf()
	sink, released := session(first)
	require.Len(t, sink.got, 2)
	require.Empty(t, released.failed)
	require.True(t, last.Learn(&publisher.RefusedError{Topic: "t", ID: x.ID, Err: errors.New("MESSAGE_TOO_LARGE")}), "this is news: no reason to wait")
	require.False(t, last.Learn(&publisher.RefusedError{Topic: "t", ID: x.ID, Err: errors.New("MESSAGE_TOO_LARGE")}))

	sink, released = session(first)
	require.Equal(t, []uuid.UUID{x.ID}, released.failed)
	require.Equal(t, []string{"MESSAGE_TOO_LARGE"}, released.why)
	require.Len(t, sink.got, 1, "the other event goes on")
	require.Empty(t, last, "the letter says it now")
	require.Contains(t, log.String(), x.Key())
	require.Contains(t, log.String(), first.Control.ID.String())

	again, _ := retryOf()
	sink, released = session(again)
	require.Len(t, sink.got, 2, "the next retry asks the broker")
	require.Empty(t, released.failed)

	last.Learn(&publisher.RefusedError{Topic: "t", ID: x.ID, Err: errors.New("of a retry before, written down by a session that did not know")})
	again, _ = retryOf()
	sink, released = session(again)
	require.Len(t, sink.got, 2)
	require.Empty(t, released.failed)
	require.Empty(t, last)
}

// A letter is written of a refused event once, and then nothing remembers it:
// after its retry, a replay of it and the event itself are as any other.
func TestWhatWasRefusedIsForgottenWithItsLetter(t *testing.T) {
	x := of("a")
	refused := map[uuid.UUID]string{x.Row.ID: "MESSAGE_TOO_LARGE"}
	replay := cdc.Item{Kind: cdc.KindReplay, Commit: 200, Row: x.Row, Replay: &cdc.Replay{ID: uuid.New(), Topic: "other", Mode: cdc.ModeRedeliver}}
	sink := newFakeSink()
	p := testPump(sink)
	p.letters.refused = refused
	require.NoError(t, p.take(t.Context(), []cdc.Item{replay}))
	require.Len(t, sink.got, 1, "a replay of the event, while the event itself has no letter yet")
	require.NoError(t, p.take(t.Context(), []cdc.Item{x}))
	require.NoError(t, p.turn(t.Context(), true))
	require.Len(t, p.letters.store.(*fakeLetters).letters, 1)
	require.Empty(t, refused)

	refused[replay.Replay.ID] = "MESSAGE_TOO_LARGE, of the replay itself"
	p = testPump(newFakeSink())
	p.letters.refused = refused
	require.NoError(t, p.take(t.Context(), []cdc.Item{replay}))
	require.NoError(t, p.turn(t.Context(), true))
	require.Contains(t, p.letters.store.(*fakeLetters).letters, replay.Replay.ID)
	require.Empty(t, refused)
}

// The letters of a retry have no tags: their control ends when Kafka has
// acknowledged them, no earlier, or a crash behind the checkpoint loses them.
func TestARetryEndsWhenItsLettersAreAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fails := range []bool{false, true} {
			sink := newFakeSink()
			p := testPump(sink)
			sink.answer = nil
			stranger := typed(200, "stuck") // of a partition that takes nothing
			control, released := retryOf(letterOf(0, true))
			p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages { return released }
			took := make(chan error, 1)
			go func() { took <- p.take(t.Context(), []cdc.Item{stranger, commitAt(200), control, commitAt(300)}) }()
			synctest.Wait()
			require.Equal(t, []uint64{0, noTag}, sink.tags(), "handed over")
			require.Empty(t, took)
			p.Acknowledged([]uint64{0})
			synctest.Wait()
			require.Empty(t, took)
			require.EqualValues(t, 208, position(t, p), "and not ended")
			if fails {
				sink.err = errors.New("the leader is away")
				close(sink.failed)
				err := <-took
				require.ErrorContains(t, err, "the leader is away")
				require.ErrorContains(t, err, control.Control.ID.String())
				require.EqualValues(t, 208, position(t, p))
				continue
			}
			p.Acknowledged([]uint64{noTag})
			require.NoError(t, <-took)
			require.EqualValues(t, 308, position(t, p))
		}
	})
}

// An operator retries a letter while another topic has a partition that takes nothing:
// nobody waits for that.
func TestARetryWaitsForItsOwnLettersOnly(t *testing.T) {
	sink := newFakeSink()
	p := testPump(sink)
	control, released := retryOf(letterOf(0, true))
	p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages { return released }
	sink.stuck = true
	require.NoError(t, p.take(t.Context(), []cdc.Item{typed(200, "stuck"), commitAt(200), control, commitAt(300)}))
	require.EqualValues(t, 100, position(t, p))
	p.Acknowledged([]uint64{0})
	require.EqualValues(t, 308, position(t, p))
}

// The word skip reaches a letter whose retry is held.
func TestSkipReachesALetterOfAHeldRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		sink.refuse = func(publisher.Event) error {
			return &publisher.RouteError{Route: "t", Topic: "t", Reason: "does not exist"}
		}
		p := testPump(sink)
		x := letterOf(0, true)
		control, released := retryOf()
		p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages {
			released.left = []*letters.Letter{x}
			return released
		}
		pumping(t, p, [][]cdc.Item{{control, commitAt(300)}}, func() {
			pass(time.Minute)
			require.Empty(t, released.skipped)
			p.SetCommands(state.Commands{Skip: []uuid.UUID{x.ID}})
			pass(2 * holdMax)
			require.Equal(t, []uuid.UUID{x.ID}, released.skipped)
			require.EqualValues(t, 308, position(t, p))
		})
	})
}

// aboutOne is a word about one letter.
func aboutOne(action string, l *letters.Letter, commit uint64) cdc.Item {
	return cdc.Item{Kind: cdc.KindControl, Commit: lsn(commit), Control: &cdc.Control{ID: uuid.New(), Action: action, LetterID: l.ID}}
}

// A retry of one letter, as older tools wrote it, waits with the lane of the
// letter's aggregate: no later event of it passes. What is said of another
// letter meanwhile acts at once.
func TestSingleWordKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, unrelated := letterOf(0, true), letterOf(0, true)
		sink := newFakeSink()
		var paused atomic.Bool
		paused.Store(true)
		sink.refuse = func(ev publisher.Event) error {
			if paused.Load() && ev.Row.AggregateType == "order" {
				return &publisher.RouteError{Route: "t", Topic: "t", Reason: "is paused"}
			}
			return nil
		}
		p := testPump(sink)
		m := p.letters.store.(*fakeLetters)
		m.lanes = map[uuid.UUID]ledger.Lane{x.ID: {Namespace: "shop", AggregateType: "order"}, unrelated.ID: {Namespace: "shop", AggregateType: "user"}}
		acted := map[string]int{}
		m.acted = func(c *cdc.Control) pages {
			acted[c.Action]++
			if c.Action != cdc.ActionRetry {
				return nil
			}
			return &fakeRelease{left: []*letters.Letter{x}}
		}
		later := of("a")
		later.Commit = 400
		source := &trickle{every: time.Minute, batches: [][]cdc.Item{
			{aboutOne(cdc.ActionRetry, x, 300), commitAt(300)}, {later, commitAt(400)},
			{aboutOne(cdc.ActionDiscard, unrelated, 500), aboutOne(cdc.ActionEdit, unrelated, 500), commitAt(500)},
		}}
		running(t, p, source, func() {
			pass(4 * time.Minute)
			require.Empty(t, sink.got)
			require.Equal(t, map[string]int{cdc.ActionRetry: 1, cdc.ActionDiscard: 1, cdc.ActionEdit: 1}, acted)
			paused.Store(false)
			pass(2 * holdMax)
			require.Len(t, sink.got, 2)
			require.Equal(t, x.ID, sink.got[0].Row.ID, "the letter comes first")
		})
	})
}

// A retry whose topic has another partition count halts as an event does.
func TestARetryHaltsAtAPartitionChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		sink.refuse = func(publisher.Event) error { return &publisher.PartitionError{Topic: "t", From: 3, To: 6} }
		p := testPump(sink)
		control, released := retryOf(letterOf(0, true))
		p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages { return released }
		var states atomic.Value
		p.Tell = func(s Phase, _ error) { states.Store(s) }
		pumping(t, p, [][]cdc.Item{{control}}, func() {
			pass(time.Hour)
			require.Equal(t, phaseHalted, states.Load())
		})
	})
}

// A control that waits since before the session is left out where the stream brings
// it, at whatever place it waits: a gap moves it.
func TestAControlThatWaitsIsLeftOut(t *testing.T) {
	p := testPump(newFakeSink())
	control, _ := retryOf()
	other, _ := retryOf()
	var acted []uuid.UUID
	p.letters.store.(*fakeLetters).acted = func(c *cdc.Control) pages {
		acted = append(acted, c.ID)
		return nil
	}
	p.reading.controls = map[uuid.UUID]bool{control.Control.ID: true}
	require.NoError(t, p.take(t.Context(), []cdc.Item{control, other, commitAt(300)}))
	require.Equal(t, []uuid.UUID{other.Control.ID}, acted)
	require.EqualValues(t, 308, position(t, p))
}

// The letter of a replay to another topic goes out with its aggregate, and does
// not hold the aggregate's type for that topic.
func TestALetterForAnotherTopicHoldsNothing(t *testing.T) {
	letters := []*letters.Letter{letterOf(0, true), letterOf(1, false), letterOf(2, true)}
	letters[1].Replay = &cdc.Replay{ID: letters[1].ID, Topic: "elsewhere"}
	passing := true
	sink := newFakeSink()
	sink.refuse = func(ev publisher.Event) error {
		if ev.Topic != "" {
			return &publisher.RouteError{Route: ev.Topic, Topic: ev.Topic, Reason: "does not exist", Passing: passing}
		}
		return nil
	}
	p := testPump(sink)
	control, released := retryOf(letters...)
	p.letters.store.(*fakeLetters).acted = func(*cdc.Control) pages { return released }
	require.NoError(t, p.take(t.Context(), []cdc.Item{control, commitAt(300)}))
	require.True(t, p.held.lanes.any(), "the topic is being made: that ends in a moment")
	require.Empty(t, released.failed)
	passing, released.left = false, letters
	releaseAll(t, p)
	require.Equal(t, []uuid.UUID{letters[1].ID}, released.failed)
	require.Contains(t, released.why[0], "does not exist")
	require.Len(t, sink.got, 2)

	// Alone it waits, with the replays to that topic.
	alone := aboutOne(cdc.ActionRetry, letters[1], 400)
	p.letters.store.(*fakeLetters).lanes = map[uuid.UUID]ledger.Lane{letters[1].ID: {Topic: "elsewhere"}}
	released.left, released.failed = letters[1:2], nil
	letters[1].Index = 0
	require.NoError(t, p.take(t.Context(), []cdc.Item{alone, commitAt(400)}))
	require.NotNil(t, p.held.lanes.find(ledger.Lane{Topic: "elsewhere"}))
	require.Nil(t, p.held.lanes.find(ledger.Lane{Namespace: "shop", AggregateType: "order"}))
	require.Empty(t, released.failed)
}
