package consumer

import (
	"context"
	"time"

	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/internal/consumerdb"
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

// saveAges writes what was counted; it is counted again when the transaction
// fails, see SaveProgress.
func (p *Processor) saveAges(ctx context.Context, q *consumerdb.Queries, of map[memory.AgeClass]memory.AgeCount) error {
	if len(of) == 0 {
		return nil
	}
	row := consumerdb.RecordRedeliveriesParams{ConsumerGroup: p.group}
	for class, n := range of {
		row.EventTypes, row.AgesLog2 = append(row.EventTypes, class.EventType), append(row.AgesLog2, class.Log2)
		row.Seen, row.Oldest = append(row.Seen, n.Seen), append(row.Oldest, consumerdb.Interval(n.Oldest))
	}
	return q.RecordRedeliveries(ctx, row)
}
