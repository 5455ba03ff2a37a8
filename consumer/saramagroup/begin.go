package saramagroup

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/backoff"
)

// begin finds where each partition begins: where Kafka says, or earlier when the database has lost what Kafka's
// offset stands for. A partition of which the database knows nothing gets a mark without a finished time, so that
// stream time waits for it.
func (m *member) begin(s sarama.ConsumerGroupSession) error {
	err := m.identify(s.Claims())
	if err != nil {
		return err
	}
	if m.kafka, err = m.committed(s.Claims()); err != nil {
		return fmt.Errorf("read committed offsets: %w", err)
	}
	all, err := m.known(s.Context())
	if err != nil {
		return err
	}
	m.first, m.lows = make(map[place]int64), make(map[place]int64)
	m.lives, m.doubts = make(map[place]uuid.UUID), make(map[place]span)
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
			back := m.setBack(at, mark)
			if back { // from now on the offset is one of ours: a crash before the next commit lies behind it
				s.ResetOffset(topic, partition, m.first[at], metadata(m.cluster, mark.TopicID, m.first[at]-1))
			}
			mark.Read = m.afterCrash(at, mark, back)
			if id := m.topicID(topic); id != uuid.Nil {
				mark.TopicID = id
			}
			m.lives[at], m.lows[at] = mark.TopicID, mark.Low
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
// could say so, may have killed its process: they are delivered one at a time. What a
// session in between has not come to is in doubt still, up to the same offset.
//
// An offset that was set back says nothing of that session. What is in doubt lies beyond the
// mark if it was read there, or if it is what sessions since have left of older doubts: what
// the mark proves finished is not to blame. A session that died on the way there, of what
// lies before the mark perhaps, has read no further than that.
func (m *member) afterCrash(at place, mark consumer.Mark, setBack bool) (read int64) {
	read = m.first[at]
	doubt := span{read, mark.Read + int64(m.cfg.MaxHeld)}
	if !mark.Crashed || doubt.until <= read {
		return read
	}
	if setBack && (mark.Read > mark.High || mark.Inherited && doubt.until > mark.High+1) {
		doubt.from = mark.High + 1
	} else {
		read = mark.Read
	}
	m.doubts[at] = doubt
	log := m.log.With("topic", at.topic, "partition", at.partition, "from", doubt.from, "until", doubt.until)
	if mark.Inherited {
		log.Info("what an earlier session may have died of has not all been read since; it is delivered one message at a time, as before")
	} else {
		log.Warn("the last session of a partition did not end: its process died, or it could not say so. What it may have had in hand is delivered one message at a time")
	}
	return read
}

// setBack reports whether a partition begins, by somebody's command or an offset of another
// topic, before the mark of this very topic.
func (m *member) setBack(at place, mark consumer.Mark) bool {
	of, _, ours := parseMetadata(m.kafka[at].metadata)
	id := m.topicID(at.topic)
	return (!ours || another(of, id)) && id != uuid.Nil && mark.TopicID == id && m.first[at] <= mark.High
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
		lost, has := "the group has worked before, and this database knows nothing of it: another database, or one of before (restored); all that Kafka has is applied again", ""
		if known {
			lost = "the database has lost commits (failover or restore), or another one has worked for the group meanwhile: messages are delivered again, and duplicates removed"
			has = metadata(m.cluster, m.topicID(at.topic), mark.High) // without it, the next loss would not be seen
		}
		m.log.Warn(lost, "database", m.database, "history", m.history,
			"topic", at.topic, "partition", at.partition, "from", committed.next, "to", to)
		s.ResetOffset(at.topic, at.partition, to, has)
		m.tally.rewinds.Add(1)
		return to, nil
	}
	if !ok || committed.next < 0 {
		return m.edge(at, sarama.OffsetOldest)
	}
	return m.follow(s, at, committed)
}

// follow begins where Kafka says, unless that is an offset of before the topic was made
// anew on this cluster, which a commit that was under way meanwhile leaves, or one of
// another topic, maybe elsewhere, that lies behind the end of this one.
func (m *member) follow(s sarama.ConsumerGroupSession, at place, committed offset) (int64, error) {
	of, _, ours := parseMetadata(committed.metadata)
	if !ours || !another(of, m.topicID(at.topic)) {
		return committed.next, nil
	}
	why := "the committed offset is of the topic before it was made anew"
	if !spelledOn(m.cluster, committed.metadata) {
		why = "the committed offset is of another topic of that name, and lies behind the end of this one"
		if newest, err := m.edge(at, sarama.OffsetNewest); err != nil || committed.next <= newest {
			return committed.next, err
		}
	}
	oldest, err := m.edge(at, sarama.OffsetOldest)
	if err != nil {
		return 0, err
	}
	m.log.Warn(why+"; that is read from its beginning",
		"topic", at.topic, "partition", at.partition, "offset", committed.next, "to", oldest)
	s.MarkOffset(at.topic, at.partition, oldest, "") // Kafka may have deleted the beginning
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
	m.history, m.database = progress.History, progress.Database
	return progress.Marks, err
}

// insist asks the database until it answers or ctx ends.
func (m *member) insist(ctx context.Context, what string, ask func(context.Context) error) error {
	pause := backoff.Jittered{Min: m.cfg.RetryMin, Max: m.cfg.RetryMax}
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, consumer.ErrHistory) {
			return err // join again, and begin with what this database knows
		}
		delay := pause.Next()
		m.log.Warn("the database does not answer; no message is taken before", "asked to", what, "error", err, "retry_in", delay)
		if !sleep(ctx, delay) {
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

// committed reads the group's offsets and their metadata from Kafka.
func (m *member) committed(claims map[string][]int32) (committed, error) {
	request := &sarama.OffsetFetchRequest{Version: 5, ConsumerGroup: m.handler.Group()}
	for topic, partitions := range claims {
		for _, partition := range partitions {
			request.AddPartition(topic, partition)
		}
	}
	answer, err := fetchOffsets(m.client, request)
	if err != nil {
		return nil, err
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
