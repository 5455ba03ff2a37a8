package saramagroup

import (
	"slices"
	"time"

	"github.com/onceward/onceward/consumer"
)

// lanes decides in which order the messages of one partition are delivered. It
// is pure: the caller gives the time, and serialises the calls.
//
// The invariants: of two messages with one key the earlier one is finished
// before the later one is taken, or both are taken together, in order; and
// passed returns a message only when it and every one before it are finished.
// So a message that fails holds back its own key alone.
type lanes struct {
	window []*message // in the order of offsets; the first is not finished
	keys   map[string]*lane
	bytes  int
	pause  backoff // of a lane's first failure; copied
}

// message is one record on its way through.
type message struct {
	record    consumer.Record
	eventTime time.Time
	batch     *consumer.BatchOptions // nil: delivered alone
	arrived   time.Time
	taken     bool
	finished  bool
}

// lane is what is known of one key that has messages in the window.
type lane struct {
	waiting int // messages that are not finished
	taken   int // messages that are being delivered
	tries   int // failures since the last success
	pause   backoff
	until   time.Time // no delivery before
}

func newLanes(pause backoff) *lanes { return &lanes{keys: make(map[string]*lane), pause: pause} }

// add puts the next message of the partition at the end.
func (l *lanes) add(m *message) {
	l.window = append(l.window, m)
	l.bytes += len(m.record.Key) + len(m.record.Value)
	k := l.keys[string(m.record.Key)]
	if k == nil {
		k = &lane{pause: l.pause}
		l.keys[string(m.record.Key)] = k
	}
	k.waiting++
}

// held returns how many messages, and of how many bytes, are in the window.
func (l *lanes) held() (messages, bytes int) { return len(l.window), l.bytes }

// take returns the messages to be delivered next: one, or several that share a
// batch; none when all wait. A batch that is not full waits for its linger.
func (l *lanes) take(now time.Time) []*message {
	var batch []*message
	var blocked map[string]bool // keys of which an earlier message was passed over
	room := 1
	for _, m := range l.window {
		if m.finished {
			continue
		}
		key := string(m.record.Key)
		k := l.keys[key]
		if m.taken || blocked[key] || k.taken > 0 || now.Before(k.until) || len(batch) > 0 && m.batch == nil {
			if blocked == nil {
				blocked = make(map[string]bool)
			}
			blocked[key] = true
			continue
		}
		if len(batch) == 0 && m.batch == nil {
			return l.mark([]*message{m})
		}
		if len(batch) == 0 {
			room = m.batch.Max
		}
		room = min(room, m.batch.Max)
		if batch = append(batch, m); len(batch) >= room {
			return l.mark(batch[:room])
		}
	}
	if len(batch) == 0 || now.Before(batch[0].arrived.Add(batch[0].batch.Linger)) {
		return nil
	}
	return l.mark(batch)
}

func (l *lanes) mark(batch []*message) []*message {
	for _, m := range batch {
		m.taken = true
		l.keys[string(m.record.Key)].taken++
	}
	return batch
}

// finish records that a message taken is finished.
func (l *lanes) finish(m *message) {
	k := l.keys[string(m.record.Key)]
	m.taken, m.finished = false, true
	k.taken--
	k.waiting--
	k.tries, k.pause, k.until = 0, l.pause, time.Time{}
	if k.waiting == 0 {
		delete(l.keys, string(m.record.Key))
	}
}

// retry gives a message back that was taken. A failure pauses its key, one that
// was only held back does not. It returns the number of failures in a row, and
// the pause.
func (l *lanes) retry(m *message, now time.Time, failure bool) (tries int, pause time.Duration) {
	k := l.keys[string(m.record.Key)]
	m.taken = false
	k.taken--
	if failure {
		k.tries++
		pause = k.pause.step()
		k.until = now.Add(pause)
	}
	return k.tries, pause
}

// passed removes the finished messages at the front of the window and returns
// the last of them, nil when there is none, and the latest event time of them.
func (l *lanes) passed() (last *message, latest time.Time) {
	n := 0
	for n < len(l.window) && l.window[n].finished {
		m := l.window[n]
		l.bytes -= len(m.record.Key) + len(m.record.Value)
		last = m
		if m.eventTime.After(latest) {
			latest = m.eventTime
		}
		n++
	}
	l.window = slices.Delete(l.window, 0, n)
	return last, latest
}

// next returns when take may have something that it does not have now; zero when
// only another event can change that.
func (l *lanes) next(now time.Time) time.Time {
	var at time.Time
	earlier := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, m := range l.window {
		if m.finished || m.taken {
			continue
		}
		k := l.keys[string(m.record.Key)]
		earlier(k.until)
		if m.batch != nil {
			earlier(m.arrived.Add(m.batch.Linger))
		}
	}
	return at
}
