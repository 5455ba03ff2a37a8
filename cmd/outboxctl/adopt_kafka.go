package main

import (
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
)

// How another Kafka cluster stands to the one before, as onceward.adopt_kafka has it.
const (
	kafkaContinue = "continue"
	kafkaPosition = "from-position"
	kafkaGap      = "gap"
)

var kafkaWords = []string{kafkaContinue, kafkaPosition, kafkaGap}

// adoptedKafka is the JSON answer of adopt --kafka.
type adoptedKafka struct {
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

// adoptKafka binds a relay to another Kafka cluster.
func adoptKafka(c *cli.Context) error {
	report := &adoptedKafka{Kafka: c.String("kafka")}
	if c.String("by") != "" {
		return usage("--by is about the database and --kafka about Kafka: give one of them")
	}
	if !slices.Contains(kafkaWords, report.Kafka) {
		return usage("--kafka %q: want %s, %s or %s", report.Kafka, kafkaContinue, kafkaPosition, kafkaGap)
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	state, err := theRelay(c, db)
	if err != nil {
		return err
	}
	report.Relay, report.Slot = state.Relay, state.Slot
	if state.KafkaCluster != nil {
		report.Before = *state.KafkaCluster
	}
	if report.Cluster, err = clusterToAdopt(c, state); err != nil {
		return err
	}
	q := outboxdb.New(db)
	systems, err := q.SystemsOfRelays(c.Context)
	if err != nil {
		return fmt.Errorf("adopt: %w", operator.ExplainWrite(err))
	}
	if slices.ContainsFunc(systems, func(s outboxdb.SystemsOfRelaysRow) bool { return s.Slot == state.Slot && s.Moved }) {
		return fmt.Errorf("adopt: relay %s has run on another system, so that nothing here says what it published: adopt the database first (outboxctl adopt --help says how)", state.Relay)
	}
	counts, err := q.CountAccount(c.Context, state.Slot)
	if err != nil {
		return fmt.Errorf("adopt: count events: %w", operator.ExplainWrite(err))
	}
	report.Published, report.Pending, report.Replayed = counts.Published, counts.Pending, counts.Replayed
	if err := confirm(c, report.what(state)); err != nil {
		return err
	}
	report.InDoubt, err = q.AdoptKafka(c.Context, outboxdb.AdoptKafkaParams{
		Slot: state.Slot, How: report.Kafka, Seen: state.KafkaCluster, Cluster: report.Cluster, Reason: reason,
	})
	if err != nil {
		return fmt.Errorf("adopt: %w", operator.ExplainWrite(err))
	}
	return answer(c, report, printAdoptedKafka)
}

// clusterToAdopt is the one that the relay met, or that the operator names: before
// a planned failover the relay has met none. Where both are known they must agree.
func clusterToAdopt(c *cli.Context, state outboxdb.RelayState) (string, error) {
	named := c.String("cluster")
	met := ""
	if state.KafkaMet != nil {
		met = *state.KafkaMet
	}
	switch {
	case named == "" && met == "":
		return "", usage("relay %s has met no other Kafka cluster than the one that it is bound to: name it by --cluster ID (kafka-cluster.sh cluster-id shows it)", state.Relay)
	case named == "":
		return met, nil
	case met != "" && named != met:
		return "", fmt.Errorf("adopt: relay %s met Kafka cluster %s, not %s: put the brokers that you mean into its kafka.brokers, "+
			"start it to have it look, and run this again", state.Relay, met, named)
	}
	return named, isCluster(c, state, named, met)
}

// isCluster asks whether the brokers are of the cluster that was named. What gap
// makes of the account cannot be taken back, so that a word is not enough for it.
func isCluster(c *cli.Context, state outboxdb.RelayState, named, met string) error {
	if c.String("config") == "" {
		if met == "" && c.String("kafka") == kafkaGap {
			return usage("relay %s has not met Kafka cluster %s, and gap cannot be undone: start the relay with the new kafka.brokers "+
				"(it writes nothing there, and stops with OTHER_KAFKA), or give --config FILE, a configuration of it that has them", state.Relay, named)
		}
		return nil
	}
	w, _, err := clusterToAsk(c)
	if err != nil {
		return err
	}
	w.Config.Cluster = named
	if _, err := publisher.Inspect(c.Context, w.Config, nil); err != nil {
		return fmt.Errorf("adopt: ask the brokers of %s for their cluster: %w", c.String("config"), err)
	}
	return nil
}

// what says what is to be confirmed.
func (r *adoptedKafka) what(state outboxdb.RelayState) string {
	text := fmt.Sprintf("bind relay %s to Kafka cluster %s, which was bound to %s; %d events in the outbox count as published and %d are pending: ",
		r.Relay, r.Cluster, orDash(r.Before), r.Published, r.Pending)
	switch r.Kafka {
	case kafkaContinue:
		text += "all that the relay published are taken to be in the new cluster"
		if state.Mode == "exactly-once" {
			text += ", with the relay's checkpoint if one is there; without it up to a checkpoint interval of events is published again"
		}
	case kafkaPosition:
		text += "all that lie behind position " + state.ConfirmedLsn + ", from which the relay goes on, are taken to be in the new cluster"
		if state.Mode == "exactly-once" {
			text += ", and up to a checkpoint interval of events is published again, because the checkpoint in Kafka does not count"
		}
	default:
		text += fmt.Sprintf("those that count as published become gaps to be decided about (of them %d dead letters that were replayed are open again), the pending ones are published", r.Replayed)
	}
	return text
}

func printAdoptedKafka(p *page, r *adoptedKafka) {
	p.line("relay %s is bound to Kafka cluster %s", r.Relay, r.Cluster)
	if r.Kafka == kafkaGap && r.InDoubt > 0 {
		p.line("%d events are in doubt: `outboxctl gap list`, then `outboxctl gap repair GAP --reason \"…\"` has them published there, "+
			"`outboxctl gap accept GAP --reason \"…\"` gives them up", r.InDoubt)
	}
	if r.Kafka == kafkaGap && r.Replayed > 0 {
		p.line("%d dead letters that were replayed are open again: `outboxctl dead list`; they hold nothing, and each comes when it is retried, out of its aggregate's order", r.Replayed)
	}
	p.line("a relay that stopped with OTHER_KAFKA goes on within seconds; one that is stopped, when it is started with the new kafka.brokers")
}
