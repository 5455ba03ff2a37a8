package consumer

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/outbox"
)

// ErrClock: clocks differ so much that events seem to come from the future. They
// wait, and none becomes a dead letter, until the clock is right or their time has
// come; the error says whose clock it is.
var ErrClock = errors.New("clocks differ")

// futureLetters is how many more events from the future than others a process makes
// dead letters of: one producer whose clock is wrong, and no more.
const futureLetters = 100

// clocks are what an event from the future is seen by.
type clocks struct {
	event, database, process time.Time
	skew                     time.Duration
}

// databaseBehind reports whether it is the database's clock that is wrong: by this
// process's, which agrees with the producer's, the event's time has come. It is
// pure.
func (c clocks) databaseBehind() bool {
	return c.process.Sub(c.database) > c.skew/2 && !c.event.After(c.process.Add(c.skew))
}

// refusal says why the event waits, nil when it may become a dead letter. full: so
// many have. It is pure.
func (c clocks) refusal(full bool) error {
	at := c.event.UTC().Format(time.RFC3339)
	switch {
	case c.databaseBehind():
		return fmt.Errorf("%w: that of the database is %s behind this program's, by which the event time %s has come; set the database server's clock (NTP); events wait until then",
			ErrClock, c.process.Sub(c.database).Round(time.Second), at)
	case full:
		return fmt.Errorf("%w: the event time %s lies %s ahead of the database's clock and %s ahead of this program's, as did most events before it, of which %d became dead letters; "+
			"look at the producer's clock; events wait until their time has come",
			ErrClock, at, c.event.Sub(c.database).Round(time.Second), c.event.Sub(c.process).Round(time.Second), futureLetters)
	}
	return nil
}

// brake counts by how many more events were from the future than were applied.
// Safe for concurrent use.
type brake struct{ level atomic.Int64 }

func (b *brake) full() bool { return b.level.Load() >= futureLetters }

// letter counts one that became a dead letter.
func (b *brake) letter() { b.level.Add(1) }

// applied counts one that was applied.
func (b *brake) applied() {
	for level := b.level.Load(); level > 0; level = b.level.Load() {
		if b.level.CompareAndSwap(level, level-1) {
			return
		}
	}
}

// fromFuture refuses to make a dead letter of an event whose time would have come,
// were all clocks right.
func (p *Processor) fromFuture(it *item) error {
	c := clocks{event: outbox.IDTime(it.id), database: p.windows.now(), process: p.clock(), skew: p.windows.skew}
	if err := c.refusal(p.brake.full()); err != nil {
		return &infrastructureError{err}
	}
	return nil
}
