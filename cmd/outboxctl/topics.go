package main

import (
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator/topics"
)

func topicsCommand() *cli.Command {
	return &cli.Command{
		Name:  "topics",
		Usage: "make the topics that a relay's routes lead to",
		Subcommands: []*cli.Command{{
			Name:  "create",
			Usage: "make those that are missing: that routes name, of the newest events and of what waits",
			Description: "With topics.partitions and topics.replication_factor of FILE, whatever topics.create says there.\n" +
				"Connects to Kafka and PostgreSQL as the relay does. A topic that is there is left as it is.",
			Flags: []cli.Flag{
				ownConfigFlag(),
				&cli.BoolFlag{Name: "dry-run", Usage: "only say which would be made"},
				outputFlag(),
			},
			Action: createTopics,
		}},
	}
}

func createTopics(c *cli.Context) error {
	cfg, err := loadConfig(c)
	if err != nil {
		return err
	}
	report, err := topics.Create(c.Context, &cfg, c.Bool("dry-run"))
	if err != nil {
		return err
	}
	return answer(c, report, printTopics)
}

func printTopics(p *page, r *topics.Report) {
	verb := "made"
	if r.DryRun {
		verb = "would make"
	}
	for _, name := range r.Made {
		p.line("%s %s: %s, replication factor %d", verb, name, label.Count(r.Partitions, "partition"), r.ReplicationFactor)
	}
	if r.Checkpoint != "" {
		p.line("%s %s: the topic of checkpoints, as exactly-once mode needs it", verb, r.Checkpoint)
	}
	if len(r.There) > 0 {
		p.line("there already: %s", strings.Join(r.There, ", "))
	}
	if len(r.Made)+len(r.There)+len(r.Problems) == 0 && r.Checkpoint == "" {
		p.line("no topic is known: no route names one without a variable, and no event leads to one yet")
	}
	for _, problem := range r.Problems {
		p.line("! %s", problem)
	}
}
