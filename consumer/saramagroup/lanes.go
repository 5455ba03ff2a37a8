package saramagroup

import (
	"cmp"
	"slices"
	"time"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/backoff"
)

// lanes decides in which order the messages of one partition are delivered. It
// is pure: the caller gives the time, and serialises the calls.
//
// The invariants: of two messages with one key the earlier one is finished
// before the later one is taken, or both are taken together, in order; and
// passed returns an offset only when everything up to it is finished. So a
// message that fails holds back its own key alone.
//
// Only messages that are not finished are kept, and they bound the memory: that
// the offsets between them are finished follows from their absence.
type lanes struct {
	window []*message // not finished, in the order of offsets
	keys   map[string]*lane
	bytes  int
	pause  backoff.Jittered // of a lane's first failure; copied
	added  int64            // the last offset that was added
	latest time.Time        // event time of all that was added
	high   int64            // what passed returned last
	doubt  span             // what may have killed a process; see careful
}

// span is a range of offsets, the last one excluded.
type span struct{ from, until int64 }

func (s span) has(offset int64) bool { return s.from <= offset && offset < s.until }

// message is one record on its way through.
type message struct {
	record    consumer.Record
	eventTime time.Time
	batch     *consumer.BatchOptions // nil: delivered alone
	arrived   time.Time
	before    time.Time // the latest event time of what was added before it
	taken     bool
}

// lane is what is known of one key that has messages in the window.
type lane struct {
	waiting int // messages that are not finished
	taken   int // messages that are being delivered
	pause   backoff.Jittered
	until   time.Time // no delivery before
}

// newLanes returns lanes for the messages from an offset on.
func newLanes(pause backoff.Jittered, first int64) *lanes {
	return &lanes{keys: make(map[string]*lane), pause: pause, added: first - 1, high: first - 1}
}

// add puts the next message of the partition at the end.
func (l *lanes) add(m *message) {
	m.before, l.added = l.latest, m.record.Source.Offset
	if m.eventTime.After(l.latest) {
		l.latest = m.eventTime
	}
	l.window = append(l.window, m)
	l.bytes += m.size()
	k := l.keys[string(m.record.Key)]
	if k == nil {
		k = &lane{pause: l.pause}
		l.keys[string(m.record.Key)] = k
	}
	k.waiting++
}

// skip says that nothing is to be delivered before the offset any more, from
// what was added last on.
func (l *lanes) skip(to int64) { l.added = max(l.added, to-1) }

// size is what the message counts of [Config.MaxHeldBytes].
func (m *message) size() int {
	n := len(m.record.Key) + len(m.record.Value)
	for _, h := range m.record.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return n
}

// held returns how many messages, and of how many bytes, are not finished.
func (l *lanes) held() (messages, bytes int) { return len(l.window), l.bytes }

// take returns the messages to be delivered next, which lie before an offset and
// are not in doubt: one, or several that share a batch; none when all wait. A batch
// that is not full waits for its linger.
func (l *lanes) take(now time.Time, before int64) []*message {
	var batch []*message
	var blocked map[string]bool // keys of which an earlier message was passed over
	room := 1
	for _, m := range l.window {
		if m.record.Source.Offset >= before {
			break
		}
		key := string(m.record.Key)
		k := l.keys[key]
		if m.taken || blocked[key] || k.taken > 0 || now.Before(k.until) || len(batch) > 0 && m.batch == nil ||
			l.doubt.has(m.record.Source.Offset) {
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

// careful returns the first message that could be delivered now and may be what
// has killed a process, without taking it: nothing else may be in hand then.
func (l *lanes) careful(now time.Time) *message {
	var blocked map[string]bool
	for _, m := range l.window {
		if m.record.Source.Offset >= l.doubt.until {
			break
		}
		key := string(m.record.Key)
		if k := l.keys[key]; l.doubt.has(m.record.Source.Offset) && !m.taken && !blocked[key] && k.taken == 0 &&
			!now.Before(k.until) {
			return m
		}
		if blocked == nil {
			blocked = make(map[string]bool)
		}
		blocked[key] = true
	}
	return nil
}

func (l *lanes) mark(batch []*message) []*message {
	for _, m := range batch {
		m.taken = true
		l.keys[string(m.record.Key)].taken++
	}
	return batch
}

// finish takes out a message that was taken and is finished.
func (l *lanes) finish(m *message) {
	k := l.keys[string(m.record.Key)]
	at, _ := slices.BinarySearchFunc(l.window, m.record.Source.Offset, func(m *message, offset int64) int {
		return cmp.Compare(m.record.Source.Offset, offset)
	})
	l.window = slices.Delete(l.window, at, at+1)
	l.bytes -= m.size()
	k.taken--
	k.waiting--
	k.pause, k.until = l.pause, time.Time{}
	if k.waiting == 0 {
		delete(l.keys, string(m.record.Key))
	}
}

// retry gives a message back that was taken. A failure pauses its key, one that
// was only held back does not. It returns the pause.
func (l *lanes) retry(m *message, now time.Time, failure bool) (pause time.Duration) {
	k := l.keys[string(m.record.Key)]
	m.taken = false
	k.taken--
	if failure {
		pause = k.pause.Next()
		k.until = now.Add(pause)
	}
	return pause
}

// passed returns the offset up to which everything is finished, that one
// included, and the latest event time up to there; moved is false when it is
// where it was at the last call.
func (l *lanes) passed() (high int64, latest time.Time, moved bool) {
	high, latest = l.added, l.latest
	if len(l.window) > 0 {
		high, latest = l.window[0].record.Source.Offset-1, l.window[0].before
	}
	moved = high > l.high
	l.high = max(l.high, high)
	return high, latest, moved
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
		if m.taken {
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
