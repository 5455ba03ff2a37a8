package relay

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// watch looks at what waits, of the session that runs and of the relay. Safe for
// concurrent use.
type watch struct {
	cfg     *Config
	log     *slog.Logger
	vitals  *vitals
	session atomic.Pointer[watched] // that runs; nil: none does
	looking sync.Mutex              // no look of a session ends behind its end
}

// watched is a session that runs, for what it waits for without its knowledge.
type watched struct {
	pump     *stream.Pump
	patience time.Duration                                      // with Kafka
	topic    func(namespace, aggregateType, kind string) string // of the watching goroutine
	trouble  func(topic string) (string, time.Time)             // that Kafka has with it, and until when it throttles
}

// run says in the log what waits, until ctx ends.
func (w *watch) run(ctx context.Context) {
	said := make(reminders)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			w.look(now)
			for _, n := range said.tick(now, w.vitals.health(now).Waiting) {
				n.say(ctx, w.log)
			}
		case <-ctx.Done():
			return
		}
	}
}

// look reports what the session waits for.
func (w *watch) look(now time.Time) {
	w.looking.Lock()
	defer w.looking.Unlock()
	session := w.session.Load()
	if session == nil {
		return
	}
	var kafka, letter []Wait
	if owed := session.pump.Owed(); owed.Overdue(now, session.patience) {
		topic := func(row *outbox.Row) string { return session.topic(row.Namespace, row.AggregateType, row.Type) }
		detail := owed.Detail(w.cfg.Kafka.Brokers, topic, session.trouble)
		kafka = []Wait{{Since: owed.Since, Detail: detail, Events: owed.Events}}
	}
	w.vitals.report(WaitKafka, kafka...)
	if since := session.pump.Writing(); !since.IsZero() && now.Sub(since) >= letterPatience {
		letter = []Wait{{Since: since, Detail: "PostgreSQL has not taken it yet; everything behind it waits"}}
	}
	w.vitals.report(WaitLetter, letter...)
}

// over forgets a session that is over.
func (w *watch) over() {
	w.looking.Lock()
	defer w.looking.Unlock()
	w.session.Store(nil)
	w.vitals.over()
}

// held shows which routes are held.
func (v *vitals) held(routes map[string]stream.HeldRoute) {
	now := time.Now()
	waits := make([]Wait, 0, len(routes))
	for route, h := range routes {
		waits = append(waits, Wait{What: route, Since: now, Detail: h.Why, Events: h.Events})
	}
	slices.SortFunc(waits, func(a, b Wait) int { return strings.Compare(a.What, b.What) })
	v.report(WaitRoute, waits...)
}
