package produce

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// Config says how records get to the brokers.
type Config struct {
	// Connection is the sarama configuration of connections on which records are
	// written. With MaxOpenRequests of 1.
	Connection *sarama.Config
	// TransactionalID is nil without transactions.
	TransactionalID *string
	// AckTimeout is how long a leader waits for its followers.
	AckTimeout time.Duration
	Patience   Patience
	// BatchBytes bounds the estimate of a batch.
	BatchBytes  int
	Compression sarama.CompressionCodec

	// Locate returns the metadata of topics, elsewhere by another broker than the last
	// time, whose answer was of no use. One goroutine calls it.
	Locate func(topics []string, elsewhere bool) (*sarama.MetadataResponse, error)
	// Join adds partitions to the open transaction, beside the loop, and says by
	// [Loop.Joined] what became of it. It must not block.
	Join func(partitions map[string][]int32)
	// Down is closed when the network is cut: connections fail from then on, and
	// nothing more is sent.
	Down <-chan struct{}
	// Throttle is where it stands what brokers ask for. Others may read it.
	Throttle *Throttle
	// Hurried reports whether somebody waits for records to end.
	Hurried func() bool
	// Acked takes records of one partition back, in order, that every in-sync
	// replica has. It must not block.
	Acked func(first *Record)
	// Failed is told why a partition sends nothing more; first is the first record
	// that it did not. It must not block.
	Failed func(first *Record, cause error)
	// Resend is a defect, for tests: the records of a batch that is given up are put
	// again a moment later, behind what has come meanwhile.
	Resend bool
}

// Body is what every produce request has.
func (c Config) Body() sarama.ProduceRequest {
	return sarama.ProduceRequest{
		TransactionalID: c.TransactionalID,
		RequiredAcks:    sarama.WaitForAll, // less is the leader alone, whose crash loses acknowledged records
		Timeout:         int32(c.AckTimeout.Milliseconds()),
		Version:         produceVersion,
	}
}

// produceVersion is the version of produce requests: the last before those for
// which sarama encodes each batch twice to know its length.
const produceVersion = 8

// Loop takes records to the brokers. Put and Become are safe for concurrent use, and
// the order of Put is the order of records.
type Loop struct {
	window
	config  Config
	body    sarama.ProduceRequest
	intake  *intake
	pace    pace
	leaders leaders
	answers chan answer
	joins   chan joined // of capacity 1: what became of asking
	asked   bool        // leaders
	asking  []*lane     // to join
	tasks   sync.WaitGroup
}

// joined is what became of adding partitions to a transaction.
type joined struct {
	topic string // whose partition was refused
	err   error
}

// New returns a loop that does not run yet.
func New(c Config) *Loop {
	l := &Loop{
		config: c, body: c.Body(), intake: newIntake(),
		window: window{
			limit: c.BatchBytes, codec: c.Compression, patience: c.Patience,
			transactional: c.TransactionalID != nil, couriers: make(map[string]*courier),
		},
		leaders: leaders{locate: c.Locate, questions: make(chan question, 1), found: make(chan found, 1)},
		answers: make(chan answer), joins: make(chan joined, 1),
	}
	l.hire = l.start
	c.Throttle.until.Store(nil) // it was asked for on connections that are no more
	return l
}

// start starts a courier to an address.
func (l *Loop) start(address string) *courier {
	c := &courier{
		link: Link{Config: l.config.Connection, Address: address}, down: l.config.Down,
		requests: make(chan carried, 1), answers: l.answers,
	}
	l.tasks.Go(c.run)
	return c
}

// Put hands a record over. It does not block.
func (l *Loop) Put(r *Record) { l.intake.put(r) }

// Become says who writes from now on. Without records on their way it takes effect
// with the next one.
func (l *Loop) Become(p Producer) { l.intake.become(p) }

// Nudge has the loop look at what has come, when somebody has begun to wait.
func (l *Loop) Nudge() { l.intake.nudge() }

// Joined says that what was asked for by Join is done, or why not, and the topic of
// the partition that is to blame.
func (l *Loop) Joined(topic string, err error) { l.joins <- joined{topic, err} }

// Run works until the network is cut, and then until nothing is on its way.
func (l *Loop) Run() {
	defer l.tasks.Wait()
	l.tasks.Go(l.leaders.run)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := l.work(time.Now()); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		select {
		case <-l.config.Down:
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
func (l *Loop) work(now time.Time) (next time.Time) {
	hurried := l.config.Hurried()
	first, who, later := l.intake.take(now, &l.pace, hurried)
	if later {
		next = l.pace.open
	} else {
		l.producer = who
	}
	for r := first; r != nil; {
		following := r.next
		l.add(r)
		r = following
	}
	if l.joining != nil && l.asking == nil {
		l.asking, l.joining = l.joining, nil
		l.config.Join(partitionsOf(l.asking))
	}
	if !l.asked {
		q, due := l.wanted(now)
		if l.asked = q.topics != nil; l.asked {
			l.leaders.questions <- q
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
func (l *Loop) send(c *courier, now time.Time) (next time.Time) {
	r, next := l.take(c, now)
	if len(r.lanes) == 0 {
		return next
	}
	body := l.body
	for _, lane := range r.lanes {
		body.AddBatch(lane.topic.Name, lane.partition, &lane.batch.encoded)
	}
	c.busy = true
	c.requests <- carried{r.lanes, &body}
	return time.Time{}
}

func partitionsOf(lanes []*lane) map[string][]int32 {
	partitions := make(map[string][]int32)
	for _, l := range lanes {
		partitions[l.topic.Name] = append(partitions[l.topic.Name], l.partition)
	}
	return partitions
}

// settle takes in what became of a request.
func (l *Loop) settle(a answer) {
	now := time.Now()
	a.courier.busy = false
	if a.err != nil {
		l.dismiss(a.courier)
		close(a.courier.requests)
	}
	l.config.Throttle.ask(a.throttled)
	for _, lane := range a.lanes {
		switch v, cause := judgeAnswer(a, lane); v {
		case verdictAcked:
			l.config.Acked(l.acked(lane))
		case verdictAgain, verdictLost:
			lane.refused(cause)
			if !l.again(lane, v == verdictLost, now) {
				l.giveUp(lane, cause)
			}
		case verdictFailed:
			l.giveUp(lane, cause)
		}
	}
}

// learn takes in what was answered about leaders.
func (l *Loop) learn(f found) {
	lost, why := l.found(f, time.Now())
	if errors.Is(f.err, sarama.ErrSASLAuthenticationFailed) && len(l.seeking) > 0 {
		lost, why = l.seeking[0], f.err // it would stay so for hours
	}
	if lost != nil {
		l.giveUp(lost, why)
	}
}

// enter takes in that partitions were added to the transaction, or why not.
func (l *Loop) enter(a joined) {
	lanes := l.asking
	l.asking = nil
	if a.err == nil {
		l.joined(lanes)
		return
	}
	refused := max(0, slices.IndexFunc(lanes, func(l *lane) bool { return l.topic.Name == a.topic }))
	l.giveUp(lanes[refused], a.err)
}

// giveUp ends a lane, which sends nothing more.
func (l *Loop) giveUp(lane *lane, cause error) {
	if l.config.Resend {
		l.resend(lane)
		return
	}
	lane.state = laneFailed
	l.config.Failed(lane.head(), cause)
}

// resendPause is the moment of [Config].Resend.
const resendPause = 300 * time.Millisecond

// resend is the defect.
func (l *Loop) resend(lane *lane) {
	l.producer.Epoch++ // the sequence has a hole
	l.intake.become(l.producer)
	first := lane.end()
	time.AfterFunc(resendPause, func() {
		for r := first; r != nil; {
			following := r.next
			r.next = nil
			l.intake.put(r)
			r = following
		}
	})
	l.place(lane)
}

// end waits for what couriers still carry, now that their connections are cut, and
// reports what was acknowledged.
func (l *Loop) end() {
	close(l.leaders.questions)
	for _, c := range l.couriers { // but for those that are dismissed meanwhile
		for c.busy {
			l.settle(<-l.answers)
		}
	}
	for _, c := range l.couriers {
		close(c.requests)
	}
}
