package publisher

import (
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/publisher/internal/produce"
)

// topic is a topic that some row leads to.
type topic struct {
	name     string
	state    atomic.Pointer[topicState] // nil until it was looked up
	route    produce.Topic              // its records' way
	inFlight atomic.Int64               // records handed over and not ended
	ended    atomic.Uint64              // records that have ended, ever

	// What follows belongs to Publish. Both follow state with a pause, in which
	// what is in flight ends.
	partitions int32          // the count by which keys are placed now
	serial     []atomic.Int64 // records in flight by partition; nil unless narrow

	seen uint64 // ended, at the watcher's last look for stalls; the watcher's
	gone bool   // forgotten before it was usable, under the watcher's lock
}

// topicState is what the cluster said about a topic. It is immutable.
type topicState struct {
	partitions int32
	id         sarama.Uuid // zero: not told
	limit      int         // max.message.bytes; 0 when it could not be read
	narrow     bool        // records go one per batch
	distrusted bool        // narrow by Config.Narrow: the limit may be another than was read
	refused    *RouteError // nil when the topic can be published to
	checked    time.Time
}

// usable reports whether the topic was looked up and can be published to.
func (s *topicState) usable() bool { return s != nil && s.refused == nil }

// stale reports whether a state that keeps an event waiting may be looked up
// again.
func (s *topicState) stale() bool { return time.Since(s.checked) >= recheck }

// begin counts a record in before it is handed over, because its
// acknowledgement may come before the hand-over has returned.
func (r *pending) begin() {
	r.topic.inFlight.Add(1)
	if r.serial != nil {
		r.serial.Add(1)
	}
}

// end counts a record out. Who calls it wakes those that wait afterwards, by
// inflight.done.
func (r *pending) end() {
	r.topic.ended.Add(1)
	r.topic.inFlight.Add(-1)
	if r.serial != nil {
		r.serial.Add(-1)
	}
}

// alone reports whether no other record can have been in this one's batch.
func (r *pending) alone() bool { return r.serial != nil }

// proven reports whether a record of this topic that was refused as too large,
// alone in its batch, is to blame itself: the limit cannot be read, or what was
// read does not hold, because a batch was refused for it before. Otherwise the
// limit was lowered just now, and is read again by the next publisher.
func (t *topic) proven() bool {
	state := t.state.Load()
	return state == nil || state.limit == 0 || state.distrusted
}
