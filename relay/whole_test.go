package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

// ground is what outlives the sessions of a relay in exactly-once mode: the
// stream, the topic, the letters. It is Kafka and PostgreSQL in memory, and
// refuses, fails and forgets as it is told.
type ground struct {
	draw *rapid.T

	stream []cdc.Item

	mu      sync.Mutex  // of what a test looks at while the pump runs
	visible []uuid.UUID // committed, in order; a letter that was retried as well
	saved   publisher.Position
	epoch   int
	tick    int64

	missing map[string]bool    // aggregate types without a topic
	poison  map[uuid.UUID]bool // events that can be no record
	refuse  map[uuid.UUID]int  // events that the broker refuses so many times more, once they are sent
	last    owned              // what the process remembers
	acted   map[uuid.UUID]bool // controls
	dead    []*graveyard       // letters, in the order of their writing

	admitted []casualty // letters that the session has not written yet
}

// graveyard is one letter.
type graveyard struct {
	casualty
	state   string
	control uuid.UUID
	index   uint32
}

var errCrash, errRefused = errors.New("crash"), errors.New("refused")

// fakeLedger is a transactional producer over the ground.
type fakeLedger struct {
	g    *ground
	open []uuid.UUID
	at   time.Time
}

func (l *fakeLedger) Publish(_ context.Context, ev publisher.Event) error {
	if l.g.missing[ev.Row.AggregateType] {
		return &publisher.RouteError{Route: ev.Row.AggregateType, Topic: ev.Row.AggregateType, Reason: "does not exist"}
	}
	if l.g.poison[ev.Row.ID] {
		return &publisher.RecordError{Field: "size", Detail: "too large"}
	}
	if len(l.open) == 0 {
		l.at = time.Now()
	}
	l.open = append(l.open, ev.Row.ID)
	return nil
}

func (l *fakeLedger) Commit(_ context.Context, pos publisher.Position) error {
	for _, id := range l.open {
		if l.g.refuse[id] > 0 {
			l.g.refuse[id]--
			return &publisher.RefusedError{Topic: "t", ID: id, Err: errRefused}
		}
	}
	fate := 9
	if l.g.draw != nil {
		fate = rapid.IntRange(0, 9).Draw(l.g.draw, "fate of the commit")
	}
	if fate == 0 {
		return errCrash // not committed
	}
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	l.g.visible = append(l.g.visible, l.open...)
	l.g.saved = pos
	l.open = nil
	if fate == 1 {
		return errCrash // committed, and nobody knows
	}
	return nil
}

func (l *fakeLedger) Open() (int, int64, time.Time) {
	return len(l.open), int64(len(l.open)) * 100, l.at
}
func (l *fakeLedger) Rotations() uint64       { return 0 }
func (l *fakeLedger) Failed() <-chan struct{} { return nil }
func (l *fakeLedger) Err() error              { return nil }
func (l *fakeLedger) Close() error            { return nil }

// seen is what a test may look at while the pump runs.
func (g *ground) seen() (visible, letters int, saved uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.visible), len(g.dead), g.saved.Order
}

// graves are the letters of one session, with the rules of [letters].
type graves struct{ g *ground }

func (m graves) find(id uuid.UUID) *graveyard {
	for _, d := range m.g.dead {
		if d.id() == id {
			return d
		}
	}
	return nil
}

func (m graves) ended(_ context.Context, id uuid.UUID, _ pglogrepl.LSN) (bool, error) {
	return m.find(id) != nil, nil
}

func (m graves) parked(row *outbox.Row, commit pglogrepl.LSN) bool {
	for _, d := range m.g.dead {
		if d.state == letterOpen && d.parks() && aggregateOf(d.row) == aggregateOf(row) && (holder{d.commit, d.row.Seq}).before(commit, row.Seq) {
			return true
		}
	}
	return slices.ContainsFunc(m.g.admitted, func(d casualty) bool { return aggregateOf(d.row) == aggregateOf(row) })
}

func (m graves) admit(dead *casualty) *publisher.RouteError {
	if dead.parks() {
		m.g.admitted = append(m.g.admitted, *dead)
	}
	return nil
}

func (m graves) parkedCount() int { return 0 }

func (m graves) lastBefore(context.Context, *outbox.Row) (pglogrepl.LSN, error) { return 0, nil }

func (m graves) park(_ context.Context, dead ...casualty) error {
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	m.g.admitted = nil
	for _, c := range dead {
		if m.find(c.id()) == nil {
			m.g.dead = append(m.g.dead, &graveyard{casualty: c, state: letterOpen})
		}
	}
	return m.g.mayCrash("after a letter")
}

func (m graves) skip(_ context.Context, c casualty) error {
	m.g.dead = append(m.g.dead, &graveyard{casualty: c, state: letterDiscarded})
	return nil
}

func (m graves) laneOf(context.Context, uuid.UUID) (lane, error) { return lane{}, nil }

func (m graves) settle(context.Context, pglogrepl.LSN) error { return nil }

// again is what a control that has acted released then, but for what stands
// behind an older letter by now: that is given up.
func (m graves) again(c *cdc.Control) (released []*graveyard) {
	var givenUp []*graveyard
	for _, d := range m.g.dead {
		if d.control != c.ID {
			continue
		}
		if slices.ContainsFunc(m.g.dead, func(o *graveyard) bool {
			return o.state == letterOpen && o.control != c.ID && aggregateOf(o.row) == aggregateOf(d.row) && (holder{o.commit, o.row.Seq}).before(d.commit, d.row.Seq)
		}) {
			givenUp = append(givenUp, d)
			continue
		}
		released = append(released, d)
	}
	for _, d := range givenUp {
		d.control = uuid.Nil
	}
	slices.SortFunc(released, func(a, b *graveyard) int { return int(a.index) - int(b.index) })
	return released
}

func (m graves) act(_ context.Context, c *cdc.Control, _ error, at pglogrepl.LSN) (pages, error) {
	released, repeat := m.again(c), m.g.acted[c.ID]
	if !repeat {
		if m.g.acted == nil {
			m.g.acted = make(map[uuid.UUID]bool)
		}
		m.g.acted[c.ID] = true
		for _, d := range m.g.dead {
			if d.state == letterOpen && d.commit < at && bytes.Equal(d.row.AggregateID, c.AggregateID) {
				released = append(released, d)
			}
		}
		slices.SortFunc(released, func(a, b *graveyard) int {
			return place{commit: a.commit, ordinal: uint32(a.row.Seq)}.compare(place{commit: b.commit, ordinal: uint32(b.row.Seq)})
		})
		for i, d := range released {
			d.control, d.index = c.ID, uint32(i)
		}
	}
	for _, d := range released {
		d.state = letterRetrying
		delete(m.g.poison, d.row.ID)
	}
	if err := m.g.mayCrash("after retrying"); err != nil {
		return nil, err
	}
	if len(released) == 0 {
		return nil, nil
	}
	return &gravePages{left: slices.Clone(released), all: released, repeat: repeat}, nil
}

type gravePages struct {
	left, all []*graveyard
	repeat    bool
}

func (p *gravePages) again() bool { return p.repeat }

func (p *gravePages) next(context.Context) ([]*letter, error) {
	n := min(2, len(p.left))
	var page []*letter
	for _, d := range p.left[:n] {
		page = append(page, &letter{id: d.id(), index: d.index, commit: d.commit, row: d.row, holds: d.holds})
	}
	p.left = p.left[n:]
	return page, nil
}

func (p *gravePages) skip(context.Context, *letter) error {
	return errors.New("no letter is given up here")
}

func (p *gravePages) fail(_ context.Context, failed *letter, _, _ string) error {
	for _, d := range p.all {
		if d.state == letterRetrying && (d.id() == failed.id || d.index > failed.index) {
			d.state, d.control = letterOpen, uuid.Nil
		}
	}
	p.left = nil
	return nil
}

func (g *ground) mayCrash(where string) error {
	if g.draw != nil && rapid.IntRange(0, 9).Draw(g.draw, where) == 0 {
		return errCrash
	}
	return nil
}

// session is a new one, from the checkpoint.
func (g *ground) session(t require.TestingT) (*pipeline, *exactlyOnce, *fakeSource) {
	g.epoch++
	g.admitted = nil
	c := checkpoint{horizon: horizon{order: 100}}
	if g.saved.Meta != "" {
		var err error
		c, err = parseCheckpoint(g.saved.Order, g.saved.Meta)
		require.NoError(t, err)
		require.LessOrEqual(t, c.tick, g.tick, "the tick was durable before the checkpoint")
	}
	for _, d := range g.dead { // what takeBack does
		if d.state == letterRetrying {
			d.state = letterOpen
			for _, it := range g.stream {
				if it.Control != nil && it.Control.ID == d.control && it.Commit < c.order {
					d.state = "replayed"
				}
			}
		}
	}
	b := newBooks(c.order, 7, newMetrics("test"))
	p := newPipeline(c.horizon, 1<<30, b, slog.New(slog.DiscardHandler))
	l := &fakeLedger{g: g}
	m := &exactlyOnce{
		repair: func() mended { return mended{} },
		books:  b, tx: l, interval: 100 * time.Millisecond, maxBytes: 600, horizon: p.horizon, committed: time.Now(),
		letters: func() int64 { return int64(len(g.dead)) },
		tick:    func(context.Context) (int64, error) { g.tick++; return g.tick, g.mayCrash("after the tick") },
	}
	m.known.position = c.order
	p.sink, p.mode, p.morgue = l, m, graves{g}
	p.routing = newRouting(&Config{}, publisher.Config{})
	p.durable = func() pglogrepl.LSN { return m.known.position }
	p.refused = g.last.refused
	source := &fakeSource{}
	for _, it := range g.stream {
		if it.Commit >= c.order {
			source.batches = append(source.batches, []cdc.Item{it})
		}
	}
	return p, m, source
}

// write makes a stream of transactions, and returns its end. Poison events are
// retried later in it, after which they are sound.
func (g *ground) write(t *rapid.T) pglogrepl.LSN {
	end, seq := uint64(100), int64(0)
	poisoned := map[string]bool{}
	row := func(commit uint64) cdc.Item {
		it := typed(commit, string(rune('a'+rapid.IntRange(0, 2).Draw(t, "type"))))
		seq++
		it.Row.Seq = seq
		it.Row.AggregateID = []byte(it.Row.AggregateType + string(rune('0'+rapid.IntRange(0, 2).Draw(t, "aggregate"))))
		switch rapid.IntRange(0, 12).Draw(t, "poison") {
		case 0:
			g.poison[it.Row.ID] = true
			poisoned[string(it.Row.AggregateID)] = true
		case 1:
			g.refuse[it.Row.ID] = rapid.IntRange(1, 3).Draw(t, "refusals")
			poisoned[string(it.Row.AggregateID)] = true
		}
		return it
	}
	for range rapid.IntRange(1, 10).Draw(t, "transactions") {
		commit := end + rapid.Uint64Range(0, 2).Draw(t, "gap")
		for range rapid.IntRange(0, 5).Draw(t, "events") {
			g.stream = append(g.stream, row(commit))
		}
		if len(poisoned) > 0 && rapid.IntRange(0, 3).Draw(t, "retried") == 0 {
			for _, id := range sortedKeys(poisoned) {
				g.stream = append(g.stream, retryAll(commit, id))
			}
		}
		end = commit + 8
		g.stream = append(g.stream, cdc.Item{Kind: cdc.KindCommit, Commit: lsn(commit), End: lsn(end), CommitTime: time.Now()})
	}
	// A last retry in a transaction of its own reaches all that was parked.
	return g.retry(lsn(end), sortedKeys(poisoned))
}

func retryAll(commit uint64, id string) cdc.Item {
	return cdc.Item{Kind: cdc.KindControl, Commit: lsn(commit), Control: &cdc.Control{
		ID: uuid.New(), Action: cdc.ActionRetry, Namespace: "shop", AggregateType: id[:1], AggregateID: []byte(id),
	}}
}

// retry adds a transaction that retries aggregates, and returns its end.
func (g *ground) retry(commit pglogrepl.LSN, aggregates []string) pglogrepl.LSN {
	for _, id := range aggregates {
		g.stream = append(g.stream, retryAll(uint64(commit), id))
	}
	g.stream = append(g.stream, cdc.Item{Kind: cdc.KindCommit, Commit: commit, End: commit + 8, CommitTime: time.Now()})
	return commit + 8
}

// aggregates are those of all events.
func (g *ground) aggregates() []string {
	seen := map[string]bool{}
	for _, it := range g.stream {
		if it.Row != nil {
			seen[string(it.Row.AggregateID)] = true
		}
	}
	return sortedKeys(seen)
}

func sortedKeys(m map[string]bool) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	})
}

// play reads some of the source, with topics that come and go, until it crashes
// or is told to.
func (g *ground) play(t *rapid.T, p *pipeline, source *fakeSource) error {
	for len(source.batches) > 0 {
		if rapid.IntRange(0, 19).Draw(t, "crash") == 0 {
			return errCrash
		}
		kind := string(rune('a' + rapid.IntRange(0, 2).Draw(t, "topic")))
		switch rapid.IntRange(0, 7).Draw(t, "topic comes or goes") {
		case 0:
			g.missing[kind] = true
		case 1, 2:
			delete(g.missing, kind)
		case 3:
			time.Sleep(200 * time.Millisecond)
		}
		n := rapid.IntRange(0, min(4, len(source.batches))).Draw(t, "batch")
		batch := slices.Concat(source.batches[:n]...)
		source.batches = source.batches[n:]
		if err := p.take(t.Context(), batch); err != nil {
			return err
		}
		if err := p.turn(t.Context(), n == 0); err != nil {
			return err
		}
	}
	return nil
}

// untimed hides the deadline of a test, which is of another time.
type untimed struct{ testing.TB }

// Whatever the broker refuses, once, or again at a retry, and whatever crashes,
// whenever: the tick, the letter, the retry, the commit with a
// known or an unknown outcome, between any two items; whatever topic is missing
// meanwhile: each event is visible once, those of an aggregate in order, and no
// letter is left.
func TestExactlyOnceWhateverCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(untimed{t}, func(t *rapid.T) {
			g := &ground{draw: t, missing: map[string]bool{}, poison: map[uuid.UUID]bool{}, refuse: map[uuid.UUID]int{}}
			end := g.write(t)
			crashes := 0
			for range rapid.IntRange(0, 6).Draw(t, "sessions") {
				p, _, source := g.session(t)
				if err := g.play(t, p, source); err != nil {
					var refused *publisher.RefusedError
					require.True(t, errors.Is(err, errCrash) || errors.As(err, &refused), "%v", err)
					g.last.learn(err)
					crashes++
				}
			}
			clear(g.refuse)
			end = g.retry(end, g.aggregates())
			g.draw = nil // nothing fails any more
			clear(g.missing)
			p, m, source := g.session(t)
			require.NoError(t, p.take(t.Context(), slices.Concat(source.batches...)))
			require.NoError(t, p.turn(t.Context(), true))
			require.NoError(t, p.flush(t.Context()))
			require.Equal(t, end, m.known.position)
			g.verify(t)
		})
	})
}

func (g *ground) verify(t *rapid.T) {
	want, got := map[string][]uuid.UUID{}, map[string][]uuid.UUID{}
	of := map[uuid.UUID]string{}
	for _, it := range g.stream {
		if it.Row != nil {
			id := string(it.Row.AggregateID)
			want[id] = append(want[id], it.Row.ID)
			of[it.Row.ID] = id
		}
	}
	for _, id := range g.visible {
		got[of[id]] = append(got[of[id]], id)
	}
	require.Equal(t, want, got, fmt.Sprint(len(g.dead), " letters"))
	p, _, source := g.session(t)
	require.NoError(t, p.take(t.Context(), slices.Concat(source.batches...)))
	for _, d := range g.dead {
		require.Equal(t, "replayed", d.state)
	}
}
