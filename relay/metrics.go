package relay

import (
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/onceward/internal/outboxdb"
)

// Metrics counts what the relay does. The counters outlive sessions. It is a
// prometheus.Collector; safe for concurrent use.
type Metrics struct {
	readTotal, publishedTotal prometheus.Counter
	sessions, topicsRemade    prometheus.Counter
	checkpointTotal           prometheus.Counter
	endMetrics
	delay                   prometheus.Histogram
	lagSeconds, inFlight    prometheus.Gauge
	queueBytes              prometheus.Gauge
	confirmed, ended        prometheus.Gauge
	snapshotTime            prometheus.Gauge
	stateGauge              *prometheus.GaugeVec
	retained, slotLag, safe prometheus.Gauge
	oldest                  prometheus.Gauge
	walStatus, leaves       *prometheus.GaugeVec
	held, heldEvents        *prometheus.GaugeVec
	waiting                 *prometheus.GaugeVec
	logDropped              prometheus.Counter
	ahead                   *prometheus.GaugeVec
}

func newMetrics(relay string) *Metrics {
	labels := prometheus.Labels{"relay": relay}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "onceward", Name: name, Help: help, ConstLabels: labels})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "onceward", Name: name, Help: help, ConstLabels: labels})
	}
	return &Metrics{
		readTotal:       counter("events_read_total", "Events read from the log, copies after a restart included."),
		publishedTotal:  counter("events_published_total", "Events acknowledged by all in-sync replicas."),
		endMetrics:      newEndMetrics(labels, counter, gauge),
		sessions:        counter("sessions_total", "Sessions that took the slot."),
		topicsRemade:    counter("topics_remade_total", "Topics that were found deleted and made anew: what was in them is gone."),
		logDropped:      counter("log_lines_dropped_total", "Log lines that were dropped because nobody read the log."),
		checkpointTotal: counter("checkpoints_total", "Checkpoints written."),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "onceward", Name: "publish_delay_seconds", Help: "From commit to acknowledgement, sampled at every acknowledgement; two machines' clocks.",
			ConstLabels: labels, Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 300},
		}),
		lagSeconds:   gauge("lag_seconds", "Age of the oldest transaction that was read, whole or in part, and has not ended; 0 when there is none."),
		inFlight:     gauge("events_in_flight", "Events read since the first that is not acknowledged."),
		queueBytes:   gauge("queue_bytes", "Bytes read from the log and not handed to the producer."),
		confirmed:    gauge("confirmed_position_bytes", "The durable checkpoint, as bytes of log."),
		ended:        gauge("ended_position_bytes", "The position up to which everything has ended, as bytes of log."),
		snapshotTime: gauge("published_snapshot_timestamp_seconds", "When the published snapshot was taken, in Unix seconds; 0 before the first."),
		retained:     gauge("slot_retained_bytes", "Log that the slot keeps on the server."),
		slotLag:      gauge("slot_lag_bytes", "Log behind which the slot is confirmed."),
		safe:         gauge("slot_safe_bytes", "Log that may still be written before the slot is lost; -1 when nothing limits it."),
		oldest:       gauge("oldest_transaction_seconds", "Age of the oldest transaction on the server that has written; it pins the log. The relay's log names it."),
		ahead: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "onceward", Name: "partitions_ahead_days",
			Help:        "Days after today that have a partition, whoever makes them; 0 also where today's own is missing. No series: this process does not have the slot.",
			ConstLabels: labels,
		}, nil),
		leaves: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "onceward", Name: "partitions",
			Help: "Partitions of the outbox by state, after each round of maintenance. No series: this process has no postgres.maintenance_dsn_file.", ConstLabels: labels,
		}, []string{"state"}),
		walStatus: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "onceward", Name: "slot_wal_status", Help: "1 for the slot's wal_status.", ConstLabels: labels,
		}, []string{"status"}),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "onceward", Name: "route_held", Help: "1 while events wait for this topic (or namespace/aggregate_type, when no route leads to a topic). No series: nothing is held.",
			ConstLabels: labels,
		}, []string{"route"}),
		heldEvents: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "onceward", Name: "held_events", Help: "Events that wait for this topic. Beyond 100 topics the rest is one series, others.", ConstLabels: labels,
		}, []string{"route"}),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "onceward", Name: "waiting", Help: "1 while the relay waits for this; /readyz says since when and why.", ConstLabels: labels,
		}, []string{"for"}),
		stateGauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "onceward", Name: "state", Help: "1 for the state that the relay is in.", ConstLabels: labels,
		}, []string{"state"}),
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return append(m.endMetrics.collectors(), []prometheus.Collector{
		m.readTotal, m.publishedTotal, m.sessions, m.topicsRemade, m.checkpointTotal, m.delay, m.lagSeconds,
		m.inFlight, m.queueBytes, m.confirmed, m.ended, m.held, m.heldEvents, m.waiting, m.logDropped, m.snapshotTime, m.stateGauge,
		m.retained, m.slotLag, m.safe, m.oldest, m.walStatus, m.ahead, m.leaves,
	}...)
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
}

func (m *Metrics) read(events int) { m.readTotal.Add(float64(events)) }

func (m *Metrics) published(events int, commit time.Time) {
	m.publishedTotal.Add(float64(events))
	if !commit.IsZero() {
		m.delay.Observe(max(0, time.Since(commit).Seconds()))
	}
}

// committed counts one Kafka transaction, with the events that it published.
func (m *Metrics) committed(events int, took time.Duration, reached time.Time) {
	m.transactionTotal.Inc()
	m.transactionSeconds.Observe(took.Seconds())
	if events > 0 {
		m.published(events, reached)
	}
}

// slot shows what the slot keeps.
func (m *Metrics) slot(now outboxdb.SlotHealthRow) {
	m.retained.Set(float64(now.RetainedBytes))
	m.slotLag.Set(float64(now.LagBytes))
	m.safe.Set(float64(now.SafeBytes))
	m.oldest.Set(now.OldestSeconds)
	m.walStatus.Reset()
	m.walStatus.WithLabelValues(now.WalStatus).Set(1)
}

// partitions shows what maintenance left.
func (m *Metrics) partitions(report RetentionReport) {
	if report.Ahead > 0 { // it was counted
		m.ahead.WithLabelValues().Set(float64(report.Ahead))
	}
	m.leaves.Reset()
	for _, l := range report.Leaves {
		m.leaves.WithLabelValues(string(l.State)).Inc()
	}
}

func (m *Metrics) snapshotPublished(at time.Time) {
	m.snapshotTime.Set(float64(at.UnixMilli()) / 1000)
}

// holding shows how many events wait, by route.
func (m *Metrics) holding(routes map[string]heldRoute) {
	m.held.Reset()
	m.heldEvents.Reset()
	for route, h := range routes {
		m.held.WithLabelValues(route).Set(1)
		m.heldEvents.WithLabelValues(route).Set(float64(h.events))
	}
}

func (m *Metrics) observe(now status, durable pglogrepl.LSN, queue int) {
	lag := 0.0
	if !now.oldest.IsZero() {
		lag = max(0, time.Since(now.oldest).Seconds())
	}
	m.lagSeconds.Set(lag)
	m.inFlight.Set(float64(now.inFlight))
	m.queueBytes.Set(float64(queue))
	m.confirmed.Set(float64(durable))
	m.ended.Set(float64(now.position))
}

// waits shows what the relay waits for.
func (m *Metrics) waits(waiting []Wait) {
	for _, kind := range Waits {
		v := 0.0
		if slices.ContainsFunc(waiting, func(w Wait) bool { return w.For == kind }) {
			v = 1
		}
		m.waiting.WithLabelValues(kind).Set(v)
	}
}

// LogDropped counts a line of the log that was dropped.
func (m *Metrics) LogDropped() { m.logDropped.Inc() }

func (m *Metrics) checkpointed() { m.checkpointTotal.Inc() }

func (m *Metrics) state(s State) {
	for _, other := range States {
		v := 0.0
		if other == s {
			v = 1
		}
		m.stateGauge.WithLabelValues(string(other)).Set(v)
	}
}
