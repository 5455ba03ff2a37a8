package publisher

import (
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/kafkaconf"
	"github.com/onceward/onceward/publisher/internal/limit"
	"github.com/onceward/onceward/publisher/internal/meter"
	"github.com/onceward/onceward/publisher/internal/produce"
)

const (
	netTimeout = 30 * time.Second
	// ackTimeout is how long a leader waits for its followers. Below
	// netTimeout, so that the broker's answer comes before we give up on it.
	ackTimeout = 15 * time.Second
	// produceTries × the longest backoff is about 2.7 hours. Brokers keep what a
	// producer wrote last, by which they know a batch again, for a day.
	produceTries   = 1000
	produceBackoff = 100 * time.Millisecond
	produceCeiling = 10 * time.Second

	// A transaction lives no longer than its timeout, so its requests are given
	// up sooner, and after shorter waits: the first retry is mostly
	// CONCURRENT_TRANSACTIONS, while the brokers still write the end of the
	// transaction before, which takes them a few milliseconds.
	transactionBackoff = 2 * time.Millisecond
	transactionCeiling = time.Second
)

// idempotentDelivery is how records get to the brokers without transactions.
func idempotentDelivery(s *settings, w *wire) produce.Config {
	d := delivery(s, w)
	d.AckTimeout = ackTimeout
	d.Patience = produce.Patience{Tries: produceTries, First: produceBackoff, Ceiling: produceCeiling}
	if s.faults.resend {
		d.Patience.Tries = 1
	}
	return d
}

// transactionalDelivery is that with transactions. All of it ends with the
// transaction's timeout, which the watch keeps.
func transactionalDelivery(s *settings, w *wire, tx TransactionConfig) produce.Config {
	d := delivery(s, w)
	d.TransactionalID = &tx.ID
	d.Connection.Net.ReadTimeout = answerTimeout(tx.Timeout)
	d.Connection.Net.WriteTimeout = d.Connection.Net.ReadTimeout
	d.AckTimeout = d.Connection.Net.ReadTimeout / 2
	d.Patience = produce.Patience{
		Tries: transactionTries(tx.Timeout), First: produceBackoff, Ceiling: transactionCeiling,
	}
	return d
}

func delivery(s *settings, w *wire) produce.Config {
	return produce.Config{
		Connection: writeConfig(s, w), BatchBytes: limit.Batch(s.MaxMessageBytes), Compression: s.compression,
		Down: w.Down(), Resend: s.faults.resend,
	}
}

// transactionTries is more than there is time for.
func transactionTries(timeout time.Duration) int { return int(timeout/transactionCeiling) + 10 }

// writeConfig builds the sarama configuration of connections on which something is
// written.
func writeConfig(s *settings, w *wire) *sarama.Config {
	c := lookupConfig(s, w)
	c.Net.Proxy.Dialer = dialer{wire: w, vet: func(address string) error { return vet(s, w, address) }}
	return c
}

// answerTimeout is how long one answer is waited for in a transaction: short
// enough for a few tries before the transaction's own timeout.
func answerTimeout(transaction time.Duration) time.Duration {
	return min(netTimeout, max(transaction/4, time.Second))
}

// lookupConfig builds what every connection needs, and no more.
func lookupConfig(s *settings, w *wire) *sarama.Config {
	c := kafkaconf.New(s.ClientID, s.version)
	// sarama's meters start a goroutine that nothing ends, and its histograms
	// cost time per message. The registry hands out metrics that do nothing;
	// metrics.UseNilMetrics would be a global of the embedding program.
	c.MetricRegistry = meter.Registry{Sent: s.Sent}

	c.Net.MaxOpenRequests = 1 // each of ours waits for its answer
	c.Net.ReadTimeout = netTimeout
	c.Net.WriteTimeout = netTimeout
	c.Net.Proxy.Enable = true // the hook through which every connection is ours
	c.Net.Proxy.Dialer = dialer{wire: w}
	kafkaconf.Secure(c, s.TLS, s.SASL.login())
	return c
}

// Secure gives a sarama configuration the TLS and SASL of this one, for tools
// that read what the relay publishes. The error is that of a security setting
// that [New] would refuse.
func (c Config) Secure(to *sarama.Config) error {
	s := &settings{Config: c}
	if err := s.resolveSecurity(); err != nil {
		return err
	}
	kafkaconf.Secure(to, c.TLS, c.SASL.login())
	if err := to.Validate(); err != nil {
		return fmt.Errorf("configure publisher: %w", err)
	}
	return nil
}

// login is the SASL login of a configuration.
func (s SASL) login() kafkaconf.Login {
	return kafkaconf.Login{Mechanism: s.Mechanism, User: s.Username, Password: s.Password}
}

// dialer is what sarama dials through.
type dialer struct {
	wire *wire
	vet  func(address string) error // says whether it may be written to; nil: nothing is written
}

// Dial implements proxy.Dialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.wire.Dial(network, address)
	if err != nil || d.vet == nil {
		return conn, err
	}
	if err := d.vet(address); err != nil {
		_ = conn.Close() // nothing was written on it
		d.wire.refuse(err)
		return nil, err
	}
	return conn, nil
}
