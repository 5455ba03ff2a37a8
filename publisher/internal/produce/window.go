package produce

import (
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/backoff"
)

const (
	// requestBytes bounds a request, before compression, to what one batch may
	// have or to this; what is left leaves with the next one.
	requestBytes = 2 << 20
	// leastRoom is how much of a request must be left for another batch.
	leastRoom = requestBytes / 16
)

// Patience is how often a batch is sent again, and after which pauses: they double
// from First to Ceiling.
type Patience struct {
	Tries          int
	First, Ceiling time.Duration
}

// window is everything that was handed over and has not ended: each lane is in one
// of its lists, or in a request, or has nothing to send. It belongs to the loop,
// knows no network, and has the time told.
type window struct {
	limit         int // of a batch, estimated
	codec         sarama.CompressionCodec
	patience      Patience
	transactional bool
	producer      Producer

	joining, seeking []*lane
	couriers         map[string]*courier           // by address
	hire             func(address string) *courier // makes one
}

// lane returns the lane of a topic's partition.
func (w *window) lane(t *Topic, partition int32) *lane {
	for int(partition) >= len(t.lanes) {
		t.lanes = append(t.lanes, nil)
	}
	l := t.lanes[partition]
	if l == nil {
		l = &lane{topic: t, partition: partition}
		t.lanes[partition] = l
	}
	return l
}

// add takes a record in.
func (w *window) add(r *Record) {
	l := w.lane(r.Topic, r.Partition)
	l.add(r)
	if l.state == laneIdle {
		w.place(l)
	}
}

// place puts a lane that is in no list where it waits next.
func (w *window) place(l *lane) {
	switch {
	case !l.waits():
		l.state = laneIdle
		return
	case w.transactional && l.producer != w.producer:
		l.state = laneJoining
		w.joining = append(w.joining, l)
		return
	case l.batch.count == 0:
		l.join(w.producer)
	}
	if l.leader == nil || l.leader.gone {
		l.leader, l.state = nil, laneSeeking
		w.seeking = append(w.seeking, l)
		return
	}
	l.state = laneReady
	l.leader.lanes = append(l.leader.lanes, l)
}

// request is what one courier carries at once.
type request struct {
	lanes []*lane
	bytes int
}

// take makes a request of what is due for a courier, and returns when more will be
// due of what is left; zero: nothing is, before something changes.
func (w *window) take(c *courier, now time.Time) (r request, next time.Time) {
	left := c.lanes[:0]
	for _, l := range c.lanes {
		if l.due.After(now) {
			left, next = append(left, l), earliest(next, l.due)
			continue
		}
		if room := requestBytes - r.bytes; r.bytes > 0 && (room < leastRoom || l.batch.bytes > room) {
			left = append(left, l)
			continue
		}
		if l.batch.count == 0 {
			l.build(min(w.limit, requestBytes-r.bytes), w.codec, w.transactional, now)
		}
		l.state = laneFlying
		r.lanes = append(r.lanes, l)
		r.bytes += l.batch.bytes
	}
	clear(c.lanes[len(left):])
	c.lanes = left
	return r, next
}

// earliest returns the earlier of two times, of which zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// acked ends a lane's batch, and returns its records.
func (w *window) acked(l *lane) *Record {
	first := l.end()
	w.place(l)
	return first
}

// again has a lane's batch sent again, to whoever is its leader by then. It reports
// false when that was tried often enough. A lost connection is tried anew at once:
// it may have been an old one.
func (w *window) again(l *lane, lost bool, now time.Time) bool {
	if l.tries++; l.tries > w.patience.Tries {
		return false
	}
	if l.tries > 1 || !lost {
		l.due = now.Add(backoff.After(l.tries, w.patience.First, w.patience.Ceiling))
	}
	l.leader = nil
	w.place(l)
	return true
}

// dismiss takes a courier off that has lost its connection. Who it led to may hang, and
// lead nothing any more: every lane that would go there looks its leader up first, so
// that the next one does not find out by a timeout of its own.
func (w *window) dismiss(c *courier) {
	delete(w.couriers, c.link.Address)
	lanes := c.lanes
	c.lanes, c.gone = nil, true
	for _, l := range lanes {
		w.place(l)
	}
}

// joined takes on that lanes are in the transaction.
func (w *window) joined(lanes []*lane) {
	for _, l := range lanes {
		l.join(w.producer)
		w.place(l)
	}
}

// wanted returns the topics whose leaders are to be looked up now, and when others
// will be.
func (w *window) wanted(now time.Time) (q question, next time.Time) {
	for _, l := range w.seeking {
		if l.seek.After(now) {
			next = earliest(next, l.seek)
			continue
		}
		if q.topics == nil {
			q.topics = make(map[string]bool)
		}
		q.topics[l.topic.Name] = true
		q.elsewhere = q.elsewhere || inVain(l.tries) || inVain(l.sought)
	}
	return q, next
}

// doubts is how many answers about leaders may be of no use before another broker is
// asked: one that is cut off from the others names those of then, for ever.
const doubts = 3

func inVain(times int) bool { return times > 0 && times%doubts == 0 }

// found takes on what was answered about leaders. It returns a lane that cannot be
// written at all, and why.
func (w *window) found(f found, now time.Time) (lost *lane, why error) {
	seeking := w.seeking
	w.seeking = nil
	for _, l := range seeking {
		leaders, asked := f.topics[l.topic.Name]
		switch {
		case !asked:
			w.seeking = append(w.seeking, l)
		case leaders.refused != nil:
			l.state = laneFailed
			lost, why = l, leaders.refused
		case leaders.address(l.partition) == "":
			l.sought++
			l.seek = now.Add(backoff.After(l.sought, metadataBackoff, metadataCeiling))
			w.seeking = append(w.seeking, l)
		default:
			l.leader = w.courier(leaders.address(l.partition))
			w.place(l)
		}
	}
	return lost, why
}

// courier returns the courier to an address.
func (w *window) courier(address string) *courier {
	c := w.couriers[address]
	if c == nil {
		c = w.hire(address)
		w.couriers[address] = c
	}
	return c
}
