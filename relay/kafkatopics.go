package relay

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/state"
)

// countTopicsEvery is the time between two writes of how many records the topics
// have taken. That a topic is new, or was made anew, is written at once.
const countTopicsEvery = time.Minute

// topics are those that this relay has written to: what its producers met of them, and
// what of it is written down.
type topics struct {
	state  *state.State
	counts *counts
	log    *slog.Logger
	memory *publisher.Memory // of the process's publishers
	saved  time.Time         // the records of topics
}

// recall tells the producers' memory which topics this relay has written to.
func (t *topics) recall(ctx context.Context) error {
	rows, err := t.state.Queries.KafkaTopics(ctx, t.state.Slot)
	if err != nil {
		return fmt.Errorf("read the topics of slot %s: %w", t.state.Slot, err)
	}
	known := make([]publisher.KnownTopic, len(rows))
	for i, r := range rows {
		known[i] = publisher.KnownTopic{Name: r.Topic, ID: r.TopicID, Records: r.Records, SeenAt: r.SeenAt}
	}
	t.memory.Know(known)
	t.saved = time.Now()
	return nil
}

// save writes what is new of the topics, and tells of those that were made
// anew: once each, because it is written before.
func (t *topics) save(ctx context.Context, counts bool) error {
	if t.memory == nil {
		return nil
	}
	if counts = counts || time.Since(t.saved) >= countTopicsEvery; counts {
		t.saved = time.Now()
	}
	known, remade := t.memory.Topics(counts)
	if len(known) == 0 {
		return nil
	}
	lost := make(map[string]int64, len(remade))
	for _, r := range remade {
		lost[r.Before.Name] = r.Before.Records
	}
	p := outboxdb.SaveKafkaTopicsParams{Slot: t.state.Slot, Epoch: t.state.Epoch}
	for _, k := range known {
		p.Topics, p.TopicIds, p.Records = append(p.Topics, k.Name), append(p.TopicIds, k.ID), append(p.Records,
			k.Records)
		p.SeenAt, p.LostRecords = append(p.SeenAt, k.SeenAt), append(p.LostRecords, lost[k.Name])
	}
	n, err := t.state.Queries.SaveKafkaTopics(ctx, p)
	if err := t.state.Fenced("save the topics", n, err); err != nil {
		return err
	}
	for _, r := range remade {
		t.counts.topicRemade()
		t.log.WarnContext(ctx, "a topic was deleted and made anew: what was in it is gone. What the outbox still holds of it, "+
			"`outboxctl replay --from TIME --namespace NAMESPACE --aggregate-type TYPE --config FILE --reason \"…\"` publishes again; "+
			"without --namespace and --aggregate-type that of every topic",
			"topic", r.Before.Name, "was", r.Before.ID, "is", r.ID, "records", r.Before.Records, "counted_at", r.Before.SeenAt.UTC().Format(time.RFC3339),
			"records_are", "those that the topic before had acknowledged to this relay")
	}
	return nil
}

// last writes the counts at a graceful stop. Without them the next session
// counts from the last ones.
func (t *topics) last(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if t.memory != nil {
		t.memory.Count()
	}
	if err := t.save(ctx, true); err != nil {
		t.log.DebugContext(ctx, "counts of topics not written", "error", err)
	}
}
