// Package meter is what sarama's metrics are given to: a [Registry] that throws them away, but for
// one.
package meter

import "github.com/rcrowley/go-metrics"

// Registry is a registry of metrics that do nothing: no memory, no lock, and
// above all not the ticking goroutine that the first real meter of a process
// starts and nothing ends. Its zero value tells nobody anything; it does not change.
type Registry struct {
	// Sent, if not nil, is told how many records each produce request has, when it is written,
	// also when it is sent again. sarama calls it, several goroutines at once; it must return at
	// once.
	Sent func(records int)
}

// perRequest is what sarama calls the metric that Sent is told.
const perRequest = "records-per-request"

// GetOrRegister implements metrics.Registry. sarama passes a constructor of
// the kind of metric that it wants.
func (r Registry) GetOrRegister(name string, metric any) any {
	switch metric.(type) {
	case func() metrics.Counter:
		return metrics.NilCounter{}
	case func() metrics.Meter:
		return metrics.NilMeter{}
	case func() metrics.Histogram:
		if name == perRequest && r.Sent != nil {
			return sent{tell: r.Sent}
		}
		return metrics.NilHistogram{}
	case func() metrics.Gauge:
		return metrics.NilGauge{}
	case func() metrics.Timer:
		return metrics.NilTimer{}
	}
	return metric
}

// sent hands on what it is told.
type sent struct {
	metrics.NilHistogram
	tell func(records int)
}

// Update implements metrics.Histogram.
func (s sent) Update(records int64) { s.tell(int(records)) }

// Each implements metrics.Registry, as the others below do.
func (Registry) Each(func(string, any)) {}

// Get finds nothing.
func (Registry) Get(string) any { return nil }

// GetAll finds nothing.
func (Registry) GetAll() map[string]map[string]any { return nil }

// Register keeps nothing.
func (Registry) Register(string, any) error { return nil }

// RunHealthchecks does nothing.
func (Registry) RunHealthchecks() {}

// Unregister does nothing.
func (Registry) Unregister(string) {}

// UnregisterAll does nothing.
func (Registry) UnregisterAll() {}

var _ metrics.Registry = Registry{}
