package binding

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/outboxdb"
)

// How another Kafka cluster stands to the one before, as onceward.adopt_kafka has it.
const (
	KafkaContinue = "continue"
	KafkaPosition = "from-position"
	KafkaGap      = "gap"
)

// KafkaWays are all of them.
var KafkaWays = []string{KafkaContinue, KafkaPosition, KafkaGap}

// AdoptedKafka is a relay that is bound to another Kafka cluster.
type AdoptedKafka struct {
	Kafka   string `json:"kafka"`
	Relay   string `json:"relay"`
	Slot    string `json:"slot"`
	Before  string `json:"cluster_before"` // empty: none was known
	Cluster string `json:"cluster"`

	// Of the events in the outbox, before the decision.
	Published int64 `json:"events_published"`
	Pending   int64 `json:"events_pending"`
	Replayed  int64 `json:"letters_replayed"` // of those that are published

	InDoubt int64 `json:"events_in_doubt"` // that became gaps
}

// KafkaWish says which cluster a relay is to be bound to.
type KafkaWish struct {
	How     string                      // it stands to the one before
	Cluster string                      // its id; empty: the one that the relay met
	Ask     func(context.Context) error // whether brokers are of the cluster that is named; nil: nobody is asked
}

// kafkaOrder binds a relay to another Kafka cluster.
type kafkaOrder struct {
	report *AdoptedKafka
	state  relays.State
}

// PlanKafka finds the cluster, and counts the events whose account it changes. It changes
// nothing.
func PlanKafka(ctx context.Context, db *operator.Database, state relays.State,
	wish KafkaWish) (operator.Order[*AdoptedKafka], error) {
	report := &AdoptedKafka{Kafka: wish.How, Relay: state.Relay, Slot: state.Slot,
		Before: operator.Deref(state.KafkaCluster)}
	var err error
	if report.Cluster, err = wish.cluster(ctx, state); err != nil {
		return nil, err
	}
	q := outboxdb.New(db)
	systems, err := q.SystemsOfRelays(ctx)
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", operator.ExplainWrite(err))
	}
	if slices.ContainsFunc(systems, func(s outboxdb.SystemsOfRelaysRow) bool {
		return s.Slot == state.Slot &&
			s.Moved
	}) {
		return nil, fmt.Errorf("adopt: relay %s has run on another system, so that nothing here says what it published: adopt the database first (outboxctl adopt --help says how)", state.Relay)
	}
	counts, err := q.CountAccount(ctx, state.Slot)
	if err != nil {
		return nil, fmt.Errorf("adopt: count events: %w", operator.ExplainWrite(err))
	}
	report.Published, report.Pending, report.Replayed = counts.Published, counts.Pending, counts.Replayed
	return &kafkaOrder{report, state}, nil
}

// CarryOut binds the relay, unless it is bound otherwise by now.
func (o *kafkaOrder) CarryOut(ctx context.Context, db *operator.Database, reason string) (_ *AdoptedKafka, err error) {
	o.report.InDoubt, err = outboxdb.New(db).AdoptKafka(ctx, outboxdb.AdoptKafkaParams{
		Slot: o.state.Slot, How: o.report.Kafka, Seen: o.state.KafkaCluster, Cluster: o.report.Cluster, Reason: reason,
	})
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", operator.ExplainWrite(err))
	}
	return o.report, nil
}

// cluster is the one that the relay met, or that the operator names: before
// a planned failover the relay has met none. Where both are known they must agree. What
// gap makes of the account cannot be taken back, so that what somebody says is not enough for it.
func (w KafkaWish) cluster(ctx context.Context, state relays.State) (string, error) {
	met := operator.Deref(state.KafkaMet)
	switch {
	case w.Cluster == "" && met == "":
		return "", operator.Unclear("relay %s has met no other Kafka cluster than the one that it is bound to: "+
			"name it by --cluster ID (kafka-cluster.sh cluster-id shows it)", state.Relay)
	case w.Cluster == "":
		return met, nil
	case met != "" && w.Cluster != met:
		return "", fmt.Errorf("adopt: relay %s met Kafka cluster %s, not %s: put the brokers that you mean into its kafka.brokers, "+
			"start it to have it look, and run this again", state.Relay, met, w.Cluster)
	case w.Ask != nil:
		return w.Cluster, w.Ask(ctx)
	case met == "" && w.How == KafkaGap:
		return "", operator.Unclear("relay %s has not met Kafka cluster %s, and gap cannot be undone: start the relay with the new kafka.brokers "+
			"(it writes nothing there, and stops with OTHER_KAFKA), or give --config FILE, a configuration of it that has them", state.Relay, w.Cluster)
	}
	return w.Cluster, nil
}

// Question implements [operator.Order].
func (o *kafkaOrder) Question() string {
	r := o.report
	text := fmt.Sprintf("bind relay %s to Kafka cluster %s, which was bound to %s; %s as published and %d %s pending: ",
		r.Relay, r.Cluster, cmp.Or(r.Before, "-"), label.Count(r.Published, "event in the outbox counts", "events in the outbox count"),
		r.Pending, label.Are(r.Pending))
	switch r.Kafka {
	case KafkaContinue:
		text += "all that the relay published are taken to be in the new cluster"
		if o.state.Mode == "exactly-once" {
			text += ", with the relay's checkpoint if one is there; without it up to a checkpoint interval of events is published again"
		}
	case KafkaPosition:
		text += "all that lie behind position " + o.state.ConfirmedLsn + ", from which the relay goes on, are taken to be in the new cluster"
		if o.state.Mode == "exactly-once" {
			text += ", and up to a checkpoint interval of events is published again, because the checkpoint in Kafka does not count"
		}
	default:
		text += fmt.Sprintf("those that count as published become gaps to be decided about (of them %s open again), the pending ones are published",
			label.Count(r.Replayed, "dead letter that was replayed is", "dead letters that were replayed are"))
	}
	return text
}
