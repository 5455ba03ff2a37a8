package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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

// watcher looks topics up: when Publish asks, every TopicRefresh, and when
// acknowledgements have stopped. Its goroutine alone uses the brokers.
type watcher struct {
	settings  *settings
	wire      *wire
	brokers   *brokers
	questions chan question
	tasks     *sync.WaitGroup
	fail      func(error)

	mu     sync.Mutex
	usable map[string]*topic // found usable once; bounded by the cluster, not by rows
	nudged map[*topic]struct{}

	nudges chan struct{} // some were nudged

	also func(*brokers) error // asked at every look for stalls; its error is the producer's end. May be nil

	doubtful map[string]*topic // that may have been made anew: one more answer decides
	creator  creator
	narrow   map[string]bool // topics to write record by record: Config.Narrow
	warned   bool            // that a limit could not be read
	cure     string          // of the last topic that was refused
}

type question struct {
	topic    *topic
	answered chan struct{} // closed once the topic has a state
}

// run works until the wire is cut.
func (w *watcher) run() {
	defer w.brokers.Close()
	refresh := time.NewTicker(w.settings.TopicRefresh)
	defer refresh.Stop()
	stall := time.NewTicker(stallCheck)
	defer stall.Stop()
	var again <-chan time.Time
	var looked time.Time
	for {
		select {
		case <-w.wire.Down():
			return
		case err := <-w.wire.foreign:
			w.fail(fmt.Errorf("%w: %w", ErrFailed, err))
		case q := <-w.questions:
			if err := w.check(q.topic); err != nil {
				w.unanswered(q.topic, err)
			}
			close(q.answered)
		case <-w.nudges:
			if again == nil {
				again = time.After(gather - time.Since(looked))
			}
		case <-again:
			again, looked = nil, time.Now()
			w.again()
		case refused := <-w.creator.made:
			w.endRound(refused)
		case <-refresh.C:
			if time.Since(looked) < w.settings.TopicRefresh { // one is refused: who is cut off knows nothing new
				w.brokers.Elsewhere()
			}
			_ = w.check(w.inUse()...)
		case <-stall.C:
			w.checkStalled()
			w.checkDoubtful()
			w.lookFurther()
		}
	}
}

// ask has a topic looked up for the first time and returns its state. It blocks, at most for lookupTimeout; a cluster
// that does not answer makes the route unusable too.
func (w *watcher) ask(ctx context.Context, t *topic, failed, quit <-chan struct{}) (*topicState, error) {
	timer := time.NewTimer(lookupTimeout)
	defer timer.Stop()
	q := question{topic: t, answered: make(chan struct{})}
	questions := w.questions
	for {
		select {
		case questions <- q:
			questions = nil
		case <-q.answered:
			return t.state.Load(), nil
		case <-timer.C:
			w.unanswered(t, fmt.Errorf("no answer within %s", lookupTimeout))
			return t.state.Load(), nil
		case <-failed:
			return nil, ErrFailed
		case <-quit:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// nudge has a refused topic looked up again, together with others. It does not
// block, so that other routes go on meanwhile.
func (w *watcher) nudge(t *topic) {
	w.mu.Lock()
	w.nudged[t] = struct{}{}
	w.mu.Unlock()
	select {
	case w.nudges <- struct{}{}:
	default:
	}
}

// gather is the least time between two requests for topics that were refused:
// thousands of them are to cost the others nothing.
const gather = 200 * time.Millisecond

// nudgedAtOnce is how many topics are looked up by one request.
const nudgedAtOnce = 500

// again looks up topics that were nudged.
func (w *watcher) again() {
	var topics []*topic
	w.mu.Lock()
	for t := range w.nudged {
		if len(topics) == nudgedAtOnce {
			select {
			case w.nudges <- struct{}{}:
			default:
			}
			break
		}
		topics = append(topics, t)
		delete(w.nudged, t)
	}
	if len(w.nudged) == 0 {
		w.nudged = make(map[*topic]struct{}) // what was large does not stay so
	}
	w.mu.Unlock()
	if err := w.check(topics...); err != nil {
		for _, t := range topics {
			w.unanswered(t, err)
		}
	}
}

// unanswered makes a topic unusable about which the cluster said nothing, unless
// it said something before.
func (w *watcher) unanswered(t *topic, err error) {
	state := &topicState{checked: time.Now(), refused: &RouteError{
		Route: t.name, Topic: t.name,
		Reason: fmt.Sprintf("could not be looked up: %v", err),
		Cure:   "it is looked up again by itself once the brokers answer",
	}}
	if old := t.state.Load(); old == nil || old.refused != nil {
		t.state.CompareAndSwap(old, state)
	}
}

// named returns a set of topics.
func named(topics []string) map[string]bool {
	set := make(map[string]bool, len(topics))
	for _, name := range topics {
		set[name] = true
	}
	return set
}

// find returns a topic that was found usable before, or nil.
func (w *watcher) find(name string) *topic {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.usable[name]
}

// forget tells of topics that nobody asks for any more unless they were found usable:
// an answer about such a one may still be on its way.
func (w *watcher) forget(topics map[string]*topic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, t := range topics {
		if w.usable[name] != t {
			t.gone = true
			delete(w.nudged, t)
		}
	}
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

// checkStalled looks at the topics that have waited for acknowledgements since the last time and got none. One that
// has become unusable would keep its events for hours, because a broker that does not know it may be the only one.
func (w *watcher) checkStalled() {
	var waiting []*topic
	for _, t := range w.inUse() {
		ended := t.ended.Load()
		if t.inFlight.Load() > 0 && ended == t.seen {
			waiting = append(waiting, t)
		}
		t.seen = ended
	}
	if len(waiting) == 0 {
		return
	}
	w.brokers.Close() // a new connection has to prove what the producer's has to
	if err := w.check(waiting...); err != nil {
		if classify(err) == classRelay {
			// The old credentials would be tried for hours. The next
			// publisher gets those that are valid by then.
			w.fail(fmt.Errorf("%w: events wait, and no broker lets the relay in: %w: %s", ErrFailed, err, advise(err, w.settings)))
		}
		return // the brokers are away, and waited for
	}
	for _, t := range waiting {
		if refused := t.state.Load().refused; refused != nil && !refused.Passing && t.inFlight.Load() > 0 {
			w.fail(lostRoute(t.name, refused))
			return
		}
	}
}

// checkDoubtful asks once more, and another broker if there is one, for topics that look as if they were made anew.
func (w *watcher) checkDoubtful() {
	if len(w.doubtful) == 0 {
		return
	}
	topics := slices.Collect(maps.Values(w.doubtful))
	w.brokers.Elsewhere()
	_ = w.check(topics...) // else at the next tick
}

func (w *watcher) lookFurther() {
	if w.also == nil {
		return
	}
	if err := w.also(w.brokers); err != nil {
		w.fail(err)
	}
}

// check looks topics up and stores what was found, and has missing ones made
// when it may. The error is that of the network; what the cluster refuses is part
// of the state.
func (w *watcher) check(topics ...*topic) error {
	if len(topics) == 0 {
		return nil
	}
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.name
	}
	response, err := w.brokers.describe(names)
	w.wire.refuse(err)
	if err != nil {
		return err
	}
	found := make(map[string]*sarama.TopicMetadata, len(response.Topics))
	for _, metadata := range response.Topics {
		found[metadata.Name] = metadata
	}
	limits := w.limits(found)
	for _, t := range topics {
		w.recognise(t, found[t.name])
		if metadata := found[t.name]; w.settings.Topics.Create && metadata != nil &&
			errors.Is(metadata.Err, sarama.ErrUnknownTopicOrPartition) {
			w.store(t, topicState{refused: w.want(t)})
			continue
		}
		w.store(t, judge(t.name, found[t.name], limits[t.name], w.settings))
	}
	return nil
}

// recognise compares the topic's id with the one that is known.
func (w *watcher) recognise(t *topic, metadata *sarama.TopicMetadata) {
	delete(w.doubtful, t.name)
	if metadata != nil && metadata.Err == sarama.ErrNoError && w.settings.Memory.meet(t, metadata.Uuid, time.Now()) {
		w.doubtful[t.name] = t
	}
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

// store makes a state visible to Publish.
func (w *watcher) store(t *topic, state topicState) {
	state.checked = time.Now()
	old := t.state.Load()
	if state.refused != nil {
		state.refused = w.shared(old, state.refused)
		t.state.Store(&state)
		return
	}
	w.mu.Lock()
	if !t.gone { // else another one of that name is in use by now
		w.usable[t.name] = t
	}
	w.mu.Unlock()
	if old != nil && old.id == state.id && state.id != (sarama.Uuid{}) {
		state.partitions = max(state.partitions, old.partitions) // none is ever taken away: who shows fewer lags behind
	}
	if old != nil && state.limit == 0 { // not readable this time
		state.limit, state.narrow = old.limit, old.narrow
	}
	if w.narrow[t.name] {
		if old != nil && old.limit > 0 && state.limit > old.limit && !state.narrow {
			delete(w.narrow, t.name) // raised under our eyes, so that the figure can be trusted
		}
		state.distrusted = w.narrow[t.name]
		state.narrow = state.narrow || state.distrusted
	}
	if placed := w.settings.Memory.count(t.name); placed > state.partitions && t.inFlight.Load() > 0 {
		w.fail(w.shrunk(t.name, placed, state.partitions))
		return
	}
	t.state.Store(&state)
}

// shared returns a refusal that takes no memory of its own where it is the one before,
// and shares its cure with the last: thousands of topics may be refused alike.
func (w *watcher) shared(old *topicState, why *RouteError) *RouteError {
	if old != nil && old.refused != nil && *old.refused == *why {
		return old.refused
	}
	if why.Cure == w.cure {
		why.Cure = w.cure
	}
	w.cure = why.Cure
	return why
}

// shrunk: a topic was deleted and made anew with fewer partitions while events
// waited for it. What waits for a partition that is no more would wait for ever.
func (w *watcher) shrunk(name string, from, to int32) error {
	if w.settings.PartitionChange == PartitionsHalt {
		return fmt.Errorf("%w: %w", ErrFailed, &PartitionError{Topic: name, From: from, To: to})
	}
	return fmt.Errorf("%w: topic %q was made anew with %d instead of %d partitions while events waited for it", ErrFailed, name, to, from)
}
