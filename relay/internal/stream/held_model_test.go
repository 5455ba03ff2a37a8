package stream

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
)

// A relay in idempotent mode, whatever is held, released, acknowledged and cut
// off, given up by an operator, in this process or with it: nothing is lost but
// what was given up, and the topic of a lane only ever goes on with the next event
// or begins again at an earlier one.
func TestIdempotentWhateverCrashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := idempotentModel{t: t, topics: make(map[string][]uuid.UUID), table: newTable(), letters: &fakeLetters{letters: map[uuid.UUID]letters.Dead{}}}
		givenUp := func(id uuid.UUID) bool { return slices.Contains(m.letters.skipped, id) }
		m.table.dead = givenUp
		want := make(map[string][]uuid.UUID)
		end := uint64(100)
		for range rapid.Uint64Range(1, 8).Draw(t, "transactions") {
			commit := end + rapid.Uint64Range(0, 2).Draw(t, "gap")
			for range rapid.IntRange(0, 5).Draw(t, "events") {
				it := typed(commit, string(rune('a'+rapid.IntRange(0, 2).Draw(t, "type"))))
				m.stream = append(m.stream, it)
				want[it.Row.AggregateType] = append(want[it.Row.AggregateType], it.Row.ID)
			}
			end = commit + 8
			m.stream = append(m.stream, commitAt(lsn(commit)))
		}
		m.saved, m.ended = ledger.Checkpoint{Order: 100}, ledger.Checkpoint{Order: 100}
		crash := func(where string) error {
			if rapid.IntRange(0, 14).Draw(t, where) == 0 {
				return errCrash
			}
			return nil
		}
		for range rapid.IntRange(0, 6).Draw(t, "sessions") {
			m.table.crash = crash
			m.session(rapid.Bool().Draw(t, "the process lives on"))
		}
		m.table.crash = func(string) error { return nil }
		m.last()
		require.Equal(t, lsn(end), m.saved.Order)
		for name, ids := range want {
			at := -1
			left := func(ids []uuid.UUID) []uuid.UUID { return slices.DeleteFunc(slices.Clone(ids), givenUp) }
			for _, id := range m.topics[name] {
				i := slices.Index(ids, id)
				if i > at {
					require.Empty(t, left(ids[at+1:i]), "topic %s skips an event", name)
				}
				at = i
			}
			require.Empty(t, left(ids[at+1:]), "topic %s ends with another than the last event", name)
		}
		require.Empty(t, m.table.rows)
	})
}

// errStopped ends a session in the middle of a batch; what is handed over still ends.
var errStopped = errors.New("stopped")

type idempotentModel struct {
	t            *rapid.T
	stream       []cdc.Item
	topics       map[string][]uuid.UUID
	table        *table
	saved, ended ledger.Checkpoint
	letters      *fakeLetters
	words        []uuid.UUID
	stops        bool // this session may end in the middle of a batch

	gone atomic.Pointer[[]string]
	p    *Pump
	sink *fakeSink
	// Of each topic, how many of the session's events are in Kafka, and whether
	// the last of them is there and its acknowledgement is not.
	kept   map[string]int
	broken map[string]bool
}

func (m *idempotentModel) open(lives bool) []cdc.Item {
	start := m.saved
	if lives {
		start = m.ended
	}
	m.sink = newFakeSink()
	refuse := missing(&m.gone)
	m.sink.refuse = func(ev publisher.Event) error {
		if m.stops && rapid.IntRange(0, 9).Draw(m.t, "told to stop while it hands over") == 0 {
			return errStopped
		}
		return refuse(ev)
	}
	m.p = testPump(m.sink)
	b := newProgress(&start, 7, newTally())
	p := newPump(start, b, m.p.log)
	p.sink, p.letters.store, p.routing = m.sink, m.letters, m.p.routing
	p.told(m.words...)
	p.mode = &idempotent{progress: b, sink: m.sink, watch: p.watch, saved: savedAt(m.saved)}
	m.p = p
	m.table.takeUp(p)
	m.kept, m.broken = make(map[string]int), make(map[string]bool)
	var left []cdc.Item
	for _, it := range m.stream {
		if it.Commit >= start.Order {
			left = append(left, it)
		}
	}
	return left
}

// kafka writes some of what was handed over, in the order of each topic, and
// acknowledges some of that.
func (m *idempotentModel) kafka(all bool) {
	byTopic := make(map[string][]publisher.Event)
	for _, ev := range m.sink.got {
		byTopic[ev.Row.AggregateType] = append(byTopic[ev.Row.AggregateType], ev)
	}
	for _, name := range []string{"a", "b", "c"} {
		events := byTopic[name][m.kept[name]:]
		if !all {
			events = events[:rapid.IntRange(0, len(events)).Draw(m.t, "written")]
		}
		for _, ev := range events {
			if m.broken[name] {
				break // what comes behind is lost with the session
			}
			m.kept[name]++
			m.topics[name] = append(m.topics[name], ev.Row.ID)
			m.broken[name] = !all && rapid.IntRange(0, 5).Draw(m.t, "acknowledged") == 0
			if !m.broken[name] {
				m.p.Acknowledged([]uint64{ev.Tag})
			}
		}
	}
}

func (m *idempotentModel) session(lives bool) {
	m.stops = rapid.Bool().Draw(m.t, "it may be told to stop")
	left := m.open(lives)
	var failed error
	for range 40 {
		gone := []string{}
		for _, name := range []string{"a", "b", "c"} {
			if rapid.IntRange(0, 3).Draw(m.t, "missing") == 0 {
				gone = append(gone, name)
			}
		}
		m.gone.Store(&gone)
		if i := rapid.IntRange(0, 8*len(m.stream)).Draw(m.t, "given up"); i < len(m.stream) && m.stream[i].Row != nil {
			m.words = append(slices.Clone(m.words), m.stream[i].Row.ID)
			m.p.told(m.words...)
		}
		n := min(rapid.IntRange(0, 4).Draw(m.t, "batch"), len(left))
		if failed = m.p.take(m.t.Context(), left[:n]); failed == nil {
			failed = m.turn()
		}
		if failed != nil {
			break
		}
		left = left[n:]
		m.kafka(false)
		if rapid.IntRange(0, 2).Draw(m.t, "checkpoint") == 0 {
			m.saved = save(m.t, m.p)
		}
		if rapid.IntRange(0, 9).Draw(m.t, "the session ends") == 0 {
			break
		}
	}
	if m.stops && (failed == nil || errors.Is(failed, errStopped)) {
		m.kafka(rapid.Bool().Draw(m.t, "all is acknowledged"))
		if m.p.Flush(m.t.Context()) == nil {
			m.saved = save(m.t, m.p)
			_ = m.p.Conclude(m.t.Context()) // or it is cut off: the next session does it
		}
	}
	ended, err := m.p.mode.ended()
	require.NoError(m.t, err)
	m.ended = ended
}

func (m *idempotentModel) turn() error {
	for _, r := range m.p.held.lanes.due {
		r.next = time.Time{}
	}
	return m.p.turn(m.t.Context(), true)
}

// last is a session in which nothing fails.
func (m *idempotentModel) last() {
	m.stops = false
	m.gone.Store(&[]string{})
	require.NoError(m.t, m.p0take())
	for range 1000 {
		require.NoError(m.t, m.turn())
		m.kafka(true)
		m.saved = save(m.t, m.p)
		if !m.p.held.lanes.any() && m.p.releases.current == nil {
			return
		}
	}
	require.Fail(m.t, "it does not end")
}

func (m *idempotentModel) p0take() error { return m.p.take(m.t.Context(), m.open(false)) }
