package memory

import (
	"math/bits"
	"sync"
	"time"
)

// Ages counts how old duplicates were when they came, for the advice on windows.
type Ages struct {
	mu sync.Mutex
	of map[AgeClass]AgeCount
}

// AgeClass is what is counted together.
type AgeClass struct {
	EventType string
	Log2      int16 // of whole seconds
}

// AgeCount is how many there were, and the greatest age.
type AgeCount struct {
	Seen   int64
	Oldest time.Duration
}

// Add counts one.
func (a *Ages) Add(eventType string, age time.Duration) {
	age = max(age, 0)
	a.Merge(map[AgeClass]AgeCount{{eventType, int16(max(bits.Len64(uint64(age/time.Second))-1, 0))}: {1, age}})
}

// Merge counts again what was taken.
func (a *Ages) Merge(of map[AgeClass]AgeCount) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = make(map[AgeClass]AgeCount)
	}
	for class, n := range of {
		known := a.of[class]
		a.of[class] = AgeCount{known.Seen + n.Seen, max(known.Oldest, n.Oldest)}
	}
}

// Take returns what was counted since the last call.
func (a *Ages) Take() map[AgeClass]AgeCount {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.of
	a.of = nil
	return of
}
