package publisher

import (
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/kafkaconf"
	"github.com/onceward/onceward/publisher/internal/limit"
	"github.com/onceward/onceward/publisher/internal/meter"
)

const (
	netTimeout = 30 * time.Second
	// ackTimeout is how long a leader waits for its followers. Below
	// netTimeout, so that the broker's answer comes before we give up on it.
	ackTimeout = 15 * time.Second
	// produceRetries × the longest backoff is about 2.7 hours. sarama makes an
	// array of this size per partition: 32 KiB each; a million would be 30 MiB.
	produceRetries  = 1000
	produceBackoff  = 100 * time.Millisecond
	produceCeiling  = 10 * time.Second
	metadataBackoff = 100 * time.Millisecond
	metadataCeiling = 5 * time.Second
	// metadataRetries at metadataCeiling are more than five days. sarama
	// recurses once per retry, so that a truly endless number would end in a
	// stack overflow.
	metadataRetries = 100_000
	// metadataTimeout is never reached. It exists because a backoff beyond it
	// is the only way to end sarama's metadata retries early: see stopped.
	metadataTimeout = 10 * 365 * 24 * time.Hour
	stopped         = 2 * metadataTimeout

	// A transaction lives no longer than its timeout, so its requests are given
	// up sooner, and after shorter waits: the first retry is mostly
	// CONCURRENT_TRANSACTIONS, while the brokers still write the end of the
	// transaction before, which takes them a few milliseconds.
	transactionBackoff = 2 * time.Millisecond
	transactionCeiling = time.Second
)

// producerConfig builds the sarama configuration of the producer.
func producerConfig(s *settings, w *wire) *sarama.Config {
	c := lookupConfig(s, w)
	c.Net.Proxy.Dialer = dialer{wire: w, gated: true, vet: func(address string) error { return vet(s, w, address) }}

	p := &c.Producer
	p.Idempotent = true                // sequence numbers: the broker drops what a retry repeats
	p.RequiredAcks = sarama.WaitForAll // default: the leader alone, whose crash loses acknowledged events
	p.Timeout = ackTimeout
	p.Partitioner = sarama.NewManualPartitioner // ours is murmur2 (partition.go); the default is FNV, unlike Java's
	p.Return.Successes = true                   // default false: nothing would ever be acknowledged
	p.Return.Errors = true
	p.MaxMessageBytes = limit.Batch(s.MaxMessageBytes)
	p.Compression = s.compression

	// A failed batch costs a rewind, because sarama sends the partition's next
	// one; the default of 3 retries would rewind at every leader election.
	p.Retry.Max = produceRetries
	p.Retry.BackoffFunc = func(retries, _ int) time.Duration {
		w.pause(backoff.After(retries, produceBackoff, produceCeiling))
		return 0
	}
	// A limit here drops the oldest message and goes on with the next, which
	// is a reorder. Memory is bounded before Input, by MaxInFlightBytes.
	p.Retry.MaxBufferLength = 0
	p.Retry.MaxBufferBytes = 0
	// Zero everywhere: an event that arrives alone leaves at once, and while a
	// partition's batch is in flight the next one grows.
	p.Flush.Bytes, p.Flush.Messages, p.Flush.MaxMessages, p.Flush.Frequency = 0, 0, 0, 0
	// Not transactional; see transactionalConfig. The retries are those of the
	// request for a producer id, at start.
	p.Transaction.ID = ""
	p.Transaction.Retry.Max = 10

	// With these a leaderless partition is waited for instead of failing the
	// message whatever Producer.Retry.Max says. The price is that an unknown
	// topic waits as well, for ever: topics.go looks it up before.
	c.Metadata.Retry.Max = metadataRetries
	c.Metadata.Timeout = metadataTimeout
	// sarama neither stops retrying when the client is closed, nor bears a
	// refresh by another goroutine during its own sleep (it returns the old
	// error then). Both are avoided by waiting here and returning zero, or,
	// once the wire is cut, something beyond the timeout.
	c.Metadata.Retry.BackoffFunc = func(retries, _ int) time.Duration {
		if w.pause(backoff.After(retries+1, metadataBackoff, metadataCeiling)) {
			return 0
		}
		return stopped
	}
	if s.faults.config != nil {
		s.faults.config(c)
	}
	return c
}

// transactionalConfig builds the sarama configuration of a producer with
// transactions. Retried is called once per request about the transaction that
// sarama sends again; broken reports that the transaction cannot be committed
// any more, so that nothing is waited for.
func transactionalConfig(s *settings, w *wire, tx TransactionConfig, retried func(),
	broken func() bool) *sarama.Config {
	c := producerConfig(s, w)
	c.Net.ReadTimeout = answerTimeout(tx.Timeout)
	c.Net.WriteTimeout = c.Net.ReadTimeout
	p := &c.Producer
	p.Timeout = c.Net.ReadTimeout / 2
	p.Transaction.ID = tx.ID
	p.Transaction.Timeout = tx.Timeout
	// All of these end with the transaction's timeout, which the watch keeps,
	// or with the wire. What is left of them must be few, because sarama tries
	// them all, without a pause, once the wire is cut.
	tries := int(tx.Timeout/transactionCeiling) + 10
	pause := func(retries int, first time.Duration) time.Duration {
		if !broken() {
			w.pause(backoff.After(retries, first, transactionCeiling))
		}
		return 0
	}
	p.Transaction.Retry.Max = tries
	p.Transaction.Retry.BackoffFunc = func(retries, _ int) time.Duration {
		retried()
		return pause(retries+1, transactionBackoff)
	}
	p.Retry.Max = tries
	p.Retry.BackoffFunc = func(retries, _ int) time.Duration { return pause(retries, produceBackoff) }
	// Zero after the cut: the look-up of a coordinator knows no deadline, and
	// would sleep for as long as it is told.
	c.Metadata.Retry.Max = tries
	c.Metadata.Retry.BackoffFunc = func(retries, _ int) time.Duration { return pause(retries+1, metadataBackoff) }
	if s.faults.config != nil {
		s.faults.config(c)
	}
	return c
}

// answerTimeout is how long one answer is waited for in a transaction: short
// enough for a few tries before the transaction's own timeout.
func answerTimeout(transaction time.Duration) time.Duration {
	return min(netTimeout, max(transaction/4, time.Second))
}

// lookupConfig builds what every connection needs, and no more: the watcher
// uses it for its own connection, with no retries of sarama's.
func lookupConfig(s *settings, w *wire) *sarama.Config {
	c := kafkaconf.New(s.ClientID, s.version)
	c.ChannelBufferSize = 256
	// sarama's meters start a goroutine that nothing ends, and its histograms
	// cost time per message. The registry hands out metrics that do nothing;
	// metrics.UseNilMetrics would be a global of the embedding program.
	c.MetricRegistry = meter.Registry{Sent: s.Sent}

	c.Net.MaxOpenRequests = 1 // more would let a retried batch pass its successor
	c.Net.ReadTimeout = netTimeout
	c.Net.WriteTimeout = netTimeout
	c.Net.Proxy.Enable = true // the hook through which every connection is ours
	c.Net.Proxy.Dialer = dialer{wire: w}
	kafkaconf.Secure(c, s.TLS, s.SASL.login())

	// No background refresh: its retries cannot be ended, so that Close would
	// wait for them. The producer refreshes on errors, the watcher every
	// TopicRefresh.
	c.Metadata.RefreshFrequency = 0
	c.Metadata.Retry.Max = 0
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
	wire  *wire
	gated bool
	vet   func(address string) error // says whether it may be written to; nil: nothing is written
}

// Dial implements proxy.Dialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.wire.dial(network, address, d.gated)
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
