package publisher

import (
	"errors"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// ackBatch is the most tags that one call of the acknowledged function gets.
const ackBatch = 1024

// loop takes what Publish leaves to the brokers: its goroutine alone has the
// window, and alone calls the acknowledged function. It waits for no network:
// couriers, the look-up of leaders and the transaction's requests are beside it,
// each with at most one question of the loop's at a time.
type loop struct {
	window
	publisher    *Publisher
	intake       *intake
	pace         pace
	body         sarama.ProduceRequest // of every request, but for the records
	leaders      *leaders
	answers      chan answer
	acknowledged func(tags []uint64)
	// join, when not nil, adds partitions to the transaction, beside the loop.
	join   func(partitions map[string][]int32)
	joins  chan joinAnswer // of capacity 1: what became of that
	asked  bool            // leaders
	asking []*lane         // to join

	tags []uint64
}

// run works until the wire is cut, and then until nothing is on its way.
func (l *loop) run() {
	l.tags = make([]uint64, 0, ackBatch)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := l.work(time.Now()); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		select {
		case <-l.publisher.wire.down:
			l.end()
			return
		case <-l.intake.wake:
		case <-timer.C:
		case a := <-l.answers:
			l.settle(a)
		case f := <-l.leaders.found:
			l.asked = false
			l.learn(f)
		case a := <-l.joins:
			l.enter(a)
		}
	}
}

// work takes in what has come and gives out what can be, and returns when to look
// again if nothing happens before; zero: never.
func (l *loop) work(now time.Time) (next time.Time) {
	hurried := l.publisher.inflight.awaited()
	first, producer, later := l.intake.take(func(bytes int64) bool { return l.pace.admits(now, bytes, hurried) })
	if later {
		next = l.pace.open
	} else {
		l.window.producer = producer
	}
	for r := first; r != nil; {
		following := r.next
		l.add(r)
		r = following
	}
	if l.joining != nil && l.asking == nil {
		l.asking, l.joining = l.joining, nil
		l.join(partitionsOf(l.asking))
	}
	if !l.asked {
		topics, due := l.wanted(now)
		if l.asked = topics != nil; l.asked {
			l.leaders.topics <- topics
		} else {
			next = earliest(next, due)
		}
	}
	for _, c := range l.couriers {
		if !c.busy && len(c.lanes) > 0 {
			next = earliest(next, l.send(c, now))
		}
	}
	return next
}

// send gives a courier what is due.
func (l *loop) send(c *courier, now time.Time) (next time.Time) {
	r, next := l.take(c, now)
	if len(r.lanes) == 0 {
		return next
	}
	body := l.body
	for _, lane := range r.lanes {
		body.AddBatch(lane.topic.name, lane.partition, &lane.batch.encoded)
	}
	c.busy = true
	c.requests <- carried{r.lanes, &body}
	return time.Time{}
}

func partitionsOf(lanes []*lane) map[string][]int32 {
	partitions := make(map[string][]int32)
	for _, l := range lanes {
		partitions[l.topic.name] = append(partitions[l.topic.name], l.partition)
	}
	return partitions
}

// settle takes in what became of a request.
func (l *loop) settle(a answer) {
	now := time.Now()
	a.courier.busy = false
	for _, lane := range a.lanes {
		switch v, cause := judgeAnswer(a, lane); v {
		case verdictAcked:
			l.report(l.acked(lane))
		case verdictAgain, verdictLost:
			if !l.again(lane, v == verdictLost, now) {
				l.giveUp(lane, cause)
			}
		case verdictFailed:
			l.giveUp(lane, cause)
		}
	}
}

// learn takes in what was answered about leaders.
func (l *loop) learn(f found) {
	lost, why := l.window.found(f, time.Now())
	if errors.Is(f.err, sarama.ErrSASLAuthenticationFailed) && len(l.seeking) > 0 {
		lost, why = l.seeking[0], f.err // it would stay so for hours
	}
	if lost != nil {
		l.giveUp(lost, why)
	}
}

// enter takes in that partitions were added to the transaction, or why not.
func (l *loop) enter(a joinAnswer) {
	lanes := l.asking
	l.asking = nil
	if a.err == nil {
		l.joined(lanes)
		return
	}
	refused := max(0, slices.IndexFunc(lanes, func(l *lane) bool { return l.topic.name == a.topic }))
	l.giveUp(lanes[refused], a.err)
}

// report notes that records have been acknowledged.
func (l *loop) report(first *pending) {
	var bytes int64
	for r := first; r != nil; {
		following := r.next
		l.tags = append(l.tags, r.tag)
		bytes += r.cost
		r.end()
		l.publisher.records.put(r)
		r = following
		if len(l.tags) == ackBatch || r == nil {
			l.acknowledged(l.tags)
			l.publisher.inflight.done(len(l.tags), bytes)
			l.tags, bytes = l.tags[:0], 0
		}
	}
}

// giveUp ends the publisher because of a lane's batch, or what is left of it while
// it closes. The lane sends nothing more.
func (l *loop) giveUp(lane *lane, cause error) {
	lane.state = laneFailed
	p := l.publisher
	if p.settings.faults.resend {
		l.resend(lane)
		return
	}
	if p.closing() {
		p.wire.cut() // given up by Close, which is no failure
		return
	}
	if errors.Is(cause, sarama.ErrInvalidTimestamp) {
		p.settings.Memory.refuseClock(lane.topic.name)
	}
	err := explain(lane.head(), cause, p.settings)
	if p.transactional {
		err = asFenced(err, cause)
	}
	p.fail(err)
}

// resend is [fault.Resend].
func (l *loop) resend(lane *lane) {
	l.window.producer.epoch++ // the sequence has a hole
	l.intake.become(l.window.producer)
	for r := lane.end(); r != nil; {
		following := r.next
		r.next = nil
		l.intake.put(r)
		r = following
	}
	l.place(lane)
}

// end waits for what couriers still carry, now that their connections are cut, and
// reports what was acknowledged.
func (l *loop) end() {
	close(l.leaders.topics)
	for _, c := range l.couriers {
		close(c.requests)
	}
	for _, c := range l.couriers {
		for c.busy {
			l.settle(<-l.answers)
		}
	}
}
