package check

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceward/onceward/internal/indoubt"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/publisher"
)

// topicVerdicts judges a topic that is published to: what loses events comes first.
func topicVerdicts(r publisher.TopicReport) []Verdict {
	v := seen(r)
	var route *publisher.RouteError
	switch {
	case errors.As(r.Err, &route):
		v.Status, v.Code, v.Detail, v.Cure = Held, codeRoute, route.Reason, route.Advice()
		return []Verdict{v}
	case r.Err != nil:
		return []Verdict{ofKafka(failure(v.Name, r.Err))}
	case r.Missing:
		v.Detail = "does not exist; the relay makes it for its first event (topics.create)"
		return []Verdict{v}
	}
	found := weaknesses(r)
	if r.Compacted {
		found = append(found, Verdict{Name: v.Name, Status: Warning, Code: codeCompacted,
			Detail: "cleanup.policy holds compact: Kafka removes every event behind which another of its aggregate stands, also before a consumer has read it",
			Cure:   "set cleanup.policy=delete on the topic, unless its consumers want only the last event of each aggregate"})
	}
	if r.Narrow {
		found = append(found, Verdict{Name: v.Name, Status: Warning, Code: codeNarrow, Cure: r.Cure,
			Detail: fmt.Sprintf("takes batches of at most %d bytes (max.message.bytes), below the relay's max_message_bytes: its records go one by one, which is slow", r.Limit)})
	}
	return orElse(found, v)
}

func seen(r publisher.TopicReport) Verdict {
	return Verdict{Name: "topic " + r.Name, Status: OK, Detail: label.Count(r.Partitions, "partition") + ", " + label.Count(r.Replicas, "replica")}
}

// weaknesses warns of each setting by which a topic can lose what it has acknowledged.
func weaknesses(r publisher.TopicReport) (found []Verdict) {
	warn := func(code, cure string) {
		v := seen(r)
		v.Status, v.Code, v.Cure = Warning, code, cure
		found = append(found, v)
	}
	if r.Unclean {
		warn(codeUnclean, "set unclean.leader.election.enable=false on the topic: an election of a replica that lags loses what was acknowledged")
	}
	few := ""
	if r.Replicas < 3 {
		warn(codeFewReplicas, "with fewer than 3 replicas what was acknowledged can be lost with one machine; raise the replication factor")
		few = "once it has 3 replicas, "
	}
	if r.MinInSync == 1 {
		warn(codeMinInSync, few+"set min.insync.replicas=2 on the topic: with 1 a record counts as acknowledged when one machine has it")
	}
	return found
}

// positionVerdicts warns where Kafka can lose what exactly once stands on: its checkpoint,
// the group's offset, or how a transaction ended. checkpoint is what is known of its topic.
func positionVerdicts(ctx context.Context, sink publisher.Config, checkpoint Verdict) (found []Verdict) {
	sink.Topics.Create = true // so that what is missing is told from what may not be seen
	reports, err := publisher.Inspect(ctx, sink, []string{publisher.DefaultCheckpointTopic, indoubt.Offsets, "__transaction_state"})
	if err != nil {
		return []Verdict{checkpoint, ofKafka(failure("topics of exactly-once mode", err))}
	}
	for _, r := range reports {
		v := seen(r)
		switch {
		case r.Name == publisher.DefaultCheckpointTopic:
			v = checkpoint
		case r.Missing:
			v.Detail = "does not exist; the brokers make it for the first transaction"
		case r.Partitions == 0:
			v.Status, v.Detail = Skipped, "may not be seen by this principal; grant it DESCRIBE and DESCRIBE_CONFIGS to have it checked"
		}
		var weak []Verdict
		if v.Status == OK && r.Partitions > 0 {
			weak = weaknesses(r)
		}
		for i := range weak {
			weak[i].Detail += "; exactly once stands on it"
		}
		found = append(found, orElse(weak, v)...)
	}
	return found
}

// orElse is what was found, or that nothing was.
func orElse(found []Verdict, well Verdict) []Verdict {
	if len(found) == 0 {
		return []Verdict{well}
	}
	return found
}
