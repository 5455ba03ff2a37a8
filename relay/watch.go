package relay

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/stream"
)

// watchEvery is how often it is looked at what waits.
const watchEvery = time.Second

// letterPatience is how long a letter may take before it is said.
const letterPatience = 2 * time.Second

// watched is what can keep a session waiting without its knowledge.
type watched struct {
	sink     *sinkWatch
	patience time.Duration                                      // with Kafka
	letter   atomic.Int64                                       // since when one is being written, in Unix nanoseconds; 0: none is
	topic    func(namespace, aggregateType, kind string) string // of the watching goroutine
}

// watch says in the log what waits, until ctx ends.
func (r *Relay) watch(ctx context.Context) {
	said := make(reminders)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			r.look(now)
			for _, n := range said.tick(now, r.vitals.health(now).Waiting) {
				n.say(ctx, r.log)
			}
		case <-ctx.Done():
			return
		}
	}
}

// look reports what the session waits for.
func (r *Relay) look(now time.Time) {
	w := r.watched.Load()
	if w == nil {
		return
	}
	topic := func(row *outbox.Row) string { return w.topic(row.Namespace, row.AggregateType, row.Type) }
	r.vitals.report(WaitKafka, w.sink.look().wait(now, w.patience, r.cfg.Kafka.Brokers, topic)...)
	var letter []Wait
	if since := w.letter.Load(); since != 0 && now.Sub(time.Unix(0, since)) >= letterPatience {
		letter = []Wait{{Since: time.Unix(0, since), Detail: "PostgreSQL has not taken it yet; everything behind it waits"}}
	}
	r.vitals.report(WaitLetter, letter...)
}

// unwatch forgets a session that is over.
func (r *Relay) unwatch() {
	r.watched.Store(nil)
	r.vitals.over()
}

// setHeld shows which routes are held.
func (r *Relay) setHeld(held map[string]stream.HeldRoute) {
	now := time.Now()
	waits := make([]Wait, 0, len(held))
	for route, h := range held {
		waits = append(waits, Wait{What: route, Since: now, Detail: h.Why, Events: h.Events})
	}
	slices.SortFunc(waits, func(a, b Wait) int { return strings.Compare(a.What, b.What) })
	r.vitals.report(WaitRoute, waits...)
}

// setPhase shows what the pump does.
func (r *Relay) setPhase(now stream.Phase, why error) { r.setState(State(now), why) }
