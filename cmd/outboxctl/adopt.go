package main

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// How a database came to another system.
const (
	byCopy = "copy"
	byDump = "dump"
)

func adoptCommand() *cli.Command {
	return &cli.Command{
		Name:  "adopt",
		Usage: "make a database that was restored or moved the one that its relays go on with",
		Description: "A relay stops with OTHER_SYSTEM when it meets its state on another system than it was written on. If this database\n" +
			"takes the place of the other for good, say how it came here. By copy (a base backup, a disk snapshot, pg_upgrade)\n" +
			"its transaction ids were kept, so that what was published is known. By dump (pg_dump, logical replication) they\n" +
			"mean nothing here: every event gets a new one, and none is proved published. In both cases each relay finds a gap\n" +
			"at its next start, which is repaired or asked about as its configuration says. By dump this writes every row of\n" +
			"the outbox anew and lets producers wait meanwhile. Connect as a member of the role maintainer.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "by", Usage: "`HOW` the database came here: copy or dump"}, reasonFlag(), yesFlag(), outputFlag(),
		}, dsnFlags()...),
		Action: adoptDatabase,
	}
}

// adoptedReport is the JSON answer of adopt.
type adoptedReport struct {
	By     string   `json:"by"`
	Relays []string `json:"relays"`
	System string   `json:"system_identifier"`
	Events int64    `json:"events_rewritten"`
}

func adoptDatabase(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, ""); err != nil {
		return err
	}
	report := &adoptedReport{By: c.String("by"), Relays: []string{}}
	if report.By != byCopy && report.By != byDump {
		return usage("--by %q: want %s or %s", report.By, byCopy, byDump)
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
	found, err := outboxdb.New(db).OutOfPlace(c.Context)
	if err != nil {
		return fmt.Errorf("adopt: %w", explain(err, migrations.Outbox))
	}
	if len(found) == 0 {
		return fmt.Errorf("adopt: no relay of this database has run on another system")
	}
	var slots []string
	for _, v := range found {
		report.Relays, slots, report.System = append(report.Relays, v.Relay), append(slots, v.Slot), v.Here
	}
	what := fmt.Sprintf("make this system (%s) that of relay %s", report.System, strings.Join(report.Relays, ", "))
	if report.By == byDump {
		what += ", and count none of the events in the outbox as published"
	}
	if err := confirm(c, what); err != nil {
		return err
	}
	err = pgx.BeginFunc(c.Context, db, func(tx pgx.Tx) error { return report.write(c, outboxdb.New(tx), slots, reason) })
	if err != nil {
		return fmt.Errorf("adopt: %w", explain(err, migrations.Outbox))
	}
	return answer(c, report, func(p *page) {
		p.line("relay %s goes on with this system when it is started; it finds a gap then: `outboxctl gap list`", strings.Join(report.Relays, ", "))
	})
}

func (r *adoptedReport) write(c *cli.Context, q *outboxdb.Queries, slots []string, reason string) (err error) {
	if r.By == byDump {
		if err := q.LockOutbox(c.Context); err != nil {
			return err
		}
		if r.Events, err = q.AdoptRows(c.Context); err != nil {
			return err
		}
		if err := q.AdoptSnapshots(c.Context, slots); err != nil {
			return err
		}
		for _, slot := range slots {
			if _, err := q.RetireGaps(c.Context, slot); err != nil {
				return err
			}
		}
	}
	if err := q.AdoptLetters(c.Context, slots); err != nil {
		return err
	}
	if _, err := q.AdoptRelays(c.Context, slots); err != nil {
		return err
	}
	for _, slot := range slots {
		err := q.RecordAction(c.Context, outboxdb.RecordActionParams{Action: "adopt by " + r.By, Slot: slot, Target: "system " + r.System, Reason: reason})
		if err != nil {
			return err
		}
	}
	return nil
}
