package memory

import (
	"sync"

	"github.com/google/uuid"
)

// maxBroken bounds the events of which breaks are remembered: some are finished by
// other members.
const maxBroken = 10_000

// Breaks counts per event how often its transaction broke. A break counts only when
// this process has finished another event since the last one that did: in an outage
// none is.
type Breaks struct {
	mu       sync.Mutex
	of       map[uuid.UUID]broken
	finished uint64 // events
}

type broken struct {
	times int
	at    uint64 // Breaks.finished at the last one
	owed  error  // a failure of the handler that is not counted in the database yet
}

// Finish is for an event that is finished.
func (b *Breaks) Finish(id uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished++
	delete(b.of, id)
}

// Forget begins anew with an event.
func (b *Breaks) Forget(id uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.of, id)
}

// Seen remembers that an event may have broken a transaction, and reports whether it
// may have before.
func (b *Breaks) Seen(id uuid.UUID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, ok := b.of[id]
	b.put(id, before)
	return ok
}

func (b *Breaks) put(id uuid.UUID, e broken) {
	if b.of == nil || len(b.of) >= maxBroken {
		b.of = make(map[uuid.UUID]broken)
	}
	b.of[id] = e
}

// Count counts a break of the transaction that an event had for itself. When there were
// more than most, the failure is owed, and returned; else nil is.
func (b *Breaks) Count(id uuid.UUID, most int, failure func(times int) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[id]
	counts := e.times == 0 || b.finished > e.at
	if counts {
		e.times, e.at = e.times+1, b.finished
	}
	var owed error
	if counts && e.times > most {
		owed = failure(e.times)
		e.owed = owed
	}
	b.put(id, e)
	return owed
}

// Debt returns the failure of an event that is to be counted, nil for none.
func (b *Breaks) Debt(id uuid.UUID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[id].owed
}

// Paid says that it is.
func (b *Breaks) Paid(id uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.of[id]; ok {
		e.owed = nil
		b.of[id] = e
	}
}
