package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the invariant written down naively: all transactions, all ends.
type model struct {
	commits []transaction
	ended   map[uint64]bool
	start   pglogrepl.LSN
}

type transaction struct {
	before uint64 // tag of the first event behind it
	end    pglogrepl.LSN
	events int
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

// check: the position is that of the model, or behind it, at a commit's end, where
// neighbours were joined; all else is true of it.
func (m *model) check(t *rapid.T, p *Progress, thinned, open bool) {
	if want := m.position(); !thinned || p.InFlight() == 0 {
		require.Equal(t, want, p.Position())
	} else {
		require.LessOrEqual(t, p.Position(), want)
	}
	ends := map[pglogrepl.LSN]bool{m.start: true}
	var oldest time.Time
	count := uint64(0)
	for i, c := range m.commits {
		ends[c.end] = true
		at := time.Unix(int64(i+1), 0)
		switch {
		case c.events == 0:
		case c.end <= p.Position():
			count++
		case oldest.IsZero():
			oldest = at
		}
	}
	if open && oldest.IsZero() {
		oldest = time.Unix(int64(len(m.commits)+1), 0)
	}
	require.True(t, ends[p.Position()])
	require.Equal(t, count, p.Transactions())
	require.Equal(t, oldest, p.Oldest())
}

func TestProgressIsTheContiguousPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewProgress(10)
		p.ahead.most = rapid.SampledFrom([]int{2, 3, 8, maxMilestones}).Draw(t, "milestones")
		m := &model{start: 10, ended: map[uint64]bool{}}
		var inFlight []uint64
		next, lsn, events := uint64(0), pglogrepl.LSN(10), 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now := time.Unix(int64(len(m.commits)+1), 0)
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1, 2:
				if rapid.IntRange(0, 4).Draw(t, "of a release") > 0 {
					p.Open(now)
					events++
				}
				tag := p.Read()
				require.Equal(t, next, tag)
				inFlight = append(inFlight, tag)
				next++
			case 3:
				lsn += pglogrepl.LSN(rapid.IntRange(1, 3).Draw(t, "advance"))
				require.NoError(t, p.Commit(lsn, now))
				m.commits = append(m.commits, transaction{before: next, end: lsn, events: events})
				events = 0
			default:
				if len(inFlight) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(inFlight)-1).Draw(t, "which")
				require.NoError(t, p.End(inFlight[i]))
				m.ended[inFlight[i]] = true
				inFlight = append(inFlight[:i], inFlight[i+1:]...)
			}
			m.check(t, p, p.ahead.most < maxMilestones, events > 0)
			require.LessOrEqual(t, p.ahead.n, p.ahead.most)
		}
	})
}

// Each tag ends once, whatever page it is on and wherever the hole is; pages of which
// all has ended cost nothing.
func TestTagsEndOnceAroundAHole(t *testing.T) {
	const n = 3*pageTags + 7
	for _, open := range []uint64{0, 1, 63, 64, pageTags - 1, pageTags, 2*pageTags + 70, n - 1} {
		p := NewProgress(1)
		for tag := range uint64(n) {
			require.Equal(t, tag, p.Read())
			if tag != open {
				require.NoError(t, p.End(tag))
			}
		}
		require.NoError(t, p.Commit(2, time.Time{}))
		require.EqualValues(t, 1, p.Position())
		require.Equal(t, n-open, p.InFlight())
		kept := 0
		for _, of := range p.pages {
			if of != nil {
				kept++
			}
		}
		require.LessOrEqual(t, kept, 2)
		for tag := range uint64(n) {
			if tag != open && p.End(tag) == nil {
				require.Fail(t, "it has ended", "tag %d", tag)
			}
		}
		require.NoError(t, p.End(open))
		require.EqualValues(t, 2, p.Position())
		require.LessOrEqual(t, len(p.pages), 1)
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
	p.Open(time.Unix(7, 0))
	a, b := p.Read(), p.Read()
	require.NoError(t, p.End(a))
	require.NoError(t, p.Commit(200, time.Unix(7, 0)))
	require.Equal(t, time.Unix(7, 0), p.Oldest())
	require.EqualValues(t, 100, p.Position())
	require.NoError(t, p.End(b))
	require.EqualValues(t, 200, p.Position())
	require.Zero(t, p.Oldest())
}

func TestProgressCountsTransactionsAndNotEndsOfTheLog(t *testing.T) {
	p := NewProgress(1)
	require.NoError(t, p.Commit(5, time.Time{}))
	require.Zero(t, p.Transactions())
	p.Open(time.Unix(1, 0))
	a := p.Read()
	require.NoError(t, p.Commit(7, time.Unix(1, 0)))
	require.NoError(t, p.Commit(9, time.Time{}), "the end of the log joins the transaction's boundary")
	require.Zero(t, p.Transactions())
	require.NoError(t, p.End(a))
	require.EqualValues(t, 9, p.Position())
	require.EqualValues(t, 1, p.Transactions())
}

// Transactions without events, of which others may write any number, move the position
// and nothing else: what is stuck is as old as it is, and nothing asks for a checkpoint.
func TestTransactionsWithoutEventsMoveThePositionOnly(t *testing.T) {
	p := NewProgress(1)
	first, others := time.Unix(100, 0), time.Unix(200, 0)
	require.NoError(t, p.Commit(5, others))
	require.EqualValues(t, 5, p.Position())
	require.Zero(t, p.Transactions())
	p.Open(first)
	a := p.Read()
	require.NoError(t, p.Commit(10, first))
	require.NoError(t, p.Commit(20, others))
	require.Equal(t, first, p.Oldest())
	require.NoError(t, p.End(a))
	require.EqualValues(t, 20, p.Position())
	require.EqualValues(t, 1, p.Transactions())

	released := p.Read() // of no transaction
	require.NoError(t, p.Commit(30, others))
	require.Zero(t, p.Oldest())
	p.Open(first)
	b := p.Read()
	require.NoError(t, p.Commit(40, first))
	require.Equal(t, first, p.Oldest(), "behind an item that is of no transaction")
	require.NoError(t, p.End(b))
	require.NoError(t, p.End(released))
	require.EqualValues(t, 2, p.Transactions())
}

// One partition that takes nothing while the others flow costs no memory: behind it
// the position advances in larger steps, and what is counted stays right.
func TestTheLedgerIsBoundedBehindAHole(t *testing.T) {
	l := New(1, Reach{})
	stuck := []uint64{0, 100_000}
	const n = 200_000
	for i := range uint64(n) {
		l.Open(time.Unix(int64(i), 0))
		tag := l.Read()
		end := pglogrepl.LSN(10 * (i + 1))
		require.NoError(t, l.Commit(end, time.Unix(int64(i), 0)))
		l.CameTo(Reach{UpTo: Place{Commit: end}})
		if !slices.Contains(stuck, tag) {
			require.NoError(t, l.End(tag, Acknowledged))
		}
	}
	require.LessOrEqual(t, len(l.ahead.ring), maxMilestones)
	require.Equal(t, time.Unix(0, 0), l.Oldest())
	require.EqualValues(t, 1, l.Position())

	require.NoError(t, l.End(stuck[0], Acknowledged))
	require.Less(t, l.Position(), pglogrepl.LSN(10*(stuck[1]+1)), "the second is not in it")
	require.Greater(t, l.Position(), pglogrepl.LSN(10*(stuck[1]-n/100)))
	require.Equal(t, Place{Commit: l.Position()}, l.Reach().UpTo)
	require.EqualValues(t, l.Position()/10, l.Transactions())
	require.Equal(t, time.Unix(int64(l.Transactions()), 0), l.Oldest())

	require.NoError(t, l.End(stuck[1], Acknowledged))
	require.EqualValues(t, 10*n, l.Position())
	require.Equal(t, Place{Commit: 10 * n}, l.Reach().UpTo)
	require.EqualValues(t, n, l.Transactions())
	require.Zero(t, l.Oldest())
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
