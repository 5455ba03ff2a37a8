package ledger

import (
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// Progress decides which position may be checkpointed. It is pure: no clock, no
// connection, no goroutine; the caller serialises the calls.
//
// The invariant: a position P is returned by Position only if every event of
// every transaction with commit end <= P has ended, where ended means
// acknowledged by Kafka, kept as a dead letter by a committed transaction, or
// skipped by a recorded decision of an operator. Positions are commit ends (or
// ends of the log with nothing in flight), contiguous and monotone.
//
// Events get tags in the order in which they were read: 0, 1, 2, … Ends arrive
// in any order, because topics and partitions acknowledge on their own. Only
// the prefix of tags without a hole counts.
type Progress struct {
	position pglogrepl.LSN // the invariant holds for it
	reached  time.Time     // commit time of the last transaction that ends by there
	count    uint64        // of the transactions that end by there
	next     uint64        // tag of the next event to be read
	low      uint64        // every tag below it has ended
	ended    []uint64      // ring of bits for the tags low … next-1
	commits  ring[boundary]
	open     time.Time // commit time of the transaction that is being read; zero between two
	marks    ring[marker]
	marked   uint64 // id of the last mark that was reached
}

// marker is a place in the stream: reached when every tag below before has ended.
type marker struct {
	before uint64
	id     uint64
}

// boundary is the end of a transaction: reached when every tag below before has
// ended.
type boundary struct {
	before uint64
	end    pglogrepl.LSN
	at     time.Time // commit time; zero for the end of the log
}

// NewProgress starts at a position up to which everything has ended.
func NewProgress(position pglogrepl.LSN) *Progress {
	return &Progress{position: position, ended: make([]uint64, 16)}
}

// Open records that the items read from now on are of a transaction that was
// committed at that time, until the next Commit.
func (p *Progress) Open(at time.Time) { p.open = at }

// Read records that the next event was read, and returns its tag.
func (p *Progress) Read() uint64 {
	tag := p.next
	if p.next-p.low >= uint64(len(p.ended))*64 {
		p.grow()
	}
	p.next++
	return tag
}

// Commit records that the transaction of the events read since the last Commit
// ends at the given commit end LSN. A transaction without events, and the end
// of the log between two transactions, are recorded in the same way, the latter
// with a zero time.
func (p *Progress) Commit(end pglogrepl.LSN, at time.Time) error {
	p.open = time.Time{}
	last := p.position
	if n := p.commits.len(); n > 0 {
		last = p.commits.at(n - 1).end
	}
	if end < last {
		return fmt.Errorf("commit end %s comes after %s: the stream went backwards", end, last)
	}
	if n := p.commits.len(); n > 0 && p.commits.at(n-1).before == p.next {
		last := p.commits.at(n - 1) // no event in between: one boundary serves both
		last.end = end
		if !at.IsZero() {
			last.at = at
		}
	} else {
		p.commits.push(boundary{before: p.next, end: end, at: at})
	}
	p.advance()
	return nil
}

// End records that the event with the tag has ended. To end an event twice, or
// one that was never read, is an error: the caller has lost count.
func (p *Progress) End(tag uint64) error {
	if tag < p.low || tag >= p.next || p.bit(tag) {
		return fmt.Errorf("event %d ended, but it is not in flight (in flight: %d to %d)", tag, p.low, p.next)
	}
	i := tag % (uint64(len(p.ended)) * 64)
	p.ended[i/64] |= 1 << (i % 64)
	if tag != p.low {
		return nil
	}
	for p.low < p.next && p.bit(p.low) {
		i := p.low % (uint64(len(p.ended)) * 64)
		p.ended[i/64] &^= 1 << (i % 64)
		p.low++
	}
	p.advance()
	return nil
}

// Mark records that the marker with the id was read now. Ids grow.
func (p *Progress) Mark(id uint64) {
	p.marks.push(marker{before: p.next, id: id})
	p.advance()
}

// Marked returns the id of the last marker that was read and before which
// everything has ended; 0 when there is none.
func (p *Progress) Marked() uint64 { return p.marked }

// Events returns how many events were read since the start.
func (p *Progress) Events() uint64 { return p.next }

// Position returns the highest position that may be checkpointed.
func (p *Progress) Position() pglogrepl.LSN { return p.position }

// InFlight returns how many events were read since the first that has not
// ended.
func (p *Progress) InFlight() uint64 { return p.next - p.low }

// Reached returns the commit time of the last transaction that ended with
// events in it, by the server's clock; zero before the first.
func (p *Progress) Reached() time.Time { return p.reached }

// Transactions returns how many transactions the position has passed, ends of
// the log not counted.
func (p *Progress) Transactions() uint64 { return p.count }

// Oldest returns the commit time of the oldest transaction that was read, whole
// or in part, and has not ended; zero when there is none. One that was read in
// part has not ended whatever became of its items.
func (p *Progress) Oldest() time.Time {
	if p.commits.len() == 0 {
		return p.open
	}
	return p.commits.at(0).at
}

func (p *Progress) advance() {
	for p.commits.len() > 0 && p.commits.at(0).before <= p.low {
		first := p.commits.at(0)
		p.position = first.end
		if !first.at.IsZero() {
			p.reached = first.at
			p.count++
		}
		p.commits.pop()
	}
	for p.marks.len() > 0 && p.marks.at(0).before <= p.low {
		p.marked = p.marks.at(0).id
		p.marks.pop()
	}
}

func (p *Progress) bit(tag uint64) bool {
	i := tag % (uint64(len(p.ended)) * 64)
	return p.ended[i/64]&(1<<(i%64)) != 0
}

// grow doubles the ring of bits; a bit's place depends on the ring's size.
func (p *Progress) grow() {
	old := *p
	p.ended = make([]uint64, 2*len(old.ended))
	for tag := p.low; tag < p.next; tag++ {
		if old.bit(tag) {
			i := tag % (uint64(len(p.ended)) * 64)
			p.ended[i/64] |= 1 << (i % 64)
		}
	}
}

// ring is a queue that reuses its memory.
type ring[T any] struct {
	buf  []T
	head int
	n    int
}

func (r *ring[T]) len() int { return r.n }

func (r *ring[T]) at(i int) *T { return &r.buf[(r.head+i)%len(r.buf)] }

func (r *ring[T]) push(v T) {
	if r.n == len(r.buf) {
		bigger := make([]T, max(16, 2*len(r.buf)))
		for i := range r.n {
			bigger[i] = *r.at(i)
		}
		r.buf, r.head = bigger, 0
	}
	r.n++
	*r.at(r.n - 1) = v
}

func (r *ring[T]) pop() {
	r.head = (r.head + 1) % len(r.buf)
	r.n--
}
