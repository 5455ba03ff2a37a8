package publisher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

const (
	// closeGrace is how long Close lets sarama finish what it holds.
	closeGrace = 2 * time.Second
	// closeLimit is how long Close waits after it has cut the connections.
	closeLimit = 10 * time.Second
	// maxOrigins bounds the cache of routes, whose keys come from rows.
	maxOrigins = 10_000
)

// Publisher publishes events to one cluster in idempotent mode. Its methods may
// be called concurrently; Publish calls wait for one another, and their order
// is the order of events.
type Publisher struct {
	settings *settings
	wire     *wire
	client   sarama.Client
	producer sarama.AsyncProducer
	input    chan<- *sarama.ProducerMessage
	watcher  *watcher
	inflight *inflight

	acknowledgements atomic.Uint64

	handover sync.Mutex // held by Publish; what follows belongs to it
	origin   origin     // of the last event, with its topic: rows of one type come in runs
	last     *topic
	routes   map[origin]*topic
	topics   map[string]*topic

	failed   chan struct{}
	failOnce sync.Once
	err      error // set before failed is closed

	quit      chan struct{} // closed by Close
	closeOnce sync.Once
	closeErr  error
	cutOnce   sync.Once
	drained   chan struct{}
	tasks     sync.WaitGroup
}

// New connects to the cluster, gets a producer id, and starts the publisher.
// It blocks until a broker has answered, or all have refused, or ctx ends; ctx
// is not used afterwards. Topics are looked up when the first event needs them.
//
// Acknowledged is called from one goroutine with the tags of events that all
// in-sync replicas have; per partition in the order of Publish. It must return
// quickly, because nothing is sent meanwhile, must not call the Publisher, and
// must not keep the slice.
//
// The caller must call Close, also after a failure.
func New(ctx context.Context, cfg Config, acknowledged func(tags []uint64)) (*Publisher, error) {
	s, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if acknowledged == nil {
		return nil, configError("acknowledged", "nil", "a function is required")
	}
	w := newWire(s.Dial)
	disarm := context.AfterFunc(ctx, w.cut)
	p, err := connect(s, w)
	if !disarm() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		w.cut()
		if p != nil {
			abandon(p.producer, p.client)
		}
		return nil, err
	}
	p.start(acknowledged)
	return p, nil
}

// connect reaches a broker with the watcher's connection first, whose errors
// name each address, and gets the producer's id from that very broker: sarama
// would ask a random one, dead or alive.
func connect(s *settings, w *wire) (*Publisher, error) {
	b := &brokers{config: lookupConfig(s, w), seeds: s.Brokers}
	if err := b.reach(); err != nil {
		return nil, fmt.Errorf("connect to Kafka: no broker can be used; check brokers, TLS and SASL of the configuration: %w", err)
	}
	client, err := sarama.NewClient([]string{b.address}, producerConfig(s, w))
	if err != nil {
		b.close()
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	producer, err := sarama.NewAsyncProducerFromClient(client)
	if err == nil {
		if err = client.RefreshBrokers(s.Brokers); err != nil {
			abandon(producer, client)
		}
	} else {
		_ = client.Close()
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("get a producer id from %s: %w: %s", b.address, err, advise(err, s.MaxMessageBytes))
	}
	p := &Publisher{
		settings: s, wire: w, client: client, producer: producer, input: producer.Input(),
		inflight: newInflight(),
		routes:   make(map[origin]*topic), topics: make(map[string]*topic),
		failed: make(chan struct{}), quit: make(chan struct{}), drained: make(chan struct{}),
	}
	p.watcher = &watcher{
		settings: s, wire: w, brokers: b, client: client,
		questions: make(chan question), refreshed: make(chan *topic), tasks: &p.tasks,
		progress: p.acknowledgements.Load, fail: p.fail,
		usable: make(map[string]*topic), refreshing: make(map[string]bool),
	}
	return p, nil
}

// abandon ends a producer that was given nothing yet.
func abandon(producer sarama.AsyncProducer, client sarama.Client) {
	_ = producer.Close() // it holds no message, so there is no error
	_ = client.Close()
}

func (p *Publisher) start(acknowledged func(tags []uint64)) {
	p.wire.arm()
	p.tasks.Go(func() {
		defer close(p.drained)
		d := &drain{publisher: p, successes: p.producer.Successes(), errors: p.producer.Errors(), acknowledged: acknowledged}
		d.run()
	})
	p.tasks.Go(p.watcher.run)
}

// Publish hands an event over to the producer. It blocks while MaxInFlightBytes
// are in flight, while a topic is looked up for the first time, and while a
// topic whose partition count has changed is drained. When it returns nil, the
// event's tag is reported once it is acknowledged, unless the publisher fails
// or is closed before.
//
// On every error the event was not handed over: a [*RouteError] asks to hold it
// and call again later, a [*RecordError] says that it can never be published;
// [ErrFailed], [ErrClosed] and ctx's error are about the publisher.
func (p *Publisher) Publish(ctx context.Context, ev Event) error {
	p.handover.Lock()
	defer p.handover.Unlock()
	if err := p.ended(); err != nil {
		return err
	}
	t, err := p.route(ev)
	if err != nil {
		return err
	}
	if err := p.prepare(ctx, t); err != nil {
		return p.reason(err)
	}
	r, err := newRecord(ev)
	if err != nil {
		return err
	}
	if err := r.checkSize(p.settings.MaxMessageBytes); err != nil {
		return err
	}
	r.topic = t
	r.message.Topic = t.name
	r.message.Partition = Partition(r.key, t.partitions)
	return p.reason(p.send(ctx, r))
}

// route returns the topic of an event. A template is executed once per origin.
func (p *Publisher) route(ev Event) (*topic, error) {
	o := origin{namespace: ev.Row.Namespace, aggregateType: ev.Row.AggregateType}
	if p.settings.router.byEventType {
		o.eventType = ev.Row.Type
	}
	if p.last != nil && o == p.origin {
		return p.last, nil
	}
	t := p.routes[o]
	if t == nil {
		name, err := p.settings.router.topic(origin{o.namespace, o.aggregateType, ev.Row.Type})
		if err != nil {
			return nil, err
		}
		t = p.remember(o, name)
	}
	p.origin, p.last = o, t
	return t, nil
}

// remember caches the route of an origin. There is one topic per name, also
// after the cache was emptied, because the watcher keeps those in use.
func (p *Publisher) remember(o origin, name string) *topic {
	if len(p.routes) >= maxOrigins {
		clear(p.routes)
		clear(p.topics)
	}
	o = origin{strings.Clone(o.namespace), strings.Clone(o.aggregateType), strings.Clone(o.eventType)}
	t := p.topics[name]
	if t == nil {
		t = p.watcher.find(name)
	}
	if t == nil {
		t = &topic{name: name}
	}
	p.topics[name] = t
	p.routes[o] = t
	return t
}

// prepare makes sure that a topic can be written, and by how many partitions.
func (p *Publisher) prepare(ctx context.Context, t *topic) error {
	state := t.state.Load()
	if state == nil || state.refused != nil && time.Since(state.checked) >= recheck {
		var err error
		if state, err = p.watcher.ask(ctx, t, p.failed, p.quit); err != nil {
			return err
		}
	}
	if state.refused != nil {
		return state.refused
	}
	if t.partitions == state.partitions {
		return nil
	}
	if t.partitions != 0 {
		// Keys move to other partitions: what is in flight must be in its old
		// one before the first event goes to the new one.
		if err := p.inflight.wait(ctx, p.failed, p.quit, func() bool { return t.inFlight.Load() == 0 }); err != nil {
			return err
		}
		p.settings.Logger.Warn("partition count of a topic changed; keys move to other partitions, and the order of a key across the change is lost to consumers",
			"topic", t.name, "from", t.partitions, "to", state.partitions)
	}
	t.partitions = state.partitions
	return nil
}

// send waits for room and hands the record to sarama. It is counted before,
// because its acknowledgement may come before sarama's channel returns.
func (p *Publisher) send(ctx context.Context, r *record) error {
	if p.inflight.bytes.Load()+r.cost > p.settings.MaxInFlightBytes {
		room := func() bool {
			used := p.inflight.bytes.Load()
			return used == 0 || used+r.cost <= p.settings.MaxInFlightBytes
		}
		if err := p.inflight.wait(ctx, p.failed, p.quit, room); err != nil {
			return err
		}
	}
	p.inflight.add(r.cost)
	r.topic.inFlight.Add(1)
	var err error
	select {
	case p.input <- &r.message:
		return nil
	case <-p.failed:
		err = ErrFailed
	case <-p.quit:
		err = ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	r.topic.inFlight.Add(-1)
	p.inflight.done(1, r.cost)
	return err
}

// Failed is closed when the producer has given up on an event. No write begins
// after that; acknowledgements that were on their way are still reported.
func (p *Publisher) Failed() <-chan struct{} { return p.failed }

// Err returns nil until Failed is closed, and then why: what happened, to which
// topic, and what to do next. It matches [ErrFailed].
func (p *Publisher) Err() error {
	select {
	case <-p.failed:
		return p.err
	default:
		return nil
	}
}

// Flush waits until every event handed over so far, and those that are handed
// over meanwhile, was acknowledged and reported. It returns early with Err when
// the producer fails, with [ErrClosed], or with ctx's error.
func (p *Publisher) Flush(ctx context.Context) error {
	err := p.inflight.wait(ctx, p.failed, p.quit, func() bool { return p.inflight.events.Load() == 0 })
	if failure := p.Err(); failure != nil {
		return failure // a failure empties the counts too
	}
	return err
}

// Close ends the publisher and waits for its goroutines. What sarama holds gets
// two seconds to be sent and acknowledged, none after a failure; then the
// connections are cut, and what is left counts as not published. Whatever is
// acknowledged meanwhile is still reported, and nothing after Close returns.
//
// The error, which does not match [ErrFailed], says that sarama did not end
// within ten seconds more; its goroutines are then lost. Calls after the first
// wait for it and return the same.
func (p *Publisher) Close() error {
	p.closeOnce.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

func (p *Publisher) close() error {
	close(p.quit)
	p.handover.Lock() // a Publish that waited has seen quit; none sends from here on
	p.producer.AsyncClose()
	p.handover.Unlock()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-p.drained:
	case <-p.failed:
	case <-grace.C:
	}
	p.cut()
	done := make(chan struct{})
	go func() {
		p.tasks.Wait()
		close(done)
	}()
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	select {
	case <-done:
		return nil
	case <-limit.C:
		return fmt.Errorf("close publisher: the Kafka client did not end within %s; restart the process if this repeats", closeLimit)
	}
}

// ended returns why nothing can be published any more, if so.
func (p *Publisher) ended() error {
	select {
	case <-p.quit:
		return ErrClosed
	default:
		return p.Err()
	}
}

// reason puts the explained failure in the place of the bare sentinel.
func (p *Publisher) reason(err error) error {
	if errors.Is(err, ErrFailed) {
		return p.Err()
	}
	return err
}

// fail records the first failure and cuts the wire.
func (p *Publisher) fail(err error) {
	p.failOnce.Do(func() {
		p.err = err
		p.cut()
		close(p.failed)
	})
}

// cut ends all network work. Closing the client is what makes sarama give up
// the messages that it retries; it takes locks, hence a goroutine of its own.
func (p *Publisher) cut() {
	p.cutOnce.Do(func() {
		p.wire.cut()
		p.tasks.Go(func() { _ = p.client.Close() })
	})
}
