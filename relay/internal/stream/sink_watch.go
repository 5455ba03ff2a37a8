package stream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

// sinkWatch knows since when Kafka owes an answer: the oldest event that was
// handed over and has not ended, or the call that the pump is in. Its calls are
// those of the pump's goroutine and the sink's; look is for any.
type sinkWatch struct {
	together bool // in transactions: all that was handed over ends with the commit

	mu    sync.Mutex
	call  time.Time           // since when the pump waits in a call; zero: it does not
	what  string              // the call is for
	open  map[uint64]handover // by tag, of those that end one by one
	first handover            // of the transaction
	count int                 // of its events
}

// handover is an event that was handed over. Its row lives as long as Kafka's
// client keeps it, or the first of a transaction as long as that.
type handover struct {
	at     time.Time
	row    *outbox.Row
	commit time.Time // of its transaction; zero: nobody knows it here
}

func newSinkWatch() *sinkWatch { return &sinkWatch{open: make(map[uint64]handover)} }

// enter notes that a call begins; leave, that it has ended.
func (w *sinkWatch) enter(what string) {
	w.mu.Lock()
	w.call, w.what = time.Now(), what
	w.mu.Unlock()
}

func (w *sinkWatch) leave() {
	w.mu.Lock()
	w.call = time.Time{}
	w.mu.Unlock()
}

// handing notes that an event is handed over. It comes before the call, because
// the acknowledgement may come before the call returns.
func (w *sinkWatch) handing(tag uint64, h handover) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.together {
		w.open[tag] = h
		return
	}
	if w.count++; w.count == 1 {
		w.first = h
	}
}

// refused notes that the event of the last handing was not handed over.
func (w *sinkWatch) refused(tag uint64) {
	if !w.together {
		w.ended(tag)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count--; w.count == 0 {
		w.first = handover{}
	}
}

// ended notes that Kafka has answered about events, and returns the commit time of the
// first of which it is known.
func (w *sinkWatch) ended(tags ...uint64) (commit time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, tag := range tags {
		if commit.IsZero() {
			commit = w.open[tag].commit
		}
		delete(w.open, tag)
	}
	return commit
}

// committed notes that the transaction has ended.
func (w *sinkWatch) committed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first, w.count = handover{}, 0
}

// Owed is what Kafka owes an answer about.
type Owed struct {
	Since  time.Time // zero: nothing
	Events int       // that were handed over and have not ended

	row  *outbox.Row // the oldest event; nil: a call is older
	call string
}

// look returns the oldest thing that Kafka owes an answer about.
func (w *sinkWatch) look() (o Owed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o.Events = len(w.open) + w.count
	o.Since, o.row = w.first.at, w.first.row
	for _, h := range w.open {
		if o.row == nil || h.at.Before(o.Since) {
			o.Since, o.row = h.at, h.row
		}
	}
	if !w.call.IsZero() && (o.row == nil || w.call.Before(o.Since)) {
		o.Since, o.row, o.call = w.call, nil, w.what
	}
	return o
}

// Overdue reports whether it has been owed for longer than patience.
func (o Owed) Overdue(now time.Time, patience time.Duration) bool {
	return !o.Since.IsZero() && now.Sub(o.Since) >= patience
}

// Detail says what it is, by brokers and topic, and what trouble they have with that: what they answer meanwhile, and
// what to do about it. A call is of no topic.
func (o Owed) Detail(brokers []string, topic func(*outbox.Row) string,
	trouble func(topic string) (string, time.Time)) string {
	name, detail := "", fmt.Sprintf("brokers %v have not answered: %s", brokers, o.call)
	if o.row != nil {
		name = topic(o.row)
		detail = fmt.Sprintf("brokers %v have not acknowledged the oldest event, %s:%s for topic %s", brokers, o.row.Namespace, o.row.ID, name)
	}
	if why, _ := trouble(name); why != "" {
		detail += "; they answer: " + why
	}
	return detail
}

// hand hands an event over, watched. The letters of a retry have no tags of their own:
// the mode says when it waits for them.
func (o *output) hand(ctx context.Context, ev publisher.Event, commit time.Time) error {
	if ev.Tag == noTag {
		o.watch.enter("a released letter is to be handed over")
		defer o.watch.leave()
		return o.sink.Publish(ctx, ev)
	}
	o.watch.handing(ev.Tag, handover{time.Now(), ev.Row, commit})
	err := o.sink.Publish(ctx, ev)
	if err != nil {
		o.watch.refused(ev.Tag)
	}
	return err
}

// watchedTransactions is a ledger that is watched.
type watchedTransactions struct {
	Transactional
	watch *sinkWatch
	long  time.Duration
}

// Publish lets no transaction begin while Kafka takes nothing for long: all of it would have to be there in what is
// left of its timeout.
func (l watchedTransactions) Publish(ctx context.Context, ev publisher.Event) error {
	if _, throttled := l.Taken(); !throttled.IsZero() && time.Until(throttled) > l.long {
		if events, _, _ := l.Open(); events == 0 {
			if err := l.pause(ctx, throttled); err != nil {
				return err
			}
		}
	}
	return l.Transactional.Publish(ctx, ev)
}

// pause waits until a time.
func (l watchedTransactions) pause(ctx context.Context, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-l.Failed():
		return l.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Commit implements ledger.
func (l watchedTransactions) Commit(ctx context.Context, pos publisher.Position) error {
	l.watch.enter("a transaction is to be committed")
	err := l.Transactional.Commit(ctx, pos)
	l.watch.leave()
	if err == nil {
		l.watch.committed()
	}
	return err
}
