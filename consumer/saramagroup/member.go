package saramagroup

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer"
)

// member is one session of the group membership: sarama's
// ConsumerGroupHandler. The invariant of the package has two halves: a worker
// widens a mark only over messages that are finished without a gap (lanes), and
// commit moves Kafka's offset only to a mark that the database has.
type member struct {
	handler           Handler
	cfg               Config
	stop              func(error) // ends Run with the error
	log               *slog.Logger
	client            sarama.Client // not the group's own, whose connections wait for messages
	tally             *tally
	looks             *sync.WaitGroup // of Run, which ends them by closing client
	over              chan struct{}   // closed to end this session early
	ending            sync.Once
	history, database string                               // of the database, and its name, at Setup
	ids               atomic.Pointer[map[string]uuid.UUID] // of topics, at Setup
	cluster           string                               // its id, at Setup; empty: not known
	// The first offset that the group has ever read of each, as the database knew it.
	lows       map[place]int64
	lives      map[place]uuid.UUID // the topic id of each partition's mark, from Setup on
	first      map[place]int64     // the offset at which each partition begins, from Setup on
	doubts     map[place]span      // what is delivered cautiously of partitions that were found open
	suspect    chan struct{}       // of Run: holds one message that is delivered cautiously
	begun      []consumer.Mark     // of all partitions, from Setup on
	marks      marks
	kafka      committed          // offsets, at Setup
	refused    *atomic.Bool       // of Run: probe has to look
	stretches  map[place]*stretch // that workers read themselves; see probe
	ahead      atomic.Int32       // offsets of the session that are ahead of what is finished; see probe
	commits    sync.WaitGroup
	deliveries sync.WaitGroup
	finished   atomic.Int64 // messages of this session
	outage     outage
}

// committed is what Kafka has of a topic partition.
type committed map[place]offset

type offset struct {
	next     int64
	metadata string
}

// Setup says where the partitions begin, and starts the goroutine that commits
// offsets; Cleanup waits for it.
func (m *member) Setup(s sarama.ConsumerGroupSession) error {
	m.log.Info("joined the group", "generation", s.GenerationID(), "member", s.MemberID(), "partitions", s.Claims())
	if err := m.begin(s); err != nil {
		return err
	}
	if err := m.probe(s); err != nil {
		return err
	}
	m.tally.generation.Store(s.GenerationID())
	m.commits.Go(func() { m.watchTopics(s.Context()) })
	m.commits.Go(func() {
		for sleep(s.Context(), m.cfg.CommitInterval) {
			m.commit(s.Context(), s)
		}
	})
	return nil
}

// commit saves the marks in the database first, and then commits the offsets
// that they allow. When the database is on another history than at the start of
// the session, some of what is finished may be lost: no offset is committed, and
// the session ends, so that the next one begins with a rewind. So it does when a
// topic was made anew. That is asked behind the database, which may take its time: Kafka
// takes an offset by the topic's name. The marks are of its id.
func (m *member) commit(ctx context.Context, s sarama.ConsumerGroupSession) {
	all := m.marks.take()
	// Without marks too: an idle group must notice that the database has lost what
	// it had finished.
	err := m.handler.SaveProgress(ctx, m.history, all)
	if errors.Is(err, consumer.ErrHistory) {
		m.log.Warn("joining again, to find out whether the database has lost anything; a mere restart has not", "error", err)
		m.end()
		return
	}
	if len(all) == 0 {
		return
	}
	if err != nil {
		m.log.Warn("progress not saved; offsets wait", "error", err)
		m.marks.restore(all)
		return
	}
	m.tally.saved.set(time.Now())
	m.marks.saved(all)
	switch anew, err := m.madeAnew(); {
	case anew: // they are of offsets of before
		return
	case err != nil:
		m.log.Warn("nobody can tell whether the topics are still the same; offsets wait", "error", err)
		fallthrough
	case m.ahead.Load() > 0:
		m.marks.restore(all)
		return
	}
	for _, mark := range all {
		if !mark.AtEnd && mark.High < m.first[place{mark.Topic, mark.Partition}] {
			continue // nothing is finished
		}
		s.MarkOffset(mark.Topic, mark.Partition, mark.High+1, metadata(m.cluster, mark.TopicID, mark.High))
	}
	s.Commit()
}

// Cleanup commits what the workers have finished. sarama calls it when all of
// them have returned, while the partitions are still this member's.
func (m *member) Cleanup(s sarama.ConsumerGroupSession) error {
	m.commits.Wait()
	m.deliveries.Wait()
	if m.first != nil && !m.ended() { // it has begun
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), m.cfg.DrainTimeout)
		defer cancel()
		m.commit(ctx, s)
		m.commitAgain(s)
	}
	m.part(s)
	m.tally.generation.Store(0)
	m.log.Info("left the session", "generation", s.GenerationID(), "cause", context.Cause(s.Context()), "finished", m.finished.Load())
	return nil
}

// part says that the session has ended, and did not crash. When that cannot be said,
// the next one is cautious without need.
func (m *member) part(s sarama.ConsumerGroupSession) {
	if len(m.begun) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), m.cfg.DrainTimeout)
	defer cancel()
	for i := range m.begun {
		mark := &m.begun[i]
		at := place{mark.Topic, mark.Partition}
		read := max(m.first[at], m.marks.savedRead(at))
		mark.Crashed = m.doubts[at].until > read && m.doubts[at].from <= read
	}
	if err := m.handler.EndProgress(ctx, m.begun); err != nil {
		m.log.Warn("the end of the session could not be written down; the next member takes it for a crash, and is slow at first", "error", err)
	}
}

// end ends the session early; sarama ends it when a worker returns.
func (m *member) end() { m.ending.Do(func() { close(m.over) }) }

func (m *member) ended() bool {
	select {
	case <-m.over:
		return true
	default:
		return false
	}
}

// ConsumeClaim is the worker of one partition.
func (m *member) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	session := s.Context()
	ctx, cancel := drained(session, m.cfg.DrainTimeout)
	defer cancel()
	m.resume(s, place{claim.Topic(), claim.Partition()})
	w := newWorker(m, claim)
	defer w.leave()
	w.run(ctx, session)
	m.tally.left(place{claim.Topic(), claim.Partition()}, w.read)
	return nil
}

// drained returns a context that ends the given time after session does, so
// that the messages in hand may finish.
func drained(session context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(session))
	unhook := context.AfterFunc(session, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(ctx, func() { timer.Stop() })
	})
	return ctx, func() {
		unhook()
		cancel()
	}
}

// report logs one failed delivery; an operator must see from it that, and why,
// an aggregate stands still.
func (m *member) report(src consumer.Source, d consumer.Delivery, delay time.Duration) {
	log := m.log.With("source", src.String(), "retry_in", delay)
	var failed *consumer.HandlerError
	switch {
	case d.Err == nil:
		log.Warn("message waits", "outcome", d.Outcome.String())
	case counts(d.Err):
		if errors.As(d.Err, &failed) && failed.Attempts > 0 {
			log = log.With("attempt", failed.Attempts)
		}
		log.Error("message failed; its aggregate waits", "error", d.Err)
	case consumer.Permanent(d.Err):
		log.Error("message stops the member", "error", d.Err)
	default:
		say := log.Debug
		others, due := m.outage.say(time.Now())
		if due {
			say = log.Warn
		}
		say("message waits for the database", "error", d.Err, "others_since", others)
	}
}

// outage bounds what is said of messages that wait for the database: all that are held do, and
// are tried again and again. Safe for concurrent use.
type outage struct {
	mu     sync.Mutex
	next   time.Time
	others int
}

// outagePause is the time between two warnings.
const outagePause = 10 * time.Second

// say reports whether a warning is due, and how many tries it stands for beside its own.
func (o *outage) say(now time.Time) (others int, due bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Before(o.next) {
		o.others++
		return 0, false
	}
	others, o.others, o.next = o.others, 0, now.Add(outagePause)
	return others, true
}

// record copies a message into the consumer's own type. The bytes are copied as
// well: those of sarama lie in the batch that they came with, all of which a
// message that is held would hold.
func record(msg *sarama.ConsumerMessage) consumer.Record {
	rec := consumer.Record{
		Source: consumer.Source{Topic: msg.Topic, Partition: msg.Partition, Offset: msg.Offset},
		Key:    bytes.Clone(msg.Key),
		Value:  bytes.Clone(msg.Value),
	}
	for _, h := range msg.Headers {
		if h != nil {
			rec.Headers = append(rec.Headers, consumer.Header{Name: string(h.Key), Value: bytes.Clone(h.Value)})
		}
	}
	return rec
}
