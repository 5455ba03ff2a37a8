package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// accountWords are the states of the events of a gap, as onceward.account has them.
var accountWords = map[string]string{states.GapOpen: states.Gap, states.GapRepairing: states.Pending, states.GapAccepted: states.GivenUp, states.GapBefore: states.Before}

func gapCommand() *cli.Command {
	return &cli.Command{
		Name:  "gap",
		Usage: "look at what a relay cannot prove that it published, and decide what becomes of it",
		Description: "A gap is a stretch of the outbox that may have passed a relay by: its slot was dropped, lost or advanced, its\n" +
			"publication was changed, letters were lost, the database went back in time. At most a tick of it may be in Kafka.\n" +
			"With gap: repair in the relay's configuration the relay repairs it by itself, with gap: ask it waits for a decision.\n" +
			"What was committed before a relay that began with outbox.start: now is a gap in the state before.",
		Subcommands: []*cli.Command{
			{
				Name: "list", Usage: "list gaps, with the events counted when each was found; exit code 3 when one waits for a decision", Flags: append([]cli.Flag{
					&cli.BoolFlag{Name: "all", Usage: "also those that are repaired"}, outputFlag(),
				}, dsnFlags()...), Action: gapList,
			},
			{
				Name: "show", Usage: "tell of one gap, with its first events", ArgsUsage: "GAP",
				Flags:  append([]cli.Flag{&cli.IntFlag{Name: "limit", Value: 20, Usage: "at most `N` events"}, outputFlag()}, dsnFlags()...),
				Action: gapShow,
			},
			{
				Name: "repair", Usage: "have the relay publish the events of a gap, before it goes on", ArgsUsage: "GAP",
				Description: "They go out in the order of their seq, with the header repair-id, but for those of FIRST_START, which no relay has\n" +
					"published before. Dead letters are left out, and what has no row any more: the relay's log says how many of the counted\n" +
					"went out, and a gap of which none is left is refused. A gap that was\n" +
					"accepted, and what is older than a relay, can be repaired too; later events of the same aggregates are out by\n" +
					"then, so that these come behind them.",
				Flags: gapFlags(), Action: func(c *cli.Context) error { return decideGap(c, states.GapRepairing) },
			},
			{
				Name: "accept", Usage: "give the events of a gap up", ArgsUsage: "GAP",
				Description: "They become given-up: they are never called published, and retention lets them go. Until it has, `gap repair`\n" +
					"takes it back, and `outboxctl replay` publishes single ones.",
				Flags: gapFlags(), Action: func(c *cli.Context) error { return decideGap(c, states.GapAccepted) },
			},
		},
	}
}

func gapFlags() []cli.Flag {
	return append([]cli.Flag{reasonFlag(), yesFlag(), outputFlag()}, dsnFlags()...)
}

// gapReport is the JSON answer about one gap.
type gapReport struct {
	Gap         uuid.UUID      `json:"gap"`
	Relay       string         `json:"relay"`
	Slot        string         `json:"slot"`
	Cause       string         `json:"cause"`
	Detail      string         `json:"detail"`
	State       string         `json:"state"`
	Events      int64          `json:"events"` // when it was found
	Left        *int64         `json:"events_left,omitempty"`
	From        string         `json:"from_snapshot"`
	To          string         `json:"to_snapshot"`
	FoundAt     time.Time      `json:"found_at"`
	RepairedAt  *time.Time     `json:"repaired_at,omitempty"`
	DecidedBy   *string        `json:"decided_by,omitempty"`
	DecidedWhy  *string        `json:"decided_why,omitempty"`
	DecidedAt   *time.Time     `json:"decided_at,omitempty"`
	Note        string         `json:"note,omitempty"` // of a repair that nobody carries out now
	FirstEvents []events.Event `json:"first_events,omitempty"`

	// Replays are the orders to replay that lay in it. No repair publishes them.
	Replays      int64         `json:"replays"`
	FirstReplays []replayOfGap `json:"first_replays,omitempty"`
}

// replayOfGap is an order to replay that the relay has not come to, as far as it can prove.
type replayOfGap struct {
	Replay      string    `json:"replay"` // its key
	Key         string    `json:"key"`    // of the event
	RequestedBy string    `json:"requested_by"`
	RequestedAt time.Time `json:"requested_at"`
}

// gapsReport is the JSON answer of gap list.
type gapsReport struct {
	Gaps []gapReport `json:"gaps"`
}

func newGap(v outboxdb.ListGapsRow) gapReport {
	return gapReport{
		Gap: v.GapID, Relay: v.Relay, Slot: v.Slot, Cause: v.Cause, Detail: v.Detail, State: v.State, Events: v.Events, From: v.FromSnapshot, To: v.ToSnapshot,
		FoundAt: v.FoundAt.UTC(), RepairedAt: v.RepairedAt, DecidedBy: v.DecidedBy, DecidedWhy: v.DecidedWhy, DecidedAt: v.DecidedAt, Replays: v.Replays,
	}
}

func gapList(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, "to look at one gap: outboxctl gap show GAP"); err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	meant := []string{states.GapOpen, states.GapRepairing, states.GapAccepted, states.GapBefore}
	if c.Bool("all") {
		meant = nil
	}
	rows, err := outboxdb.New(db).ListGaps(c.Context, outboxdb.ListGapsParams{States: operator.NotNil(meant)})
	if err != nil {
		return fmt.Errorf("list gaps: %w", operator.Explain(err, migrations.Outbox))
	}
	report := &gapsReport{Gaps: []gapReport{}}
	for _, v := range rows {
		report.Gaps = append(report.Gaps, newGap(v))
	}
	known, err := relays.Read(c.Context, outboxdb.New(db))
	if err != nil {
		return fmt.Errorf("list gaps: look for relays: %w", operator.Explain(err, migrations.Outbox))
	}
	noteRepairs(report.Gaps, known)
	if err := answer(c, report, printGaps); err != nil {
		return err
	}
	if slices.ContainsFunc(report.Gaps, func(g gapReport) bool { return g.State == states.GapOpen }) {
		return errWrong
	}
	return nil
}

func printGaps(p *page, r *gapsReport) {
	var rows [][]string
	for _, g := range r.Gaps {
		state := g.State
		if g.Note != "" {
			state += " " + g.Note
		}
		rows = append(rows, []string{g.Gap.String(), g.Relay, state, g.Cause, strconv.FormatInt(g.Events, 10), strconv.FormatInt(g.Replays, 10), terminal.Stamp(&g.FoundAt)})
	}
	if len(rows) == 0 {
		p.line("none")
	}
	p.table([]string{"gap", "relay", "state", "cause", "counted", "replays", "found"}, rows)
}

// readGap reads one gap with its first events.
func readGap(ctx context.Context, db *operator.Database, id uuid.UUID, limit int) (*gapReport, error) {
	q := outboxdb.New(db)
	rows, err := q.ListGaps(ctx, outboxdb.ListGapsParams{States: []string{}, GapID: &id})
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("there is no gap %s: `outboxctl gap list --all` names them", id)
	}
	g := newGap(rows[0])
	if err := g.readReplays(ctx, q, limit); err != nil {
		return nil, err
	}
	if g.State == states.GapRepaired {
		return &g, nil
	}
	left, err := q.CountEventsOfGap(ctx, id)
	if err != nil {
		return nil, err
	}
	var now time.Time
	if err := db.QueryRow(ctx, "SELECT pg_catalog.now()").Scan(&now); err != nil {
		return nil, err
	}
	first, err := q.EventsOfGap(ctx, outboxdb.EventsOfGapParams{GapID: id, RowLimit: int32(limit)})
	if err != nil {
		return nil, err
	}
	g.Left, g.FirstEvents = &left, []events.Event{}
	for _, v := range first {
		e := events.New(accountWords[g.State], outboxdb.ListByStateRow(v))
		e.AgeSeconds = max(0, now.Sub(e.CreatedAt).Seconds())
		g.FirstEvents = append(g.FirstEvents, e)
	}
	return &g, nil
}

// readReplays reads the first replays that lay in the gap, also once it is repaired.
func (g *gapReport) readReplays(ctx context.Context, q *outboxdb.Queries, limit int) error {
	rows, err := q.ReplaysOfGap(ctx, outboxdb.ReplaysOfGapParams{GapID: g.Gap, RowLimit: int32(limit)})
	for _, v := range rows {
		g.FirstReplays = append(g.FirstReplays, replayOfGap{
			Replay: operator.KeyText(v.Namespace, v.ReplayID), Key: operator.KeyText(v.Namespace, v.ID), RequestedBy: v.RequestedBy, RequestedAt: v.RequestedAt.UTC(),
		})
	}
	return err
}

// readGapArgument checks what needs no server.
func readGapArgument(c *cli.Context) (uuid.UUID, error) {
	if err := checkOutput(c); err != nil {
		return uuid.Nil, err
	}
	if c.NArg() != 1 {
		return uuid.Nil, usage("%s takes one GAP, got %d; `outboxctl gap list` names them", c.Command.HelpName, c.NArg())
	}
	id, err := uuid.Parse(c.Args().First())
	if err != nil {
		return uuid.Nil, usage("%s: GAP %q is no UUID; `outboxctl gap list` names them", c.Command.HelpName, c.Args().First())
	}
	return id, nil
}

func gapShow(c *cli.Context) error {
	id, err := readGapArgument(c)
	if err != nil {
		return err
	}
	if err := checkLimit(c); err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	report, err := readGap(c.Context, db, id, c.Int("limit"))
	if err != nil {
		return fmt.Errorf("show gap: %w", err)
	}
	return answer(c, report, printGap)
}

func printGap(p *page, g *gapReport) {
	p.pairs(
		[2]string{"gap", g.Gap.String()},
		[2]string{"relay", g.Relay + " (slot " + g.Slot + ")"},
		[2]string{"cause", g.Cause + ": " + g.Detail},
		[2]string{"state", g.State},
		[2]string{"found", terminal.Stamp(&g.FoundAt) + ", with " + strconv.FormatInt(g.Events, 10) + " events"},
	)
	if g.DecidedBy != nil && g.DecidedWhy != nil {
		p.line("decided by %s at %s: %s", *g.DecidedBy, terminal.Stamp(g.DecidedAt), *g.DecidedWhy)
	}
	printReplaysOfGap(p, g)
	if g.Left == nil {
		if g.Events > 0 {
			p.line("how many of them the repair published is in the log of the relay: those that had no row any more were not")
		}
		return
	}
	p.line("%s", g.stands())
	var rows [][]string
	for _, e := range g.FirstEvents {
		aggregate := terminal.Preview([]byte(e.AggregateType+" "+e.AggregateID), terminal.PreviewBytes)
		rows = append(rows, []string{e.Key, terminal.Preview([]byte(e.EventType), terminal.PreviewBytes), aggregate, terminal.Stamp(&e.CreatedAt), strconv.FormatInt(e.Seq, 10)})
	}
	p.table([]string{"key", "type", "aggregate", "written", "seq"}, rows)
	if g.State == states.GapOpen {
		p.line("\n`outboxctl gap repair %s --reason \"…\"` has them published, `outboxctl gap accept %s --reason \"…\"` gives them up", g.Gap, g.Gap)
	}
}

// printReplays says what no repair mends.
func printReplaysOfGap(p *page, g *gapReport) {
	if g.Replays == 0 {
		return
	}
	p.line("%d replays lay in it: they are not proved to be published, and no repair publishes them; `outboxctl replay KEY --config FILE --reason \"…\"` orders one again", g.Replays)
	var rows [][]string
	for _, r := range g.FirstReplays {
		rows = append(rows, []string{r.Replay, r.Key, terminal.Preview([]byte(r.RequestedBy), terminal.PreviewBytes), terminal.Stamp(&r.RequestedAt)})
	}
	p.table([]string{"replay", "key", "ordered by", "ordered"}, rows)
}
