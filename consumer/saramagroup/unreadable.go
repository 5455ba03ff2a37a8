package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup/internal/unpacked"
	"github.com/onceward/onceward/internal/backoff"
)

// DefaultMaxUnpacked is to how many bytes, 16 MiB, a compressed batch may unpack when the
// program has not set sarama.MaxDecompressedBatchSize.
const DefaultMaxUnpacked = unpacked.Most

var errNoBatch = errors.New("the leader shows no batch there")

// stretch is the part of a partition that the group's own fetches do not get
// through: sarama refuses an answer as a whole, and with it every partition of the
// broker, when one batch of it unpacks to more than the limit. The worker reads
// it by fetches of its own, up to the last batch to blame.
type stretch struct {
	unreadable []batch // in their order
	next       int64   // behind the last one; there the group's own fetches go on
}

// probe looks at each partition of the session alone, after sarama has refused an
// answer: from where the session begins, and from where the last one ended. It
// keeps what cannot be read as dead letters, and has sarama begin behind it.
//
// For that the session's offset has to move ahead of what is finished until
// sarama has made its consumer: commit sends nothing to Kafka before resume
// has put it back.
func (m *member) probe(s sarama.ConsumerGroupSession) (err error) {
	if !m.refused.Swap(false) {
		return nil
	}
	defer func() {
		if err != nil {
			m.refused.Store(true)
			err = fmt.Errorf("look for the batch that cannot be read: %w", err)
		}
	}()
	p, err := newProber(m.cfg, m.client)
	if err != nil {
		return err
	}
	defer p.close()
	m.stretches = make(map[place]*stretch)
	for at, from := range m.first {
		found, err := p.look(at, from)
		if reached := m.tally.reached(at); err == nil && found == nil && reached > from {
			found, err = p.look(at, reached)
		}
		if errors.Is(err, sarama.ErrOffsetOutOfRange) {
			continue // sarama's own fetch says so as well
		}
		if err == nil {
			err = m.pass(s, at, found)
		}
		if err != nil {
			return fmt.Errorf("%s/%d: %w", at.topic, at.partition, err)
		}
	}
	return s.Context().Err()
}

// pass keeps what was found in a partition, and has sarama begin behind it.
func (m *member) pass(s sarama.ConsumerGroupSession, at place, found *stretch) error {
	if found == nil {
		return nil
	}
	for _, b := range found.unreadable {
		if b.aborted {
			continue // nobody is to read it
		}
		u := b.letter(at)
		u.From.TopicID = m.topicID(at.topic)
		if err := m.insist(s.Context(), "keep what cannot be read", func(ctx context.Context) error { return m.handler.KeepUnreadable(ctx, u) }); err != nil {
			return err
		}
		m.log.Error("messages cannot be read, and are kept as a dead letter, but for what was finished before; the partition goes on behind them",
			"source", u.From.String(), "until", u.Until, "error", u.Why)
	}
	m.stretches[at] = found
	m.ahead.Add(1)
	s.MarkOffset(at.topic, at.partition, found.next, "")
	return nil
}

// resume puts the session's offset back to what is finished, once sarama's
// consumer of the partition has its own.
func (m *member) resume(s sarama.ConsumerGroupSession, at place) {
	if m.stretches[at] != nil {
		s.ResetOffset(at.topic, at.partition, m.first[at], m.kafka[at].metadata)
		m.ahead.Add(-1)
	}
}

// commitAgain commits once more at a session's end. With an answer that it refuses,
// sarama closes the connection, which may be that for commits; the second commit
// opens it. An offset that could not be committed before its topic was made anew must not
// be committed now: of the new one it would skip messages.
func (m *member) commitAgain(s sarama.ConsumerGroupSession) {
	if m.ended() || m.ahead.Load() > 0 {
		return
	}
	if anew, err := m.madeAnew(); anew || err != nil {
		return
	}
	s.Commit()
}

// letter says what an operator has to know of a batch.
func (b batch) letter(at place) consumer.Unreadable {
	return consumer.Unreadable{
		From:  consumer.Source{Topic: at.topic, Partition: at.partition, Offset: b.first},
		Until: b.last + 1,
		Why: fmt.Errorf("a batch of %d bytes (%s) unpacks to more than the %d that sarama.MaxDecompressedBatchSize allows; find out who has produced it; "+
			"then discard this letter, or set a higher limit before Run and, while the group is stopped, its offset back to %d",
			b.size, b.codec, sarama.MaxDecompressedBatchSize, b.first),
	}
}

// readStretch reads the part of the partition that sarama's consumer leaves out,
// and closes the channel behind it, or when ctx ends.
func (w *worker) readStretch(ctx context.Context, part *stretch, from int64) <-chan *sarama.ConsumerMessage {
	messages := make(chan *sarama.ConsumerMessage)
	w.looks.Go(func() {
		defer close(messages)
		pause := backoff.Jittered{Min: w.cfg.RetryMin, Max: w.cfg.RetryMax}
		for ctx.Err() == nil {
			var err error
			if from, err = w.readBatches(ctx, part, from, messages); err == nil {
				return
			}
			delay := pause.Next()
			w.log.Warn("the messages before an unreadable batch cannot be fetched; they are waited for",
				"topic", w.claim.Topic(), "partition", w.claim.Partition(), "offset", from, "error", err, "retry_in", delay)
			sleep(ctx, delay)
		}
	})
	return messages
}

// readBatches reads a stretch from an offset on, and returns how far it came. It
// goes over nothing but batches whose headers it has seen: an answer without any
// says that the leader is new, and not that there is none.
func (w *worker) readBatches(ctx context.Context, part *stretch, from int64,
	messages chan<- *sarama.ConsumerMessage) (next int64, err error) {
	at := place{w.claim.Topic(), w.claim.Partition()}
	p, err := newProber(w.cfg, w.client)
	if err != nil {
		return from, err
	}
	defer p.close()
	for from < part.next {
		if b, ok := part.at(from); ok {
			from = b.last + 1
			continue
		}
		block, err := fetch(p.client, at, from, 1)
		if err != nil {
			return from, err
		}
		b, seen := firstBatch(p.tap.answer())
		if !seen {
			return from, errNoBatch
		}
		found, after := readable(block, at, from)
		for _, msg := range found {
			select {
			case messages <- msg:
				from = msg.Offset + 1
			case <-ctx.Done():
				return from, ctx.Err()
			}
		}
		from = max(after, b.last+1)
	}
	return from, nil
}

// at returns the unreadable batch that has the offset.
func (s *stretch) at(offset int64) (b batch, ok bool) {
	i := slices.IndexFunc(s.unreadable, func(b batch) bool { return b.first <= offset && offset <= b.last })
	if i < 0 {
		return batch{}, false
	}
	return s.unreadable[i], true
}

// input is where the next messages come from: the stretch, then sarama.
func (w *worker) input() <-chan *sarama.ConsumerMessage {
	if w.stretch != nil {
		return w.stretch
	}
	return w.claim.Messages()
}

// ended says that nothing more comes from the input, and whether there is
// another one.
func (w *worker) ended(session context.Context) (more bool) {
	if w.stretch == nil || session.Err() != nil {
		return false
	}
	w.stretch = nil
	w.read = w.stretches[place{w.claim.Topic(), w.claim.Partition()}].next
	w.lanes.skip(w.read)
	w.pass()
	return true
}
