package kafkaproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/onceward/onceward/internal/loopback"
)

// Network is a set of links, one before each server, with faults that apply to
// all of them. The caller must call [Network.Close].
type Network struct {
	tasks sync.WaitGroup

	mu     sync.Mutex
	links  []*Link
	faults []*Injected
	seen   map[seen]int
}

// seen tells requests apart, to count them.
type seen struct {
	key    Key
	client string
}

// New returns a network without links.
func New() *Network { return &Network{seen: make(map[seen]int)} }

// Add puts a link before a Kafka broker at address host:port, which need not be
// up yet, and starts to serve it on a free port of 127.0.0.1.
func (n *Network) Add(ctx context.Context, upstream string) (*Link, error) {
	return n.add(ctx, upstream, false)
}

// AddPlain is Add for a server that speaks another protocol, such as PostgreSQL.
// No [Fault] meets its bytes.
func (n *Network) AddPlain(ctx context.Context, upstream string) (*Link, error) {
	return n.add(ctx, upstream, true)
}

func (n *Network) add(ctx context.Context, upstream string, plain bool) (*Link, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", loopback.Address(0))
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy of %s: %w", upstream, err)
	}
	l := &Link{network: n, upstream: upstream, plain: plain, listener: listener, conns: make(map[*connection]struct{})}
	n.mu.Lock()
	n.links = append(n.links, l)
	n.mu.Unlock()
	n.tasks.Go(l.accept)
	return l, nil
}

// Links returns the links in the order in which they were added.
func (n *Network) Links() []*Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.links)
}

// Inject puts a fault to work. Of several that want the same request, the one
// that came first gets it.
func (n *Network) Inject(f Fault) *Injected {
	i := newInjected(f)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = append(slices.DeleteFunc(n.faults, (*Injected).ended), i)
	return i
}

// Seen returns how many requests of a key a client has sent so far, faults or
// not. An empty client is all of them.
func (n *Network) Seen(k Key, client string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if client != "" {
		return n.seen[seen{k, client}]
	}
	sum := 0
	for s, count := range n.seen {
		if s.key == k {
			sum += count
		}
	}
	return sum
}

// Cut resets all connections of all links, see [Link.Cut].
func (n *Network) Cut() int {
	sum := 0
	for _, l := range n.Links() {
		sum += l.Cut()
	}
	return sum
}

// Heal ends all faults: links pass everything, and what was held is let go.
func (n *Network) Heal() {
	n.mu.Lock()
	links, faults := n.links, n.faults
	n.faults = nil
	n.mu.Unlock()
	for _, l := range links {
		l.Heal()
	}
	for _, f := range faults {
		f.Release()
	}
}

// Close ends all links and connections, and waits for their goroutines. What is
// held is lost. More calls do nothing.
func (n *Network) Close() error {
	var errs []error
	for _, l := range n.Links() {
		if err := l.close(); !errors.Is(err, net.ErrClosed) { // closed before
			errs = append(errs, err)
		}
	}
	n.tasks.Wait()
	return errors.Join(errs...)
}

// meet counts a request and returns the fault that takes it, if there is one.
func (n *Network) meet(r request) *Injected {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[seen{r.key, r.client}]++
	for _, f := range n.faults {
		if f.take(r) {
			return f
		}
	}
	return nil
}
