package relay

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/onceward/cdc"
)

// endMetrics counts how events end, and by what. What was read was published,
// parked, skipped or rewound, or is in flight.
type endMetrics struct {
	parkedTotal, rewoundTotal prometheus.Counter
	lettersTotal, waitedTotal prometheus.Counter
	transactionTotal          prometheus.Counter
	rotationTotal, rewinds    prometheus.Counter
	lostTotal                 prometheus.Counter
	skippedTotal, controls    *prometheus.CounterVec
	transactionSeconds        prometheus.Histogram
	parkedAggregates          prometheus.Gauge
}

func newEndMetrics(labels prometheus.Labels, counter func(name, help string) prometheus.Counter, gauge func(name, help string) prometheus.Gauge) endMetrics {
	return endMetrics{
		parkedTotal:      counter("events_parked_total", "Events kept as dead letters."),
		rewoundTotal:     counter("events_rewound_total", "Events read whose session ended before they had; they are read again."),
		lettersTotal:     counter("letters_published_total", "Dead letters published because an operator retried them."),
		waitedTotal:      counter("events_waited_total", "Events written down because their route could not be used. They count as published, or otherwise, once they have."),
		rewinds:          counter("rewinds_total", "Sessions that ended with events in flight."),
		transactionTotal: counter("transactions_total", "Kafka transactions committed, those that carried a checkpoint only included."),
		lostTotal:        counter("checkpoints_lost_total", "Sessions that found no usable checkpoint in Kafka and went on from relay_state."),
		rotationTotal:    counter("producer_rotations_total", "Producers thrown away because a commit had been sent more than once."),
		transactionSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "onceward", Name: "transaction_commit_seconds", Help: "From the call to the known commit of a Kafka transaction.",
			ConstLabels: labels, Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60},
		}),
		parkedAggregates: gauge("parked_aggregates", "Aggregates whose events wait behind a dead letter."),
		skippedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "onceward", Name: "events_skipped_total", Help: "Ended, neither published nor parked now: letter (has one), word (an operator's), " +
				"control (rows of controls), erased (waited, and its row is gone).",
			ConstLabels: labels,
		}, []string{"reason"}),
		controls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "onceward", Name: "controls_total", Help: "Operators' words that were read from the stream.", ConstLabels: labels,
		}, []string{"action"}),
	}
}

func (m *endMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.parkedTotal, m.rewoundTotal, m.lettersTotal, m.waitedTotal, m.rewinds, m.transactionTotal, m.rotationTotal, m.lostTotal,
		m.transactionSeconds, m.parkedAggregates, m.skippedTotal, m.controls,
	}
}

// Reasons for which an event is skipped.
const (
	skippedByLetter  = "letter"
	skippedByWord    = "word"
	skippedByControl = "control"
	skippedByGap     = "gap"
	skippedErased    = "erased"
)

func (m *endMetrics) skipped(reason string) { m.skippedTotal.WithLabelValues(reason).Inc() }

func (m *endMetrics) waited(events int) { m.waitedTotal.Add(float64(events)) }

func (m *endMetrics) control(action string) {
	switch action {
	case cdc.ActionRetry, cdc.ActionDiscard, cdc.ActionEdit:
	default:
		action = "unknown" // a label is no place for what a row says
	}
	m.controls.WithLabelValues(action).Inc()
	m.skipped(skippedByControl)
}

func (m *endMetrics) parked(events, aggregates int) {
	m.parkedTotal.Add(float64(events))
	m.parkedNow(aggregates)
}

func (m *endMetrics) parkedNow(aggregates int) { m.parkedAggregates.Set(float64(aggregates)) }

func (m *endMetrics) letterPublished() { m.lettersTotal.Inc() }

func (m *endMetrics) checkpointLost() { m.lostTotal.Inc() }

func (m *endMetrics) rotated(producers uint64) { m.rotationTotal.Add(float64(producers)) }

// rewound counts what a session had read and not ended when it was over.
func (m *endMetrics) rewound(events uint64) {
	if events > 0 {
		m.rewinds.Inc()
		m.rewoundTotal.Add(float64(events))
	}
}
