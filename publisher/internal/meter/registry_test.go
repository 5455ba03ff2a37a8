package meter_test

import (
	"testing"

	"github.com/rcrowley/go-metrics"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher/internal/meter"
)

// histogram asks for one as sarama does.
func histogram(r metrics.Registry, name string) metrics.Histogram {
	return r.GetOrRegister(name, func() metrics.Histogram { return nil }).(metrics.Histogram)
}

func TestRecordsPerRequestAreTold(t *testing.T) {
	var told []int
	r := meter.Registry{Sent: func(records int) { told = append(told, records) }}
	histogram(r, "records-per-request").Update(7)
	histogram(r, "records-per-request-for-topic-orders").Update(5)
	histogram(r, "batch-size").Update(3)
	require.Equal(t, []int{7}, told)
	histogram(meter.Registry{}, "records-per-request").Update(1)
	require.Zero(t, testing.AllocsPerRun(100, func() { histogram(r, "batch-size").Update(1) }))
}
