package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	// closeGrace is how long Close lets sarama finish what it holds.
	closeGrace = 2 * time.Second
	// closeLimit is how long Close waits after it has cut the connections.
	closeLimit = 10 * time.Second
)

// Publisher publishes events to one cluster in idempotent mode. Its methods may
// be called concurrently; Publish calls wait for one another, and their order
// is the order of events.
type Publisher struct {
	settings *settings
	wire     *wire
	client   sarama.Client
	watcher  *watcher
	inflight *inflight
	// transactional: an epoch that is not the newest means a rival, where
	// without transactions it means that the broker has forgotten us.
	transactional bool

	handover sync.Mutex           // held by Publish; what follows belongs to it
	producer sarama.AsyncProducer // nil when a rotation failed halfway
	input    chan<- *sarama.ProducerMessage
	drained  chan struct{} // closed when the producer's drain has ended
	placer   *placer

	failed   chan struct{}
	failOnce sync.Once
	err      error // set before failed is closed

	quit      chan struct{} // closed by Close
	closeOnce sync.Once
	closeErr  error
	cutOnce   sync.Once
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
	b, err := reach(s, w)
	var p *Publisher
	if err == nil {
		p, err = connect(s, w, b, producerConfig(s, w))
	}
	if !disarm() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		w.cut()
		if p != nil {
			p.abandon()
		}
		return nil, err
	}
	p.start(acknowledged)
	return p, nil
}

// reach opens the connection for look-ups first, because its errors name each
// address.
func reach(s *settings, w *wire) (*brokers, error) {
	b := &brokers{config: lookupConfig(s, w), seeds: s.Brokers, cluster: s.Cluster}
	if err := b.reach(); err != nil {
		b.close()
		return nil, unreachable(err)
	}
	s.brokers, s.Cluster = len(b.learned), b.cluster
	return b, nil
}

// unreachable says what to look at when no broker can be used.
func unreachable(err error) error {
	if errors.Is(err, ErrOtherCluster) {
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	return fmt.Errorf("connect to Kafka: no broker can be used; check brokers, TLS and SASL of the configuration: %w", err)
}

// connect gets the producer's id from the very broker that was reached: sarama
// would ask a random one, dead or alive. It closes b when it fails.
func connect(s *settings, w *wire, b *brokers, config *sarama.Config) (_ *Publisher, err error) {
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	client, err := sarama.NewClient([]string{b.address}, config)
	if err != nil {
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
		return nil, fmt.Errorf("get a producer id from %s: %w: %s", b.address, err, advise(err, s.MaxMessageBytes))
	}
	p := &Publisher{
		settings: s, wire: w, client: client, producer: producer, input: producer.Input(),
		inflight: newInflight(),
		failed:   make(chan struct{}), quit: make(chan struct{}), drained: make(chan struct{}),
	}
	p.watcher = &watcher{
		settings: s, wire: w, brokers: b, client: client,
		questions: make(chan question), refreshed: make(chan *topic), tasks: &p.tasks,
		fail: p.fail, usable: make(map[string]*topic), nudged: make(map[*topic]struct{}),
		nudges:     make(chan struct{}, 1),
		refreshing: make(map[string]bool), narrow: named(s.Narrow), doubtful: make(map[string]*topic),
		creator: newCreator(),
	}
	p.placer = newPlacer(s, p.watcher, p.inflight, p.failed, p.quit)
	return p, nil
}

// abandon ends a publisher that was not started.
func (p *Publisher) abandon() {
	abandon(p.producer, p.client)
	p.watcher.brokers.close()
}

// abandon ends a producer that was given nothing yet.
func abandon(producer sarama.AsyncProducer, client sarama.Client) {
	_ = producer.Close() // it holds no message, so there is no error
	_ = client.Close()
}

func (p *Publisher) start(acknowledged func(tags []uint64)) {
	p.wire.arm()
	p.startDrain(acknowledged)
	p.tasks.Go(p.watcher.run)
}

// startDrain starts the reader of the producer's channels.
func (p *Publisher) startDrain(acknowledged func(tags []uint64)) {
	d := &drain{publisher: p, successes: p.producer.Successes(), errors: p.producer.Errors(),
		acknowledged: acknowledged}
	drained := p.drained
	p.tasks.Go(func() {
		defer close(drained)
		d.run()
	})
}

// Publish hands an event over to the producer. It blocks while MaxInFlightBytes
// are in flight, while a topic is looked up for the first time, while a topic
// whose partition count or limit has changed is drained, and while the record
// before is on its way to the same partition of a narrow topic. When it returns
// nil, the event's tag is reported once it is acknowledged, unless the publisher
// fails or is closed before.
//
// On every error the event was not handed over: a [*RouteError] asks to hold it
// and call again later, a [*record.RowError] says that it can never be published, a
// [*PartitionError] that an operator has to decide; [ErrFailed], [ErrClosed] and
// ctx's error are about the publisher.
func (p *Publisher) Publish(ctx context.Context, ev Event) error {
	p.handover.Lock()
	defer p.handover.Unlock()
	r, err := p.accept(ctx, ev)
	if err != nil {
		return err
	}
	return p.reason(p.send(ctx, r))
}

// Usable reports by a [*RouteError] that an event would not be taken for its
// topic. Of the row it looks at the names that lead to the topic only, and it
// hands nothing over. The other errors are those of [Publisher.Publish].
func (p *Publisher) Usable(ctx context.Context, ev Event) error {
	p.handover.Lock()
	defer p.handover.Unlock()
	if err := p.ended(); err != nil {
		return err
	}
	t, err := p.placer.route(&ev)
	if err == nil {
		_, err = p.placer.prepare(ctx, t)
	}
	return p.reason(err)
}

// accept makes the record of an event, unless the publisher has ended, or its
// topic cannot be written, or the row can never become a record.
func (p *Publisher) accept(ctx context.Context, ev Event) (*pending, error) {
	if err := p.ended(); err != nil {
		return nil, err
	}
	r, err := p.placer.place(ctx, ev)
	return r, p.reason(err)
}

// send waits for room and hands the record to sarama. It is counted before,
// because its acknowledgement may come before sarama's channel returns.
func (p *Publisher) send(ctx context.Context, r *pending) error {
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
	r.begin()
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
	r.end()
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
func (p *Publisher) Close() error { return p.close(func() {}) }

// close calls last when nothing is handed over any more and the producer still
// works.
func (p *Publisher) close(last func()) error {
	p.closeOnce.Do(func() {
		close(p.quit)
		p.handover.Lock() // a Publish that waited has seen quit; none sends from here on
		last()
		if p.producer != nil {
			p.producer.AsyncClose()
		}
		p.handover.Unlock()
		p.closeErr = p.wait()
	})
	return p.closeErr
}

// wait waits for the goroutines: within the grace for what they have left to
// do, and after the cut for their end.
func (p *Publisher) wait() error {
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
