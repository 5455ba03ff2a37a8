package wire_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/wire"
)

// hole is a network in which no dial ends by itself.
type hole struct{}

func (hole) Dial(network, addr string) (net.Conn, error) {
	return hole{}.DialContext(context.Background(), network, addr)
}

func (hole) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// pipes is a network of which the other side says nothing.
type pipes struct{}

func (pipes) Dial(string, string) (net.Conn, error) {
	near, _ := net.Pipe()
	return near, nil
}

func on(d wire.Dialer) (*wire.Wire, wire.Dialer) {
	s := sarama.NewConfig()
	s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, d
	w := wire.Into(s)
	return w, wire.DialerOf(s)
}

// TestOutlive: what hangs goes on for as long after the context as it may, and then ends: a dial
// and a read; there is no new one. What was released in time is left alone.
func TestOutlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hanging, dials := on(hole{})
		silent, reads := on(pipes{})
		kept, other := on(pipes{})
		defer hanging.Outlive(ctx, time.Minute)()
		defer silent.Outlive(ctx, time.Minute)()
		release := kept.Outlive(ctx, time.Minute)
		conn, err := reads.Dial("tcp", "kafka:9092")
		require.NoError(t, err)
		ended := make(chan time.Time, 2)
		go func() {
			_, _ = dials.Dial("tcp", "kafka:9092")
			ended <- time.Now()
		}()
		go func() {
			_, _ = conn.Read(make([]byte, 1))
			ended <- time.Now()
		}()
		<-time.After(time.Hour)
		cancel()
		synctest.Wait()
		began := time.Now()
		release()
		for range 2 {
			require.Equal(t, time.Minute, (<-ended).Sub(began))
		}
		_, err = reads.Dial("tcp", "kafka:9092")
		require.ErrorContains(t, err, "connection cut")
		<-time.After(time.Hour)
		conn, err = other.Dial("tcp", "kafka:9092")
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		kept.Cut()
	})
}
