package consumer

import (
	"time"

	"github.com/onceward/onceward/outbox"
)

// age is how far an event lies behind the group's stream time, or the clock while
// that is not known; behind its first delivery when it is claimed by arrival.
func (p *Processor) age(ev *Event, first time.Time) time.Duration {
	if p.byArrival(ev.Type) {
		return p.windows.now().Sub(first)
	}
	stream, known := p.stream.Get()
	if !known {
		stream = p.windows.now()
	}
	return stream.Sub(outbox.IDTime(p.claimID(*ev)))
}

// timeOf is the time by which an event counts towards stream time: that of its
// arrival when it is claimed by that; zero for one that has not come yet, which
// must not move stream time.
func (p *Processor) timeOf(ev *Event) time.Time {
	now := p.windows.now()
	switch at := ev.Key.Time(); {
	case p.byArrival(ev.Type):
		return now
	case at.After(now.Add(p.windows.skew)):
		return time.Time{}
	default:
		return at
	}
}

func (p *Processor) byArrival(eventType string) bool {
	i := p.windows.index(eventType)
	return i >= 0 && p.windows.classes[i].Keyed == ByArrival
}
