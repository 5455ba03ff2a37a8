package kafka

import (
	"context"
	"net"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/kafkaconf"
)

// answerTimeout bounds one answer of a broker: a person waits for it.
const answerTimeout = 10 * time.Second

// clientConfig is that of a client that only asks; secure puts TLS and SASL into
// it, nil none. Its connections end with ctx, which sarama does not know: a broker
// that is silent would be waited for whoever interrupts.
func clientConfig(ctx context.Context, secure func(*sarama.Config) error) (*sarama.Config, error) {
	cfg := kafkaconf.New("outboxctl", sarama.V2_8_0_0)
	cfg.Metadata.Retry.Max = 1
	cfg.Metadata.Timeout = answerTimeout
	cfg.Net.ReadTimeout = answerTimeout
	cfg.Net.Proxy.Enable = true
	cfg.Net.Proxy.Dialer = dial(func(network, address string) (net.Conn, error) {
		dialer := net.Dialer{Timeout: kafkaconf.DialTimeout}
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	})
	if secure == nil {
		return cfg, nil
	}
	return cfg, secure(cfg)
}

// dial is a proxy.Dialer.
type dial func(network, address string) (net.Conn, error)

// Dial implements proxy.Dialer.
func (d dial) Dial(network, address string) (net.Conn, error) { return d(network, address) }
