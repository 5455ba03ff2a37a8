package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:   "status",
		Usage:  "say how relays, slots, partitions and dead letters of a producer's database are",
		Flags:  append([]cli.Flag{outputFlag()}, dsnFlags()...),
		Action: status,
	}
}

// statusReport is the JSON answer of status.
type statusReport struct {
	Database    string             `json:"database"`
	Relays      []relays.Relay     `json:"relays"`
	Partitions  partitions.Extent  `json:"partitions"`
	Rows        int64              `json:"outbox_rows_estimate"` // -1: not known, because no partition was ever analyzed
	DeadLetters []deadLettersCount `json:"dead_letters"`
	Parked      []parkedReport     `json:"parked_aggregates"` // the oldest; at most relays.MaxShown
	Gaps        []gapReport        `json:"gaps"`              // that wait for a decision, or are being repaired
	Held        []heldReport       `json:"held"`              // the longest held; at most relays.MaxShown
	Remade      []remadeTopic      `json:"topics_made_anew"`  // the last ones; at most maxRemadeShown
	Problems    []string           `json:"problems"`
}

type deadLettersCount struct {
	Slot    string `json:"slot"`
	State   string `json:"state"`
	Letters int64  `json:"letters"`
}

// parkedReport is an aggregate whose events wait behind a dead letter.
type parkedReport struct {
	Slot          string    `json:"slot"`
	Namespace     string    `json:"namespace"`
	AggregateType string    `json:"aggregate_type"`
	AggregateID   string    `json:"aggregate_id"`
	Letters       int64     `json:"letters"`
	Since         time.Time `json:"since"`
	First         string    `json:"first_letter"` // its key
	Class         string    `json:"error_class"`
	Error         string    `json:"error"`
}

// heldReport is what waits for a route that cannot be used: the events of one
// aggregate type, or the replays to one topic.
type heldReport struct {
	Slot          string    `json:"slot"`
	Namespace     string    `json:"namespace"`
	AggregateType string    `json:"aggregate_type"`
	Topic         string    `json:"topic,omitempty"` // of replays
	Events        int64     `json:"events"`
	Orders        int64     `json:"orders,omitempty"` // about dead letters
	Since         time.Time `json:"since"`
}

func (r heldReport) name() string {
	if r.Topic != "" {
		return "replays to " + r.Topic
	}
	return r.Namespace + " " + r.AggregateType
}

func status(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, ""); err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	report, err := readStatus(c.Context, db)
	if err != nil {
		return fmt.Errorf("read status: %w", operator.Explain(err, migrations.Outbox))
	}
	if err := answer(c, report, printStatus); err != nil {
		return err
	}
	if len(report.Problems) > 0 {
		return errWrong
	}
	return nil
}

func readStatus(ctx context.Context, db *operator.Database) (*statusReport, error) {
	r := &statusReport{Database: db.Pool.Config().ConnConfig.Database, DeadLetters: []deadLettersCount{}}
	q := outboxdb.New(db)
	var err error
	if r.Relays, err = relays.Read(ctx, q); err != nil {
		return nil, err
	}
	m, err := migrations.New(migrations.Config{Pool: db.Pool, Side: migrations.Outbox})
	if err != nil {
		return nil, err
	}
	installed, err := m.Status(ctx)
	if err != nil {
		return nil, err
	}
	r.Partitions = partitions.ExtentOf(installed)
	if r.Rows, err = q.OutboxEstimate(ctx); err != nil {
		return nil, err
	}
	letters, err := q.DeadLettersByState(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range letters {
		r.DeadLetters = append(r.DeadLetters, deadLettersCount(l))
	}
	if r.Parked, err = parkedAggregates(ctx, q); err != nil {
		return nil, err
	}
	if r.Gaps, err = openGaps(ctx, q); err != nil {
		return nil, err
	}
	noteRepairs(r.Gaps, r.Relays)
	if r.Held, err = heldLanes(ctx, q); err != nil {
		return nil, err
	}
	if r.Remade, err = remadeTopics(ctx, q); err != nil {
		return nil, err
	}
	filled, err := partitions.Filled(ctx, q)
	r.Problems = append(r.problems(), filled...)
	return r, err
}

// openGaps are those that are not over.
func openGaps(ctx context.Context, q *outboxdb.Queries) ([]gapReport, error) {
	out := []gapReport{}
	rows, err := q.ListGaps(ctx, outboxdb.ListGapsParams{States: []string{states.GapOpen, states.GapRepairing}})
	for _, v := range rows {
		out = append(out, newGap(v))
	}
	return out, err
}

func parkedAggregates(ctx context.Context, q *outboxdb.Queries) ([]parkedReport, error) {
	out := []parkedReport{}
	rows, err := q.ParkedAggregates(ctx, relays.MaxShown)
	for _, v := range rows {
		out = append(out, parkedReport{
			Slot: v.Slot, Namespace: v.Namespace, AggregateType: v.AggregateType, AggregateID: v.AggregateID, Letters: v.Letters,
			Since: v.Since.UTC(), First: operator.KeyText(v.Namespace, v.FirstLetter), Class: v.ErrorClass, Error: v.Error,
		})
	}
	return out, err
}

// heldLanes are the routes whose events wait.
func heldLanes(ctx context.Context, q *outboxdb.Queries) ([]heldReport, error) {
	out := []heldReport{}
	rows, err := q.HeldLanes(ctx, relays.MaxShown)
	for _, v := range rows {
		out = append(out, heldReport{
			Slot: v.Slot, Namespace: v.Namespace, AggregateType: v.AggregateType, Topic: v.Topic, Since: v.HeldAt.UTC(), Events: v.Events, Orders: v.Orders,
		})
	}
	return out, err
}

// problem is what an operator should know of a gap; empty without anything.
func (g gapReport) problem() string {
	switch {
	case g.State == states.GapOpen:
		return fmt.Sprintf("relay %s: gap %s (%s) of %d events waits for a decision: `outboxctl gap show %s`", g.Relay, g.Gap, g.Cause, g.Events, g.Gap)
	case g.Cause == states.CauseFirstStart:
		return ""
	case g.Note != "":
		return fmt.Sprintf("relay %s will repair gap %s (%s) of %d events %s", g.Relay, g.Gap, g.Cause, g.Events, g.Note)
	}
	return fmt.Sprintf("relay %s repairs gap %s (%s) of %d events", g.Relay, g.Gap, g.Cause, g.Events)
}

// problems says what an operator should act on, each with what to do.
func (r *statusReport) problems() []string {
	out := []string{}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for i := range r.Relays {
		out = append(out, r.Relays[i].Problems()...)
	}
	for _, g := range r.Gaps {
		if problem := g.problem(); problem != "" {
			out = append(out, problem)
		}
	}
	if r.Partitions.Default != "" {
		add("%v", cdc.DefaultPartition(r.Partitions.Default))
	} else if problem := partitions.Few(r.Partitions.DaysAhead, !r.Partitions.NoToday); problem != "" {
		add("%s", problem)
	}
	if n := len(r.Held); n > 0 {
		kinds := "kinds of events wait"
		if n == 1 {
			kinds = "kind of events waits"
		}
		add("%d %s for a route that cannot be used, the first is %s; /readyz of the relay says why", n, kinds, r.Held[0].name())
	}
	for _, l := range r.DeadLetters {
		if l.State == states.LetterOpen && l.Letters > 0 {
			add("slot %s has %d open dead letters; see `outboxctl dead list`", l.Slot, l.Letters)
		}
	}
	return out
}

func printStatus(p *page, r *statusReport) {
	p.pairs(
		[2]string{"database", r.Database},
		[2]string{"outbox", aboutRows(r.Rows)},
		[2]string{"partitions", r.Partitions.String()},
	)
	var rows, letters [][]string
	for _, v := range r.Relays {
		pid := "-"
		if v.ActivePID != nil {
			pid = strconv.Itoa(int(*v.ActivePID))
		}
		wal, retained, lag := v.WALStatus, terminal.Size(v.RetainedBytes), terminal.Size(v.LagBytes)
		if !v.SlotExists {
			wal, retained, lag = "no slot", "-", "-"
		}
		rows = append(rows, []string{
			orDash(v.Relay), v.Slot, orDash(v.Mode), strconv.FormatInt(v.Epoch, 10), orDash(v.ConfirmedLSN), pid, wal, retained, lag,
		})
	}
	for _, l := range r.DeadLetters {
		letters = append(letters, []string{l.Slot, l.State, strconv.FormatInt(l.Letters, 10)})
	}
	p.table([]string{"relay", "slot", "mode", "epoch", "confirmed", "pid", "wal", "retained", "lag"}, rows)
	p.table([]string{"process", "relay", "state", "since", "waits for", "events", "waits since", "why"}, processRows(r.Relays))
	p.table([]string{"dead letters", "state", "count"}, letters)
	var held [][]string
	for _, v := range r.Held {
		held = append(held, []string{terminal.Preview([]byte(v.name()), terminal.PreviewBytes), strconv.FormatInt(v.Events, 10), strconv.FormatInt(v.Orders, 10), terminal.Stamp(&v.Since)})
	}
	p.table([]string{"held", "events", "orders", "since"}, held)
	p.table([]string{"topic made anew", "slot", "times", "last", "records of the one before"}, remadeRows(r.Remade))
	p.table([]string{"parked aggregate", "slot", "letters", "since", "behind", "why"}, parkedRows(r.Parked))
	if len(r.Relays) == 0 {
		p.line("\nno relay is known here: none has begun yet, or all were retired")
	}
	if len(r.Problems) > 0 {
		p.line("")
	}
	for _, problem := range r.Problems {
		p.line("! %s", problem)
	}
}

func parkedRows(parked []parkedReport) (rows [][]string) {
	for _, v := range parked {
		rows = append(rows, []string{
			terminal.Preview([]byte(v.Namespace+" "+v.AggregateType+" "+v.AggregateID), terminal.PreviewBytes), v.Slot, strconv.FormatInt(v.Letters, 10), terminal.Stamp(&v.Since),
			v.First, v.Class + ": " + terminal.Preview([]byte(v.Error), terminal.PreviewBytes),
		})
	}
	return rows
}

// aboutRows says how many rows the planner takes a table to have.
func aboutRows(n int64) string {
	if n < 0 {
		return "not known yet"
	}
	return fmt.Sprintf("about %d rows", n)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
