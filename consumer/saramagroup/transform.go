package saramagroup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup/internal/unpacked"
)

// Defaults of [TransformConfig].
const (
	defaultTransformInterval  = 100 * time.Millisecond
	defaultMaxRecords         = 1000
	defaultTransactionTimeout = time.Minute
	defaultMaxMessageBytes    = 1_000_000
	// maxOutputBytes ends a transaction early, because its outputs wait in memory.
	maxOutputBytes = 4 << 20
)

// messageVersion is the format by which sarama counts the bytes of a message.
const messageVersion = 2

// TransformFunc makes the outputs of one record, which become visible together with the
// record's offset, or not at all. None are fine: the record is left out. It is called for
// the records of a partition one after another in their order, for several partitions at
// once, and for a record again when its transaction did not commit: what it does beside
// its outputs may happen more than once. rec belongs to it.
//
// ctx ends with the session, and after half of TransformConfig.TransactionTimeout; it
// must return then. After an error, a panic, or the end of its goroutine (runtime.Goexit), the
// partition waits and the record is tried again, for ever: a record that can never be transformed
// is one to write to a topic for such, by an output. consumer.Permanent errors are no exception.
type TransformFunc func(ctx context.Context, rec consumer.Record) ([]Output, error)

// Output is a record to be written. Its bytes are copied when the function returns.
type Output struct {
	// Topic must exist, and be none of TransformConfig.Topics.
	Topic string
	// Key chooses the partition, as Java's clients do (murmur2). Outputs of one partition
	// that come of one input partition are in its order. Without a key they are spread at
	// random.
	Key []byte
	// Value may be nil, a tombstone.
	Value   []byte
	Headers []consumer.Header
}

// message has bytes of its own: sarama encodes it later, and the function may use its
// buffers again.
func (o Output) message() *sarama.ProducerMessage {
	m := &sarama.ProducerMessage{Topic: o.Topic}
	if o.Key != nil {
		m.Key = sarama.ByteEncoder(bytes.Clone(o.Key))
	}
	if o.Value != nil {
		m.Value = sarama.ByteEncoder(bytes.Clone(o.Value))
	}
	for _, h := range o.Headers {
		m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Name), Value: bytes.Clone(h.Value)})
	}
	return m
}

// TransformConfig says what to read and how to reach Kafka. The zero value of an optional
// field means its default.
type TransformConfig struct {
	// Topics are the topics to read, at least one.
	Topics []string
	// Version, ClientID, TLS, SASL and Insecure are those of [Config].
	Version  sarama.KafkaVersion
	ClientID string
	TLS      *tls.Config
	SASL     *SASL
	Insecure bool
	// CommitInterval is how long a transaction is open before it is committed, and so
	// how long an output waits to be seen; longer while a function runs. Default 100 ms; at
	// most a quarter of TransactionTimeout.
	CommitInterval time.Duration
	// MaxRecords is how many records are in a transaction at most. One whose outputs have
	// 4 MiB is committed as well. Default 1000.
	MaxRecords int
	// TransactionTimeout is how long a transaction may stay open before Kafka aborts it.
	// The brokers' transaction.max.timeout.ms must not be below it. It is also how long
	// readers wait for what a process left that died, when no member takes its partitions
	// over; one that does ends it at once. Default 1 minute; 1 s to 15 min.
	TransactionTimeout time.Duration
	// MaxMessageBytes bounds an output with its key and headers, and a batch of them; the
	// max.message.bytes of its topic must be larger by 100 bytes. Default 1,000,000.
	MaxMessageBytes int
	// Compression of outputs. Default none.
	Compression sarama.CompressionCodec
	// RetryMin and RetryMax bound the pause before a record that failed, or a session, is
	// tried again, as in [Config]. Defaults 100 ms and 30 s.
	RetryMin, RetryMax time.Duration
	// SessionTimeout is that of [Config]. Default 45 s.
	SessionTimeout time.Duration
	// DrainTimeout is how long a commit that is under way at the end of a session may go
	// on, and how long the abort of what is open may take then. Less than half a minute;
	// default 5 s.
	DrainTimeout time.Duration
	// Logger gets the member's life and each failure. Default: as in [Config].
	Logger *slog.Logger

	hooks  hooks
	faults transformFaults
}

// transformFaults are deliberate defects by which tests show that the checks of the
// promise find them. Only tests can set them.
type transformFaults struct {
	plain        bool // offsets are committed without member and generation
	outside      bool // offsets are committed beside the transaction
	keepOpen     bool // what is open at the end of a session stays open
	keepProducer bool // it has all transactions of a session
	halves       bool // what is half committed is aborted
}

// Transform reads topics as a member of a group until ctx ends, and writes what fn makes
// of each record. The outputs of some records and their offsets are one Kafka transaction.
// It needs no database.
//
// Run brokers of 4.3.1 or later. The coordinators of earlier ones can lose what they have
// confirmed (KAFKA-20634): an offset that was lost while the session ended is made again, and
// a partition can stand still. docs/transform.md says when, and what to do.
//
// # Promise
//
// A reader of committed messages sees the outputs of each input record once, and those
// that go to one partition in the order of their input partition: through crashes,
// rebalances, members that were taken for dead and come back, and losses of coordinators.
// The group's offset and the outputs never say different things. It needs brokers that lose
// nothing that was confirmed: docs/transform.md names their settings. It looks at those of
// the topics once, and logs a warning of what is too little. A group without an offset begins
// at the oldest record: it must not be stopped for longer than offsets.retention.minutes.
//
// It is a promise about records, not about events. A record that is in the input twice
// is transformed twice: the copies of a relay in idempotent mode, of a producer that sent
// again, of a replay. Where the relay is in exactly-once mode there are none of the
// first. Where copies matter, a stage that claims the event (package consumer) stands
// before or behind; for that, pass the headers of the record on.
//
// # States
//
// Each assigned partition has one worker, with a transaction and a producer of its own.
// The transactional id is "group:topic:partition". A worker gets a new epoch for it first,
// which aborts what its predecessor has left open and fences it. The offsets are committed
// with the member's generation, so that a member that was replaced cannot commit whatever
// epoch it has. At the end of a session what is open is aborted. After each commit the
// producer is replaced by one with a new epoch: what is late of a transaction, a request or
// a marker, would otherwise end the next one. Then the group must have the offset; one that
// its coordinator has confirmed and lost (KAFKA-20634) is committed again.
//
// # Failures
//
//   - An error of fn, or an output that Kafka would not take: what came before it in the
//     partition is committed, the partition waits, and the record is tried again, for ever.
//   - A transaction fails, or its outcome is not known: the session ends. The next one
//     begins at the offset that is committed, which says what became of it.
//   - Kafka is away: Transform joins again until it is back.
//   - The group's offset of a partition lies before one that Kafka had confirmed to this
//     call, for longer than a new coordinator takes to know it: Transform returns an error.
//     The outputs of what lies between are there.
//   - A refused authorization, an offset that Kafka no longer has, a batch that unpacks
//     to more than sarama.MaxDecompressedBatchSize (see the package comment): Transform
//     returns the error.
//
// It returns nil when ctx has ended. Like [Run] it leaves the group first, waits for what
// Kafka was asked for, and has ended all its goroutines and connections.
func Transform(ctx context.Context, brokers []string, group string, fn TransformFunc, cfg TransformConfig) error {
	cfg = cfg.withDefaults()
	if err := cfg.validate(brokers, group, fn); err != nil {
		return fmt.Errorf("transform: %w", err)
	}
	unpacked.Bound(cfg.Logger)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t := &transforming{
		joiner: newJoiner(group, brokers, cfg.member(), func(err error) { stop(fatal{err}) }), cfg: cfg, fn: fn,
	}
	t.work = t
	return t.run(ctx)
}

func (c TransformConfig) withDefaults() TransformConfig {
	m := c.member().withDefaults()
	c.Version, c.ClientID, c.Logger = m.Version, m.ClientID, m.Logger
	c.RetryMin, c.RetryMax = m.RetryMin, m.RetryMax
	c.SessionTimeout, c.DrainTimeout = m.SessionTimeout, m.DrainTimeout
	c.CommitInterval = cmp.Or(c.CommitInterval, defaultTransformInterval)
	c.MaxRecords = cmp.Or(c.MaxRecords, defaultMaxRecords)
	c.TransactionTimeout = cmp.Or(c.TransactionTimeout, defaultTransactionTimeout)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, defaultMaxMessageBytes)
	return c
}

// member is the configuration of the membership.
func (c TransformConfig) member() Config {
	return Config{
		Topics: c.Topics, Version: c.Version, ClientID: c.ClientID, TLS: c.TLS, SASL: c.SASL, Insecure: c.Insecure,
		RetryMin: c.RetryMin, RetryMax: c.RetryMax, SessionTimeout: c.SessionTimeout, DrainTimeout: c.DrainTimeout,
		Logger: c.Logger, hooks: c.hooks,
	}
}

func (c TransformConfig) validate(brokers []string, group string, fn TransformFunc) error {
	if len(brokers) == 0 {
		return errors.New("no brokers given")
	}
	if group == "" {
		return errors.New("the name of the group is empty; it is also what transactional ids begin with, and may never change")
	}
	if fn == nil {
		return errors.New("no function given")
	}
	if err := c.member().withDefaults().validate(2); err != nil { // drains: a commit, and an abort
		return err
	}
	if c.TransactionTimeout < time.Second || c.TransactionTimeout > 15*time.Minute {
		return fmt.Errorf("config: TransactionTimeout %s: want 1s to 15m", c.TransactionTimeout)
	}
	if c.CommitInterval < 0 || c.CommitInterval > c.TransactionTimeout/4 {
		return fmt.Errorf("config: CommitInterval %s: want more than 0, and at most a quarter of TransactionTimeout, %s", c.CommitInterval, c.TransactionTimeout)
	}
	if c.MaxRecords < 0 || c.MaxMessageBytes < 0 {
		return fmt.Errorf("config: MaxRecords %d, MaxMessageBytes %d: want more than 0", c.MaxRecords, c.MaxMessageBytes)
	}
	return nil
}

// producers is the configuration that the producers of a session share, but for their
// transactional ids. How long their retries go on is set where they can be ended.
func (c TransformConfig) producers() (*sarama.Config, error) {
	s, err := c.member().SaramaConfig()
	if err != nil {
		return nil, err
	}
	s.ChannelBufferSize = 256
	s.Net.MaxOpenRequests = 1 // what idempotence wants
	// A few tries before the transaction's own timeout.
	s.Net.ReadTimeout = min(s.Net.ReadTimeout, max(c.TransactionTimeout/4, time.Second))
	s.Net.WriteTimeout = s.Net.ReadTimeout
	p := &s.Producer
	p.Idempotent = true
	p.RequiredAcks = sarama.WaitForAll
	p.Timeout = s.Net.ReadTimeout / 2
	p.Partitioner = sarama.NewMurmur2Partitioner
	p.Return.Successes, p.Return.Errors = true, true
	p.MaxMessageBytes = c.MaxMessageBytes
	p.Compression = c.Compression
	p.Transaction.Timeout = c.TransactionTimeout
	return s, s.Validate()
}
