package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

func partitionsAdoptCommand() *cli.Command {
	return &cli.Command{
		Name: "adopt", Usage: "have the events published that a partition held when it was attached", ArgsUsage: "PARTITION",
		Description: "Rows that were in a table before it was attached to the outbox are in no log that a relay reads: it stops with\n" +
			"PARTITION_FILLED. This gives each row of the partition a new transaction id. Every relay of the database finds a gap\n" +
			"then, and publishes them as its configuration says, also those that were published before the partition was\n" +
			"detached once, and those that are older than a relay. Producers wait meanwhile. Connect as a member of the role onceward_maintainer.",
		Flags:  append([]cli.Flag{reasonFlag(), yesFlag(), outputFlag()}, dsnFlags()...),
		Action: adoptPartition,
	}
}

// adoptedPartition is the JSON answer of partitions adopt.
type adoptedPartition struct {
	Partition string   `json:"partition"`
	Slots     []string `json:"slots"`
	Events    int64    `json:"events"`
}

func adoptPartition(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if c.NArg() != 1 {
		return usage("%s takes one PARTITION, got %d", c.Command.HelpName, c.NArg())
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
	name := strings.TrimPrefix(c.Args().First(), "onceward.")
	leaf, report, err := filledPartition(c, outboxdb.New(db), name)
	if err != nil {
		return err
	}
	if report.Events, err = outboxdb.New(db).CountLeaf(c.Context, outboxdb.CountLeafParams(leaf)); err != nil {
		return fmt.Errorf("count the events of partition %s: %w", name, operator.Explain(err, migrations.Outbox))
	}
	if err := confirm(c, fmt.Sprintf("have relays publish the %d events of partition %s, also those that were published before", report.Events, name)); err != nil {
		return err
	}
	err = pgx.BeginFunc(c.Context, db, func(tx pgx.Tx) error { return report.write(c, outboxdb.New(tx), leaf, reason) })
	if err != nil {
		return fmt.Errorf("adopt partition %s: %w", name, operator.ExplainMaintainer(err))
	}
	return answer(c, report, func(p *page, report *adoptedPartition) {
		p.line("none of the %d events of partition %s counts as published any more, but those with a dead letter, which it decides; a relay finds a gap "+
			"within half a minute, or when it runs again; one that waits for the decision of another gap, once that is made: `outboxctl gap list`", report.Events, name)
	})
}

// lockOutbox keeps producers from writing until the end of the transaction. It gives
// way to one that stays open: all others would wait behind.
func lockOutbox(c *cli.Context, q *outboxdb.Queries) error {
	open, err := q.OutboxWriters(c.Context)
	if err != nil {
		return fmt.Errorf("look for open transactions of producers: %w", err)
	}
	err = q.LockOutbox(c.Context)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55P03" { // lock_not_available
		return fmt.Errorf("a transaction that has written to onceward.outbox stays open (%s): wait for its end, or end it, and run this again; nothing was changed",
			cmp.Or(open.Writers, "not known which"))
	}
	return err
}

// filledPartition finds the partition, and the relays that stop for it.
func filledPartition(c *cli.Context, q *outboxdb.Queries, name string) (leaf outboxdb.AdoptLeafParams, report *adoptedPartition, err error) {
	report = &adoptedPartition{Partition: name, Slots: []string{}}
	states, err := q.RelayStates(c.Context)
	if err != nil {
		return leaf, report, fmt.Errorf("look for relays: %w", operator.Explain(err, migrations.Outbox))
	}
	for _, relay := range states {
		found, err := q.FilledLeaves(c.Context, relay.Slot)
		if err != nil {
			return leaf, report, fmt.Errorf("look for filled partitions: %w", operator.Explain(err, migrations.Outbox))
		}
		i := slices.IndexFunc(found, func(l outboxdb.FilledLeavesRow) bool { return l.Leaf == name })
		if i >= 0 {
			leaf = outboxdb.AdoptLeafParams{Low: found[i].Low, High: found[i].High, Relid: found[i].Relid}
			report.Slots = append(report.Slots, relay.Slot)
		}
	}
	if len(report.Slots) == 0 {
		return leaf, report, fmt.Errorf("partition %s held no rows when it was attached, or no relay stops for it: nothing is to be adopted", name)
	}
	return leaf, report, nil
}

func (r *adoptedPartition) write(c *cli.Context, q *outboxdb.Queries, leaf outboxdb.AdoptLeafParams, reason string) (err error) {
	if err := lockOutbox(c, q); err != nil {
		return err
	}
	if r.Slots, err = q.ForgetCatalogs(c.Context); err != nil {
		return err
	}
	if r.Events, err = q.AdoptPartitions(c.Context, leaf); err != nil {
		return err
	}
	for _, slot := range r.Slots {
		err := q.RecordAction(c.Context, outboxdb.RecordActionParams{
			Action: "adopt partition", Slot: slot, Target: fmt.Sprintf("%s: %d events", r.Partition, r.Events), Reason: reason,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
