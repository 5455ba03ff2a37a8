package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// Connections die at random while events flow; the answers to some requests
// are lost, so that the broker must drop what is sent again.
func TestCutConnectionsLoseAndRepeatNothing(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(4, "shop.order"))
	cuts := newCuttingDialer()
	cfg := c.config()
	cfg.Dial = cuts.dial
	p, acks := start(t, cfg)
	const keys, each, every = 8, 250, 50
	ctx := within(t)
	var tag uint64
	for n := range each {
		for k := range keys {
			require.NoError(t, p.Publish(ctx, event(tag, fmt.Sprintf("k%d", k), fmt.Sprint(n))))
			tag++
		}
		if n%every == every-1 {
			cuts.cutAll()
		}
	}
	require.NoError(t, p.Flush(ctx))
	require.Len(t, acks.all(), keys*each)
	require.Positive(t, cuts.done.Load())
	next := make(map[string]int)
	for _, records := range c.read("shop.order") {
		for _, r := range records {
			require.Equal(t, fmt.Sprint(next[string(r.Key)]), string(r.Value), "key %s", r.Key)
			next[string(r.Key)]++
		}
	}
	for key, n := range next {
		require.Equal(t, each, n, key)
	}
}

// Leaders move while events flow.
func TestLeaderMovesAreRiddenOut(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(3, "shop.order"))
	p, acks := start(t, c.config())
	const keys, each = 6, 200
	ctx := within(t)
	var tag uint64
	for n := range each {
		if n%40 == 20 {
			c.ShufflePartitionLeaders()
		}
		for k := range keys {
			require.NoError(t, p.Publish(ctx, event(tag, fmt.Sprintf("k%d", k), fmt.Sprint(n))))
			tag++
		}
	}
	require.NoError(t, p.Flush(ctx))
	require.Len(t, acks.all(), keys*each)
	next := make(map[string]int)
	for _, records := range c.read("shop.order") {
		for _, r := range records {
			require.Equal(t, fmt.Sprint(next[string(r.Key)]), string(r.Value), "key %s", r.Key)
			next[string(r.Key)]++
		}
	}
}

// cuttingDialer keeps its connections to close them under their user.
type cuttingDialer struct {
	mu    sync.Mutex
	conns []net.Conn
	down  bool
	done  atomic.Int64

	dialer func(ctx context.Context, network, address string) (net.Conn, error)
}

func newCuttingDialer() *cuttingDialer { return &cuttingDialer{dialer: (&net.Dialer{}).DialContext} }

func (d *cuttingDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, errors.New("the network is down")
	}
	conn, err := d.dialer(ctx, network, address)
	if err == nil {
		d.conns = append(d.conns, conn)
	}
	return conn, err
}

func (d *cuttingDialer) cutAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.conns {
		if conn.Close() == nil {
			d.done.Add(1)
		}
	}
	d.conns = nil
}

func (d *cuttingDialer) setDown(down bool) {
	d.mu.Lock()
	d.down = down
	d.mu.Unlock()
	if down {
		d.cutAll()
	}
}

func TestCloseIsBoundedWhenKafkaIsGone(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	network := newCuttingDialer()
	cfg := c.config()
	cfg.Dial = network.dial
	p, _ := start(t, cfg)
	publishNumbered(t, p, "a", 0, 0)
	require.NoError(t, p.Flush(within(t)))
	network.setDown(true)
	publishNumbered(t, p, "a", 1, 100)
	begin := time.Now()
	require.NoError(t, p.Close())
	require.Less(t, time.Since(begin), 10*time.Second)
}

func TestOutageIsRiddenOut(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(2, "shop.order"))
	network := newCuttingDialer()
	cfg := c.config()
	cfg.Dial = network.dial
	p, acks := start(t, cfg)
	publishNumbered(t, p, "a", 0, 10)
	require.NoError(t, p.Flush(within(t)))
	network.setDown(true)
	publishNumbered(t, p, "a", 11, 50)
	healed := time.AfterFunc(time.Second, func() { network.setDown(false) })
	defer healed.Stop()
	require.NoError(t, p.Flush(within(t)))
	require.Len(t, acks.all(), 51)
	require.Equal(t, numbers(0, 50), c.values("shop.order"))
}

// K16: the password is changed while the relay runs, and the connections end.
// The producer fails, so that the next one, with the new password, goes on.
func TestChangedPasswordEndsTheProducer(t *testing.T) {
	c := newCluster(t, kfake.EnableSASL(), kfake.SeedTopics(1, "shop.order"), kfake.Superuser("PLAIN", "relay", "secret"))
	network := newCuttingDialer()
	cfg := c.config()
	cfg.Dial, cfg.Insecure = network.dial, true
	cfg.SASL = publisher.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}
	p, acks := start(t, cfg)
	publishNumbered(t, p, "a", 0, 9)
	require.NoError(t, p.Flush(within(t)))
	// What a real broker answers to a password that is valid no more.
	changed := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.SASLAuthenticate}, TopLevel: true, Err: kerr.SaslAuthenticationFailed, Count: -1})
	network.cutAll()
	for i := 10; i <= 19 && p.Err() == nil; i++ {
		if err := p.Publish(within(t), event(uint64(i), "a", fmt.Sprint(i))); err != nil {
			require.ErrorIs(t, err, sarama.ErrSASLAuthenticationFailed, "it failed meanwhile")
		}
	}
	waitFor(t, p.Failed())
	require.ErrorIs(t, p.Err(), sarama.ErrSASLAuthenticationFailed)
	require.ErrorContains(t, p.Err(), "kafka.sasl")
	require.NotContains(t, p.Err().Error(), "secret")
	require.NoError(t, p.Close())

	changed.Remove()
	next, _ := start(t, cfg)
	publishNumbered(t, next, "a", len(acks.all()), 19)
	require.NoError(t, next.Flush(within(t)))
	require.EqualValues(t, 20, c.PartitionInfo("shop.order", 0).HighWatermark)
}
