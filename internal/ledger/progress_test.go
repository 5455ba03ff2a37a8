package ledger

import (
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the invariant written down naively: all transactions, all ends.
type model struct {
	commits []boundary
	ended   map[uint64]bool
	start   pglogrepl.LSN
}

func (m *model) position() pglogrepl.LSN {
	p := m.start
	for _, c := range m.commits {
		for tag := range c.before {
			if !m.ended[tag] {
				return p
			}
		}
		p = c.end
	}
	return p
}

func TestProgressIsTheContiguousPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewProgress(10)
		p.ended = make([]uint64, rapid.IntRange(1, 2).Draw(t, "words of the ring")) // it grows, with holes in it
		m := &model{start: 10, ended: map[uint64]bool{}}
		var inFlight []uint64
		next, lsn := uint64(0), pglogrepl.LSN(10)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1, 2:
				tag := p.Read()
				require.Equal(t, next, tag)
				inFlight = append(inFlight, tag)
				next++
			case 3:
				lsn += pglogrepl.LSN(rapid.IntRange(0, 3).Draw(t, "advance"))
				require.NoError(t, p.Commit(lsn, time.Unix(int64(lsn), 0)))
				m.commits = append(m.commits, boundary{before: next, end: lsn})
			default:
				if len(inFlight) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(inFlight)-1).Draw(t, "which")
				require.NoError(t, p.End(inFlight[i]))
				m.ended[inFlight[i]] = true
				inFlight = append(inFlight[:i], inFlight[i+1:]...)
			}
			require.Equal(t, m.position(), p.Position())
		}
	})
}

// The ring grows around what has ended behind a hole: each tag of it stays ended,
// wherever its bit lay.
func TestTheRingGrowsAroundAHole(t *testing.T) {
	for open := range uint64(130) {
		p := NewProgress(1)
		p.ended = make([]uint64, 1)
		for tag := range uint64(130) {
			require.Equal(t, tag, p.Read())
			if tag != open {
				require.NoError(t, p.End(tag))
			}
		}
		require.NoError(t, p.Commit(2, time.Time{}))
		require.EqualValues(t, 1, p.Position())
		require.Equal(t, 130-open, p.InFlight())
		for tag := range uint64(130) {
			if tag != open {
				require.Error(t, p.End(tag), "it has ended")
			}
		}
		require.NoError(t, p.End(open))
		require.EqualValues(t, 2, p.Position())
	}
}

func TestProgressEndsOnce(t *testing.T) {
	p := NewProgress(1)
	require.Error(t, p.End(0), "never read")
	first, second := p.Read(), p.Read()
	require.NoError(t, p.End(second))
	require.Error(t, p.End(second), "ended out of order, and again")
	require.NoError(t, p.End(first))
	require.Error(t, p.End(first), "below the prefix")
	require.Zero(t, p.InFlight())
}

func TestProgressRefusesToGoBackwards(t *testing.T) {
	p := NewProgress(100)
	require.Error(t, p.Commit(99, time.Time{}))
	p.Read()
	require.NoError(t, p.Commit(200, time.Time{}))
	require.Error(t, p.Commit(150, time.Time{}))
}

func TestProgressWaitsForTheWholeTransaction(t *testing.T) {
	p := NewProgress(100)
	a, b := p.Read(), p.Read()
	require.NoError(t, p.End(a))
	require.NoError(t, p.Commit(200, time.Unix(7, 0)))
	require.Equal(t, time.Unix(7, 0), p.Oldest())
	require.EqualValues(t, 100, p.Position())
	require.NoError(t, p.End(b))
	require.EqualValues(t, 200, p.Position())
	require.Equal(t, time.Unix(7, 0), p.Reached())
	require.Zero(t, p.Oldest())
}

func TestProgressCountsTransactionsAndNotEndsOfTheLog(t *testing.T) {
	p := NewProgress(1)
	require.NoError(t, p.Commit(5, time.Time{}))
	require.Zero(t, p.Transactions())
	a := p.Read()
	require.NoError(t, p.Commit(7, time.Unix(1, 0)))
	require.NoError(t, p.Commit(9, time.Time{}), "the end of the log joins the transaction's boundary")
	require.Zero(t, p.Transactions())
	require.NoError(t, p.End(a))
	require.EqualValues(t, 9, p.Position())
	require.EqualValues(t, 1, p.Transactions())
}

func TestProgressReachesAMarkerAfterEverythingBeforeIt(t *testing.T) {
	p := NewProgress(1)
	p.Mark(1)
	require.EqualValues(t, 1, p.Marked(), "nothing was read before it")
	a := p.Read()
	p.Mark(2)
	b := p.Read()
	require.NoError(t, p.End(b))
	require.EqualValues(t, 1, p.Marked())
	require.NoError(t, p.End(a))
	require.EqualValues(t, 2, p.Marked())
	require.EqualValues(t, 2, p.Events())
}

// A transaction is behind from its first item on: one that is half read is not
// invisible until its commit comes.
func TestProgressKnowsTheTransactionThatIsHalfRead(t *testing.T) {
	p := NewProgress(1)
	first, second := time.Unix(100, 0), time.Unix(200, 0)
	p.Open(first)
	a := p.Read()
	require.Equal(t, first, p.Oldest())
	require.NoError(t, p.End(a))
	require.Equal(t, first, p.Oldest(), "more of it may come")
	b := p.Read()
	require.NoError(t, p.Commit(10, first))
	p.Open(second)
	c := p.Read()
	require.Equal(t, first, p.Oldest(), "the oldest is the one that counts")
	require.NoError(t, p.End(b))
	require.Equal(t, second, p.Oldest())
	require.NoError(t, p.End(c))
	require.NoError(t, p.Commit(20, second))
	require.Zero(t, p.Oldest())
}

func TestProgressKeepsAMillionInFlight(t *testing.T) {
	p := NewProgress(1)
	const n = 1_000_000
	for range n {
		p.Read()
	}
	require.NoError(t, p.Commit(2, time.Time{}))
	for tag := uint64(n); tag > 0; tag-- {
		require.NoError(t, p.End(tag-1))
		if tag > 1 {
			require.EqualValues(t, 1, p.Position())
		}
	}
	require.EqualValues(t, 2, p.Position())
}

func BenchmarkProgress(b *testing.B) {
	p := NewProgress(1)
	for i := range b.N {
		tag := p.Read()
		_ = p.Commit(pglogrepl.LSN(i+2), time.Time{})
		_ = p.End(tag)
	}
	require.Zero(b, testing.AllocsPerRun(1000, func() {
		_ = p.End(p.Read())
	}))
}
