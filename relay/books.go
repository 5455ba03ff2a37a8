package relay

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

// books record what was read and what has ended. The pump reads; the sink's
// goroutine, or the pump, ends; the checkpoint's goroutine asks.
type books struct {
	nonce  uint64 // of the markers that are ours
	counts observer

	mu       sync.Mutex
	progress *ledger.Ledger
	owing    uint64          // read and not ended
	written  int64           // writes ever made, at the last mark
	asked    bool            // somebody asked for a published snapshot
	unseen   snapshot.Unseen // read since it was asked last
	err      error           // a tag that the sink reported twice
}

func newBooks(start *ledger.Checkpoint, nonce uint64, counts observer) *books {
	return &books{progress: ledger.New(start.Order, start.Reach), nonce: nonce, counts: counts}
}

// status is what the checkpoint and the metrics need to know.
type status struct {
	position pglogrepl.LSN
	oldest   time.Time // commit time of the oldest transaction in flight
	inFlight uint64    // read since the first that has not ended
	owing    uint64    // of them, those that have not
	events   uint64    // read since the start
	marked   uint64    // the last marker before which everything has ended

	transactions uint64       // that the position has passed
	reach        ledger.Reach // beside the position
	letters      int64        // writes ever made
	ends         [ledger.Ways]uint64
}

// status returns the present one, or the first error of the books.
func (b *books) status() (status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.look(), b.err
}

// look is status for who holds the lock.
func (b *books) look() status {
	return status{
		position: b.progress.Position(), oldest: b.progress.Oldest(), inFlight: b.progress.InFlight(), owing: b.owing,
		events: b.progress.Events(), marked: b.progress.Marked(), transactions: b.progress.Transactions(),
		reach: b.progress.Reach(), letters: b.written, ends: b.progress.Ends(),
	}
}

// end records that one step has ended, and how. What the books do not count is
// none of them.
func (b *books) end(tag uint64, how ledger.Way) error {
	if tag == noTag {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.close(tag, how)
}

// close is end for who holds the lock.
func (b *books) close(tag uint64, how ledger.Way) error {
	b.owing--
	if fault.Is(fault.ConfirmEarly) {
		return nil // it was ended when it was read
	}
	return b.progress.End(tag, how)
}

// note records an item that is no row. The caller holds the lock.
func (b *books) note(it *cdc.Item) error {
	switch it.Kind {
	case cdc.KindMarker:
		if it.Marker.Nonce == b.nonce {
			b.progress.Mark(it.Marker.ID)
		}
		return nil
	case cdc.KindAsk:
		b.asked = true
		return nil
	default:
		return b.progress.Commit(it.End, it.CommitTime)
	}
}

// takeAsk reports whether somebody asked for a published snapshot since the last
// call.
func (b *books) takeAsk() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := b.asked
	b.asked = false
	return asked
}

// noTag is the tag of an event that the books do not count: a letter of a retry,
// whose control has the tag.
const noTag = math.MaxUint64

// acknowledged is the callback of the idempotent sink.
func (b *books) acknowledged(tags []uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, tag := range tags {
		if tag == noTag {
			continue
		}
		n++
		if err := b.close(tag, ledger.Acknowledged); err != nil && b.err == nil {
			b.err = fmt.Errorf("count acknowledgements: %w", err)
		}
	}
	b.counts.published(n, b.progress.Reached())
}

// takeUnseen returns what was read since the last call.
func (b *books) takeUnseen() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unseen.Take()
}
