package saramagroup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/onceward/onceward/consumer/saramagroup"
)

// cables are connections that can be cut.
type cables struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cables) Dial(network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).Dial(network, addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

func (c *cables) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// A password is changed while a member runs: it goes on with the new one, without
// a restart, and none is in its log.
func TestPasswordsChange(t *testing.T) {
	for _, m := range []saramagroup.Mechanism{saramagroup.Plain, saramagroup.ScramSHA256} {
		t.Run(string(m), func(t *testing.T) { passwordChanges(t, m) })
	}
}

func passwordChanges(t *testing.T, m saramagroup.Mechanism) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic), kfake.EnableSASL(),
		kfake.Superuser(string(m), "billing", "hunter2"), kfake.Superuser("PLAIN", "other", "other"))
	require.NoError(t, err)
	defer c.Close()
	producer, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.SASL(plain.Auth{User: "other", Pass: "other"}.AsMechanism()))
	require.NoError(t, err)
	defer producer.Close()
	produceGood(t, producer, 0, 1)

	// The broker refuses a login until the password was asked for anew since it was
	// revoked.
	var asked, revoked atomic.Int64
	revoked.Store(-1)
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if asked.Load() > revoked.Load() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return resp, nil, true
	})
	var log bytes.Buffer
	var wires cables
	cfg := saramagroup.Config{
		Topics: []string{topic}, Insecure: true, Logger: slog.New(slog.NewTextHandler(&log, nil)), SessionTimeout: 6 * time.Second,
		RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond,
		SASL: &saramagroup.SASL{Mechanism: m, User: "billing", PasswordFunc: func() (string, error) {
			if asked.Add(1) < 3 {
				return "", errors.New("the vault is sealed")
			}
			return "hunter2", nil
		}},
	}.Hooks(func(s *sarama.Config) { s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, &wires }, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h, ended := newHandler(nil), make(chan error, 1)
	go func() { ended <- saramagroup.Run(ctx, c.ListenAddrs(), h, cfg) }()
	_, err = h.await(1)
	require.NoError(t, err)

	revoked.Store(asked.Load())
	wires.cut()
	produceGood(t, producer, 0, 1)
	for offset := int64(0); offset < 1; { // the first may come again
		recs, err := h.await(1)
		require.NoError(t, err)
		offset = recs[0].Source.Offset
	}
	cancel()
	require.NoError(t, <-ended)
	require.Contains(t, log.String(), "the vault is sealed")
	for _, text := range []string{log.String(), fmt.Sprintf("%v %+v %#v", *cfg.SASL, *cfg.SASL, *cfg.SASL)} {
		require.NotContains(t, text, "hunter2")
	}
	secret := saramagroup.SASL{Mechanism: m, User: "billing", Password: "hunter2"}
	require.NotContains(t, fmt.Sprintf("%v %+v %#v %v", secret, secret, secret, &secret), "hunter2")
}
