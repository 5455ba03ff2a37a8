package kafkaconf

import "github.com/rcrowley/go-metrics"

// Silence is a registry of metrics that do nothing: no memory, no lock, and
// above all not the ticking goroutine that the first real meter of a process
// starts and nothing ends. It has no state.
type Silence struct{}

// GetOrRegister implements metrics.Registry. sarama passes a constructor of
// the kind of metric that it wants.
func (Silence) GetOrRegister(_ string, metric any) any {
	switch metric.(type) {
	case func() metrics.Counter:
		return metrics.NilCounter{}
	case func() metrics.Meter:
		return metrics.NilMeter{}
	case func() metrics.Histogram:
		return metrics.NilHistogram{}
	case func() metrics.Gauge:
		return metrics.NilGauge{}
	case func() metrics.Timer:
		return metrics.NilTimer{}
	}
	return metric
}

// Each implements metrics.Registry, as do those below.
func (Silence) Each(func(string, any)) {}

// Get returns nothing.
func (Silence) Get(string) any { return nil }

// GetAll returns nothing.
func (Silence) GetAll() map[string]map[string]any { return nil }

// Register keeps nothing.
func (Silence) Register(string, any) error { return nil }

// RunHealthchecks does nothing.
func (Silence) RunHealthchecks() {}

// Unregister does nothing.
func (Silence) Unregister(string) {}

// UnregisterAll does nothing.
func (Silence) UnregisterAll() {}

var _ metrics.Registry = Silence{}
