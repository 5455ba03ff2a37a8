package publisher

import "github.com/rcrowley/go-metrics"

// silence is a registry of metrics that do nothing: no memory, no lock, and
// above all not the ticking goroutine that the first real meter of a process
// starts and nothing ends. It has no state.
type silence struct{}

// GetOrRegister implements metrics.Registry. sarama passes a constructor of
// the kind of metric that it wants.
func (silence) GetOrRegister(_ string, metric any) any {
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

func (silence) Each(func(string, any))            {}
func (silence) Get(string) any                    { return nil }
func (silence) GetAll() map[string]map[string]any { return nil }
func (silence) Register(string, any) error        { return nil }
func (silence) RunHealthchecks()                  {}
func (silence) Unregister(string)                 {}
func (silence) UnregisterAll()                    {}

var _ metrics.Registry = silence{}
