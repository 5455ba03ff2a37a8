package ledger

import "github.com/jackc/pglogrepl"

// milestone is a place in the stream that is reached once every tag below it has ended,
// and what is true from then on: of one thing that was read there, or of several that
// are reached together.
type milestone struct {
	before uint64 // the first tag that need not have ended

	end    pglogrepl.LSN // of the last transaction; 0: of none
	count  uint64        // of those with items
	oldest int64         // commit time of the first of those, in Unix nanoseconds
	marker uint64        // id of the last one; 0: there is none
	reach  Reach         // how far the pump had come
	came   bool          // it said so
}

// join has m be reached with the next one.
func (m *milestone) join(next *milestone) {
	m.before = next.before
	if next.end > 0 {
		m.end = next.end
	}
	if m.count == 0 {
		m.oldest = next.oldest
	}
	m.count += next.count
	if next.marker > 0 {
		m.marker = next.marker
	}
	if next.came {
		m.reach, m.came = next.reach, true
	}
}

// milestones are those ahead, in their order. They are bounded: behind a tag that does
// not end for long, neighbours are joined. All that is said of the stream is in the same
// ones, so that nothing is reached without what came before it. Their memory is used again.
type milestones struct {
	most int

	ring []milestone // its length is a power of two
	head int
	n    int
}

// maxMilestones is far more than there are while all partitions take what they get.
const maxMilestones = 4096

func (m *milestones) at(i int) *milestone { return &m.ring[(m.head+i)&(len(m.ring)-1)] }

// push adds one behind the others, none of which is further.
func (m *milestones) push(next *milestone) {
	if m.n > 0 {
		if last := m.at(m.n - 1); last.before == next.before {
			last.join(next) // no tag in between
			return
		}
	}
	if m.n == m.most {
		m.thin()
	}
	if m.n == len(m.ring) {
		bigger := make([]milestone, max(16, 2*len(m.ring)))
		for i := range m.n {
			bigger[i] = *m.at(i)
		}
		m.ring, m.head = bigger, 0
	}
	m.n++
	*m.at(m.n - 1) = *next
}

// reached reports whether the first is, with every tag below low.
func (m *milestones) reached(low uint64) bool { return m.n > 0 && m.ring[m.head].before <= low }

// pop takes off the first, which is valid until the next push.
func (m *milestones) pop() *milestone {
	first := &m.ring[m.head]
	m.head = (m.head + 1) & (len(m.ring) - 1)
	m.n--
	return first
}

// thin leaves half of them at most, about as far from each other everywhere.
func (m *milestones) thin() {
	from := m.at(0).before
	width := 2 * (m.at(m.n-1).before - from) / uint64(m.n)
	kept := 0
	for i := 1; i < m.n; i++ {
		next := m.at(i)
		if next.before-from <= width {
			m.at(kept).join(next)
			continue
		}
		from = next.before
		kept++
		*m.at(kept) = *next
	}
	m.n = kept + 1
}
