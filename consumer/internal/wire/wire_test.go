package wire_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/internal/wire"
)

// pipes gives one end of a pipe for each connection that is asked for.
type pipes struct{ others []net.Conn }

func (p *pipes) Dial(string, string) (net.Conn, error) {
	mine, other := net.Pipe()
	p.others = append(p.others, other)
	return mine, nil
}

func TestCutEndsWhatIsWaitedFor(t *testing.T) {
	t.Parallel()
	var p pipes
	w := wire.New(&p)
	open, err := w.Dial("tcp", "kafka:9092")
	require.NoError(t, err)
	closed, err := w.Dial("tcp", "kafka:9092")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	waited := make(chan error, 2)
	go func() {
		_, err := open.Read(make([]byte, 1))
		waited <- err
	}()
	go func() {
		w.Pause(time.Hour)
		waited <- nil
	}()
	w.Cut()
	w.Cut()
	<-waited
	<-waited
	_, err = w.Dial("tcp", "kafka:9092")
	require.ErrorContains(t, err, "the session is over")
	_, err = p.others[2].Write([]byte{0})
	require.Error(t, err, "it was left open")
}
