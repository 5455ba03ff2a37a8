package publisher_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcrowley/go-metrics"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher"
)

// sink returns a dialer whose connections swallow what is written.
func sink(_ context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	return near, nil
}

func TestGatedWriteWaitsForItsPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := publisher.NewGate(sink)
		defer gate.Cut()
		gated, err := gate.Dial(true)
		require.NoError(t, err)
		free, err := gate.Dial(false)
		require.NoError(t, err)
		_, err = free.Write([]byte("look-ups pass"))
		require.NoError(t, err)

		written := make(chan error, 1)
		go func() {
			_, err := gated.Write([]byte("a batch"))
			written <- err
		}()
		synctest.Wait()
		require.Empty(t, written, "no permit yet")
		gate.Permit()
		require.NoError(t, <-written)
	})
}

func TestCutEndsWritesDialsAndPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialing := make(chan struct{})
		slow := false
		gate := publisher.NewGate(func(ctx context.Context, network, address string) (net.Conn, error) {
			if slow {
				close(dialing)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return sink(ctx, network, address)
		})
		gated, err := gate.Dial(true)
		require.NoError(t, err)
		slow = true
		ends := make(chan error, 3)
		go func() { _, err := gated.Write([]byte("x")); ends <- err }()
		go func() { _, err := gated.Read(make([]byte, 1)); ends <- err }()
		go func() { _, err := gate.Dial(true); ends <- err }()
		paused := make(chan bool, 1)
		go func() { paused <- gate.Pause(time.Hour) }()
		<-dialing
		synctest.Wait()
		require.Empty(t, ends)

		begin := time.Now()
		gate.Cut()
		gate.Cut()
		for range 3 {
			require.Error(t, <-ends)
		}
		require.False(t, <-paused)
		require.Zero(t, time.Since(begin))
		slow, dialing = false, nil
		_, err = gate.Dial(false)
		require.Error(t, err, "and no new connection")
		_, err = gated.Write([]byte("x"))
		require.Error(t, err)
		require.NoError(t, gated.Close(), "whoever closes late does no harm")
	})
}

func TestPauseLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := publisher.NewGate(sink)
		defer gate.Cut()
		begin := time.Now()
		require.True(t, gate.Pause(time.Minute))
		require.Equal(t, time.Minute, time.Since(begin))
	})
}

// Every kind of metric that sarama may ask for has a type that sarama asserts.
func TestSilentMetrics(t *testing.T) {
	cfg, err := publisher.ProducerConfig(minimal())
	require.NoError(t, err)
	r := cfg.MetricRegistry
	require.IsType(t, metrics.NilMeter{}, metrics.GetOrRegisterMeter("m", r))
	require.IsType(t, metrics.NilCounter{}, metrics.GetOrRegisterCounter("c", r))
	require.IsType(t, metrics.NilGauge{}, metrics.GetOrRegisterGauge("g", r))
	require.IsType(t, metrics.NilTimer{}, metrics.GetOrRegisterTimer("t", r))
	require.IsType(t, metrics.NilHistogram{}, r.GetOrRegister("h", func() metrics.Histogram { return nil }))
	require.Nil(t, r.Get("m"), "nothing is kept")
}
