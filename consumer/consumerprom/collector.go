package consumerprom

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// Collector is a prometheus.Collector over the last word of each consumer. Safe
// for concurrent use. Make one with [New].
type Collector struct {
	mu         sync.Mutex
	groups     map[string]saramagroup.Snapshot
	maintained time.Time // when the report was given; zero: never
	report     retention.Report
	database   *database                  // nil: not asked
	types      map[string]map[string]bool // event types that have a histogram, by group

	handlers  *prometheus.HistogramVec
	completed func() consumer.CompletedStats // nil: there is none
}

// New returns a collector that has been told nothing.
func New() *Collector {
	return &Collector{
		groups: make(map[string]saramagroup.Snapshot), types: make(map[string]map[string]bool), handlers: newHandlers(),
	}
}

// Observe is for saramagroup.Config.Observe. It keeps the Snapshot and returns at
// once.
func (c *Collector) Observe(s saramagroup.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[s.Group] = s
}

// Maintained keeps what a run of retention.Maintain that was no DryRun has
// reported, and when.
func (c *Collector) Maintained(report retention.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report, c.maintained = report, time.Now()
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range groupDescs {
		ch <- d
	}
	for _, d := range retentionDescs {
		ch <- d
	}
	for _, d := range databaseDescs {
		ch <- d
	}
	for _, d := range completedDescs {
		ch <- d
	}
	c.handlers.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.handlers.Collect(ch)
	if database, reported := c.collect(ch); database != nil {
		database.collect(ch, reported) // outside the lock, for which observers do not wait long
	}
}

func (c *Collector) collect(ch chan<- prometheus.Metric) (_ *database, reported bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.completed != nil {
		collectCompleted(ch, c.completed())
	}
	now := time.Now()
	for _, s := range c.groups {
		collectGroup(ch, s, now)
	}
	if reported = !c.maintained.IsZero(); reported {
		gauge(ch, maintained, unix(c.maintained))
		collectRetention(ch, c.report)
	}
	return c.database, reported
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("onceward", "consumer", name), help, labels, nil)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, value int64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
}

// unix returns a time as Unix seconds; 0 for none.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
