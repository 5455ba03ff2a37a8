package ledger

// milestones are places in the stream that are reached once every tag below them has
// ended, in their order. They are bounded: behind a tag that does not end for long,
// neighbours are joined, and are reached with the later one. Their memory is used again.
type milestones[T any] struct {
	join func(earlier, later T) T
	most int

	ring []milestone[T] // its length is a power of two
	head int
	n    int
}

type milestone[T any] struct {
	before uint64 // the first tag that need not have ended
	is     T
}

// maxMilestones is far more than there are while all partitions take what they get.
const maxMilestones = 4096

func newMilestones[T any](join func(earlier, later T) T) milestones[T] {
	return milestones[T]{join: join, most: maxMilestones}
}

func (m *milestones[T]) at(i int) *milestone[T] { return &m.ring[(m.head+i)&(len(m.ring)-1)] }

// last returns the last one; nil when there is none.
func (m *milestones[T]) last() *milestone[T] {
	if m.n == 0 {
		return nil
	}
	return m.at(m.n - 1)
}

// push adds one behind the others, none of which is further.
func (m *milestones[T]) push(before uint64, is T) {
	if last := m.last(); last != nil && last.before == before {
		last.is = m.join(last.is, is) // no tag in between: one serves both
		return
	}
	if m.n == m.most {
		m.thin()
	}
	if m.n == len(m.ring) {
		bigger := make([]milestone[T], max(16, 2*len(m.ring)))
		for i := range m.n {
			bigger[i] = *m.at(i)
		}
		m.ring, m.head = bigger, 0
	}
	m.n++
	*m.at(m.n - 1) = milestone[T]{before, is}
}

// reached reports whether the first is, with every tag below low.
func (m *milestones[T]) reached(low uint64) bool { return m.n > 0 && m.ring[m.head].before <= low }

// pop takes off the first; what it returns is valid until the next push.
func (m *milestones[T]) pop() *T {
	first := &m.ring[m.head].is
	m.head = (m.head + 1) & (len(m.ring) - 1)
	m.n--
	return first
}

// thin leaves half of them at most, about as far from each other everywhere.
func (m *milestones[T]) thin() {
	from := m.at(0).before
	width := 2 * (m.last().before - from) / uint64(m.n)
	kept := 0
	for i := 1; i < m.n; i++ {
		next := *m.at(i)
		if next.before-from <= width {
			next.is = m.join(m.at(kept).is, next.is)
		} else {
			from = next.before
			kept++
		}
		*m.at(kept) = next
	}
	m.n = kept + 1
}
