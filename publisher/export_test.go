package publisher

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher/internal/limit"
	"github.com/onceward/onceward/publisher/internal/meter"
	"github.com/onceward/onceward/record"
)

// Names that the tests outside the package may use.
var (
	Murmur2    = murmur2
	Glob       = glob
	BatchLimit = limit.Batch
	MaxOrigins = maxOrigins
)

// Defaults that the tests outside the package may use.
const (
	DefaultMaxMessageBytes  = defaultMaxMessageBytes
	DefaultMaxInFlightBytes = defaultMaxInFlightBytes
	DefaultTopicRefresh     = defaultTopicRefresh
)

// ProducerConfig builds the sarama configuration of a Config.
func ProducerConfig(cfg Config) (*sarama.Config, error) {
	s, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	return producerConfig(s, newWire(s.Dial)), nil
}

// TransactionalConfig builds the sarama configuration of transactions.
func TransactionalConfig(cfg Config, tx TransactionConfig) (*sarama.Config, error) {
	s, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if tx, err = tx.resolve(); err != nil {
		return nil, err
	}
	return transactionalConfig(s, newWire(s.Dial), tx, func() {}, func() bool { return false }), nil
}

// Resolve validates a Config and returns it with its defaults.
func Resolve(cfg Config) (Config, error) {
	s, err := cfg.resolve()
	if err != nil {
		return Config{}, err
	}
	return s.Config, nil
}

// TopicOf returns the topic that routes give to a row.
func TopicOf(routes []Route, allow []string, row *outbox.Row) (string, error) {
	r, err := newRouter(routes, allow, DefaultCheckpointTopic)
	if err != nil {
		return "", err
	}
	return r.topic(origin{row.Namespace, row.AggregateType, row.Type})
}

// BuildMessage builds the message of an event.
func BuildMessage(ev Event) (*sarama.ProducerMessage, error) {
	r, err := newPending(ev, record.StyleOnceward)
	if err != nil {
		return nil, err
	}
	return &r.message, nil
}

// BuildStyled builds the message of an event in a header style.
func BuildStyled(ev Event, style string) (*sarama.ProducerMessage, error) {
	r, err := newPending(ev, style)
	if err != nil {
		return nil, err
	}
	return &r.message, nil
}

// Failure is a record that the producer gave up, and what is known of its topic.
type Failure struct {
	Err        error
	Alone      bool // in its batch
	Limit      int  // of the topic, as it was read
	Distrusted bool // the topic is in Config.Narrow
	ID         uuid.UUID
}

// Explain is what the publisher fails with when the record of topic "t" is
// given up.
func Explain(f Failure, cfg Config) error {
	s, err := cfg.resolve()
	if err != nil {
		return err
	}
	r := &pending{id: f.ID, topic: &topic{name: "t"}}
	r.topic.state.Store(&topicState{limit: f.Limit, distrusted: f.Distrusted})
	if f.Alone {
		r.serial = new(atomic.Int64)
	}
	r.message.Topic, r.message.Partition, r.message.Metadata = "t", 3, r
	return explain(&sarama.ProducerError{Msg: &r.message, Err: f.Err}, s)
}

// CheckSize is the size check of an event's record.
func CheckSize(ev Event, maxBytes int) error {
	r, err := newPending(ev, record.StyleOnceward)
	if err != nil {
		return err
	}
	return r.sized(&ev).Check(maxBytes)
}

// Judge decides about a topic.
func Judge(name string, metadata *sarama.TopicMetadata, limit int, cfg Config) (partitions int32, narrow bool, refused *RouteError, err error) {
	s, err := cfg.resolve()
	if err != nil {
		return 0, false, nil, err
	}
	state := judge(name, metadata, limit, s)
	return state.partitions, state.narrow, state.refused, nil
}

// InFlight returns what the publisher counts as handed over and not ended.
func (p *Publisher) InFlight() (events, bytes int64) {
	return p.inflight.events.Load(), p.inflight.bytes.Load()
}

// WithDefect plants a defect that the guarantee's check must find: batches are
// given up after few retries, and given up messages are sent again.
func WithDefect(cfg Config, config func(*sarama.Config), resend bool) Config {
	cfg.faults.config = config
	if resend {
		cfg.faults.resend = func(p *Publisher, failed *sarama.ProducerError) { p.input <- failed.Msg }
	}
	return cfg
}

// NewDetached returns a publisher without network: topics have the given number
// of partitions, and what is sent is acknowledged at once, by nobody.
func NewDetached(cfg Config, partitions int32) (p *Publisher, stop func(), err error) {
	s, err := cfg.resolve()
	if err != nil {
		return nil, nil, err
	}
	input := make(chan *sarama.ProducerMessage)
	p = &Publisher{
		settings: s, input: input, inflight: newInflight(),
		failed: make(chan struct{}), quit: make(chan struct{}),
	}
	p.watcher = &watcher{questions: make(chan question), usable: make(map[string]*topic), nudged: make(map[*topic]struct{})}
	p.placer = newPlacer(s, p.watcher, p.inflight, p.failed, p.quit)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case message, open := <-input:
				if !open {
					return
				}
				r := pendingOf(message)
				r.end()
				p.inflight.done(1, r.cost)
			case q := <-p.watcher.questions:
				q.topic.state.Store(&topicState{partitions: partitions})
				close(q.answered)
			}
		}
	}()
	return p, func() { close(input); <-done }, nil
}

// Cached returns how many origins and topics the publisher remembers.
func (p *Publisher) Cached() (routes, topics int) { return len(p.placer.routes), len(p.placer.topics) }

// Gate is a wire as the drain and sarama use it, for the test of its promise.
type Gate struct{ w *wire }

// NewGate returns an armed wire over a dialer.
func NewGate(dial func(context.Context, string, string) (net.Conn, error)) Gate {
	w := newWire(dial)
	w.arm()
	return Gate{w}
}

// Dial opens a gated or an ungated connection.
func (g Gate) Dial(gated bool) (net.Conn, error) { return g.w.dial("tcp", "fake:1", gated) }

// Permit lets one write begin.
func (g Gate) Permit() { g.w.permits <- struct{}{} }

// Cut is wire.cut.
func (g Gate) Cut() { g.w.cut() }

// Pause is wire.pause.
func (g Gate) Pause(d time.Duration) bool { return g.w.pause(d) }

// KeepProducer plants the defect that a producer stays after a commit that was
// sent more than once.
func KeepProducer(tx TransactionConfig) TransactionConfig {
	tx.faults.keepProducer = true
	return tx
}

// UntilQuiet plants the defect that the checkpoint is read as it is, whatever
// transaction is about to change it.
func UntilQuiet(tx TransactionConfig) TransactionConfig {
	tx.faults.untilQuiet = true
	return tx
}

// Unprobed plants the defect that whoever answers for the coordinator is
// believed.
func Unprobed(tx TransactionConfig) TransactionConfig {
	tx.faults.unprobed = true
	return tx
}

// QuietConfig is a configuration of a client that leaves no goroutine behind,
// and waits for an answer until there is another coordinator.
func QuietConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V2_8_0_0
	c.MetricRegistry = meter.Registry{}
	c.Net.ReadTimeout = 5 * time.Minute
	return c
}

// FetchOffset asks whom the client takes for the coordinator for the checkpoint,
// once.
func FetchOffset(client sarama.Client, tx TransactionConfig) (Position, bool, error) {
	return fetchOffset(client, tx)
}

// Unwatched leaves transactions that are open for too long to the coordinator,
// as a process does that is stopped.
func Unwatched(tx TransactionConfig) TransactionConfig {
	tx.faults.unwatched = true
	return tx
}

// begins is a producer that does nothing but begin transactions.
type begins struct{ sarama.AsyncProducer }

func (begins) BeginTxn() error { return nil }

// NewDetachedTransactional is [NewDetached] with transactions.
func NewDetachedTransactional(cfg Config, partitions int32) (t *Transactional, stop func(), err error) {
	p, stop, err := NewDetached(cfg, partitions)
	if err != nil {
		return nil, nil, err
	}
	p.producer = begins{}
	return &Transactional{publisher: p, settings: p.settings, born: time.Now()}, stop, nil
}

// Written waits until everything handed over is in its partition.
func (t *Transactional) Written(ctx context.Context) error { return t.publisher.Flush(ctx) }
