package memory

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// ErrClock: clocks differ so much that events seem to come from the future. They
// wait, and none becomes a dead letter, until the clock is right or their time has
// come; the error says whose clock it is.
var ErrClock = errors.New("clocks differ")

// FutureLetters is how many more events from the future than others a process makes
// dead letters of: one producer whose clock is wrong, and no more.
const FutureLetters = 100

// Clocks are what an event from the future is seen by.
type Clocks struct {
	Event, Database, Process time.Time
	Skew                     time.Duration
}

// databaseBehind reports whether it is the database's clock that is wrong: by this
// process's, which agrees with the producer's, the event's time has come. It is
// pure.
func (c Clocks) databaseBehind() bool {
	return c.Process.Sub(c.Database) > c.Skew/2 && !c.Event.After(c.Process.Add(c.Skew))
}

// Refusal says why the event waits, nil when it may become a dead letter. full: so
// many have. It is pure.
func (c Clocks) Refusal(full bool) error {
	at := c.Event.UTC().Format(time.RFC3339)
	switch {
	case c.databaseBehind():
		return fmt.Errorf("%w: that of the database is %s behind this program's, by which the event time %s has come; set the database server's clock (NTP); events wait until then",
			ErrClock, c.Process.Sub(c.Database).Round(time.Second), at)
	case full:
		return fmt.Errorf("%w: the event time %s lies %s ahead of the database's clock and %s ahead of this program's, as did most events before it, of which %d became dead letters; "+
			"look at the producer's clock; events wait until their time has come",
			ErrClock, at, c.Event.Sub(c.Database).Round(time.Second), c.Event.Sub(c.Process).Round(time.Second),
			FutureLetters)
	}
	return nil
}

// Brake counts by how many more events were from the future than were applied.
type Brake struct{ level atomic.Int64 }

// Full reports whether no more may become dead letters.
func (b *Brake) Full() bool { return b.level.Load() >= FutureLetters }

// Letter counts one that became a dead letter.
func (b *Brake) Letter() { b.level.Add(1) }

// Applied counts one that was applied.
func (b *Brake) Applied() {
	for level := b.level.Load(); level > 0; level = b.level.Load() {
		if b.level.CompareAndSwap(level, level-1) {
			return
		}
	}
}
