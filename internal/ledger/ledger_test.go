package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// ledgerModel deals with a stream of items and with a release beside it, and
// keeps every fact apart: what was dealt with in which order, and what has ended.
type ledgerModel struct {
	ledger *Ledger
	dealt  []ledgerItem // by tag
	at     Reach        // of the pump
	end    uint64       // of the last commit
	events uint32       // of the transaction that is read
	marker uint64
	said   []moment // what was said of the stream, one after the other
	ends   [Ways]uint64
}

// moment is what is true of the stream once all that was dealt with before has ended.
type moment struct {
	dealt    int
	position uint64
	marker   uint64
	at       Reach
}

// says keeps what the ledger is told now.
func (m *ledgerModel) says(at Reach) {
	m.said = append(m.said, moment{len(m.dealt), m.end, m.marker, at})
}

// came is how far the pump had come when it said so last.
func (m *ledgerModel) came() Reach { return m.said[len(m.said)-1].at }

// ledgerItem is one item that was dealt with: of the stream, or of the release.
type ledgerItem struct {
	at    Place // of the stream; else zero
	from  Place // of the release: the cursor behind it
	ended bool
}

func (m *ledgerModel) read() {
	at := Place{Commit: pglogrepl.LSN(m.end + 1), Ordinal: m.events}
	m.events++
	m.ledger.Read()
	m.dealt = append(m.dealt, ledgerItem{at: at})
	m.at.UpTo = at.After()
}

func (m *ledgerModel) commit(t *rapid.T) {
	m.end += 10
	m.events = 0
	m.says(m.came())
	require.NoError(t, m.ledger.Commit(pglogrepl.LSN(m.end), time.Now()))
}

func (m *ledgerModel) mark() {
	m.marker++
	m.says(m.came())
	m.ledger.Mark(m.marker)
}

func (m *ledgerModel) cameTo() {
	m.says(m.at)
	m.ledger.CameTo(m.at)
}

func (m *ledgerModel) release() {
	m.at.Cursor.From = Place{Commit: m.at.Cursor.From.Commit + 1}
	m.ledger.Read()
	m.dealt = append(m.dealt, ledgerItem{from: m.at.Cursor.From})
}

func (m *ledgerModel) finish(t *rapid.T) {
	var open []int
	for i, it := range m.dealt {
		if !it.ended {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return
	}
	i := rapid.SampledFrom(open).Draw(t, "item")
	how := Way(rapid.IntRange(0, int(Ways)-1).Draw(t, "how"))
	require.NoError(t, m.ledger.End(uint64(i), how))
	require.Error(t, m.ledger.End(uint64(i), how), "once")
	m.dealt[i].ended = true
	m.ends[how]++
}

// check: a crash now would lose nothing. What the ledger says has ended, has; and
// it is one moment of the pump: nothing dealt with later has ended by it without
// all that was dealt with earlier.
func (m *ledgerModel) check(t *rapid.T) {
	c := Checkpoint{Order: m.ledger.Position(), Reach: m.ledger.Reach()}
	covered := func(it ledgerItem) bool {
		if it.from == (Place{}) {
			return c.Ended(it.at)
		}
		return !c.Cursor.From.Before(it.from)
	}
	hole := false
	for _, it := range m.dealt {
		hole = hole || !it.ended
		if hole {
			require.False(t, covered(it), "%+v is behind a hole, and covered", it)
		}
	}
	require.Equal(t, m.ends, m.ledger.ends)
	now := moment{int(m.ledger.Low()), uint64(m.ledger.Position()), m.ledger.Marked(), m.ledger.Reach()}
	require.True(t, slices.ContainsFunc(m.said, func(s moment) bool {
		return s.dealt <= now.dealt && s.position == now.position && s.marker == now.marker && s.at == now.at
	}), "position, marker and reach are of one moment: %+v of %+v", now, m.said)
	if !hole {
		m.cameTo()
		require.Equal(t, m.at, m.ledger.Reach(), "nothing is in flight")
		require.Zero(t, m.ledger.ahead.n)
	}
}

// Whatever ends in whatever order, and wherever the relay dies: the ledger covers
// what has ended and nothing else.
func TestTheLedgerCoversOnlyWhatHasEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &ledgerModel{ledger: New(100, Reach{}), end: 100, said: []moment{{position: 100}}}
		m.ledger.ahead.most = rapid.SampledFrom([]int{2, 8, maxMilestones}).Draw(t, "milestones")
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2:
				m.read()
			case 3:
				m.commit(t)
			case 4:
				m.release()
			case 5:
				m.mark()
			case 6:
				m.cameTo()
			default:
				m.finish(t)
			}
			before := m.ledger.Reach()
			m.check(t)
			require.False(t, m.ledger.Reach().UpTo.Before(before.UpTo), "it goes forward only")
			after := m.ledger.Reach()
			require.True(t, after.covers(before))
		}
	})
}

func TestMarksDoNotPileUp(t *testing.T) {
	l := New(100, Reach{})
	tag := l.Read()
	for i := range uint32(1000) {
		l.CameTo(Reach{UpTo: Place{Commit: 200, Ordinal: i}})
	}
	require.Equal(t, 1, l.ahead.n)
	require.NoError(t, l.End(tag, Waiting))
	require.Equal(t, Reach{UpTo: Place{Commit: 200, Ordinal: 999}}, l.Reach())
	require.Zero(t, l.ahead.n)
}

// What has ended at once says so before the marks that are ahead, and leaves the commits to come.
func TestEndedToIsFurtherThanTheMarksAhead(t *testing.T) {
	l := New(100, Reach{})
	tag := l.Read()
	require.NoError(t, l.Commit(200, time.Time{}))
	l.CameTo(Reach{Release: 1})
	l.EndedTo(Reach{Release: 2})
	require.Equal(t, Reach{Release: 2}, l.Reach())
	require.EqualValues(t, 100, l.Position())
	require.NoError(t, l.End(tag, Waiting))
	require.Equal(t, Reach{Release: 2}, l.Reach())
	require.EqualValues(t, 200, l.Position())
}
