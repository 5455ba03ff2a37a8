package publisher

import (
	"context"
	"net"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/outbox"
)

// Names that the tests outside the package may use.
var (
	Murmur2      = murmur2
	Glob         = glob
	InvalidTopic = invalidTopic
	Backoff      = backoff
	Explain      = explain
	BatchLimit   = batchLimit
)

// ProducerConfig builds the sarama configuration of a Config.
func ProducerConfig(cfg Config) (*sarama.Config, error) {
	s, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	return producerConfig(s, newWire(s.Dial)), nil
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
	r, err := newRouter(routes, allow)
	if err != nil {
		return "", err
	}
	return r.topic(origin{row.Namespace, row.AggregateType, row.Type})
}

// BuildMessage builds the message of an event.
func BuildMessage(ev Event) (*sarama.ProducerMessage, error) {
	r, err := newRecord(ev)
	if err != nil {
		return nil, err
	}
	return &r.message, nil
}

// CheckSize is the size check of an event's record.
func CheckSize(ev Event, maxBytes int) error {
	r, err := newRecord(ev)
	if err != nil {
		return err
	}
	return r.checkSize(maxBytes)
}

// UserHeaders parses the headers column.
func UserHeaders(text []byte) ([]sarama.RecordHeader, error) {
	return appendUserHeaders(nil, text)
}

// Judge decides about a topic.
func Judge(name string, metadata *sarama.TopicMetadata, limit int, cfg Config) (partitions int32, refused *RouteError, err error) {
	s, err := cfg.resolve()
	if err != nil {
		return 0, nil, err
	}
	state := judge(name, metadata, limit, s)
	return state.partitions, state.refused, nil
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
		routes: make(map[origin]*topic), topics: make(map[string]*topic),
		failed: make(chan struct{}), quit: make(chan struct{}),
	}
	p.watcher = &watcher{questions: make(chan question), usable: make(map[string]*topic)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case message, open := <-input:
				if !open {
					return
				}
				r := recordOf(message)
				r.topic.inFlight.Add(-1)
				p.inflight.done(1, r.cost)
			case q := <-p.watcher.questions:
				q.topic.state.Store(&topicState{partitions: partitions})
				q.answer <- nil
			}
		}
	}()
	return p, func() { close(input); <-done }, nil
}

// CachedRoutes returns how many origins the publisher remembers.
func (p *Publisher) CachedRoutes() int { return len(p.routes) }

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
