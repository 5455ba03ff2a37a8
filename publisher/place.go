package publisher

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/onceward/onceward/publisher/internal/produce"
	"github.com/onceward/onceward/record"
)

// maxOrigins bounds each cache of topics, whose keys come from rows. A route that is
// held and not in the cache costs the stream a request at each of its tries.
const maxOrigins = 50_000

// placer turns an event into a record with its topic and partition, and waits
// until it may be handed over. Only the goroutine that publishes uses it.
type placer struct {
	settings     *settings
	watcher      *watcher
	inflight     *inflight
	records      *pendings
	failed, quit <-chan struct{} // of the producer behind it; both end a wait

	origin origin // of the last event, with its topic: rows of one type come in runs
	last   *topic
	routes map[origin]*topic
	topics map[string]*topic
}

func newPlacer(s *settings, w *watcher, f *inflight, failed, quit <-chan struct{}) *placer {
	return &placer{
		settings: s, watcher: w, inflight: f, failed: failed, quit: quit,
		routes: make(map[origin]*topic), topics: make(map[string]*topic),
	}
}

// place returns the record of an event, ready to be sent. The errors are those
// of [Publisher.Publish]; ErrFailed and ErrClosed come bare.
func (p *placer) place(ctx context.Context, ev Event) (*pending, error) {
	t, err := p.route(&ev)
	if err != nil {
		return nil, err
	}
	state, err := p.prepare(ctx, t)
	if err != nil {
		return nil, err
	}
	r := p.records.get()
	if err := p.ready(ctx, r, ev, t, state); err != nil {
		p.records.put(r)
		return nil, err
	}
	return r, nil
}

// ready makes a record that of an event, and waits until it may be handed over.
func (p *placer) ready(ctx context.Context, r *pending, ev Event, t *topic, state *topicState) error {
	if err := r.fill(ev, p.settings.HeaderStyle); err != nil {
		return err
	}
	if err := r.sized(&ev).Check(p.settings.MaxMessageBytes); err != nil {
		return err
	}
	if err := p.fit(ctx, r, t, state, &ev); err != nil {
		return err
	}
	r.topic, r.Topic = t, &t.route
	r.Partition = Partition(r.Kafka.Key, t.partitions)
	if t.serial != nil {
		return p.awaitTurn(ctx, r)
	}
	return nil
}

// route returns the topic of an event. A template is executed once per origin.
func (p *placer) route(ev *Event) (*topic, error) {
	if ev.Topic != "" {
		return p.named(ev.Topic)
	}
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
		t = p.topicOf(name)
		if !t.state.Load().usable() {
			return t, nil // asked for now and then only
		}
		if len(p.routes) >= maxOrigins {
			clear(p.routes)
		}
		o = origin{strings.Clone(o.namespace), strings.Clone(o.aggregateType), strings.Clone(o.eventType)}
		p.routes[o] = t
	}
	p.origin, p.last = o, t
	return t, nil
}

// named returns a topic that an event asks for itself.
func (p *placer) named(name string) (*topic, error) {
	if t := p.topics[name]; t != nil {
		return t, nil // only allowed names are there
	}
	if _, err := p.settings.router.permit(name); err != nil {
		return nil, err
	}
	return p.topicOf(strings.Clone(name)), nil
}

// topicOf returns the topic of an allowed name. There is one per name, also
// after a cache was emptied, because the watcher keeps those in use.
func (p *placer) topicOf(name string) *topic {
	if t := p.topics[name]; t != nil {
		return t
	}
	if len(p.topics) >= maxOrigins {
		p.watcher.forget(p.topics)
		clear(p.topics)
		clear(p.routes) // or two topics of one name could be in use
		p.last = nil
	}
	t := p.watcher.find(name)
	if t == nil {
		t = &topic{name: name, route: produce.Topic{Name: name}, partitions: p.settings.Memory.count(name)}
	}
	p.topics[name] = t
	return t
}

// prepare makes sure that a topic can be written, by how many partitions, and
// whether its records share batches. It waits for the network at the first look
// only: what was refused stays refused until the watcher has looked again.
func (p *placer) prepare(ctx context.Context, t *topic) (*topicState, error) {
	state := t.state.Load()
	if state == nil {
		var err error
		if state, err = p.watcher.ask(ctx, t, p.failed, p.quit); err != nil {
			return nil, err
		}
	}
	if why := p.settings.Memory.rest(t.name, p.settings); why != nil {
		return nil, why
	}
	if state.refused != nil {
		if state.stale() {
			p.watcher.nudge(t)
		}
		return nil, state.refused
	}
	if t.partitions != state.partitions {
		if err := p.repartition(ctx, t, state.partitions); err != nil {
			return nil, err
		}
	}
	if state.narrow != (t.serial != nil) {
		return state, p.narrow(ctx, t, state)
	}
	return state, nil
}

// repartition takes on a topic's partition count.
func (p *placer) repartition(ctx context.Context, t *topic, to int32) error {
	if t.partitions != 0 {
		if p.settings.PartitionChange == PartitionsHalt {
			return &PartitionError{Topic: t.name, From: t.partitions, To: to}
		}
		// Keys move to other partitions: what is in flight must be in its old
		// one before the first event goes to the new one.
		if err := p.drain(ctx, t); err != nil {
			return err
		}
		p.settings.Logger.Warn("partition count of a topic changed; keys move to other partitions, and the order of a key across the change is lost to consumers",
			"topic", t.name, "from", t.partitions, "to", to)
	}
	t.partitions = to
	p.settings.Memory.placeBy(t.name, to)
	if t.serial != nil {
		t.serial = make([]atomic.Int64, to)
	}
	return nil
}

// narrow has the records of a topic share batches no longer, or again.
func (p *placer) narrow(ctx context.Context, t *topic, state *topicState) error {
	if !state.narrow {
		t.serial = nil // what is in flight keeps its count, and new batches are allowed
		p.settings.Logger.Info("topic takes whole batches again", "topic", t.name, "max.message.bytes", state.limit)
		return nil
	}
	if err := p.drain(ctx, t); err != nil {
		return err
	}
	t.serial = make([]atomic.Int64, t.partitions)
	p.settings.Logger.Warn("topic takes less than a batch of the relay (max.message.bytes): its records go one by one, which is slow. "+narrowCure(p.settings, t.name),
		"topic", t.name, "max.message.bytes", state.limit, "max_message_bytes", p.settings.MaxMessageBytes)
	return nil
}

// drain waits until nothing of a topic is in flight.
func (p *placer) drain(ctx context.Context, t *topic) error {
	return p.inflight.wait(ctx, p.failed, p.quit, func() bool { return t.inFlight.Load() == 0 })
}

// fit refuses a record that is beyond its topic's limit. That limit may have been
// raised just now: an old figure, or any where the record is tried again, is asked for
// before it decides, and while nobody answers the route waits.
func (p *placer) fit(ctx context.Context, r *pending, t *topic, state *topicState, ev *Event) error {
	is := r.sized(ev)
	beyond := func() bool { return state.limit > 0 && is.Size > is.Most(state.limit) }
	if !beyond() {
		return nil
	}
	if ev.Again || state.stale() {
		if _, err := p.watcher.ask(ctx, t, p.failed, p.quit); err != nil {
			return err
		}
		var err error
		if state, err = p.prepare(ctx, t); err != nil || !beyond() {
			return err
		}
	}
	reason := fmt.Sprintf("takes batches of at most %d bytes (max.message.bytes): %s one, and this event has %d with key and headers", state.limit, is.MostFit(state.limit), is.Size)
	if state.stale() {
		return &RouteError{
			Route: t.name, Topic: t.name,
			Reason: reason + "; whether that limit still holds could not be asked", Cure: "it is asked again by itself once the brokers answer",
		}
	}
	return &record.RowError{Field: "size", Size: is.Size, Limit: is.Most(state.limit), Detail: fmt.Sprintf("topic %q %s; %s", t.name, reason, raiseLimit(p.settings, t.name))}
}

// awaitTurn waits until the record's partition has nothing in flight, so that
// it gets a batch of its own.
func (p *placer) awaitTurn(ctx context.Context, r *pending) error {
	inFlight := &r.topic.serial[r.Partition]
	r.serial, r.Alone = inFlight, true
	return p.inflight.wait(ctx, p.failed, p.quit, func() bool { return inFlight.Load() == 0 })
}
