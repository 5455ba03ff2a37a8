package stream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
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
	"github.com/onceward/onceward/relay/internal/letters"
)

// fakeSource delivers batches, then waits for the end of ctx or returns end.
type fakeSource struct {
	batches [][]cdc.Item
	end     error
}

func (s *fakeSource) Next(ctx context.Context, _ []cdc.Item) ([]cdc.Item, error) {
	if len(s.batches) > 0 {
		b := s.batches[0]
		s.batches = s.batches[1:]
		return b, nil
	}
	if s.end != nil {
		return nil, s.end
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// fakeSink keeps what it was given; refuse is asked first.
type fakeSink struct {
	mu     sync.Mutex
	got    []publisher.Event
	refuse func(publisher.Event) error
	failed chan struct{}
	err    error
	acked  int // of got

	answer func(tags []uint64) // acknowledges letters, at once
	stuck  bool                // what it was given waits for ever
}

func newFakeSink() *fakeSink { return &fakeSink{failed: make(chan struct{})} }

func (s *fakeSink) Flush(ctx context.Context) error {
	if s.stuck {
		return errors.New("a partition takes nothing")
	}
	return ctx.Err()
}

func (s *fakeSink) Usable(_ context.Context, ev publisher.Event) error {
	if s.refuse != nil {
		return s.refuse(ev)
	}
	return nil
}

func (s *fakeSink) Publish(_ context.Context, ev publisher.Event) error {
	if s.refuse != nil {
		if err := s.refuse(ev); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.got = append(s.got, ev)
	s.mu.Unlock()
	if ev.Tag == noTag && s.answer != nil {
		s.answer([]uint64{noTag})
	}
	return nil
}

func (s *fakeSink) Failed() <-chan struct{} { return s.failed }
func (s *fakeSink) Err() error              { return s.err }
func (s *fakeSink) Close() error            { return nil }

func (s *fakeSink) tags() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tags []uint64
	for _, ev := range s.got {
		tags = append(tags, ev.Tag)
	}
	return tags
}

func event(commit pglogrepl.LSN) cdc.Item {
	row := &outbox.Row{ID: uuid.New(), Namespace: "shop", AggregateType: "order"}
	madeRows.Store(row.ID, row)
	return cdc.Item{Kind: cdc.KindEvent, Commit: commit, Row: row}
}

func commitAt(commit pglogrepl.LSN) cdc.Item {
	return cdc.Item{Kind: cdc.KindCommit, Commit: commit, End: commit + 8, CommitTime: time.Now()}
}

func testPump(sink Sink) *Pump {
	began := ledger.Checkpoint{Order: 100}
	b := newProgress(&began, 7, newTally())
	p := newPump(began, b, slog.New(slog.DiscardHandler))
	m := &idempotent{progress: b, watch: p.watch, saved: savedAt(began)}
	if f, ok := sink.(*fakeSink); ok {
		m.sink, f.answer = f, p.Acknowledged
	}
	p.sink, p.mode, p.held.keeper = sink, m, newTable()
	p.letters.store = &fakeLetters{letters: map[uuid.UUID]letters.Dead{}}
	p.routing = NewRouting("", nil, publisher.Config{})
	return p
}

// fakeLetters keeps letters in memory.
type fakeLetters struct {
	mu      sync.Mutex
	letters map[uuid.UUID]letters.Dead
	order   []uuid.UUID
	skipped []uuid.UUID
	limit   int // of parked aggregates; 0: none
	acted   func(*cdc.Control) pages

	takenBack map[uuid.UUID]bool // words that do not stand any more

	admitted []letters.Dead            // and not written yet
	parks    int                       // calls of park
	lanes    map[uuid.UUID]ledger.Lane // of letters that only a control knows
}

func (m *fakeLetters) Ended(_ context.Context, id uuid.UUID, _ pglogrepl.LSN) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.letters[id]
	return ok, nil
}

func (m *fakeLetters) Parked(row *outbox.Row, at pglogrepl.LSN) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	holds := func(dead letters.Dead) bool {
		return dead.Parks() && keyOfAggregate(dead.Row) == keyOfAggregate(row) && (dead.Commit < at || dead.Commit == at && dead.Row.Seq <= row.Seq)
	}
	for _, dead := range m.letters {
		if holds(dead) {
			return true
		}
	}
	return slices.ContainsFunc(m.admitted, holds)
}

func (m *fakeLetters) Around(_ context.Context, row *outbox.Row) (last, oldest pglogrepl.LSN, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, dead := range m.letters {
		if !dead.Parks() || keyOfAggregate(dead.Row) != keyOfAggregate(row) {
			continue
		}
		if dead.Row.Seq < row.Seq {
			last = max(last, dead.Commit)
		}
		if oldest == 0 || dead.Commit < oldest {
			oldest = dead.Commit
		}
	}
	return last, oldest, nil
}

func (m *fakeLetters) ParkedCount() int {
	seen := map[[3]string]bool{}
	for _, dead := range m.letters {
		if dead.Parks() {
			seen[keyOfAggregate(dead.Row)] = true
		}
	}
	return len(seen)
}

func (m *fakeLetters) Admit(dead *letters.Dead) *publisher.RouteError {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !dead.Parks() {
		return nil
	}
	if m.limit > 0 && m.ParkedCount() >= m.limit {
		return &publisher.RouteError{Route: dead.Row.Namespace + "/" + dead.Row.AggregateType, Reason: "the limit is reached (max_parked_aggregates)"}
	}
	m.admitted = append(m.admitted, *dead)
	return nil
}

func (m *fakeLetters) Write(_ context.Context, dead ...letters.Dead) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parks++
	m.admitted = nil
	for _, d := range dead {
		m.letters[d.ID()] = d
		m.order = append(m.order, d.ID())
	}
	return nil
}

func (m *fakeLetters) Skip(_ context.Context, dead letters.Dead) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.takenBack[dead.ID()] {
		return false, nil
	}
	m.letters[dead.ID()] = letters.Dead{Row: dead.Row, Cause: dead.Cause}
	m.skipped = append(m.skipped, dead.ID())
	return true, nil
}

func (m *fakeLetters) Apply(_ context.Context, c *cdc.Control, _ error, _ pglogrepl.LSN, _ bool) (pages, error) {
	if m.acted == nil {
		return nil, nil
	}
	return m.acted(c), nil
}

func (m *fakeLetters) LaneOf(_ context.Context, id uuid.UUID) (ledger.Lane, error) {
	return m.lanes[id], nil
}

func (m *fakeLetters) Reopen(context.Context, *cdc.Control, uint32) error { return nil }

func (m *fakeLetters) Settle(context.Context, pglogrepl.LSN) error { return nil }

func position(t *testing.T, p *Pump) pglogrepl.LSN {
	t.Helper()
	s, err := p.status()
	require.NoError(t, err)
	return s.Position
}

func TestPumpHandsOverInOrderAndCountsWhatEnded(t *testing.T) {
	sink := newFakeSink()
	p := testPump(sink)
	source := &fakeSource{end: io.EOF, batches: [][]cdc.Item{
		{event(200), event(200)},
		{commitAt(200), event(300), commitAt(300), {Kind: cdc.KindIdle, End: 400}},
	}}
	require.NoError(t, p.Run(t.Context(), source))
	require.Equal(t, []uint64{0, 1, 2}, sink.tags())
	require.Equal(t, []bool{true, false, false}, []bool{sink.got[0].More, sink.got[1].More, sink.got[2].More},
		"what was read together leaves together")
	require.Equal(t, "0/C8", sink.got[0].Position)
	require.Equal(t, "0/12C", sink.got[2].Position)
	require.EqualValues(t, 100, position(t, p))
	p.Acknowledged([]uint64{1, 2})
	require.EqualValues(t, 100, position(t, p), "0 has not ended")
	p.Acknowledged([]uint64{0})
	require.EqualValues(t, 400, position(t, p), "nothing in flight: the idle end counts")
}

// A stop in the middle of a transaction, also inside of a batch: what is out by then
// is not published again.
func TestAStopInsideABatchKnowsWhatHasEnded(t *testing.T) {
	sink := newFakeSink()
	p := testPump(sink)
	stop := errors.New("stopped")
	sink.refuse = func(publisher.Event) error {
		if len(sink.tags()) == 3 {
			return stop
		}
		return nil
	}
	require.ErrorIs(t, p.Run(t.Context(), &fakeSource{end: io.EOF, batches: [][]cdc.Item{{event(200), event(200)}, {event(200), event(200), event(200)}}}), stop)
	upto := func() ledger.Place {
		s, err := p.status()
		require.NoError(t, err)
		return s.Reach.UpTo
	}
	p.Acknowledged([]uint64{0, 1})
	require.NoError(t, p.Flush(t.Context()))
	require.Equal(t, ledger.Place{Commit: 200, Ordinal: 2}, upto(), "the third has not ended")
	p.Acknowledged([]uint64{2})
	require.NoError(t, p.Flush(t.Context()))
	require.Equal(t, ledger.Place{Commit: 200, Ordinal: 3}, upto())
	require.EqualValues(t, 100, position(t, p), "the transaction has not ended")
}

func TestPositionsReadAsInPostgreSQL(t *testing.T) {
	for _, at := range []pglogrepl.LSN{0, 0xab, 0x16B3748, 0xFFFFFFFF, 0x1_00000000, 0xABCDEF01_23456789, math.MaxUint64} {
		require.Equal(t, at.String(), positionText(at))
	}
}

func TestPumpEndsWithTheSourcesError(t *testing.T) {
	p := testPump(newFakeSink())
	broken := errors.New("broken")
	require.ErrorIs(t, p.Run(t.Context(), &fakeSource{end: broken}), broken)
}

func TestAPipelineThatWaitsForARouteEndsWithTheSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		var failed atomic.Bool
		sink.refuse = func(publisher.Event) error {
			if failed.Load() {
				return errors.New("producer failed")
			}
			return &publisher.RouteError{Topic: "t", Reason: "missing"}
		}
		p := testPump(sink)
		ended := make(chan error, 1)
		go func() { ended <- p.Run(t.Context(), &fakeSource{batches: [][]cdc.Item{{event(200)}}}) }()
		<-time.After(time.Minute)
		failed.Store(true)
		require.ErrorContains(t, <-ended, "producer failed")
	})
}

func TestATagReportedTwiceStopsTheRelay(t *testing.T) {
	p := testPump(newFakeSink())
	err := p.reading.read([]cdc.Item{event(200), commitAt(200)})
	require.NoError(t, err)
	p.Acknowledged([]uint64{0, 0})
	_, err = p.status()
	require.ErrorContains(t, err, "count acknowledgements")
}

func TestOnlyOurOwnMarkersCount(t *testing.T) {
	p := testPump(newFakeSink())
	err := p.reading.read([]cdc.Item{
		event(200), {Kind: cdc.KindMarker, Marker: cdc.Marker{Nonce: 8, ID: 5}}, {Kind: cdc.KindMarker, Marker: cdc.Marker{Nonce: 7, ID: 3}}, {Kind: cdc.KindAsk},
	})
	require.NoError(t, err)
	require.True(t, p.TakeAsk())
	require.False(t, p.TakeAsk())
	now, err := p.status()
	require.NoError(t, err)
	require.Zero(t, now.Marked, "the event before it has not ended")
	p.Acknowledged([]uint64{0})
	now, err = p.status()
	require.NoError(t, err)
	require.EqualValues(t, 3, now.Marked)
}

func lsn(n uint64) pglogrepl.LSN { return pglogrepl.LSN(n) }

// tally counts what a pump says of events.
type tally struct {
	mu sync.Mutex

	readEvents, publishedEvents, parkedEvents, transactions int
	skips                                                   map[string]int
	parkedNow                                               int
	letters                                                 int
	commits                                                 []time.Time // whose delay was sampled
}

func newTally() *tally { return &tally{skips: make(map[string]int)} }

// tallyOf is that of a test's pump.
func tallyOf(p *Pump) *tally { return p.counts.(*tally) }

func (c *tally) add(n *int, events int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n += events
}

func (c *tally) Read(events int) { c.add(&c.readEvents, events) }
func (c *tally) Published(events, letters int, commit time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publishedEvents += events
	c.letters += letters
	if !commit.IsZero() {
		c.commits = append(c.commits, commit)
	}
}

func (c *tally) Committed(events, letters int, _ time.Duration, commit time.Time) {
	c.add(&c.transactions, 1)
	c.Published(events, letters, commit)
}
func (c *tally) Waited(int)        {}
func (c *tally) Parked(events int) { c.add(&c.parkedEvents, events) }
func (c *tally) ParkedNow(aggregates int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parkedNow = aggregates
}
func (c *tally) Control(string)               { c.Skipped(SkippedByControl) }
func (c *tally) Holding(map[string]HeldRoute) {}

func (c *tally) Skipped(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skips[reason]++
}
