package relayprom

import (
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/onceward/onceward/relay"
)

// Collector is a prometheus.Collector of one relay. Safe for concurrent use. Make
// one with [New].
type Collector struct {
	stats   func() relay.Stats
	descs   descs
	dropped atomic.Uint64
}

// New returns the collector of a relay.
func New(r *relay.Relay) *Collector { return collector(r.Stats) }

func collector(stats func() relay.Stats) *Collector {
	return &Collector{stats: stats, descs: newDescs(stats().Relay)}
}

// LogDropped counts a line of the log that was dropped.
func (c *Collector) LogDropped() { c.dropped.Add(1) }

// Handler returns the page that Prometheus scrapes: the relay's metrics, the Go
// runtime's and the process's.
func (c *Collector) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs.all {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	page{ch, &c.descs}.show(c.stats(), c.dropped.Load())
}
