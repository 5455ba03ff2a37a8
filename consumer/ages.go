package consumer

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/outbox"
)

// ages counts how old duplicates were when they came, for the window advisor:
// as far behind stream time as their event time was, which is what a floor is
// compared with. Safe for concurrent use; only duplicates come here.
type ages struct {
	mu sync.Mutex
	of map[ageClass]ageCount
}

type ageClass struct {
	eventType string
	log2      int16 // of whole seconds
}

type ageCount struct {
	seen   int64
	oldest time.Duration
}

func (a *ages) add(eventType string, age time.Duration) {
	age = max(age, 0)
	a.merge(map[ageClass]ageCount{{eventType, int16(max(bits.Len64(uint64(age/time.Second))-1, 0))}: {1, age}})
}

func (a *ages) merge(of map[ageClass]ageCount) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = make(map[ageClass]ageCount)
	}
	for class, n := range of {
		known := a.of[class]
		a.of[class] = ageCount{known.seen + n.seen, max(known.oldest, n.oldest)}
	}
}

// take returns what was counted since the last call.
func (a *ages) take() map[ageClass]ageCount {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.of
	a.of = nil
	return of
}

// age is how far an event lies behind the group's stream time, or the clock while
// that is not known; behind its first delivery when it is claimed by arrival.
func (p *Processor) age(ev *Event, first time.Time) time.Duration {
	if p.byArrival(ev.Type) {
		return p.windows.now().Sub(first)
	}
	stream := p.stream.Load()
	if stream == 0 {
		return p.windows.now().Sub(outbox.IDTime(p.claimID(*ev)))
	}
	return time.UnixMilli(stream).Sub(outbox.IDTime(p.claimID(*ev)))
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
func (p *Processor) saveAges(ctx context.Context, q *consumerdb.Queries, of map[ageClass]ageCount) error {
	if len(of) == 0 {
		return nil
	}
	row := consumerdb.RecordRedeliveriesParams{ConsumerGroup: p.group}
	for class, n := range of {
		row.EventTypes, row.AgesLog2 = append(row.EventTypes, class.eventType), append(row.AgesLog2, class.log2)
		row.Seen, row.Oldest = append(row.Seen, n.seen), append(row.Oldest, consumerdb.Interval(n.oldest))
	}
	return q.RecordRedeliveries(ctx, row)
}
