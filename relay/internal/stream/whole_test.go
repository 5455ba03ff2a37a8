package stream

import (
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
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
	"github.com/onceward/onceward/relay/internal/letters"
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
	last    Refused            // what the process remembers
	acted   map[uuid.UUID]bool // controls
	dead    []*graveyard       // letters, in the order of their writing
	table   *table             // what waits

	admitted []letters.Dead // letters that the session has not written yet

	markers   []pglogrepl.LSN // each with the end of the transactions before it
	published pglogrepl.LSN   // all transactions before it were said to be
}

// graveyard is one letter.
type graveyard struct {
	letters.Dead
	state   string
	control uuid.UUID
	index   uint32
	after   pglogrepl.LSN // settled by a checkpoint beyond it
}

var errCrash, errRefused = errors.New("crash"), errors.New("refused")

// fakeLedger is a transactional producer over the ground.
type fakeLedger struct {
	g    *ground
	open []uuid.UUID
	at   time.Time

	taken, throttled time.Time
}

// lacks reports whether an aggregate type is without its topic.
func (g *ground) lacks(kind string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.missing[kind]
}

func (l *fakeLedger) Usable(_ context.Context, ev publisher.Event) error {
	if l.g.lacks(ev.Row.AggregateType) {
		return &publisher.RouteError{Route: ev.Row.AggregateType, Topic: ev.Row.AggregateType, Reason: "does not exist"}
	}
	return nil
}

func (l *fakeLedger) Publish(_ context.Context, ev publisher.Event) error {
	if l.g.lacks(ev.Row.AggregateType) {
		return &publisher.RouteError{Route: ev.Row.AggregateType, Topic: ev.Row.AggregateType, Reason: "does not exist"}
	}
	if l.g.poison[ev.Row.ID] {
		return &record.RowError{Field: "size", Detail: "too large"}
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
	l.taken = time.Now()
	l.g.visible = append(l.g.visible, l.open...)
	l.g.saved = pos
	l.open = nil
	if fate == 1 {
		return errCrash // committed, and nobody knows
	}
	return nil
}

func (l *fakeLedger) Open() (int, int64, time.Time) {
	if len(l.open) == 0 {
		return 0, 0, time.Time{}
	}
	return len(l.open), int64(len(l.open)) * 100, l.at
}
func (l *fakeLedger) Taken() (all, throttled time.Time) { return l.taken, l.throttled }
func (l *fakeLedger) Failed() <-chan struct{}           { return nil }
func (l *fakeLedger) Err() error                        { return nil }
func (l *fakeLedger) Close() error                      { return nil }

// seen is what a test may look at while the pump runs.
func (g *ground) seen() (visible, letters int, saved uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.visible), len(g.dead), g.saved.Order
}

func (g *ground) mayCrash(where string) error {
	if g.draw != nil && rapid.IntRange(0, 9).Draw(g.draw, where) == 0 {
		return errCrash
	}
	return nil
}

// session is a new one, from the checkpoint.
func (g *ground) session(t require.TestingT) (*Pump, *exactlyOnce, *fakeSource) {
	g.epoch++
	g.admitted = nil
	c := ledger.Checkpoint{Order: 100}
	if g.table == nil {
		g.table = newTable()
	}
	g.table.crash = g.mayCrash
	g.table.dead = func(id uuid.UUID) bool { return graves{g}.find(id) != nil }
	g.table.reopen = g.reopen
	if g.saved.Meta != "" {
		var err error
		c, err = ledger.Parse(g.saved.Order, g.saved.Meta)
		require.NoError(t, err)
		require.LessOrEqual(t, c.Tick, g.tick, "the tick was durable before the checkpoint")
	}
	g.table.settled = func(control uuid.UUID, letters uint32) {
		for _, d := range g.dead {
			if d.control == control && d.state == graveRetrying && d.index < letters {
				d.state = "replayed"
			}
		}
	}
	g.table.restart(&c)
	for _, d := range g.dead { // what takeBack does
		if d.state == graveRetrying {
			d.state = graveOpen
			if d.after < c.Order {
				d.state = "replayed"
			}
		}
	}
	b := newProgress(&c, 7, newTally())
	p := newPump(c, b, slog.New(slog.DiscardHandler))
	l := &fakeLedger{g: g}
	m := &exactlyOnce{
		idle: ledger.Idle{Segment: 16 << 20}, progress: b, tx: l,
		cut: p.reading.cut, before: p.held.write, committed: time.Now(),
		Transactions: Transactions{Timeout: time.Minute, Room: new(int64), Interval: 100 * time.Millisecond, MaxBytes: 600, Tick: func(context.Context) (int64, error) {
			g.tick++
			return g.tick, g.mayCrash("after the tick")
		}},
	}
	*m.Room = 1 << 30
	m.known.Position, m.known.Reach, m.next = c.Order, c.Reach, m.committed.Add(m.Interval)
	p.watch.together = true
	p.sink, p.mode, p.letters.store = l, m, graves{g}
	p.reading.counted = func() int64 { return int64(len(g.dead)) }
	p.routing = NewRouting("", nil, publisher.Config{})
	p.letters.refused = g.last
	g.table.takeUp(p)
	require.Empty(t, g.said(), "said to be published")
	source := &fakeSource{}
	for _, it := range g.stream {
		if it.Commit >= c.Order {
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
func (g *ground) play(t *rapid.T, p *Pump, source *fakeSource) error {
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
		if err := p.take(t.Context(), g.mark(p, batch)); err != nil {
			return err
		}
		err := p.turn(t.Context(), n == 0)
		if now, bad := p.mode.status(); bad == nil && now.Marked > 0 {
			g.published = max(g.published, g.markers[now.Marked-1])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mark puts a marker behind a batch that ends with a transaction.
func (g *ground) mark(p *Pump, batch []cdc.Item) []cdc.Item {
	if len(batch) == 0 || batch[len(batch)-1].Kind != cdc.KindCommit {
		return batch
	}
	g.markers = append(g.markers, batch[len(batch)-1].End)
	return append(batch, cdc.Item{Kind: cdc.KindMarker, Marker: cdc.Marker{Nonce: p.nonce, ID: uint64(len(g.markers))}})
}

// said reports what was said to be published and is neither that, nor a letter, nor
// waits.
func (g *ground) said() (wrong []uuid.UUID) {
	for _, it := range g.stream {
		if it.Row == nil || it.Commit >= g.published {
			continue
		}
		waits := slices.ContainsFunc(g.table.rows, func(r tableRow) bool { return r.id == it.Row.ID })
		if !waits && (graves{g}).find(it.Row.ID) == nil && !slices.Contains(g.visible, it.Row.ID) {
			wrong = append(wrong, it.Row.ID)
		}
	}
	return wrong
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
					g.last.Learn(err)
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
			releaseAll(t, p)
			require.NoError(t, p.Flush(t.Context()))
			require.Equal(t, end, m.known.Position)
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
