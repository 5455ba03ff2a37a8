package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
)

// worker is what takes one partition's messages through their lanes, in one
// session. Its goroutine owns the lanes; deliveries run in goroutines of their
// own, at most Config.Concurrency at a time, and are awaited before it ends.
type worker struct {
	*member
	claim   sarama.ConsumerGroupClaim
	lanes   *lanes
	results chan result
	running int
	latest  time.Time // event time up to the mark
}

// result is what became of messages that were taken together.
type result struct {
	messages   []*message
	deliveries []consumer.Delivery
}

// run works until the session ends or the member is over. ctx outlives the
// session by the drain's time, for the messages in hand.
func (w *worker) run(ctx, session context.Context) {
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
		timer := wake(again)
		select {
		case <-session.Done():
			return
		case <-w.over:
			return
		case msg, open := <-input:
			if !open {
				return
			}
			w.add(msg)
		case res := <-w.results:
			w.settle(session, res)
		case <-timer:
		}
	}
}

// next takes in what has arrived, and returns the channel for more, nil while
// the window is full, and when lanes that wait may go on.
func (w *worker) next() (input <-chan *sarama.ConsumerMessage, again time.Time) {
	for w.room() {
		select {
		case msg, open := <-w.claim.Messages():
			if !open {
				return w.claim.Messages(), time.Time{}
			}
			w.add(msg)
			continue
		default:
		}
		input = w.claim.Messages()
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
	peek := w.handler.Peek(m.record)
	m.batch, m.eventTime = peek.Batch, peek.EventTime
	w.lanes.add(m)
}

// dispatch starts as many deliveries as may run at once.
func (w *worker) dispatch(ctx context.Context) {
	for w.running < w.cfg.Concurrency {
		batch := w.lanes.take(time.Now())
		if batch == nil {
			return
		}
		w.running++
		w.deliveries.Go(func() { w.results <- result{batch, w.deliver(ctx, batch)} })
	}
}

func (w *worker) deliver(ctx context.Context, batch []*message) []consumer.Delivery {
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
	for i, m := range res.messages {
		d := res.deliveries[i]
		if d.Finished() {
			w.lanes.finish(m)
			w.finished.Add(1)
			continue
		}
		if consumer.Permanent(d.Err) {
			w.stop(fmt.Errorf("consume %s: %w", m.record.Source, d.Err))
		}
		held := errors.Is(d.Err, consumer.ErrHeldBack)
		tries, pause := w.lanes.retry(m, time.Now(), !held)
		if !held && session.Err() == nil {
			w.report(m.record.Source, d, tries, pause)
		}
	}
	last, latest := w.lanes.passed()
	if latest.After(w.latest) {
		w.latest = latest
	}
	if last != nil {
		w.marks.widen(consumer.Mark{
			Topic: w.claim.Topic(), Partition: w.claim.Partition(), Low: w.claim.InitialOffset(), High: last.record.Source.Offset, FinishedTime: w.latest,
		})
	}
}

// wake returns a channel that delivers at the given time; never for zero.
func wake(at time.Time) <-chan time.Time {
	if at.IsZero() {
		return nil
	}
	return time.After(time.Until(at))
}
