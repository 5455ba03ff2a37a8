package saramagroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	handler    Handler
	cfg        Config
	stop       func(error) // ends Run with the error
	log        *slog.Logger
	client     sarama.Client // not the group's own, whose connections wait for messages
	tally      *tally
	looks      *sync.WaitGroup // of Run, which ends them by closing client
	over       chan struct{}   // closed to end this session early
	ending     sync.Once
	history    string                               // of the database, at Setup
	ids        atomic.Pointer[map[string]uuid.UUID] // of topics, at Setup
	lows       map[place]int64                      // the first offset that the group has ever read of each, as the database knew it
	lives      map[place]uuid.UUID                  // the topic id of each partition's mark, from Setup on
	first      map[place]int64                      // the offset at which each partition begins, from Setup on
	cautious   map[place]int64                      // where a partition that was found open goes on as usual
	suspect    chan struct{}                        // holds one message that is delivered cautiously
	begun      []consumer.Mark                      // of all partitions, from Setup on
	marks      marks
	kafka      committed          // offsets, at Setup
	refused    *atomic.Bool       // of Run: probe has to look
	stretches  map[place]*stretch // that workers read themselves; see probe
	ahead      atomic.Int32       // offsets of the session that are ahead of what is finished; see probe
	commits    sync.WaitGroup
	deliveries sync.WaitGroup
	finished   atomic.Int64 // messages of this session
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
		tick := time.NewTicker(m.cfg.CommitInterval)
		defer tick.Stop()
		for {
			select {
			case <-s.Context().Done():
				return
			case <-tick.C:
				m.commit(s.Context(), s)
			}
		}
	})
	return nil
}

// begin finds where each partition begins: where Kafka says, or earlier when the
// database has lost what Kafka's offset stands for. A partition of which the
// database knows nothing gets a mark without a finished time, so that stream
// time waits for it.
func (m *member) begin(s sarama.ConsumerGroupSession) error {
	if err := m.identify(s.Claims()); err != nil {
		return err
	}
	kafka, err := m.committed(s.Claims())
	if err != nil {
		return fmt.Errorf("read committed offsets: %w", err)
	}
	m.kafka = kafka
	all, err := m.known(s.Context())
	if err != nil {
		return err
	}
	m.first, m.lows, m.lives, m.cautious = make(map[place]int64), make(map[place]int64), make(map[place]uuid.UUID), make(map[place]int64)
	var marks []consumer.Mark
	for topic, partitions := range s.Claims() {
		for _, partition := range partitions {
			at := place{topic, partition}
			mark, ok := markOf(all, at, m.topicID(topic))
			if m.first[at], err = m.beginAt(s, at, mark, ok); err != nil {
				return err
			}
			if !ok {
				mark = consumer.Mark{Topic: topic, Partition: partition, Low: m.first[at], High: m.first[at] - 1}
			}
			if id := m.topicID(topic); id != uuid.Nil {
				mark.TopicID = id
			}
			m.lives[at], m.lows[at] = mark.TopicID, mark.Low
			mark.Read = m.afterCrash(at, mark)
			marks = append(marks, mark)
		}
	}
	if len(marks) == 0 {
		return nil
	}
	m.begun = marks
	return m.insist(s.Context(), "save progress", func(ctx context.Context) error { return m.handler.BeginProgress(ctx, m.history, marks) })
}

// afterCrash returns up to where a partition was read. When the session that has read
// it did not end, one of the messages up to there, or of those that it read before it
// could say so, may have killed its process: they are delivered one at a time.
func (m *member) afterCrash(at place, mark consumer.Mark) (read int64) {
	read = m.first[at]
	if mark.Crashed {
		read = max(read, mark.Read)
		m.cautious[at] = read + int64(m.cfg.MaxHeld)
		m.log.Warn("the last session of a partition did not end: its process died, or it could not say so. What it may have had in hand is delivered one message at a time",
			"topic", at.topic, "partition", at.partition, "from", m.first[at], "until", m.cautious[at])
	}
	return read
}

// beginAt returns the first offset that will be read of a partition.
func (m *member) beginAt(s sarama.ConsumerGroupSession, at place, mark consumer.Mark, known bool) (int64, error) {
	committed, ok := m.kafka[at]
	to, back := rewindTo(committed.metadata, m.topicID(at.topic), mark.High, known)
	if back && !known { // Kafka may have deleted the beginning
		oldest, err := m.edge(at, sarama.OffsetOldest)
		if err != nil {
			return 0, err
		}
		to = max(to, oldest)
	}
	if back {
		m.log.Warn("the database has lost commits (failover or restore): messages are delivered again, and duplicates removed",
			"topic", at.topic, "partition", at.partition, "from", committed.next, "to", to, "history", m.history)
		has := "" // what the offset stands for; without it, the next loss of the database would not be seen
		if known {
			has = metadata(m.topicID(at.topic), mark.High)
		}
		s.ResetOffset(at.topic, at.partition, to, has)
		m.tally.rewinds.Add(1)
		return to, nil
	}
	if !ok || committed.next < 0 {
		return m.edge(at, sarama.OffsetOldest)
	}
	return m.obey(s, at, committed)
}

// obey begins where Kafka says, unless that is an offset of before the topic was made
// anew: then it lies behind the end.
func (m *member) obey(s sarama.ConsumerGroupSession, at place, committed offset) (int64, error) {
	of, _, ours := parseMetadata(committed.metadata)
	if !ours || !another(of, m.topicID(at.topic)) {
		return committed.next, nil
	}
	newest, err := m.edge(at, sarama.OffsetNewest)
	if err != nil || committed.next <= newest {
		return committed.next, err
	}
	oldest, err := m.edge(at, sarama.OffsetOldest)
	if err != nil {
		return 0, err
	}
	m.log.Warn("the committed offset is of the topic before it was made anew, and lies behind its end; it is read from its beginning",
		"topic", at.topic, "partition", at.partition, "offset", committed.next, "to", oldest)
	s.ResetOffset(at.topic, at.partition, oldest, "")
	return oldest, nil
}

// edge returns the oldest or the newest offset of a partition.
func (m *member) edge(at place, which int64) (int64, error) {
	offset, err := m.client.GetOffset(at.topic, at.partition, which)
	if err != nil {
		return 0, fmt.Errorf("find the first or last offset of %s/%d: %w", at.topic, at.partition, err)
	}
	return offset, nil
}

// known reads the group's marks, and the database's history. The database may be
// away: then it is waited for, because nothing could be applied without it.
func (m *member) known(ctx context.Context) ([]consumer.Mark, error) {
	var progress consumer.Progress
	err := m.insist(ctx, "read progress", func(ctx context.Context) (err error) {
		progress, err = m.handler.Progress(ctx)
		return err
	})
	m.history = progress.History
	return progress.Marks, err
}

// insist asks the database until it answers or ctx ends.
func (m *member) insist(ctx context.Context, what string, ask func(context.Context) error) error {
	pause := backoff{min: m.cfg.RetryMin, max: m.cfg.RetryMax}
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, consumer.ErrHistory) {
			return err // join again, and begin with what this database knows
		}
		delay := pause.step()
		m.log.Warn("the database does not answer; no message is taken before", "asked to", what, "error", err, "retry_in", delay)
		if !sleep(ctx, delay) {
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

// commit saves the marks in the database first, and then commits the offsets
// that they allow. When the database is on another history than at the start of
// the session, some of what is finished may be lost: no offset is committed, and
// the session ends, so that the next one begins with a rewind. So it does when a
// topic was made anew.
func (m *member) commit(ctx context.Context, s sarama.ConsumerGroupSession) {
	all := m.marks.take()
	if len(all) > 0 {
		switch anew, err := m.madeAnew(); {
		case err != nil:
			m.log.Warn("nobody can tell whether the topics are still the same; offsets wait", "error", err)
			m.marks.restore(all)
			return
		case anew: // they are of offsets of before
			m.end()
			return
		}
	}
	// Without marks too: an idle group must notice that the database has lost what
	// it had finished.
	err := m.handler.SaveProgress(ctx, m.history, all)
	if errors.Is(err, consumer.ErrHistory) {
		m.log.Warn("joining again, to find out what the database has lost", "error", err)
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
	if m.ahead.Load() > 0 {
		m.marks.restore(all)
		return
	}
	for _, mark := range all {
		if !mark.AtEnd && mark.High < m.first[place{mark.Topic, mark.Partition}] {
			continue // nothing is finished
		}
		s.MarkOffset(mark.Topic, mark.Partition, mark.High+1, metadata(mark.TopicID, mark.High))
	}
	s.Commit()
}

// Cleanup commits what the workers have finished. sarama calls it when all of
// them have returned, while the partitions are still this member's.
func (m *member) Cleanup(s sarama.ConsumerGroupSession) error {
	m.commits.Wait()
	m.deliveries.Wait()
	if !m.ended() {
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
		mark.Crashed = m.cautious[at] > max(m.first[at], m.marks.savedRead(at))
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

// committed reads the group's offsets and their metadata from Kafka; what sarama
// knows of them lacks the metadata.
func (m *member) committed(claims map[string][]int32) (committed, error) {
	coordinator, err := m.client.Coordinator(m.handler.Group())
	if err != nil {
		return nil, fmt.Errorf("find the group's coordinator: %w", err)
	}
	request := &sarama.OffsetFetchRequest{Version: 5, ConsumerGroup: m.handler.Group()}
	for topic, partitions := range claims {
		for _, partition := range partitions {
			request.AddPartition(topic, partition)
		}
	}
	answer, err := coordinator.FetchOffset(request)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", coordinator.Addr(), err)
	}
	if answer.Err != sarama.ErrNoError {
		return nil, answer.Err
	}
	all := make(committed)
	for topic, partitions := range answer.Blocks {
		for partition, block := range partitions {
			if block.Err != sarama.ErrNoError {
				return nil, block.Err
			}
			all[place{topic, partition}] = offset{block.Offset, block.Metadata}
		}
	}
	return all, nil
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
func (m *member) report(src consumer.Source, d consumer.Delivery, attempt int, delay time.Duration) {
	log := m.log.With("source", src.String(), "attempt", attempt, "retry_in", delay)
	switch {
	case d.Err == nil:
		log.Warn("message waits", "outcome", d.Outcome.String())
	case consumer.IsInfrastructure(d.Err):
		log.Warn("message waits for the database", "error", d.Err)
	default:
		log.Error("message failed; its aggregate waits", "error", d.Err)
	}
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
