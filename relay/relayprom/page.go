package relayprom

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/onceward/relay"
)

const day = 24 * time.Hour

// page is what one scrape gets.
type page struct {
	ch chan<- prometheus.Metric
	*descs
}

func (p page) show(s relay.Stats, dropped uint64) {
	p.showEvents(s)
	p.counter(p.sessions, s.Sessions)
	p.counter(p.rewinds, s.Rewinds)
	p.counter(p.checkpoints, s.Checkpoints)
	p.counter(p.checkpointsLost, s.CheckpointsLost)
	p.counter(p.transactions, s.Transactions)
	p.counter(p.topicsRemade, s.TopicsRemade)
	p.counter(p.logDropped, dropped)
	p.showPosition(s)
	p.showSlot(s.Slot)
	if s.PartitionsAhead >= 0 && s.State != relay.StateStandby { // who has the slot counts them
		p.gauge(p.ahead, float64(s.PartitionsAhead)*day.Seconds())
	}
	for state, leaves := range s.Partitions {
		p.gauge(p.leaves, float64(leaves), string(state))
	}
	for _, state := range relay.States {
		p.gauge(p.state, truth(state == s.State), string(state))
	}
	for _, kind := range relay.Waits {
		p.gauge(p.waiting, truth(slices.ContainsFunc(s.Waiting, func(w relay.Wait) bool { return w.For == kind })),
			kind)
	}
}

// showEvents shows what became of events.
func (p page) showEvents(s relay.Stats) {
	p.counter(p.read, s.Read)
	p.counter(p.published, s.Published)
	p.counter(p.parked, s.Parked)
	for reason, n := range s.Skipped {
		p.counter(p.skipped, n, reason)
	}
	p.counter(p.rewound, s.Rewound)
	p.counter(p.waited, s.Waited)
	p.counter(p.letters, s.Letters)
	for action, n := range s.Controls {
		p.counter(p.controls, n, action)
	}
	p.histogram(p.delay, s.Delay)
	p.histogram(p.commit, s.Commit)
	p.histogram(p.requests, s.Requests)
	p.gauge(p.parkedAggregates, float64(s.ParkedAggregates))
	for route, events := range s.Held {
		p.gauge(p.held, 1, route)
		p.gauge(p.heldEvents, float64(events), route)
	}
}

// showPosition shows how far the relay has come.
func (p page) showPosition(s relay.Stats) {
	p.gauge(p.lag, s.Lag.Seconds())
	p.gauge(p.inFlight, float64(s.InFlight))
	p.gauge(p.queue, float64(s.QueueBytes))
	p.gauge(p.throttle, max(0, time.Until(s.Throttled).Seconds()))
	p.gauge(p.confirmed, float64(s.Confirmed))
	p.gauge(p.ended, float64(s.Ended))
	taken := 0.0
	if !s.Snapshot.IsZero() {
		taken = float64(s.Snapshot.UnixMilli()) / 1000
	}
	p.gauge(p.snapshot, taken)
}

func (p page) showSlot(s relay.SlotStats) {
	p.gauge(p.retained, float64(s.RetainedBytes))
	p.gauge(p.slotLag, float64(s.LagBytes))
	p.gauge(p.safe, float64(s.SafeBytes))
	p.gauge(p.oldest, s.Oldest.Seconds())
	if s.WALStatus != "" {
		p.gauge(p.walStatus, 1, s.WALStatus)
	}
}

func (p page) counter(d *prometheus.Desc, n uint64, labels ...string) {
	p.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func (p page) gauge(d *prometheus.Desc, value float64, labels ...string) {
	p.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func (p page) histogram(d *prometheus.Desc, h relay.Histogram) {
	p.ch <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum, h.Buckets)
}

func truth(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}
