package main

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/config"
	"github.com/onceward/onceward/relay/retention"
)

func partitionsCommand() *cli.Command {
	flags := func(more ...cli.Flag) []cli.Flag {
		return append(append([]cli.Flag{
			&cli.StringFlag{Name: "side", Value: string(migrations.Outbox), Usage: "`SIDE` of the table: outbox (events) or consumer (claims)"},
			&cli.IntFlag{Name: "ahead", Value: retention.DefaultAhead, Usage: "have partitions for `DAYS` after today; for claims at least 64"},
			&cli.IntFlag{Name: "keep", Value: retention.DefaultKeep, Usage: "keep `DAYS` before today", Category: onlyOf(migrations.Outbox)},
			outputFlag(),
		}, append(more, ofSide(migrations.Outbox, &cli.StringFlag{Name: "config", Aliases: []string{"c"},
			Usage: "take the days from outbox.partitions of the relay's configuration in `FILE`; --ahead and --keep win. Its database is not taken"})...)...), dsnFlags()...)
	}
	return &cli.Command{
		Name:  "partitions",
		Usage: "look at the daily partitions of events or claims, make those ahead, drop those that nobody needs",
		Description: "Events go when they are older than --keep and published; --config FILE keeps what the relay keeps, and needs none\n" +
			"of its secrets. Claims go when every class of every consumer group has its floor above them: a floor follows what\n" +
			"the group has finished, and its window says by how much. A day of events stays while a relay's dead letter of it\n" +
			"is open, a day of claims while an event in it is open.",
		Subcommands: []*cli.Command{
			{
				Name: "status", Usage: "say of every partition in what state it is and what it waits for; exit code 3 when something is wrong",
				Flags:  flags(),
				Action: bySide(partitionsStatus, claimsStatus),
			},
			{
				Name: "maintain", Usage: "do one round: make, close, drop; for claims raise the floors too",
				Description: "Run it every few minutes, from cron or, for the outbox, by the relay. A partition is closed, or its floor\n" +
					"raised, by one round and dropped by a later one. What waits is no failure: it is taken up by the next round.",
				Flags: flags(&cli.BoolFlag{Name: "dry-run", Usage: "say what would be done, and do nothing"},
					&cli.BoolFlag{Name: "drop-before", Usage: "drop also rows that were never published, because they are older than their relay; needs --reason",
						Category: onlyOf(migrations.Outbox)},
					reasonFlag(), yesFlag()),
				Action: bySide(partitionsMaintain, claimsMaintain),
			},
			partitionsAdoptCommand(),
		},
	}
}

func partitionsStatus(c *cli.Context) error   { return partitionsRound(c, true) }
func partitionsMaintain(c *cli.Context) error { return partitionsRound(c, c.Bool("dry-run")) }

func partitionsRound(c *cli.Context, dryRun bool) error {
	if err := checkPartitionsCall(c); err != nil {
		return err
	}
	days, err := daysOf(c)
	if err != nil {
		return err
	}
	reason, err := dropBefore(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	report, failed := partitions.Round(c.Context, db,
		retention.Config{Ahead: days.Ahead, Keep: days.Keep, DryRun: dryRun, DropBefore: reason})
	if report == nil {
		return failed
	}
	if failed != nil {
		return errors.Join(failed, write(c, report, printPartitions))
	}
	return answer(c, report, printPartitions)
}

// daysOf are those of the flags and, where these say nothing, of the configuration.
func daysOf(c *cli.Context) (days relay.PartitionsConfig, err error) {
	days.Ahead, days.Keep = c.Int("ahead"), c.Int("keep")
	if c.String("config") == "" {
		return days, nil
	}
	cfg, err := config.LoadOffline(c.String("config"), os.Environ())
	if err != nil {
		return days, err
	}
	if !c.IsSet("ahead") {
		days.Ahead = cmp.Or(cfg.Outbox.Partitions.Ahead, retention.DefaultAhead)
	}
	if !c.IsSet("keep") {
		days.Keep = cmp.Or(cfg.Outbox.Partitions.Keep, retention.DefaultKeep)
	}
	return days, nil
}

// dropBefore returns the reason for which rows may go that were never published.
func dropBefore(c *cli.Context) (reason string, err error) {
	if !c.Bool("drop-before") {
		return "", nil
	}
	if reason, err = readReason(c); err != nil || c.Bool("dry-run") {
		return reason, err
	}
	return reason, confirm(c, "drop partitions with events that were never published, because they are older than their relay")
}

func checkPartitionsCall(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, ""); err != nil {
		return err
	}
	for _, flag := range []string{"ahead", "keep"} {
		if c.Int(flag) < 1 {
			return usage("--%s %d: want at least 1 day", flag, c.Int(flag))
		}
	}
	return nil
}

func printPartitions(p *page, r *partitions.Report) {
	verb := "made"
	if r.DryRun {
		verb = "missing"
	}
	if n := len(r.Made); n > 0 {
		p.line("%s %s: %s to %s", verb, label.Count(n, "partition"), r.Made[0], r.Made[n-1])
	}
	p.line("%s covered", label.Count(r.DaysAhead, "day ahead is", "days ahead are"))
	p.line("wanted ahead: %s; kept, not made: %s before today (--ahead and --keep, or --config FILE)", label.Count(r.Ahead, "day"), label.Count(r.Keep, "day"))
	printLeaves(p, r.Leaves)
	printProblems(p, r.Problems)
}

func printLeaves(p *page, leaves []partitions.Leaf) {
	var rows [][]string
	for _, l := range leaves {
		rows = append(rows, []string{l.Name, l.From.Format(time.DateOnly), l.State, strings.TrimSuffix(strings.TrimSuffix(aboutRows(l.Rows), "s"), " row"), terminal.Size(l.Bytes), l.Why})
	}
	p.table([]string{"partition", "day??", "state", "rows?", "size?", "why…"}, rows)
}

func printProblems(p *page, problems []operator.Problem) {
	for i, problem := range problems {
		if i == 0 {
			p.line("")
		}
		p.line("! %s", problem)
	}
}
