package publisher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

const (
	// recheck is the least time between two look-ups of a refused topic.
	recheck = time.Second
	// lookupTimeout bounds the time for which Publish waits for a look-up.
	lookupTimeout = 10 * time.Second
	// stallCheck is how often the watcher asks itself whether acknowledgements
	// still come.
	stallCheck = 5 * time.Second
	// createTries × createPause is how long a created topic may take to be
	// known to the broker that is asked.
	createTries = 20
	createPause = 100 * time.Millisecond
)

// topic is a topic that some row leads to.
type topic struct {
	name     string
	state    atomic.Pointer[topicState] // nil until it was looked up
	inFlight atomic.Int64
	// partitions is the count by which keys are placed now. It follows state
	// with a pause; only Publish reads and writes it.
	partitions int32
}

// topicState is what the cluster said about a topic. It is immutable.
type topicState struct {
	partitions int32
	refused    *RouteError // nil when the topic can be published to
	checked    time.Time
}

// watcher looks topics up: when Publish asks, every TopicRefresh, and when
// acknowledgements have stopped. Its goroutine alone uses the brokers.
type watcher struct {
	settings  *settings
	wire      *wire
	brokers   *brokers
	client    sarama.Client // the producer's, whose partition counts must follow
	questions chan question
	refreshed chan *topic // topics whose partition count the client has learned
	tasks     *sync.WaitGroup
	progress  func() uint64 // acknowledgements so far
	fail      func(error)

	mu     sync.Mutex
	usable map[string]*topic // found usable once; bounded by the cluster, not by rows

	refreshing map[string]bool
	warned     bool // that a limit could not be read
}

type question struct {
	topic  *topic
	answer chan error // buffered
}

// run works until the wire is cut.
func (w *watcher) run() {
	defer w.brokers.close()
	refresh := time.NewTicker(w.settings.TopicRefresh)
	defer refresh.Stop()
	stall := time.NewTicker(stallCheck)
	defer stall.Stop()
	var seen uint64
	for {
		select {
		case <-w.wire.down:
			return
		case q := <-w.questions:
			q.answer <- w.check(q.topic)
		case t := <-w.refreshed:
			delete(w.refreshing, t.name)
			_ = w.check(t) // a failure leaves the old state until the next look
		case <-refresh.C:
			_ = w.check(w.inUse()...)
		case <-stall.C:
			if now := w.progress(); now == seen {
				w.checkStalled()
			} else {
				seen = now
			}
		}
	}
}

// ask has a topic looked up and returns its new state. It blocks, at most for
// lookupTimeout; a cluster that does not answer makes the route unusable too.
func (w *watcher) ask(ctx context.Context, t *topic, failed, quit <-chan struct{}) (*topicState, error) {
	timer := time.NewTimer(lookupTimeout)
	defer timer.Stop()
	q := question{topic: t, answer: make(chan error, 1)}
	questions := w.questions
	for {
		select {
		case questions <- q:
			questions = nil
		case err := <-q.answer:
			if err != nil {
				return nil, unanswered(t.name, err)
			}
			return t.state.Load(), nil
		case <-timer.C:
			return nil, unanswered(t.name, fmt.Errorf("no answer within %s", lookupTimeout))
		case <-failed:
			return nil, ErrFailed
		case <-quit:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func unanswered(topic string, err error) error {
	return &RouteError{
		Topic:  topic,
		Reason: fmt.Sprintf("could not be looked up: %v", err),
		Cure:   "it is looked up again by itself once the brokers answer",
	}
}

// find returns a topic that was found usable before, or nil.
func (w *watcher) find(name string) *topic {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.usable[name]
}

func (w *watcher) inUse() []*topic {
	w.mu.Lock()
	defer w.mu.Unlock()
	topics := make([]*topic, 0, len(w.usable))
	for _, t := range w.usable {
		topics = append(topics, t)
	}
	return topics
}

// checkStalled looks at the topics that wait for acknowledgements. One that has
// become unusable would keep its events, and the brokers they share, for ever,
// because sarama retries for a topic that does not exist.
func (w *watcher) checkStalled() {
	var waiting []*topic
	for _, t := range w.inUse() {
		if t.inFlight.Load() > 0 {
			waiting = append(waiting, t)
		}
	}
	if w.check(waiting...) != nil {
		return // the brokers are away: sarama waits for them, and so do we
	}
	for _, t := range waiting {
		if refused := t.state.Load().refused; refused != nil {
			// As text, because an error that matches ErrRoute says "hold the event".
			w.fail(fmt.Errorf("%w: events wait for a topic that can no longer be written: %s", ErrFailed, refused.Error()))
			return
		}
	}
}

// check looks topics up and stores what was found. The error is that of the
// network; what the cluster refuses is part of the state.
func (w *watcher) check(topics ...*topic) error {
	if len(topics) == 0 {
		return nil
	}
	found, err := w.describe(topics)
	if err != nil {
		return err
	}
	limits := w.limits(found)
	for _, t := range topics {
		w.store(t, judge(t.name, found[t.name], limits[t.name], w.settings))
	}
	return nil
}

// describe returns the metadata of those topics that the cluster knows by name,
// after creating the missing ones when it may.
func (w *watcher) describe(topics []*topic) (map[string]*sarama.TopicMetadata, error) {
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.name
	}
	created := make(map[string]bool)
	for try := 0; ; try++ {
		response, err := w.brokers.describe(names)
		if err != nil {
			return nil, err
		}
		found := make(map[string]*sarama.TopicMetadata, len(response.Topics))
		missing := 0
		for _, metadata := range response.Topics {
			found[metadata.Name] = metadata
			if w.settings.Topics.Create && errors.Is(metadata.Err, sarama.ErrUnknownTopicOrPartition) {
				missing++
				if err := w.create(metadata.Name, response, created); err != nil {
					return nil, err
				}
			}
		}
		if missing == 0 || try == createTries || !w.wire.pause(createPause) {
			return found, nil
		}
	}
}

func (w *watcher) create(name string, cluster *sarama.MetadataResponse, created map[string]bool) error {
	if created[name] {
		return nil // the broker that was asked does not know it yet
	}
	created[name] = true
	for _, broker := range cluster.Brokers {
		if broker.ID() != cluster.ControllerID {
			continue
		}
		if err := w.brokers.create(name, broker, w.settings.Topics); err != nil {
			return fmt.Errorf("create topic %q: %w; create it by hand, or grant CREATE", name, err)
		}
		w.settings.Logger.Info("created topic", "topic", name,
			"partitions", w.settings.Topics.Partitions, "replication_factor", w.settings.Topics.ReplicationFactor)
		return nil
	}
	return fmt.Errorf("create topic %q: the cluster has no controller at the moment", name)
}

// limits returns what is known of the topics' max.message.bytes.
func (w *watcher) limits(found map[string]*sarama.TopicMetadata) map[string]int {
	var names []string
	for name, metadata := range found {
		if metadata.Err == sarama.ErrNoError {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	limits, err := w.brokers.limits(names)
	if err != nil && !w.warned {
		w.warned = true
		w.settings.Logger.Warn("cannot read max.message.bytes of topics; going on with the relay's own limit. "+
			"Grant DESCRIBE_CONFIGS, so that a topic with a lower limit is seen before it refuses a batch",
			"max_message_bytes", w.settings.MaxMessageBytes, "error", err)
	}
	return limits
}

// store makes a state visible to Publish, unless the producer's client has not
// learned of new partitions yet: it refuses a partition that it does not know.
func (w *watcher) store(t *topic, state topicState) {
	state.checked = time.Now()
	old := t.state.Load()
	if state.refused != nil {
		t.state.Store(&state)
		return
	}
	w.mu.Lock()
	w.usable[t.name] = t
	w.mu.Unlock()
	if old != nil && old.partitions > state.partitions && t.inFlight.Load() > 0 {
		w.fail(fmt.Errorf("%w: topic %q was made anew with %d instead of %d partitions while events waited for it",
			ErrFailed, t.name, state.partitions, old.partitions))
		return
	}
	if old != nil && old.partitions > 0 && old.partitions < state.partitions && !w.clientKnows(t, state.partitions) {
		state.partitions = old.partitions
	}
	t.state.Store(&state)
}

// clientKnows reports whether the producer's client has so many partitions of
// the topic, and has it refreshed when not. The refresh may wait for ever, and
// the watcher must not.
func (w *watcher) clientKnows(t *topic, partitions int32) bool {
	if known, err := w.client.Partitions(t.name); err == nil && len(known) >= int(partitions) {
		return true
	}
	if w.refreshing[t.name] {
		return false
	}
	w.refreshing[t.name] = true
	w.tasks.Go(func() {
		if err := w.client.RefreshMetadata(t.name); err != nil {
			w.settings.Logger.Debug("refresh partitions of topic", slog.String("topic", t.name), slog.Any("error", err))
		}
		if !w.wire.pause(createPause) {
			return // closing
		}
		select {
		case w.refreshed <- t:
		case <-w.wire.down:
		}
	})
	return false
}

// judge decides whether a topic can be published to. It is pure. A nil metadata
// is a topic that the answer left out; limit is 0 when unknown.
func judge(name string, metadata *sarama.TopicMetadata, limit int, s *settings) topicState {
	refuse := func(reason, cure string, args ...any) topicState {
		return topicState{refused: &RouteError{Topic: name, Reason: reason, Cure: fmt.Sprintf(cure, args...)}}
	}
	server := s.Brokers[0]
	switch {
	case metadata == nil || metadata.Err == sarama.ErrUnknownTopicOrPartition:
		return refuse("does not exist",
			"create it with `kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions %d --replication-factor %d`, or set topics.create: true",
			server, name, s.Topics.Partitions, s.Topics.ReplicationFactor)
	case metadata.Err == sarama.ErrTopicAuthorizationFailed || forbidden(metadata.TopicAuthorizedOperations):
		return refuse("may not be written by this principal",
			"grant it with `kafka-acls.sh --bootstrap-server %s --add --allow-principal User:%s --operation Write --operation Describe --operation DescribeConfigs --topic %s`",
			server, principal(s.SASL), name)
	case len(metadata.Partitions) == 0:
		return refuse(fmt.Sprintf("has no partitions at the moment (%v)", metadata.Err), "it is looked up again by itself; see kafka-topics.sh --describe --topic %s", name)
	case limit > 0 && limit < s.MaxMessageBytes:
		return refuse(fmt.Sprintf("takes batches of at most %d bytes (max.message.bytes), below the relay's max_message_bytes = %d, so that it would refuse small records with them", limit, s.MaxMessageBytes),
			"raise it with `kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config max.message.bytes=%d`, or lower max_message_bytes",
			server, name, s.MaxMessageBytes)
	}
	return topicState{partitions: int32(len(metadata.Partitions))}
}

// forbidden reports whether the broker said what may be done, and writing is
// not in it. Brokers that do not say leave the field at 0 or its minimum.
func forbidden(operations int32) bool {
	return operations > 0 && operations&(1<<sarama.AclOperationWrite) == 0
}

func principal(credentials SASL) string {
	if credentials.Username == "" {
		return "ANONYMOUS"
	}
	return credentials.Username
}
