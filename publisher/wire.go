package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/onceward/onceward/internal/kafkaconf"
	wires "github.com/onceward/onceward/internal/wire"
)

// wire has every connection of a publisher: its cut ends backoffs and dials, and no
// request leaves after it. Close is bounded by that.
type wire struct {
	*wires.Wire
	foreign chan error // that a broker is of another cluster
}

func newWire(dial wires.Dialing) *wire {
	bounded := func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, kafkaconf.DialTimeout)
		defer cancel()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", address, err)
		}
		return conn, nil
	}
	return &wire{Wire: wires.New(bounded), foreign: make(chan error, 1)}
}

// refuse hands over that a broker is of another cluster. Other errors pass: the
// address is dialed again.
func (w *wire) refuse(err error) {
	if !errors.Is(err, ErrOtherCluster) {
		return
	}
	select {
	case w.foreign <- err:
	default: // one is enough
	}
}
