package relay

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/stream"
)

// watchEvery is how often it is looked at what waits.
const watchEvery = time.Second

// letterPatience is how long a letter may take before it is said.
const letterPatience = 2 * time.Second

// kafkaPatience is how long an event may be without an acknowledgement before
// the relay says that it waits for Kafka.
const kafkaPatience = 5 * time.Second

// watched is a session that runs, for what it waits for without its knowledge.
type watched struct {
	pump     *stream.Pump
	patience time.Duration                                      // with Kafka
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
	var kafka, letter []Wait
	if owed := w.pump.Owed(); owed.Overdue(now, w.patience) {
		topic := func(row *outbox.Row) string { return w.topic(row.Namespace, row.AggregateType, row.Type) }
		kafka = []Wait{{Since: owed.Since, Detail: owed.Detail(r.cfg.Kafka.Brokers, topic), Events: owed.Events}}
	}
	r.vitals.report(WaitKafka, kafka...)
	if since := w.pump.Writing(); !since.IsZero() && now.Sub(since) >= letterPatience {
		letter = []Wait{{Since: since, Detail: "PostgreSQL has not taken it yet; everything behind it waits"}}
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
