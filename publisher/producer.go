package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/publisher/internal/produce"
)

const (
	// closeGrace is how long Close waits for what is in flight.
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
	watcher  *watcher
	inflight *inflight
	records  *pendings
	loop     *produce.Loop
	put      func(*produce.Record) // the loop's
	search   *brokers              // for leaders; the loop's
	// transactional: an epoch that is not the newest means a rival, where
	// without transactions it means that the broker has forgotten us.
	transactional bool

	handover sync.Mutex // held by Publish; what follows belongs to it
	placer   *placer

	acknowledged func(tags []uint64) // called by the loop's goroutine, as what it calls
	tags         []uint64

	failed   chan struct{}
	failOnce sync.Once
	err      error // set before failed is closed

	quit      chan struct{} // closed by Close
	closeOnce sync.Once
	closeErr  error
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
	disarm := context.AfterFunc(ctx, w.Cut)
	b, err := reach(s, w)
	var p *Publisher
	if err == nil {
		p, err = connect(s, w, b)
	}
	if !disarm() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		w.Cut()
		if b != nil {
			b.Close()
		}
		return nil, err
	}
	p.start(acknowledged)
	return p, nil
}

// reach opens the connection for look-ups first, because its errors name each
// address.
func reach(s *settings, w *wire) (*brokers, error) {
	b := newBrokers(lookupConfig(s, w), s)
	if err := b.reach(); err != nil {
		b.Close()
		return nil, unreachable(err)
	}
	s.told, s.Cluster = slices.Clone(b.Learned), b.cluster
	return b, nil
}

// unreachable says what to look at when no broker can be used.
func unreachable(err error) error {
	if errors.Is(err, ErrOtherCluster) {
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	return fmt.Errorf("connect to Kafka: no broker can be used; check brokers, TLS and SASL of the configuration: %w", err)
}

// connect gets the producer's id from the very broker that was reached.
func connect(s *settings, w *wire, b *brokers) (*Publisher, error) {
	id, err := firstProducer(b, w)
	if err != nil {
		return nil, fmt.Errorf("get a producer id from %s: %w: %s", b.Address, err, advise(err, s))
	}
	p := newPublisher(s, w, b, idempotentDelivery(s, w))
	p.loop.Become(id)
	return p, nil
}

// idTries bounds the questions for a producer's id, produceBackoff apart.
const idTries = 10

// firstProducer gets a producer without transactions.
func firstProducer(b *brokers, w *wire) (first produce.Producer, err error) {
	for try := 1; ; try++ {
		refusal := sarama.ErrNoError
		err = b.Ask(func(conn *sarama.Broker) (err error) {
			first, refusal, err = produce.Init(conn, nil, 0, produce.Nobody)
			return err
		})
		if err == nil && refusal != sarama.ErrNoError {
			err = refusal
		}
		if err == nil || !passing(err) || try > idTries || !w.Pause(produceBackoff) {
			return first, err
		}
	}
}

// newPublisher assembles a publisher that takes b over. Nothing runs yet.
func newPublisher(s *settings, w *wire, b *brokers, d produce.Config) *Publisher {
	p := &Publisher{
		settings: s, wire: w, records: new(pendings), transactional: d.TransactionalID != nil,
		tags: make([]uint64, 0, ackBatch), failed: make(chan struct{}), quit: make(chan struct{}),
	}
	search := lookupConfig(s, w)
	search.Net.ReadTimeout = min(lookupTimeout, d.Connection.Net.ReadTimeout)
	p.search = newBrokers(search, s)
	d.Locate = func(topics []string, elsewhere bool) (*sarama.MetadataResponse, error) {
		if elsewhere {
			p.search.Elsewhere()
		}
		response, err := p.search.locate(topics)
		w.refuse(err)
		return response, err
	}
	d.Acked, d.Failed, d.Throttle = p.acked, p.giveUp, &s.Memory.throttle
	d.Hurried = func() bool { return p.inflight.waiting.Load() > 0 }
	p.loop = produce.New(d)
	p.put = p.loop.Put
	p.inflight = newInflight(p.loop.Nudge)
	p.watcher = &watcher{
		settings: s, wire: w, brokers: b,
		questions: make(chan question), tasks: &p.tasks,
		fail: p.fail, usable: make(map[string]*topic), nudged: make(map[*topic]struct{}),
		nudges: make(chan struct{}, 1), narrow: named(s.Narrow), doubtful: make(map[string]*topic),
		creator: newCreator(),
	}
	p.placer = newPlacer(s, p.watcher, p.inflight, p.failed, p.quit)
	p.placer.records = p.records
	return p
}

func (p *Publisher) start(acknowledged func(tags []uint64)) {
	p.acknowledged = acknowledged
	p.tasks.Go(func() {
		defer p.search.Close()
		p.loop.Run()
	})
	p.tasks.Go(p.watcher.run)
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

// send waits for room and hands the record to the loop. It is counted before,
// because its acknowledgement may come before that returns.
func (p *Publisher) send(ctx context.Context, r *pending) error {
	if p.inflight.bytes.Load()+r.Cost > p.settings.MaxInFlightBytes {
		room := func() bool {
			used := p.inflight.bytes.Load()
			return used == 0 || used+r.Cost <= p.settings.MaxInFlightBytes
		}
		if err := p.inflight.wait(ctx, p.failed, p.quit, room); err != nil {
			return err
		}
	}
	p.inflight.add(r.Cost)
	r.begin()
	p.put(&r.Record)
	return nil
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
	err := p.inflight.wait(ctx, p.failed, p.quit, p.inflight.empty)
	if failure := p.Err(); failure != nil {
		return failure
	}
	return err
}

// Close ends the publisher and waits for its goroutines. What is in flight gets
// two seconds to be sent and acknowledged, none after a failure; then the
// connections are cut, and what is left counts as not published. Whatever is
// acknowledged meanwhile is still reported, and nothing after Close returns.
//
// The error, which does not match [ErrFailed], says that the Kafka client did not end
// within ten seconds more; its goroutines are then lost. Calls after the first
// wait for it and return the same.
func (p *Publisher) Close() error { return p.close(func() {}, func() {}) }

// close calls last when nothing is handed over any more and everything still works,
// and after when all goroutines have ended.
func (p *Publisher) close(last, after func()) error {
	p.closeOnce.Do(func() {
		close(p.quit)
		p.handover.Lock() // a Publish that waited has seen quit; none sends from here on
		last()
		p.handover.Unlock()
		if p.closeErr = p.wait(); p.closeErr == nil {
			after()
		}
	})
	return p.closeErr
}

// wait waits for the goroutines: within the grace for what they have left to
// do, and after the cut for their end.
func (p *Publisher) wait() error {
	over, stop := grace()
	defer stop()
	_ = p.inflight.until(over, p.failed, nil, p.inflight.empty) // what is left then was not published
	p.wire.Cut()
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

// closing reports whether Close was called.
func (p *Publisher) closing() bool {
	select {
	case <-p.quit:
		return true
	default:
		return false
	}
}

// ended returns why nothing can be published any more, if so.
func (p *Publisher) ended() error {
	if p.closing() {
		return ErrClosed
	}
	return p.Err()
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
		p.wire.Cut()
		close(p.failed)
	})
}
