package testdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// tracked are the startup parameters that PgBouncer takes; it refuses every other.
var tracked = []string{"user", "database", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings", "application_name"}

// Pooler returns a DSN of the pool's database that leads through what answers to
// startup parameters as PgBouncer does. Each client has a server connection of its own.
func Pooler(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	conf := pool.Config().ConnConfig
	network, address := "tcp", net.JoinHostPort(conf.Host, fmt.Sprint(conf.Port))
	if conf.Host[0] == '/' {
		network, address = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", conf.Host, conf.Port)
	}
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var clients sync.WaitGroup
	clients.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			clients.Go(func() {
				defer client.Close() //nolint:errcheck // nothing is held back
				if err := relayed(t.Context(), client, network, address); err != nil {
					t.Logf("pooler: %v", err)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		clients.Wait() // for clients that have closed before
	})
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(conf.User, conf.Password), Host: listener.Addr().String(),
		Path: conf.Database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// relayed looks at the first message of a client and hands on what follows.
func relayed(ctx context.Context, client net.Conn, network, address string) error {
	front := pgproto3.NewBackend(client, client)
	first, err := front.ReceiveStartupMessage()
	if err != nil {
		return fmt.Errorf("read the startup message: %w", err)
	}
	startup, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return fmt.Errorf("a startup message of type %T", first)
	}
	for name := range startup.Parameters {
		if !slices.Contains(tracked, name) {
			front.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
			return front.Flush()
		}
	}
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return fmt.Errorf("reach the server: %w", err)
	}
	defer server.Close() //nolint:errcheck // nothing is held back
	text, err := startup.Encode(nil)
	if err != nil {
		return fmt.Errorf("encode the startup message: %w", err)
	}
	if _, err := server.Write(text); err != nil {
		return fmt.Errorf("pass the startup message on: %w", err)
	}
	var answers sync.WaitGroup
	answers.Go(func() { _, _ = io.Copy(client, server) })
	_, err = io.Copy(server, client)
	err = errors.Join(err, server.Close())
	answers.Wait()
	return err
}
