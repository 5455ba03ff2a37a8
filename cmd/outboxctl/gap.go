package main

import (
	"strconv"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/gaps"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

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

func gapList(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, "to look at one gap: outboxctl gap show GAP"); err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*gaps.Report, error) {
		return gaps.List(c.Context, db, c.Bool("all"))
	}, printGaps)
}

func printGaps(p *page, r *gaps.Report) {
	var rows [][]string
	for _, g := range r.Gaps {
		state := g.State
		if g.Note != "" {
			state += " " + g.Note
		}
		rows = append(rows, []string{g.Gap.String(), g.Relay, state, g.Cause, strconv.FormatInt(g.Events, 10),
			strconv.FormatInt(g.Replays, 10), terminal.Stamp(&g.FoundAt)})
	}
	if len(rows) == 0 {
		p.line("none")
	}
	p.table([]string{"gap", "relay", "state…", "cause", "counted?", "replays??", "found?"}, rows)
	printProblems(p, r.Problems)
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
	return ask(c, func(db *operator.Database) (*gaps.Gap, error) {
		gap, err := gaps.Read(c.Context, db, id, c.Int("limit"))
		return gap, prefixed("show gap", err)
	}, printGap)
}

func printGap(p *page, g *gaps.Gap) {
	p.pairs(
		[2]string{"gap", g.Gap.String()},
		[2]string{"relay", g.Relay + " (slot " + g.Slot + ")"},
		[2]string{"cause", g.Cause + ": " + g.Detail},
		[2]string{"state", g.State},
		[2]string{"found", terminal.Stamp(&g.FoundAt) + ", with " + label.Count(g.Events, "event")},
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
	p.line("%s", g.Stands())
	var rows [][]string
	for _, e := range g.FirstEvents {
		aggregate := short(e.AggregateType + " " + e.AggregateID)
		rows = append(rows, []string{e.Key, short(e.EventType), aggregate, terminal.Stamp(&e.CreatedAt),
			strconv.FormatInt(e.Seq, 10)})
	}
	p.table([]string{"key", "type?", "aggregate?", "written??", "seq??"}, rows)
	if g.State == states.GapOpen {
		p.line("\n`outboxctl gap repair %s --reason \"…\"` has them published, `outboxctl gap accept %s --reason \"…\"` gives them up", g.Gap, g.Gap)
	}
}

// printReplays says what no repair mends.
func printReplaysOfGap(p *page, g *gaps.Gap) {
	if g.Replays == 0 {
		return
	}
	p.line("replays that lay in it: %d, not proved to be published, and published by no repair; `outboxctl replay KEY --config FILE --reason \"…\"` orders one again", g.Replays)
	var rows [][]string
	for _, r := range g.FirstReplays {
		rows = append(rows, []string{r.Replay, r.Key, short(r.RequestedBy), terminal.Stamp(&r.RequestedAt)})
	}
	p.table([]string{"replay?", "key", "ordered by?", "ordered??"}, rows)
}
