package consumerprom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxTypes is how many event types of a group have a histogram of their own.
const maxTypes = 100

// otherTypes is the label of those beyond.
const otherTypes = "others"

func newHandlers() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "onceward", Subsystem: "consumer", Name: "handler_seconds",
		Help:    "How long calls of handlers took, also those that failed. Beyond 100 event types of a group the rest is one series, others.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"group", "event_type"})
}

// Handled is for consumer.Config.Handled. It counts the call and returns at once.
func (c *Collector) Handled(group, eventType string, took time.Duration) {
	c.handlers.WithLabelValues(group, c.label(group, eventType)).Observe(took.Seconds())
}

// label bounds what a handler of many types, or of any, can make of the histogram.
func (c *Collector) label(group, eventType string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	types := c.types[group]
	switch {
	case types[eventType]:
		return eventType
	case len(types) >= maxTypes:
		return otherTypes
	case types == nil:
		types = make(map[string]bool)
		c.types[group] = types
	}
	types[eventType] = true
	return eventType
}
