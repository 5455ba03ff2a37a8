package produce

import (
	"sync"
	"time"
)

// intake is where records are left for the loop. Both sides take its lock for
// moments only, and the loop is woken once for many records.
type intake struct {
	wake chan struct{} // of capacity 1: there is something to look at

	mu          sync.Mutex
	first, last *Record
	bytes       int
	producer    Producer
	more        bool          // something comes together with the last
	late        time.Duration // of the last
	awaited     bool          // the loop comes by itself, unless it becomes too much
	gathered    bool          // or what came together is there
}

func newIntake() *intake { return &intake{wake: make(chan struct{}, 1)} }

// put hands a record over.
func (in *intake) put(r *Record) {
	in.mu.Lock()
	empty, before := in.first == nil, in.bytes
	if empty {
		in.first = r
	} else {
		in.last.next = r
	}
	in.last = r
	in.bytes += r.Bytes
	in.more, in.late = r.More, r.Late
	wake := empty && !in.awaited || in.gathered && !in.more || before < paceBytes && in.bytes >= paceBytes
	in.mu.Unlock()
	if wake {
		in.nudge()
	}
}

// nudge has the loop look now. It does not block.
func (in *intake) nudge() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// become says who writes from now on. Nothing may be on its way.
func (in *intake) become(p Producer) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.producer = p
}

// take returns what was left, in order, and who writes it. When the pace does not admit it, it
// is nothing, and the loop has to come again by itself: later.
func (in *intake) take(now time.Time, pace *pace, hurried bool) (first *Record, p Producer, later bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.awaited = in.first != nil && !pace.admits(now, in.bytes, in.more, in.late, hurried)
	in.gathered = in.awaited && pace.gathering
	if in.awaited {
		return nil, in.producer, true
	}
	first = in.first
	in.first, in.last, in.bytes = nil, nil, 0
	return first, in.producer, false
}
