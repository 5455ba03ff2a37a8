package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/backoff"
)

// worker is what takes one partition's messages through their lanes, in one
// session. Its goroutine owns the lanes; deliveries run in goroutines of their
// own, at most Config.Concurrency at a time, and are awaited before it ends.
type worker struct {
	*member
	claim   sarama.ConsumerGroupClaim
	lanes   *lanes
	results chan result
	running int                            // deliveries
	inHand  int                            // messages of them
	alone   bool                           // the one in hand is delivered cautiously
	mark    consumer.Mark                  // as it was widened last
	life    uuid.UUID                      // the topic id of the mark
	first   int64                          // the offset at which the session began
	read    int64                          // the offset up to which everything was taken in, itself excluded
	latest  time.Time                      // event time up to the mark
	stretch <-chan *sarama.ConsumerMessage // what comes before the claim's messages; nil: nothing
	idle    idle
	gauges  *gauges
	leave   func() // takes the gauges away
}

// result is what became of messages that were taken together.
type result struct {
	messages   []*message
	deliveries []consumer.Delivery
}

func newWorker(m *member, claim sarama.ConsumerGroupClaim) *worker {
	at := place{claim.Topic(), claim.Partition()}
	w := &worker{
		member: m, claim: claim, results: make(chan result), life: m.lives[at], first: m.first[at], read: m.first[at],
		lanes: newLanes(backoff.Jittered{Min: m.cfg.RetryMin, Max: m.cfg.RetryMax}, m.first[at]),
		idle:  idle{since: time.Now(), seen: make(chan sight, 1)},
	}
	w.lanes.doubt = m.doubts[at]
	w.mark = consumer.Mark{Topic: at.topic, Partition: at.partition, TopicID: w.life, Low: max(w.first, m.lows[at]),
		High: w.first - 1}
	w.gauges, w.leave = m.tally.open(at, claim.HighWaterMarkOffset)
	return w
}

// run works until the session ends or the member is over. ctx outlives the
// session by the drain's time, for the messages in hand.
func (w *worker) run(ctx, session context.Context) {
	if part := w.stretches[place{w.claim.Topic(), w.claim.Partition()}]; part != nil {
		reading, stop := context.WithCancel(session)
		defer stop()
		w.stretch = w.readStretch(reading, part, w.first)
	}
	defer func() {
		for w.running > 0 {
			w.settle(session, <-w.results)
		}
	}()
	for {
		input, again := w.next()
		select {
		case <-session.Done():
			return
		case <-w.over:
			return
		default:
		}
		w.dispatch(ctx)
		timer := wake(soonest(soonest(again, w.trustedAt()), w.look()))
		w.show()
		select {
		case <-session.Done():
			return
		case <-w.over:
			return
		case msg, open := <-input:
			if !open && !w.ended(session) {
				return
			}
			if open {
				w.add(msg)
			}
		case res := <-w.results:
			w.settle(session, res)
		case s := <-w.idle.seen:
			w.seen(s)
		case <-timer:
		}
	}
}

// next takes in what has arrived, and returns the channel for more, nil while
// the window is full, and when lanes that wait may go on.
func (w *worker) next() (input <-chan *sarama.ConsumerMessage, again time.Time) {
	for w.room() {
		input = w.input()
		select {
		case msg, open := <-input:
			if !open {
				return input, time.Time{}
			}
			w.add(msg)
			input = nil
			continue
		default:
		}
		break
	}
	return input, w.lanes.next(time.Now())
}

func (w *worker) room() bool {
	messages, bytes := w.lanes.held()
	return messages < w.cfg.MaxHeld && (messages == 0 || bytes < w.cfg.MaxHeldBytes)
}

func (w *worker) add(msg *sarama.ConsumerMessage) {
	m := &message{record: record(msg), arrived: time.Now()}
	m.record.Source.TopicID = w.topicID(msg.Topic)
	peek := w.handler.Peek(m.record)
	m.batch, m.eventTime = peek.Batch, peek.EventTime
	w.lanes.add(m)
	w.read = msg.Offset + 1
	w.idle.since, w.idle.asked = m.arrived, time.Time{}
	w.mark.Read = w.readUpTo()
	w.marks.reach(w.mark)
}

// trusted reports whether messages behind a stretch that was taken cautiously may be
// delivered as usual: not before the database knows that it was read. The next crash
// would begin the same stretch again else, and not come to what is to blame.
func (w *worker) trusted() bool {
	until := w.lanes.doubt.until
	return until <= w.first || w.marks.savedRead(place{w.claim.Topic(), w.claim.Partition()}) >= until
}

// trustedAt is when to look again whether they may.
func (w *worker) trustedAt() time.Time {
	if held, _ := w.lanes.held(); held == 0 || w.trusted() {
		return time.Time{}
	}
	return time.Now().Add(w.cfg.CommitInterval / 10)
}

// readUpTo is where a crash may lie at most. From the first message on that may be to
// blame for an earlier one it stays what that has left, until all of them were read: the
// next session begins with the same doubts, and not with as many more.
func (w *worker) readUpTo() int64 {
	if doubt := w.lanes.doubt; doubt.has(w.read) {
		return doubt.until - int64(w.cfg.MaxHeld)
	}
	return w.read
}

// dispatch starts as many deliveries as may run at once.
func (w *worker) dispatch(ctx context.Context) {
	for w.running < w.cfg.Concurrency && !w.alone {
		now := time.Now()
		var batch []*message
		switch m := w.lanes.careful(now); {
		case m == nil && w.trusted():
			batch = w.lanes.take(now, math.MaxInt64)
		case m == nil:
			batch = w.lanes.take(now, w.lanes.doubt.from)
		case w.running == 0:
			batch, w.alone = w.lanes.mark([]*message{m}), true
		}
		if batch == nil {
			return
		}
		w.running++
		w.inHand += len(batch)
		w.deliveries.Go(func() { w.results <- result{batch, w.deliver(ctx, batch)} })
	}
}

func (w *worker) deliver(ctx context.Context, batch []*message) []consumer.Delivery {
	if w.lanes.doubt.has(batch[0].record.Source.Offset) {
		select {
		case w.suspect <- struct{}{}: // of all partitions and letters one: with two, one were innocent
			defer func() { <-w.suspect }()
		case <-ctx.Done():
			return []consumer.Delivery{{Err: ctx.Err()}}
		}
		outcome, err := w.handler.HandleCautiously(ctx, batch[0].record)
		return []consumer.Delivery{{Outcome: outcome, Err: err}}
	}
	if batch[0].batch == nil {
		outcome, err := w.handler.HandleRecord(ctx, batch[0].record)
		return []consumer.Delivery{{Outcome: outcome, Err: err}}
	}
	recs := make([]consumer.Record, len(batch))
	for i, m := range batch {
		recs[i] = m.record
	}
	return w.handler.HandleRecords(ctx, recs)
}

// settle takes the result of a delivery, and moves the partition's mark over
// what is finished without a gap.
func (w *worker) settle(session context.Context, res result) {
	w.running--
	w.inHand -= len(res.messages)
	w.alone = false
	for i, m := range res.messages {
		d := res.deliveries[i]
		if d.Finished() {
			w.lanes.finish(m)
			w.finished.Add(1)
			w.tally.finished[d.Outcome].Add(1)
			continue
		}
		if consumer.Permanent(d.Err) {
			w.stop(fmt.Errorf("consume %s: %w", m.record.Source, d.Err))
		}
		held := errors.Is(d.Err, consumer.ErrHeldBack)
		pause := w.lanes.retry(m, time.Now(), !held)
		if !held && session.Err() == nil {
			w.tally.failed(d)
			w.report(m.record.Source, d, pause)
		}
	}
	w.pass()
}

// pass moves the mark over what is finished without a gap.
func (w *worker) pass() {
	if high, latest, moved := w.lanes.passed(); moved {
		w.latest = latest
		w.widen(high, false)
	}
}

func (w *worker) widen(high int64, atEnd bool) {
	// Else what lies between was never read: the offset was set back to before the group's first.
	if high+1 >= w.mark.Low {
		w.mark.Low = w.first
	}
	w.mark.High, w.mark.FinishedTime, w.mark.AtEnd, w.mark.Read = high, w.latest, atEnd, w.readUpTo()
	w.marks.widen(w.mark)
}

// show sets the gauges to what Snapshots tell.
func (w *worker) show() {
	messages, bytes := w.lanes.held()
	next, since := w.read, time.Time{}
	if messages > 0 {
		next, since = w.lanes.window[0].record.Source.Offset, w.lanes.window[0].arrived
	}
	w.gauges.next.Store(next)
	w.gauges.held.Store(int64(messages))
	w.gauges.bytes.Store(int64(bytes))
	w.gauges.inFlight.Store(int64(w.inHand))
	w.gauges.since.set(since)
}
