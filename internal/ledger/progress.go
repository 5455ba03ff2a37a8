package ledger

import (
	"fmt"
	"math/bits"
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
// ends of the log with nothing in flight), contiguous and monotone. Behind an event
// that does not end for long they advance in larger steps, so that it costs no memory.
//
// Events get tags in the order in which they were read: 0, 1, 2, … Ends arrive
// in any order, because topics and partitions acknowledge on their own. Only
// the prefix of tags without a hole counts.
type Progress struct {
	next    uint64        // tag of the next event to be read
	low     uint64        // every tag below it has ended
	pages   []*page       // of the tags low … next-1; nil: all of it has ended
	spare   *page         // to be used again
	ahead   milestones    // ends of transactions, markers, and how far the pump had come
	reached milestone     // all of those that were: the invariant holds for its end
	end     pglogrepl.LSN // of the last transaction that was read
	open    time.Time     // commit time of the transaction that is being read, once it was opened
	opened  bool
}

// page says of some tags in a row which have ended.
type page struct {
	ended [pageTags / 64]uint64 // a bit each
	count int                   // that have
}

const pageTags = 4096

// NewProgress starts at a position up to which everything has ended.
func NewProgress(position pglogrepl.LSN) *Progress {
	return &Progress{reached: milestone{end: position}, end: position, ahead: milestones{most: maxMilestones}}
}

// Open records that the items read from now on are of a transaction that was
// committed at that time, until the next Commit.
func (p *Progress) Open(at time.Time) { p.open, p.opened = at, true }

// Read records that the next event was read, and returns its tag.
func (p *Progress) Read() uint64 {
	tag := p.next
	if tag%pageTags == 0 {
		if p.spare == nil {
			p.spare = new(page)
		}
		p.pages, p.spare = append(p.pages, p.spare), nil
	}
	p.next++
	return tag
}

// Commit records that the transaction of the events read since the last Commit
// ends at the given commit end LSN. A transaction of which nothing was opened, and
// the end of the log between two transactions, move the position and nothing else.
func (p *Progress) Commit(end pglogrepl.LSN, at time.Time) error {
	if end < p.end {
		return fmt.Errorf("commit end %s comes after %s: the stream went backwards", end, p.end)
	}
	p.end = end
	next := milestone{before: p.next, end: end}
	if p.opened {
		next.oldest, next.count = at.UnixNano(), 1
	}
	p.open, p.opened = time.Time{}, false
	p.ahead.push(&next)
	p.advance()
	return nil
}

// End records that the event with the tag has ended. To end an event twice, or
// one that was never read, is an error: the caller has lost count.
func (p *Progress) End(tag uint64) error {
	if tag < p.low || tag >= p.next || p.hasEnded(tag) {
		return fmt.Errorf("event %d ended, but it is not in flight (in flight: %d to %d)", tag, p.low, p.next)
	}
	at := p.pageOf(tag)
	now := *at
	now.ended[tag%pageTags/64] |= 1 << (tag % 64)
	if now.count++; now.count == pageTags {
		*now = page{}
		*at, p.spare = nil, now
	}
	if tag == p.low {
		p.rise()
	}
	return nil
}

// rise moves low to the first tag that has not ended.
func (p *Progress) rise() {
	for p.low < p.next {
		first := p.pages[0]
		if first == nil {
			p.low = (p.low/pageTags + 1) * pageTags
			p.pages = p.pages[1:]
			continue
		}
		n := bits.TrailingZeros64(^(first.ended[p.low%pageTags/64] >> (p.low % 64)))
		if n == 0 {
			break
		}
		p.low += uint64(n)
	}
	p.advance()
}

// Mark records that the marker with the id was read now. Ids grow.
func (p *Progress) Mark(id uint64) {
	p.ahead.push(&milestone{before: p.next, marker: id})
	p.advance()
}

// Marked returns the id of the last marker that was read and before which
// everything has ended; 0 when there is none.
func (p *Progress) Marked() uint64 { return p.reached.marker }

// CameTo records how far the pump has come now.
func (p *Progress) CameTo(at Reach) {
	p.ahead.push(&milestone{before: p.next, reach: at, came: true})
	p.advance()
}

// EndedTo records how far the pump has come, all of which has ended.
func (p *Progress) EndedTo(at Reach) {
	for i := range p.ahead.n {
		p.ahead.at(i).came = false
	}
	p.reached.reach = at
}

// Reach returns how far everything has ended, beside the position.
func (p *Progress) Reach() Reach { return p.reached.reach }

// Low is the first tag that has not ended.
func (p *Progress) Low() uint64 { return p.low }

// Events returns how many events were read since the start.
func (p *Progress) Events() uint64 { return p.next }

// Position returns the highest position that may be checkpointed.
func (p *Progress) Position() pglogrepl.LSN { return p.reached.end }

// InFlight returns how many events were read since the first that has not
// ended.
func (p *Progress) InFlight() uint64 { return p.next - p.low }

// Transactions returns how many transactions with items the position has passed.
func (p *Progress) Transactions() uint64 { return p.reached.count }

// Oldest returns the commit time of the oldest transaction that was read, whole
// or in part, and has not ended; zero when there is none. One that was read in
// part has not ended whatever became of its items.
func (p *Progress) Oldest() time.Time {
	for i := range p.ahead.n {
		if m := p.ahead.at(i); m.count > 0 {
			return time.Unix(0, m.oldest)
		}
	}
	return p.open
}

func (p *Progress) advance() {
	for p.ahead.reached(p.low) {
		p.reached.join(p.ahead.pop())
	}
}

func (p *Progress) pageOf(tag uint64) **page { return &p.pages[tag/pageTags-p.low/pageTags] }

func (p *Progress) hasEnded(tag uint64) bool {
	now := *p.pageOf(tag)
	return now == nil || now.ended[tag%pageTags/64]&(1<<(tag%64)) != 0
}
