package aside

import "time"

// idle is how long a goroutine waits for something to do.
const idle = 100 * time.Millisecond

// waiting takes a call when a goroutine waits for one.
var waiting = make(chan func())

// Go calls f in another goroutine.
func Go(f func()) {
	select {
	case waiting <- f:
	default:
		go work(f)
	}
}

// work calls f, and what comes while it waits.
func work(f func()) {
	f()
	rest := time.NewTimer(idle)
	defer rest.Stop()
	for {
		select {
		case f = <-waiting:
			f()
			rest.Reset(idle)
		case <-rest.C:
			return
		}
	}
}
