package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/relay"
)

func partitionsCommand() *cli.Command {
	flags := func(more ...cli.Flag) []cli.Flag {
		return append(append([]cli.Flag{
			&cli.StringFlag{Name: "side", Value: string(migrations.Outbox), Usage: "`SIDE` of the table: outbox (events) or consumer (claims)"},
			&cli.IntFlag{Name: "ahead", Value: relay.DefaultPartitionsAhead, Usage: "have partitions for `DAYS` after today; for claims at least 64"},
			&cli.IntFlag{Name: "keep", Value: relay.DefaultPartitionsKeep, Usage: "keep `DAYS` before today", Category: onlyOf(migrations.Outbox)},
			outputFlag(),
		}, more...), dsnFlags()...)
	}
	return &cli.Command{
		Name:  "partitions",
		Usage: "look at the daily partitions of events or claims, make those ahead, drop those that nobody needs",
		Description: "Events go when they are older than --keep and published. Claims go when every class of every consumer group has\n" +
			"its floor above them: a floor follows what the group has finished, and its window says by how much. A day of\n" +
			"events stays while a relay's dead letter of it is open, a day of claims while an event in it is open.",
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

// partitionsReport is the JSON answer of both commands.
type partitionsReport struct {
	DryRun    bool         `json:"dry_run"`
	DaysAhead int          `json:"days_ahead"`
	Made      []string     `json:"partitions_made"`
	Leaves    []leafReport `json:"partitions"`
	Problems  []string     `json:"problems"`
}

type leafReport struct {
	Name  string    `json:"name"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	State string    `json:"state"`
	Why   string    `json:"why,omitempty"`
	Rows  int64     `json:"rows_estimate"`
	Bytes int64     `json:"bytes"`
}

func partitionsStatus(c *cli.Context) error   { return partitionsRound(c, true) }
func partitionsMaintain(c *cli.Context) error { return partitionsRound(c, c.Bool("dry-run")) }

func partitionsRound(c *cli.Context, dryRun bool) error {
	if err := checkPartitionsCall(c); err != nil {
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
	sizes, err := leafSizes(c.Context, db)
	if err != nil {
		return fmt.Errorf("read sizes of partitions: %w", operator.Explain(err, migrations.Outbox))
	}
	done, failed := maintain(c.Context, db, relay.RetentionConfig{Ahead: c.Int("ahead"), Keep: c.Int("keep"), DryRun: dryRun, DropBefore: reason})
	if errors.Is(failed, relay.ErrMaintained) {
		return fmt.Errorf("%w; it does what this command would do", failed)
	}
	report := newPartitionsReport(done, sizes, dryRun)
	var unwanted *cdc.StartError
	problem := fewPartitions(done.Ahead, done.Today)
	if errors.As(failed, &unwanted) && unwanted.Code == cdc.CodeDefaultPartition {
		problem = ""
		if dryRun {
			problem, failed = unwanted.Error(), nil
		}
	}
	if problem != "" {
		report.Problems = append(report.Problems, problem)
	}
	failed = operator.ExplainMaintainer(failed)
	filled, err := filledPartitions(c.Context, outboxdb.New(db))
	if err != nil {
		return errors.Join(failed, err)
	}
	report.Problems = append(report.Problems, filled...)
	if failed != nil && len(report.Leaves) == 0 {
		return failed
	}
	if err := answer(c, report, printPartitions); err != nil || failed != nil {
		return errors.Join(failed, err)
	}
	if len(report.Problems) > 0 {
		return errWrong
	}
	return nil
}

// filledPartitions says for which partitions relays stop.
func filledPartitions(ctx context.Context, q *outboxdb.Queries) (problems []string, err error) {
	filled, err := q.FilledPartitions(ctx)
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	for _, leaf := range filled.Leaves() {
		problems = append(problems, fmt.Sprintf("%[1]s held rows when it was attached, which no relay is sent (%[2]s): as the maintainer `outboxctl partitions adopt %[1]s --reason \"…\"`, or detach it again", leaf, relay.CodePartitionFilled))
	}
	return problems, nil
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

func maintain(ctx context.Context, db *operator.Database, cfg relay.RetentionConfig) (report relay.RetentionReport, err error) {
	err = db.Direct(ctx, func(conn *pgx.Conn) (err error) {
		report, err = relay.Maintain(ctx, conn, cfg)
		return err
	})
	return report, err
}

// leafSizes is what the catalog says of the partitions: rows at the last
// ANALYZE, and bytes on disk with indexes and large values.
func leafSizes(ctx context.Context, db *operator.Database) (map[string][2]int64, error) {
	rows, err := db.Query(ctx, `SELECT c.relname::text, c.reltuples::bigint, pg_catalog.pg_total_relation_size(c.oid)
FROM pg_catalog.pg_class c WHERE c.relnamespace = 'onceward'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^outbox_[0-9]{8}$'`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	sizes := make(map[string][2]int64)
	for rows.Next() {
		var name string
		var size [2]int64
		if err := rows.Scan(&name, &size[0], &size[1]); err != nil {
			return nil, err
		}
		sizes[name] = size
	}
	return sizes, rows.Err()
}

func newPartitionsReport(done relay.RetentionReport, sizes map[string][2]int64, dryRun bool) *partitionsReport {
	r := &partitionsReport{DryRun: dryRun, DaysAhead: done.Ahead, Made: operator.NotNil(done.Made), Leaves: []leafReport{}, Problems: []string{}}
	if done.Taken != "" {
		r.Problems = append(r.Problems, done.Taken)
	}
	for _, l := range done.Leaves {
		size := sizes[l.Name]
		r.Leaves = append(r.Leaves, leafReport{Name: l.Name, From: l.From, To: l.To, State: string(l.State), Why: l.Why, Rows: size[0], Bytes: size[1]})
		if l.Wrong {
			r.Problems = append(r.Problems, l.Name+": "+l.Why)
		}
	}
	return r
}

func printPartitions(p *page, r *partitionsReport) {
	verb := "made"
	if r.DryRun {
		verb = "missing"
	}
	if n := len(r.Made); n > 0 {
		p.line("%s %d partitions: %s to %s", verb, n, r.Made[0], r.Made[n-1])
	}
	p.line("%d days ahead are covered", r.DaysAhead)
	printLeaves(p, r.Leaves)
	printProblems(p, r.Problems)
}

func printLeaves(p *page, leaves []leafReport) {
	var rows [][]string
	for _, l := range leaves {
		rows = append(rows, []string{l.Name, l.From.Format(time.DateOnly), l.State, strings.TrimSuffix(aboutRows(l.Rows), " rows"), terminal.Size(l.Bytes), l.Why})
	}
	p.table([]string{"partition", "day", "state", "rows", "size", "why"}, rows)
}

func printProblems(p *page, problems []string) {
	for i, problem := range problems {
		if i == 0 {
			p.line("")
		}
		p.line("! %s", problem)
	}
}
