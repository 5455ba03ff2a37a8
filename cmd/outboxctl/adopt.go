package main

import (
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/binding"
)

func adoptCommand() *cli.Command {
	return &cli.Command{
		Name:  "adopt",
		Usage: "make a database that was restored or moved, or another Kafka cluster, the one that relays go on with",
		Description: "A relay stops with OTHER_SYSTEM when it meets its state on another system than it was written on. If this database\n" +
			"takes the place of the other for good, say how it came here. By copy (pg_upgrade, pg_createsubscriber, pg_resetwal)\n" +
			"its transaction ids were kept, so that what was published is known; a partition with events that a relay had not\n" +
			"looked at before is published whole. By dump (pg_dump, logical replication) they mean nothing here: every event gets\n" +
			"a new one, and none is proved published. So it is of a dump that was restored where it was made: its relays stop\n" +
			"with PARTITION_FILLED, and must not stream meanwhile. Each relay goes on by itself, or\n" +
			"when it is started. By copy it may find a gap, which is repaired or asked about as its configuration says. By dump it is asked about: events that were\n" +
			"given up or older than the relay are in it. By dump this writes every row of the outbox anew, and sets the sequence\n" +
			"by which a repair orders events, which logical replication does not carry, behind them: after that run it before\n" +
			"producers write here, or their events may go out before older ones of their aggregates. Producers and\n" +
			"retention wait meanwhile. A base backup and a disk snapshot are the same system: their relays need no adopt.\n" +
			"Connect as a member of the role onceward_maintainer.\n\n" +
			"A relay stops with OTHER_KAFKA when its brokers are of another cluster than the one that it has published to. With\n" +
			"--kafka say of one relay how the new cluster stands to the old one:\n" +
			"  continue       it has everything, as after a planned failover to a mirror that has caught up. In exactly-once mode\n" +
			"                 the relay's checkpoint there counts, if it was mirrored too and is not behind the database's.\n" +
			"  from-position  it has everything behind the relay's position in the database, which may be a tick ahead of what\n" +
			"                 counts as published. In exactly-once mode up to a checkpoint interval of events comes again.\n" +
			"  gap            nothing is known of it: what counts as published becomes a gap, to be repaired or accepted; what is\n" +
			"                 pending is published; up to a tick of it may be in the old cluster too.\n" +
			"The relay must not stream meanwhile. Connect as a member of the role onceward_operator.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "by", Usage: "`HOW` the database came here: copy or dump"},
			&cli.StringFlag{Name: "kafka", Usage: "`HOW` the new Kafka cluster stands to the old one: continue, from-position or gap"},
			&cli.StringFlag{Name: "cluster", Usage: "with --kafka: the `ID` of the new cluster; needed when the relay has not met it yet"},
			&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "with --kafka: ask the brokers of the relay's configuration in `FILE` whether they are of the new cluster; " +
				"needed for gap when the relay has not met it yet. Its database is not taken"},
			reasonFlag(), yesFlag(),
		}, relayFlags()...),
		Action: adoptDatabase,
	}
}

func adoptDatabase(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, ""); err != nil {
		return err
	}
	if c.String("kafka") != "" {
		return adoptKafka(c)
	}
	if c.String("relay") != "" || c.String("slot") != "" || c.String("cluster") != "" || c.String("config") != "" {
		return usage("--relay, --slot, --cluster and --config are for --kafka; --by is about all relays of the database")
	}
	by := c.String("by")
	if by != binding.ByCopy && by != binding.ByDump {
		return usage("--by %q: want %s or %s (the database), or give --kafka", by, binding.ByCopy, binding.ByDump)
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	return order(c, reason, func(db *operator.Database) (operator.Order[*binding.Adopted], error) {
		return binding.PlanDatabase(c.Context, db, by)
	}, printAdopted)
}

func printAdopted(p *page, r *binding.Adopted) {
	p.line("relay %s goes on with this system: by itself where it is halted, else when it is started", strings.Join(r.Relays, ", "))
	if r.By == binding.ByCopy {
		if len(r.Partitions) > 0 {
			p.line("the %s of partition %s %s published by the repair of a gap", label.Count(r.Events, "event"), strings.Join(r.Partitions, ", "), label.Are(r.Events))
		}
		p.line("it looks for a gap then, and may find none: `outboxctl gap list`")
	}
	if r.By == binding.ByDump {
		p.line("%s in doubt, of which %d were older than a relay and %d given up: each relay finds a gap of them when it goes on, and halts; "+
			"`outboxctl gap list` names it then, and says what decides about it", label.Count(r.InDoubt, "event is", "events are"), r.Before, r.GivenUp)
		p.line("a dump has no rights on the database itself: `outboxctl migrate roles --side outbox --apply` as superuser gives them (with --prefix where roles have another)")
	}
}
