package produce

import "time"

const (
	// paceInterval is the least time between two looks at what has come, and so
	// about the least between two requests to one broker: brokers and network
	// take a request of many records nearly as fast as one of a single record.
	paceInterval = 2 * time.Millisecond
	// paceFlow is how much a look has found where it is that of a flow, of which the next
	// look is to find more: after paceFlowInterval.
	paceFlow         = 24 << 10
	paceFlowInterval = 4 * paceInterval
	// paceLate is by how much of what it is late a flow waits longer, up to paceLateInterval and as far as it
	// stays one: large requests cost everybody less, and who catches up sooner is less late.
	paceLate         = 16
	paceLateInterval = 16 * paceInterval
	// paceBytes is how much need not wait for that time.
	paceBytes = 512 << 10
)

// pace decides when what has come is looked at. What comes after a silence is at once, and
// with it what comes together with it. It is pure.
type pace struct {
	open      time.Time // the first time at which nothing need be waited for
	gathering bool      // what waits does so for what comes with it
}

// admits reports whether what has come, of so many bytes, is to be looked at now. More says
// that something comes together with it, late by how much the last of it is already, hurried
// that somebody waits for its end.
func (p *pace) admits(now time.Time, bytes int, more bool, late time.Duration, hurried bool) bool {
	early, much := now.Before(p.open), bytes >= paceBytes
	switch {
	case hurried, much, p.gathering && (!more || !early), !early && !more:
		p.open, p.gathering = now.Add(paceInterval), much && more
		if bytes >= paceFlow {
			p.open = now.Add(max(paceFlowInterval,
				min(late/paceLate, paceLateInterval, time.Duration(bytes)*paceFlowInterval/paceFlow)))
		}
		return true
	case !early: // the caller may break its word
		p.open, p.gathering = now.Add(paceInterval), true
	}
	return false
}
