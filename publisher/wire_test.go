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

func TestCutEndsWritesDialsAndPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialing := make(chan struct{})
		slow := false
		wire := publisher.NewWire(func(ctx context.Context, network, address string) (net.Conn, error) {
			if slow {
				close(dialing)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return sink(ctx, network, address)
		})
		conn, err := wire.Dial()
		require.NoError(t, err)
		slow = true
		_, err = conn.Write([]byte("x"))
		require.NoError(t, err)
		ends := make(chan error, 2)
		go func() { _, err := conn.Read(make([]byte, 1)); ends <- err }()
		go func() { _, err := wire.Dial(); ends <- err }()
		paused := make(chan bool, 1)
		go func() { paused <- wire.Pause(time.Hour) }()
		<-dialing
		synctest.Wait()
		require.Empty(t, ends)

		begin := time.Now()
		wire.Cut()
		wire.Cut()
		for range cap(ends) {
			require.Error(t, <-ends)
		}
		require.False(t, <-paused)
		require.Zero(t, time.Since(begin))
		slow, dialing = false, nil
		_, err = wire.Dial()
		require.Error(t, err, "and no new connection")
		_, err = conn.Write([]byte("x"))
		require.Error(t, err)
		require.NoError(t, conn.Close(), "whoever closes late does no harm")
	})
}

func TestPauseLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wire := publisher.NewWire(sink)
		defer wire.Cut()
		begin := time.Now()
		require.True(t, wire.Pause(time.Minute))
		require.Equal(t, time.Minute, time.Since(begin))
	})
}

// Every kind of metric that sarama may ask for has a type that sarama asserts.
func TestSilentMetrics(t *testing.T) {
	cfg, _, err := publisher.WriteConfig(minimal(), publisher.TransactionConfig{})
	require.NoError(t, err)
	r := cfg.MetricRegistry
	require.IsType(t, metrics.NilMeter{}, metrics.GetOrRegisterMeter("m", r))
	require.IsType(t, metrics.NilCounter{}, metrics.GetOrRegisterCounter("c", r))
	require.IsType(t, metrics.NilGauge{}, metrics.GetOrRegisterGauge("g", r))
	require.IsType(t, metrics.NilTimer{}, metrics.GetOrRegisterTimer("t", r))
	require.IsType(t, metrics.NilHistogram{}, r.GetOrRegister("h", func() metrics.Histogram { return nil }))
	require.Nil(t, r.Get("m"), "nothing is kept")
}
