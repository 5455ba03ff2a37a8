package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

func listCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list events by state: pending (the default), waiting, published, dead, gap, given-up or before",
		Description: "Every committed event is in exactly one state for each relay. What is pending is told by the relays' published\n" +
			"snapshots, exactly and at most one tick late: some relay still owes it. Waiting: its route cannot be used for now.\n" +
			"Published: by every relay. Gap: a relay cannot prove that it published it (outboxctl gap list,\n" +
			"or partitions status for a partition that held rows when it was attached). Given-up: of a\n" +
			"gap that was accepted. Dead: a letter that waits for a decision (outboxctl dead list has the\n" +
			"discarded ones). Before: older than a relay that began with outbox.start: now, which leaves it out.\n" +
			"--relay asks one relay alone.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "state", Value: states.Pending, Usage: "`STATE` of the events: pending, gap, given-up, before (oldest first), " +
				"waiting (in commit order), published (newest first) or dead"},
			&cli.StringFlag{Name: "relay", Usage: "as the relay called `NAME` has it; without it some relay, and for published every relay"},
			&cli.StringFlag{Name: "namespace", Usage: "only those of the producing service `NAME`"},
			&cli.StringFlag{Name: "aggregate-type", Usage: "only those of aggregates of `TYPE`"},
			&cli.StringFlag{Name: "aggregate", Usage: "only those of the aggregate with `ID`"},
			&cli.StringFlag{Name: "type", Usage: "only events of `TYPE`"},
			ageFlag("stuck", "those older than `AGE`, e.g. 1m or 7d, that are pending or waiting; exit code 3 when there are any"),
			&cli.IntFlag{Name: "limit", Value: 100, Usage: "at most `N` events"},
			outputFlag(),
		}, dsnFlags()...),
		Action: list,
	}
}

// listReport is the JSON answer of list.
type listReport struct {
	State  string           `json:"state"`
	Relays []snapshotReport `json:"relays"`
	Events []eventReport    `json:"events"`
	More   bool             `json:"more"`                        // than the limit
	Filled []string         `json:"partitions_filled,omitempty"` // of which no event counts as published

	Replays int64 `json:"replays_waiting,omitempty"` // with the state waiting: they are no events, and not listed

	NotBegun []string `json:"relays_not_begun,omitempty"` // relays that have processes and no state yet
}

// snapshotReport is what a relay's word is worth: none before its first
// published snapshot, and as old as that afterwards.
type snapshotReport struct {
	Relay      string     `json:"relay"`
	Slot       string     `json:"slot"`
	Known      bool       `json:"known"`
	SnapshotAt *time.Time `json:"snapshot_at"`
}

type eventReport struct {
	Key           string        `json:"key"`
	State         string        `json:"state"`
	AggregateType string        `json:"aggregate_type"`
	AggregateID   string        `json:"aggregate_id"`
	EventType     string        `json:"event_type"`
	CreatedAt     time.Time     `json:"created_at"`
	AgeSeconds    float64       `json:"age_seconds"`
	TxID          uint64        `json:"tx_id"`
	Seq           int64         `json:"seq"`
	Letter        *letterOfList `json:"dead_letter,omitempty"`
}

type letterOfList struct {
	Slot     string `json:"slot"`
	State    string `json:"state"`
	Class    string `json:"error_class"`
	Error    string `json:"error"`
	Attempts int32  `json:"attempts"`
}

func list(c *cli.Context) error {
	filter, err := listFilter(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	report := &listReport{State: c.String("state"), Relays: []snapshotReport{}, Events: []eventReport{}}
	if c.String("relay") != "" {
		state, err := theRelay(c, db)
		if err != nil {
			return err
		}
		filter.Slot = state.Slot
	}
	if err := report.read(c.Context, db, filter); err != nil {
		return fmt.Errorf("list: %w", operator.Explain(err, migrations.Outbox))
	}
	health, err := relays.Processes(c.Context, outboxdb.New(db))
	if err != nil {
		return fmt.Errorf("list: %w", operator.Explain(err, migrations.Outbox))
	}
	report.addNotBegun(health)
	if err := answer(c, report, printList); err != nil {
		return err
	}
	if c.IsSet("stuck") && len(report.Events) > 0 {
		return errWrong
	}
	return nil
}

// listArguments checks what needs no server.
func listArguments(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, "to look at one event: outboxctl show KEY"); err != nil {
		return err
	}
	state := c.String("state")
	if all := []string{states.Pending, states.Waiting, states.Published, states.Dead, states.Gap, states.GivenUp, states.Before}; !slices.Contains(all, state) {
		return usage("--state %q: want one of %s", state, strings.Join(all, ", "))
	}
	if err := checkLimit(c); err != nil {
		return err
	}
	if c.IsSet("stuck") && state != states.Pending {
		return usage("--stuck is about what is pending or waiting, and goes without --state")
	}
	return nil
}

// listFilter asks for one event more than the limit, which tells whether there
// are more.
func listFilter(c *cli.Context) (filter outboxdb.ListByStateParams, err error) {
	if err := listArguments(c); err != nil {
		return filter, err
	}
	stuck, err := readAge(c, "stuck")
	return outboxdb.ListByStateParams{
		State: c.String("state"), Namespace: c.String("namespace"), AggregateType: c.String("aggregate-type"), AggregateID: c.String("aggregate"),
		EventType: c.String("type"), OlderSeconds: stuck.Seconds(), RowLimit: int32(c.Int("limit")) + 1,
	}, err
}

// read takes snapshots and events from one snapshot of the database: they belong
// together.
func (r *listReport) read(ctx context.Context, db *operator.Database, filter outboxdb.ListByStateParams) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		q := outboxdb.New(tx)
		relays, err := q.Snapshots(ctx)
		if err != nil {
			return err
		}
		for _, v := range relays {
			r.Relays = append(r.Relays, snapshotReport{Relay: v.Relay, Slot: v.Slot, Known: v.Known, SnapshotAt: v.TakenAt})
		}
		var now time.Time
		if err := tx.QueryRow(ctx, "SELECT pg_catalog.now()").Scan(&now); err != nil {
			return err
		}
		filled, err := q.FilledPartitions(ctx)
		if err != nil {
			return err
		}
		filter.FilledSlots, filter.FilledTables = filled.Tables()
		r.Filled = filled.Leaves()
		if r.Events, err = r.events(ctx, q, filter); err != nil {
			return err
		}
		if r.State == states.Waiting {
			if r.Replays, err = q.WaitingReplays(ctx, filter.Slot); err != nil {
				return err
			}
		}
		if filter.OlderSeconds > 0 {
			waiting, err := waitingEvents(ctx, q, filter)
			if err != nil {
				return err
			}
			r.Events = append(r.Events, waiting...)
		}
		limit := int(filter.RowLimit) - 1
		if r.More = len(r.Events) > limit; r.More {
			r.Events = r.Events[:limit]
		}
		for i := range r.Events {
			r.Events[i].AgeSeconds = max(0, now.Sub(r.Events[i].CreatedAt).Seconds())
		}
		return nil
	})
}

// addNotBegun names the relays that are there and have not begun.
func (r *listReport) addNotBegun(processes []outboxdb.RelayHealthRow) {
	for _, p := range processes {
		known := slices.ContainsFunc(r.Relays, func(v snapshotReport) bool { return v.Slot == p.Slot })
		if !known && !slices.Contains(r.NotBegun, p.Relay) {
			r.NotBegun = append(r.NotBegun, p.Relay)
		}
	}
}

func (r *listReport) events(ctx context.Context, q *outboxdb.Queries, f outboxdb.ListByStateParams) ([]eventReport, error) {
	out := []eventReport{}
	switch r.State {
	case states.Published:
		rows, err := q.ListPublished(ctx, outboxdb.ListPublishedParams{
			Namespace: f.Namespace, AggregateType: f.AggregateType, AggregateID: f.AggregateID, EventType: f.EventType, RowLimit: f.RowLimit, Slot: f.Slot,
			FilledSlots: f.FilledSlots, FilledTables: f.FilledTables,
		})
		for _, v := range rows {
			out = append(out, newEvent(states.Published, outboxdb.ListByStateRow(v)))
		}
		return out, err
	case states.Waiting:
		return waitingEvents(ctx, q, f)
	case states.Dead:
		rows, err := q.ListDead(ctx, outboxdb.ListDeadParams{
			Namespace: f.Namespace, AggregateType: f.AggregateType, AggregateID: f.AggregateID, EventType: f.EventType, RowLimit: f.RowLimit, Slot: f.Slot,
		})
		for _, v := range rows {
			e := newEvent(states.Dead, outboxdb.ListByStateRow{
				ID: v.LetterID, Namespace: v.Namespace, AggregateType: v.AggregateType, AggregateID: v.AggregateID,
				EventType: v.EventType, CreatedAt: v.CreatedAt, TxID: v.TxID, Seq: v.Seq,
			})
			e.Letter = &letterOfList{Slot: v.Slot, State: v.State, Class: v.ErrorClass, Error: v.Error, Attempts: v.Attempts}
			out = append(out, e)
		}
		return out, err
	default:
		rows, err := q.ListByState(ctx, f)
		for _, v := range rows {
			out = append(out, newEvent(r.State, v))
		}
		return out, err
	}
}

// waitingEvents are those whose route cannot be used. One that waits for one relay
// and is owed by another is pending too, and listed as both.
func waitingEvents(ctx context.Context, q *outboxdb.Queries, f outboxdb.ListByStateParams) (out []eventReport, err error) {
	rows, err := q.ListWaiting(ctx, outboxdb.ListWaitingParams{
		Namespace: f.Namespace, AggregateType: f.AggregateType, AggregateID: f.AggregateID, EventType: f.EventType,
		OlderSeconds: f.OlderSeconds, RowLimit: f.RowLimit, Slot: f.Slot,
	})
	for _, v := range rows {
		out = append(out, newEvent(states.Waiting, outboxdb.ListByStateRow(v)))
	}
	return out, err
}

func newEvent(state string, v outboxdb.ListByStateRow) eventReport {
	return eventReport{
		Key: operator.KeyText(v.Namespace, v.ID), State: state, AggregateType: v.AggregateType, AggregateID: v.AggregateID,
		EventType: v.EventType, CreatedAt: v.CreatedAt.UTC(), TxID: v.TxID, Seq: v.Seq,
	}
}

func printList(p *page, r *listReport) {
	var rows [][]string
	for _, e := range r.Events {
		row := []string{
			e.Key, e.State, terminal.Preview([]byte(e.EventType), terminal.PreviewBytes), terminal.Preview([]byte(e.AggregateType+" "+e.AggregateID), terminal.PreviewBytes), terminal.Stamp(&e.CreatedAt),
			(time.Duration(e.AgeSeconds) * time.Second).String(), strconv.FormatInt(e.Seq, 10),
		}
		if e.Letter != nil {
			row = append(row, e.Letter.Class+": "+terminal.Preview([]byte(e.Letter.Error), terminal.PreviewBytes))
		}
		rows = append(rows, row)
	}
	heading := []string{"key", "state", "type", "aggregate", "written", "age", "seq"}
	if r.State == states.Dead {
		heading = append(heading, "why")
	}
	if len(rows) == 0 {
		p.line("none")
	}
	p.table(heading, rows)
	if r.More {
		p.line("\nthere are more; raise --limit")
	}
	if r.Replays > 0 {
		p.line("\n%d replays wait too: `outboxctl status` says for what", r.Replays)
	}
	for _, leaf := range r.Filled {
		p.line("\n! partition %s held rows when it was attached, and none of its events counts as published: `outboxctl partitions status` says what to do", leaf)
	}
	for _, v := range r.Relays {
		if !v.Known {
			p.line("\nrelay %s has no published snapshot yet: what it has published is not known here", v.Relay)
		}
	}
	for _, relay := range r.NotBegun {
		p.line("\nrelay %s has not begun: `outboxctl status` says what it waits for", relay)
	}
	if len(r.Relays)+len(r.NotBegun) == 0 {
		p.line("\nno relay is known here: none has begun yet, or all were retired")
	}
}
