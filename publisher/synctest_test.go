package publisher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// inFakeTime runs a test against a cluster on a virtual network, where waiting
// costs nothing and the clock stands still while anything runs.
func inFakeTime(t *testing.T, test func(t *testing.T, c *cluster, cfg publisher.Config), opts ...kfake.Opt) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// sarama's circuit breakers leave a timer of 10 s behind.
		t.Cleanup(func() { time.Sleep(time.Minute) })
		var network kfake.VirtualNetwork
		c := newCluster(t, append(opts, kfake.Ports(9092), kfake.ListenFn(network.Listen))...)
		c.dial = network.DialContext
		cfg := c.config()
		cfg.Dial = c.dial
		test(t, c, cfg)
	})
}

func TestVanishedTopicFailsInsteadOfHanging(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		p, _ := start(t, cfg)
		publishNumbered(t, p, "a", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		require.NoError(t, c.DeleteTopic("shop.order"))
		begin := time.Now()
		publishNumbered(t, p, "a", 1, 1)
		<-p.Failed()
		require.LessOrEqual(t, time.Since(begin), 10*time.Second)
		require.ErrorIs(t, p.Err(), publisher.ErrFailed)
		require.NotErrorIs(t, p.Err(), publisher.ErrRoute, "which would ask to hold the event")
		require.ErrorContains(t, p.Err(), "does not exist")
		var lost *publisher.LostRouteError
		require.ErrorAs(t, p.Err(), &lost)
		require.Equal(t, "shop.order", lost.Route)
		require.NoError(t, p.Close())

		next, _ := start(t, cfg)
		require.ErrorIs(t, next.Publish(t.Context(), event(1, "a", "1")), publisher.ErrRoute)
	}, kfake.SeedTopics(1, "shop.order"))
}

// A topic that vanishes with events in flight is found also while others go on
// and are acknowledged.
func TestVanishedTopicIsFoundAmongOthers(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		p, _ := start(t, cfg)
		publishNumbered(t, p, "a", 0, 0)
		other := row("a", "x")
		other.AggregateType = "other"
		require.NoError(t, p.Publish(t.Context(), publisher.Event{Row: other}))
		require.NoError(t, p.Flush(t.Context()))
		// A topic that exists for the look-ups of sarama, and not for writing.
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "shop.order", Err: kerr.UnknownTopicOrPartition, Count: -1})
		publishNumbered(t, p, "a", 1, 1)
		time.Sleep(time.Second)
		require.NoError(t, c.DeleteTopic("shop.order"))
		begin := time.Now()
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-tick.C:
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				_ = p.Publish(ctx, publisher.Event{Row: other}) // it may stop getting through, or fail
				cancel()
				continue
			case <-p.Failed():
			}
			break
		}
		require.LessOrEqual(t, time.Since(begin), 11*time.Second)
		var lost *publisher.LostRouteError
		require.ErrorAs(t, p.Err(), &lost)
		require.Equal(t, "shop.order", lost.Route)
	}, kfake.NumBrokers(2), kfake.SeedTopics(1, "shop.order", "shop.other"))
}

func TestLoneEventWaitsForNothing(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *cluster, cfg publisher.Config) {
		p, acks := start(t, cfg)
		begin := time.Now()
		for i := range 20 {
			publishNumbered(t, p, "a", i, i)
			require.NoError(t, p.Flush(t.Context()))
		}
		require.Zero(t, time.Since(begin), "no linger anywhere")
		require.Len(t, acks.all(), 20)
	}, kfake.SeedTopics(1, "shop.order"))
}

func TestRefusedTopicIsLookedUpAtMostOnceASecond(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		p, _ := start(t, cfg)
		refused := func() error { return p.Publish(t.Context(), event(1, "a", "1")) }
		require.ErrorIs(t, refused(), publisher.ErrRoute)
		require.NoError(t, c.CreateTopic("shop.order", 1, nil))
		require.ErrorIs(t, refused(), publisher.ErrRoute, "what was found is still fresh")
		time.Sleep(time.Second) // of fake time
		require.ErrorIs(t, refused(), publisher.ErrRoute, "looked up again, but not waited for")
		synctest.Wait()
		require.NoError(t, refused())
	})
}

func TestSilentClusterMakesARouteError(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		p, _ := start(t, cfg)
		c.silence()
		begin := time.Now()
		err := p.Publish(t.Context(), event(1, "a", "1"))
		require.ErrorIs(t, err, publisher.ErrRoute)
		require.ErrorContains(t, err, "could not be looked up")
		require.Equal(t, 10*time.Second, time.Since(begin))
		begin = time.Now()
		require.ErrorIs(t, p.Publish(t.Context(), event(1, "a", "1")), publisher.ErrRoute)
		require.Zero(t, time.Since(begin), "what is refused holds nobody up")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		other := row("a", "1")
		other.AggregateType = "other"
		require.ErrorIs(t, p.Publish(ctx, publisher.Event{Row: other}), context.DeadlineExceeded)
	}, kfake.SeedTopics(1, "shop.order"))
}

// A route that is refused does not hold up the others, whatever the cluster
// does meanwhile: not while it is looked up again either.
func TestRefusedRouteHoldsNobodyUp(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		p, acks := start(t, cfg)
		missing := row("a", "x")
		missing.AggregateType = "missing"
		publishNumbered(t, p, "a", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		require.ErrorIs(t, p.Publish(t.Context(), publisher.Event{Row: missing}), publisher.ErrRoute)
		c.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			return nil, nil, true // never answered
		})
		time.Sleep(5 * time.Second)
		begin := time.Now()
		for i := 1; i <= 100; i++ {
			require.ErrorIs(t, p.Publish(t.Context(), publisher.Event{Row: missing}), publisher.ErrRoute)
			publishNumbered(t, p, "a", i, i)
		}
		require.NoError(t, p.Flush(t.Context()))
		require.Zero(t, time.Since(begin))
		require.Len(t, acks.all(), 101)
	}, kfake.SeedTopics(1, "shop.order"))
}

func TestCloseIsBoundedWhenKafkaIsSilent(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		p, acks := start(t, cfg)
		publishNumbered(t, p, "a", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		c.silence()
		publishNumbered(t, p, "a", 1, 10)
		flushed := make(chan error, 1)
		go func() { flushed <- p.Flush(context.Background()) }()
		begin := time.Now()
		require.NoError(t, p.Close())
		require.Equal(t, 2*time.Second, time.Since(begin), "the grace, and not a moment more")
		require.ErrorIs(t, <-flushed, publisher.ErrClosed)
		require.Len(t, acks.all(), 1)
		require.NoError(t, p.Err(), "giving up at Close is no failure")
	}, kfake.SeedTopics(1, "shop.order"))
}

func TestCloseEndsWhatWaits(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		cfg.MaxInFlightBytes = 64 << 10
		p, _ := start(t, cfg)
		publishNumbered(t, p, "a", 0, 0)
		require.NoError(t, p.Flush(t.Context()))
		c.silence()
		blocked := make(chan error, 1)
		go func() {
			var err error
			for err == nil {
				err = p.Publish(context.Background(), event(1, "a", "x"))
			}
			blocked <- err
		}()
		synctest.Wait() // until Publish has found no room
		require.NoError(t, p.Close())
		require.ErrorIs(t, <-blocked, publisher.ErrClosed)
	}, kfake.SeedTopics(1, "shop.order"))
}
