package publisher

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher/internal/limit"
	"github.com/onceward/onceward/record"
)

// Names that the tests outside the package may use.
var (
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

// WriteConfig builds the sarama configuration of connections on which something is
// written, and what every produce request has. With an ID in tx it is that of
// transactions.
func WriteConfig(cfg Config, tx TransactionConfig) (*sarama.Config, sarama.ProduceRequest, error) {
	s, err := cfg.resolve()
	if err != nil {
		return nil, sarama.ProduceRequest{}, err
	}
	w := newWire(s.Dial)
	if tx.ID == "" {
		d := idempotentDelivery(s, w)
		return d.Connection, d.Body(), nil
	}
	if tx, err = tx.resolve(); err != nil {
		return nil, sarama.ProduceRequest{}, err
	}
	d := transactionalDelivery(s, w, tx)
	return d.Connection, d.Body(), nil
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
	return BuildStyled(ev, record.StyleOnceward)
}

// BuildStyled builds the message of an event in a header style.
func BuildStyled(ev Event, style string) (*sarama.ProducerMessage, error) {
	r := new(pending)
	if err := r.fill(ev, style); err != nil {
		return nil, err
	}
	m := &sarama.ProducerMessage{Key: sarama.ByteEncoder(r.Kafka.Key)}
	if r.Kafka.Value != nil {
		m.Value = sarama.ByteEncoder(r.Kafka.Value)
	}
	for _, h := range r.Kafka.Headers {
		m.Headers = append(m.Headers, *h)
	}
	if want := m.ByteSize(2); r.Bytes != want {
		return nil, fmt.Errorf("estimated at %d bytes, sarama says %d", r.Bytes, want)
	}
	return m, nil
}

// Builder builds records, one after the other.
type Builder struct{ records pendings }

// Build builds the record of an event, which ends at once.
func (b *Builder) Build(ev Event, style string) error {
	r := b.records.get()
	defer b.records.put(r)
	return r.fill(ev, style)
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
	r.Partition = 3
	r.topic.state.Store(&topicState{limit: f.Limit, distrusted: f.Distrusted})
	if f.Alone {
		r.serial = new(atomic.Int64)
	}
	return explain(r, f.Err, s)
}

// CheckSize is the size check of an event's record.
func CheckSize(ev Event, maxBytes int) error {
	r := new(pending)
	if err := r.fill(ev, record.StyleOnceward); err != nil {
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
// given up after one retry, and their records sent again behind the others.
func WithDefect(cfg Config) Config {
	cfg.faults.resend = true
	return cfg
}

// NewDetached returns a publisher without network: topics have the given number
// of partitions, and what is sent is acknowledged at once, by nobody.
func NewDetached(cfg Config, partitions int32) (p *Publisher, stop func(), err error) {
	s, err := cfg.resolve()
	if err != nil {
		return nil, nil, err
	}
	w := newWire(s.Dial)
	p = newPublisher(s, w, new(brokers), idempotentDelivery(s, w))
	p.acknowledged = func([]uint64) {}
	p.put = p.acked
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stopped:
				return
			case q := <-p.watcher.questions:
				q.topic.state.Store(&topicState{partitions: partitions})
				close(q.answered)
			}
		}
	}()
	return p, func() { close(stopped); <-done }, nil
}

// Cached returns how many origins and topics the publisher remembers.
func (p *Publisher) Cached() (routes, topics int) { return len(p.placer.routes), len(p.placer.topics) }

// Wire is a wire, for the test of its promise.
type Wire struct{ w *wire }

// NewWire returns a wire over a dialer.
func NewWire(dial func(context.Context, string, string) (net.Conn, error)) Wire {
	return Wire{newWire(dial)}
}

// Dial opens a connection.
func (w Wire) Dial() (net.Conn, error) { return w.w.Dial("tcp", "fake:1") }

// Cut is wire.cut.
func (w Wire) Cut() { w.w.Cut() }

// Pause is wire.Pause.
func (w Wire) Pause(d time.Duration) bool { return w.w.Pause(d) }

// Halves plants the defect that what is half committed is aborted.
func Halves(tx TransactionConfig) TransactionConfig {
	tx.faults.halves = true
	return tx
}

// KeepProducer plants the defect that a producer stays after a commit.
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

// Group asks the coordinator of a group.
type Group struct{ *coordinator }

// NewGroup returns a group of a cluster, which is waited for until there is another
// coordinator.
func NewGroup(addresses []string, tx TransactionConfig) (Group, error) {
	s, err := Config{Brokers: addresses, Routes: []Route{{Topic: "t"}}}.resolve()
	if err != nil {
		return Group{}, err
	}
	config := lookupConfig(s, newWire(s.Dial))
	config.Net.ReadTimeout = 5 * time.Minute
	return Group{newCoordinator(s, config, sarama.CoordinatorGroup, tx.Group)}, nil
}

// Checkpoint asks whom it takes for the coordinator for the checkpoint, once.
func (g Group) Checkpoint(tx TransactionConfig) (Position, bool, error) {
	return fetchOffset(g.coordinator, tx)
}

// Find looks the coordinator up, unless it is known, and returns its address.
func (g Group) Find() (string, error) { err := g.find(); return g.link.Address, err }

// Forget has the coordinator looked up again.
func (g Group) Forget() { g.forget() }

// Unwatched leaves transactions that are open for too long to the coordinator,
// as a process does that is stopped.
func Unwatched(tx TransactionConfig) TransactionConfig {
	tx.faults.unwatched = true
	return tx
}

// NewDetachedTransactional is [NewDetached] with transactions.
func NewDetachedTransactional(cfg Config, partitions int32) (t *Transactional, stop func(), err error) {
	p, stop, err := NewDetached(cfg, partitions)
	if err != nil {
		return nil, nil, err
	}
	return &Transactional{publisher: p, settings: p.settings, txn: new(txn), born: time.Now()}, stop, nil
}

// Written waits until everything handed over is in its partition.
func (t *Transactional) Written(ctx context.Context) error { return t.publisher.Flush(ctx) }
