package stream

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/relay/internal/snapshot"
)

// progress record what was read and what has ended. The pump reads; the sink's
// goroutine, or the pump, ends; the checkpoint's goroutine asks.
type progress struct {
	nonce    uint64 // of the markers that are ours
	counts   Observer
	answered chan struct{} // Kafka has acknowledged letters

	mu      sync.Mutex
	ledger  *ledger.Ledger
	owing   uint64          // read and not ended
	letters int             // of retries, handed over and not acknowledged
	written int64           // writes ever made, at the last mark
	asked   bool            // somebody asked for a published snapshot
	unseen  snapshot.Unseen // read since it was asked last
	err     error           // a tag that the sink reported twice
}

func newProgress(start *ledger.Checkpoint, nonce uint64, counts Observer) *progress {
	return &progress{ledger: ledger.New(start.Order, start.Reach), nonce: nonce, counts: counts,
		answered: make(chan struct{}, 1)}
}

// Status is what the checkpoint and the metrics need to know.
type Status struct {
	Position pglogrepl.LSN
	Oldest   time.Time // commit time of the oldest transaction in flight
	InFlight uint64    // read since the first that has not ended
	Owing    uint64    // of them, those that have not
	Events   uint64    // read since the start
	Marked   uint64    // the last marker before which everything has ended

	Transactions uint64       // that the position has passed
	Reach        ledger.Reach // beside the position
	Letters      int64        // writes ever made
	Ends         [ledger.Ways]uint64
}

// status returns the present one, or the first error.
func (b *progress) status() (Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.look(), b.err
}

// look is status for who holds the lock.
func (b *progress) look() Status {
	return Status{
		Position: b.ledger.Position(), Oldest: b.ledger.Oldest(), InFlight: b.ledger.InFlight(), Owing: b.owing,
		Events: b.ledger.Events(), Marked: b.ledger.Marked(), Transactions: b.ledger.Transactions(),
		Reach: b.ledger.Reach(), Letters: b.written, Ends: b.ledger.Ends(),
	}
}

// end records that one step has ended, and how. What is not counted is
// none of them.
func (b *progress) end(tag uint64, how ledger.Way) error {
	if tag == noTag {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.close(tag, how)
}

// close is end for who holds the lock.
func (b *progress) close(tag uint64, how ledger.Way) error {
	b.owing--
	if fault.Is(fault.ConfirmEarly) {
		return nil // it was ended when it was read
	}
	return b.ledger.End(tag, how)
}

// note records an item that is no row. The caller holds the lock.
func (b *progress) note(it *cdc.Item) error {
	switch it.Kind {
	case cdc.KindMarker:
		if it.Marker.Nonce == b.nonce {
			b.ledger.Mark(it.Marker.ID)
		}
		return nil
	case cdc.KindAsk:
		b.asked = true
		return nil
	default:
		return b.ledger.Commit(it.End, it.CommitTime)
	}
}

// TakeAsk reports whether somebody asked for a published snapshot since the last
// call.
func (b *progress) TakeAsk() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := b.asked
	b.asked = false
	return asked
}

// noTag is the tag of an event that the progress does not count: a letter of a retry,
// whose control has the tag.
const noTag = math.MaxUint64

// acknowledged ends what Kafka has acknowledged: events, and letters of retries.
func (b *progress) acknowledged(tags []uint64) (events, letters int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, tag := range tags {
		if tag == noTag {
			letters++
			continue
		}
		events++
		if err := b.close(tag, ledger.Acknowledged); err != nil && b.err == nil {
			b.err = fmt.Errorf("count acknowledgements: %w", err)
		}
	}
	if letters > 0 {
		b.letters -= letters
		select {
		case b.answered <- struct{}{}:
		default:
		}
	}
	return events, letters
}

// owe notes that letters were handed over, and returns how many are not acknowledged.
// An acknowledgement may come first.
func (b *progress) owe(letters int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.letters += letters
	return b.letters
}

// TakeUnseen returns what was read since the last call.
func (b *progress) TakeUnseen() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unseen.Take()
}
