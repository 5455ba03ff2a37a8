package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
)

// countTopicsEvery is the time between two writes of how many records the topics
// have taken. That a topic is new, or was made anew, is written at once.
const countTopicsEvery = time.Minute

// recallTopics tells the producers' memory which topics this relay has written to.
func (s *session) recallTopics(ctx context.Context) error {
	rows, err := s.state.Queries.KafkaTopics(ctx, s.cfg.SlotName())
	if err != nil {
		return fmt.Errorf("read the topics of slot %s: %w", s.cfg.SlotName(), err)
	}
	known := make([]publisher.KnownTopic, len(rows))
	for i, r := range rows {
		known[i] = publisher.KnownTopic{Name: r.Topic, ID: r.TopicID, Records: r.Records, SeenAt: r.SeenAt}
	}
	s.memory.Know(known)
	s.health.topicsAt = time.Now()
	return nil
}

// saveTopics writes what is new of the topics, and tells of those that were made
// anew: once each, because it is written before.
func (s *session) saveTopics(ctx context.Context, counts bool) error {
	if s.memory == nil {
		return nil
	}
	if counts = counts || time.Since(s.health.topicsAt) >= countTopicsEvery; counts {
		s.health.topicsAt = time.Now()
	}
	known, remade := s.memory.Topics(counts)
	if len(known) == 0 {
		return nil
	}
	lost := make(map[string]int64, len(remade))
	for _, t := range remade {
		lost[t.Before.Name] = t.Before.Records
	}
	p := outboxdb.SaveKafkaTopicsParams{Slot: s.cfg.SlotName(), Epoch: s.state.Epoch}
	for _, t := range known {
		p.Topics, p.TopicIds, p.Records = append(p.Topics, t.Name), append(p.TopicIds, t.ID), append(p.Records, t.Records)
		p.SeenAt, p.LostRecords = append(p.SeenAt, t.SeenAt), append(p.LostRecords, lost[t.Name])
	}
	n, err := s.state.Queries.SaveKafkaTopics(ctx, p)
	if err := s.state.Fenced("save the topics", n, err); err != nil {
		return err
	}
	for _, t := range remade {
		s.counts.topicRemade()
		s.log.WarnContext(ctx, "a topic was deleted and made anew: what was in it is gone. What the outbox still holds of it, "+
			"`outboxctl replay --from TIME --namespace NAMESPACE --aggregate-type TYPE --config FILE --reason \"…\"` publishes again; "+
			"without --namespace and --aggregate-type that of every topic",
			"topic", t.Before.Name, "was", t.Before.ID, "is", t.ID, "records", t.Before.Records, "counted_at", t.Before.SeenAt.UTC().Format(time.RFC3339),
			"records_are", "those that the topic before had acknowledged to this relay")
	}
	return nil
}

// lastTopics writes the counts at a graceful stop. Without them the next session
// counts from the last ones.
func (s *session) lastTopics(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if s.memory != nil {
		s.memory.Count()
	}
	if err := s.saveTopics(ctx, true); err != nil {
		s.log.DebugContext(ctx, "counts of topics not written", "error", err)
	}
}
