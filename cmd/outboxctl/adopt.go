package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/outboxdb"
)

// How a database came to another system.
const (
	byCopy = "copy"
	byDump = "dump"
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
				"needed for gap when the relay has not met it yet"},
			reasonFlag(), yesFlag(),
		}, relayFlags()...),
		Action: adoptDatabase,
	}
}

// adoptedReport is the JSON answer of adopt.
type adoptedReport struct {
	By     string   `json:"by"`
	Relays []string `json:"relays"`
	System string   `json:"system_identifier"`
	Events int64    `json:"events_rewritten"`

	// Events that --by dump leaves to be asked about, and those of them that were
	// never to be published.
	InDoubt int64 `json:"events_in_doubt,omitempty"`
	Before  int64 `json:"events_before,omitempty"`
	GivenUp int64 `json:"events_given_up,omitempty"`

	// Partitions that --by copy has published whole.
	Partitions []string `json:"partitions,omitempty"`

	slots []string
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
	report := &adoptedReport{By: c.String("by"), Relays: []string{}}
	if report.By != byCopy && report.By != byDump {
		return usage("--by %q: want %s or %s (the database), or give --kafka", report.By, byCopy, byDump)
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
	if err := report.choose(c, outboxdb.New(db)); err != nil {
		return fmt.Errorf("adopt: %w", operator.ExplainMaintainer(err))
	}
	what, err := report.plan(c, outboxdb.New(db))
	if err != nil {
		return fmt.Errorf("adopt: %w", operator.ExplainMaintainer(err))
	}
	if err := confirm(c, what); err != nil {
		return err
	}
	err = pgx.BeginFunc(c.Context, db, func(tx pgx.Tx) error { return report.write(c, outboxdb.New(tx), reason) })
	if err != nil {
		return fmt.Errorf("adopt: %w", operator.ExplainMaintainer(err))
	}
	return answer(c, report, func(p *page, report *adoptedReport) {
		p.line("relay %s goes on with this system: by itself where it is halted, else when it is started", strings.Join(report.Relays, ", "))
		if report.By == byCopy {
			if len(report.Partitions) > 0 {
				p.line("the %d events of partition %s are published by the repair of a gap", report.Events, strings.Join(report.Partitions, ", "))
			}
			p.line("it looks for a gap then, and may find none: `outboxctl gap list`")
		}
		if report.By == byDump {
			p.line("%d events are in doubt, of which %d were older than a relay and %d given up: each relay finds a gap of them when it goes on, and halts; "+
				"`outboxctl gap list` names it then, and says what decides about it", report.InDoubt, report.Before, report.GivenUp)
		}
	})
}

// choose finds the relays: those of another system, and by dump all, because every
// event is written anew.
func (r *adoptedReport) choose(c *cli.Context, q *outboxdb.Queries) error {
	found, err := q.SystemsOfRelays(c.Context)
	if err != nil {
		return fmt.Errorf("look for relays: %w", err)
	}
	due := false
	for _, v := range found {
		due = due || v.Moved
		if !v.Moved && r.By == byCopy {
			continue
		}
		if !v.Moved && !due {
			filled, err := q.FilledLeaves(c.Context, v.Slot)
			if err != nil {
				return fmt.Errorf("look for filled partitions: %w", err)
			}
			due = len(filled) > 0
		}
		r.Relays, r.slots, r.System = append(r.Relays, v.Relay), append(r.slots, v.Slot), v.Here
	}
	if !due {
		return errors.New("no relay of this database has run on another system, and none stops for partitions that came with a dump: nothing is to be adopted")
	}
	return nil
}

// strangers finds the partitions that a relay had not looked at when the database
// was moved, with events that it counts as published: they were there before.
func (r *adoptedReport) strangers(c *cli.Context, q *outboxdb.Queries) (leaves map[string]outboxdb.AdoptLeafParams, err error) {
	leaves = map[string]outboxdb.AdoptLeafParams{}
	for _, slot := range r.slots {
		found, err := q.FilledLeaves(c.Context, slot)
		if err != nil {
			return nil, fmt.Errorf("look for filled partitions: %w", err)
		}
		for _, l := range found {
			if !l.Known && l.Covered {
				leaves[l.Leaf] = outboxdb.AdoptLeafParams{Low: l.Low, High: l.High, Relid: l.Relid}
			}
		}
	}
	return leaves, nil
}

// plan says what is to be confirmed, and refuses a copy that is none: a relay would
// take events for published whose transaction ids are those of another system.
func (r *adoptedReport) plan(c *cli.Context, q *outboxdb.Queries) (what string, err error) {
	what = fmt.Sprintf("make this system (%s) that of relay %s", r.System, strings.Join(r.Relays, ", "))
	if r.By == byCopy {
		ahead, err := q.IsNoCopy(c.Context, r.slots)
		if err != nil {
			return "", err
		}
		if ahead {
			return "", errors.New("this database is no copy: it holds transaction ids that this system has not given out yet, or none of the " +
				"partitions that its relays know, so that events would be lost unseen; it came by dump: run it with --by dump")
		}
		strangers, err := r.strangers(c, q)
		if err != nil || len(strangers) == 0 {
			return what, err
		}
		var events int64
		for _, leaf := range strangers {
			n, err := q.CountLeaf(c.Context, outboxdb.CountLeafParams(leaf))
			if err != nil {
				return "", fmt.Errorf("count the events of partitions: %w", err)
			}
			events += n
		}
		return fmt.Sprintf("%s, and have all %d events of partition %s published, which a relay had not looked at before the database was moved",
			what, events, strings.Join(slices.Sorted(maps.Keys(strangers)), ", ")), nil
	}
	left, err := q.CountLeftOut(c.Context, r.slots)
	if err != nil {
		return "", err
	}
	r.InDoubt, r.Before, r.GivenUp = left.Events, left.Before, left.GivenUp
	return fmt.Sprintf("%s, and count none of the %d events in the outbox as published, of which %d are older than a relay and %d were given up",
		what, left.Events, left.Before, left.GivenUp), nil
}

func (r *adoptedReport) write(c *cli.Context, q *outboxdb.Queries, reason string) (err error) {
	if err := partitions.LockOutbox(c.Context, q); err != nil {
		return err
	}
	if r.By == byCopy {
		if err := q.SettleMoved(c.Context, r.slots); err != nil {
			return err
		}
	}
	if _, err := q.AdoptRelays(c.Context, r.slots); err != nil {
		return err
	}
	streams, err := q.StreamingSlot(c.Context, r.slots)
	if err != nil {
		return err
	}
	if streams != "" {
		return fmt.Errorf("a process streams from slot %s: stop its relay first", streams)
	}
	if r.By == byDump {
		err = r.writeDump(c, q)
	} else {
		err = r.writeCopy(c, q)
	}
	if err != nil {
		return err
	}
	if err := q.AdoptLetters(c.Context, r.slots); err != nil {
		return err
	}
	if err := q.RestartRetries(c.Context, r.slots); err != nil {
		return err
	}
	for _, slot := range r.slots {
		err := q.RecordAction(c.Context, outboxdb.RecordActionParams{Action: "adopt by " + r.By, Slot: slot, Target: r.target(), Reason: reason})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeCopy makes the partitions count as they did on the system before.
func (r *adoptedReport) writeCopy(c *cli.Context, q *outboxdb.Queries) error {
	strangers, err := r.strangers(c, q)
	if err != nil {
		return err
	}
	r.Partitions = slices.Sorted(maps.Keys(strangers))
	if len(strangers) > 0 { // for relays that have run here already too
		if _, err := q.ForgetCatalogs(c.Context); err != nil {
			return err
		}
	}
	if r.Events, err = q.AdoptPartitions(c.Context, slices.Collect(maps.Values(strangers))...); err != nil {
		return err
	}
	return q.AdoptAttachings(c.Context, r.slots)
}

// writeDump makes nothing of what the database knows of its transactions count.
func (r *adoptedReport) writeDump(c *cli.Context, q *outboxdb.Queries) (err error) {
	if err := roomBehind(c, q); err != nil {
		return err
	}
	if r.Events, err = q.AdoptOutbox(c.Context); err != nil {
		return err
	}
	if err := q.AdoptSequence(c.Context); err != nil {
		return err
	}
	if err := q.AdoptSnapshots(c.Context, r.slots); err != nil {
		return err
	}
	if err := q.AdoptAttachings(c.Context, r.slots); err != nil {
		return err
	}
	if err := q.EndReleases(c.Context, r.slots); err != nil { // their cursors are places of another log
		return err
	}
	if err := q.AdoptWaiting(c.Context, r.slots); err != nil {
		return err
	}
	for _, slot := range r.slots {
		if _, err := q.RetireGaps(c.Context, slot); err != nil {
			return err
		}
	}
	return nil
}

// maxSeq is far beyond what producers are given, and leaves them as much again.
const maxSeq = 1 << 62

// roomBehind refuses events of which the sequence cannot be set behind the last: no
// producer could write any more. Only who filled a partition by hand has such.
func roomBehind(c *cli.Context, q *outboxdb.Queries) error {
	last, err := q.LastInOrder(c.Context)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && last.Seq <= maxSeq {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the greatest seq: %w", err)
	}
	return fmt.Errorf("event %s in partition %s has seq %d, behind which the sequence of onceward.outbox has no room for what producers write: "+
		"detach %s, give the events that were put into it a seq below %d, attach it, and run this again; nothing was changed",
		operator.KeyText(last.Namespace, last.ID), last.Leaf, last.Seq, last.Leaf, int64(maxSeq))
}

// target is what the record of the action says.
func (r *adoptedReport) target() string {
	switch {
	case r.By == byDump:
	case len(r.Partitions) > 0:
		return fmt.Sprintf("system %s: %d events of partition %s", r.System, r.Events, strings.Join(r.Partitions, ", "))
	default:
		return "system " + r.System
	}
	return fmt.Sprintf("system %s: %d events, %d before, %d given up", r.System, r.Events, r.Before, r.GivenUp)
}
