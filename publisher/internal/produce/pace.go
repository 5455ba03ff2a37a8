package produce

import "time"

const (
	// paceInterval is the least time between two looks at what has come, and so
	// about the least between two requests to one broker: brokers and network
	// take a request of many records nearly as fast as one of a single record.
	paceInterval = 4 * time.Millisecond
	// paceBytes is how much need not wait for that time.
	paceBytes = 256 << 10
)

// pace decides when what has come is looked at. What comes after a silence of
// paceInterval is at once. It is pure.
type pace struct {
	open time.Time // the first time at which nothing need be waited for
}

// admits reports whether what has come, of so many bytes, is to be looked at now.
// Hurried says that somebody waits for its end.
func (p *pace) admits(now time.Time, bytes int64, hurried bool) bool {
	if now.Before(p.open) && bytes < paceBytes && !hurried {
		return false
	}
	p.open = now.Add(paceInterval)
	return true
}
