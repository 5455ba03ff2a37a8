package cdc

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// Of what has come by halves the first does not wait for the second, over TLS neither: what it
// has of the next record says nothing before that is whole.
func TestTheFirstHalfDoesNotWaitForTheSecond(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(1 << 16)
			near, far := net.Pipe()
			defer func() { require.NoError(t, far.Close()) }()
			var client net.Conn = newSocket(near, q.wake)
			server := &holding{Conn: far}
			sender := net.Conn(server)
			if secure {
				signed := httptest.NewUnstartedServer(nil)
				signed.StartTLS()
				defer signed.Close()
				client = tls.Client(client, &tls.Config{InsecureSkipVerify: true})
				sender = tls.Server(server, &tls.Config{
					Certificates: signed.TLS.Certificates, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
				})
			}
			go func() {
				_, _ = sender.Write([]byte("hello"))
				server.hold = true
				_, _ = sender.Write([]byte("first"))
				whole := server.held.Len()
				_, _ = sender.Write(make([]byte, 10_000))
				if !secure {
					_, _ = far.Write(server.held.Bytes()[:whole])
					return
				}
				_, _ = far.Write(server.held.Bytes()[:whole+5_000]) // more than TLS takes at once
			}()
			for _, word := range []string{"hello", "first"} {
				got := make([]byte, len(word))
				_, err := client.Read(got)
				require.NoError(t, err)
				require.Equal(t, word, string(got))
			}
			require.True(t, q.push(Item{Kind: KindCommit}))
			go func() { _, _ = client.Read(make([]byte, 1)) }()
			<-q.ready
		})
	}
}

// holding is a connection that keeps what is written, once it is to.
type holding struct {
	net.Conn
	hold bool
	held bytes.Buffer
}

func (h *holding) Write(p []byte) (int, error) {
	if h.hold {
		return h.held.Write(p)
	}
	return h.Conn.Write(p)
}
