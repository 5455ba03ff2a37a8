package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/binding"
	"github.com/onceward/onceward/publisher"
)

// adoptKafka binds a relay to another Kafka cluster.
func adoptKafka(c *cli.Context) error {
	how := binding.KafkaWish{How: c.String("kafka"), Cluster: c.String("cluster")}
	if c.String("by") != "" {
		return usage("--by is about the database and --kafka about Kafka: give one of them")
	}
	if !slices.Contains(binding.KafkaWays, how.How) {
		return usage("--kafka %q: want %s, %s or %s", how.How, binding.KafkaContinue, binding.KafkaPosition, binding.KafkaGap)
	}
	if file := c.String("config"); file != "" {
		how.Ask = func(ctx context.Context) error { return isCluster(ctx, c, file) }
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	return order(c, reason, func(db *operator.Database) (operator.Order[*binding.AdoptedKafka], error) {
		state, err := theRelay(c, db)
		if err != nil {
			return nil, err
		}
		return binding.PlanKafka(c.Context, db, state, how)
	}, printAdoptedKafka)
}

// isCluster asks whether the brokers of a configuration are of the cluster that is named.
func isCluster(ctx context.Context, c *cli.Context, file string) error {
	w, _, err := clusterToAsk(c)
	if err != nil {
		return err
	}
	w.Config.Cluster = c.String("cluster")
	if _, err := publisher.Inspect(ctx, w.Config, nil); err != nil {
		return fmt.Errorf("adopt: ask the brokers of %s for their cluster: %w", file, err)
	}
	return nil
}

func printAdoptedKafka(p *page, r *binding.AdoptedKafka) {
	p.line("relay %s is bound to Kafka cluster %s", r.Relay, r.Cluster)
	if r.Kafka == binding.KafkaGap && r.InDoubt > 0 {
		p.line("%s in doubt: `outboxctl gap list`, then `outboxctl gap repair GAP --reason \"…\"` has them published there, "+
			"`outboxctl gap accept GAP --reason \"…\"` gives them up", label.Count(r.InDoubt, "event is", "events are"))
	}
	if r.Kafka == binding.KafkaGap && r.Replayed > 0 {
		p.line("%s open again: `outboxctl dead list`; they hold nothing, and each comes when it is retried, out of its aggregate's order",
			label.Count(r.Replayed, "dead letter that was replayed is", "dead letters that were replayed are"))
	}
	p.line("a relay that stopped with OTHER_KAFKA goes on within seconds; one that is stopped, when it is started with the new kafka.brokers")
}
