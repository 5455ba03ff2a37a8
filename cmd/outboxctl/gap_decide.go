package main

import (
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
)

// gapDecisions says from which states a gap can be decided to another, as
// onceward.decide_gap does.
var gapDecisions = map[string][]string{
	states.GapRepairing: {states.GapOpen, states.GapAccepted, states.GapBefore},
	states.GapAccepted:  {states.GapOpen},
}

// decideGap is gap repair and gap accept: it shows what is meant, asks, and has
// the decision written, with who took it, by the database.
func decideGap(c *cli.Context, to string) error {
	id, err := readGapArgument(c)
	if err != nil {
		return err
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
	const shown = 10
	gap, err := readGap(c.Context, db, id, shown)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Command.HelpName, err)
	}
	if !slices.Contains(gapDecisions[to], gap.State) {
		return gap.decided()
	}
	if to == states.GapRepairing && gap.gone() > 0 && *gap.Left == 0 {
		return gap.nothingLeft()
	}
	what := fmt.Sprintf("have relay %s publish %s of gap %s", gap.Relay, gap.leftOfCounted(), id)
	if to == states.GapRepairing && gap.State != states.GapOpen {
		what += ", behind later events of their aggregates that are out by now"
	}
	if to == states.GapAccepted {
		what = fmt.Sprintf("give up %s of gap %s of relay %s", gap.leftOfCounted(), id, gap.Relay)
	}
	if !c.Bool("yes") {
		p := &page{}
		printGap(p, gap)
		fmt.Fprint(c.App.ErrWriter, p.text.String()) //nolint:errcheck // the question follows
	}
	if err := confirm(c, what); err != nil {
		return err
	}
	err = outboxdb.New(db).DecideGap(c.Context, outboxdb.DecideGapParams{GapID: id, Seen: gap.State, Decision: to, Reason: reason})
	if err != nil {
		return fmt.Errorf("%s: %w", c.Command.HelpName, operator.ExplainWrite(err))
	}
	if gap, err = readGap(c.Context, db, id, shown); err != nil {
		return err
	}
	return answer(c, gap, func(p *page, gap *gapReport) {
		p.line("gap %s is %s", id, gap.State)
		if gap.Left != nil {
			p.line("%s", gap.stands())
		}
		p.line("a relay that streams or is halted by it goes on by itself within half a minute; one whose process has ended, when it is started")
	})
}

// gone is how many of the counted events are not left in the gap.
func (g *gapReport) gone() int64 { return max(0, g.Events-*g.Left) }

// leftOfCounted says how many events a decision is about.
func (g *gapReport) leftOfCounted() string {
	if g.gone() == 0 {
		return fmt.Sprintf("the %d events", *g.Left)
	}
	return fmt.Sprintf("the %d events that are left of the %d", *g.Left, g.Events)
}

// stands is what is left of a gap, and where the rest is. While a repair is under way
// what it has published is not left.
func (g *gapReport) stands() string {
	if g.gone() == 0 {
		return fmt.Sprintf("%d events are left in it", *g.Left)
	}
	rest := "have no row any more, became dead letters or wait for their route"
	if g.State == states.GapRepairing {
		rest = "are published by it, " + rest
	}
	return fmt.Sprintf("%d events are left in it of the %d that were counted; %d %s", *g.Left, g.Events, g.gone(), rest)
}

// nothingLeft refuses a repair that would call repaired what nobody can publish.
func (g *gapReport) nothingLeft() error {
	next := "it stays " + g.State
	if g.State == states.GapOpen {
		next = fmt.Sprintf("`outboxctl gap accept %s --reason \"…\"` gives them up, and the relay goes on", g.Gap)
	}
	return fmt.Errorf("gap %s: none of the %d events that were counted when it was found is left: they have no row any more, by retention or a DELETE, "+
		"became dead letters or wait for their route; there is nothing to publish: %s", g.Gap, g.Events, next)
}

// decided says why nothing is left to decide. A repair that has begun ends: were the
// rest of it given up, nobody could tell of the page that is under way which of its
// events are in Kafka.
func (g *gapReport) decided() error {
	if g.State != states.GapRepairing {
		return fmt.Errorf("gap %s is %s: nothing is left to decide in this way", g.Gap, g.State)
	}
	return fmt.Errorf("gap %s is being repaired: %d of its events are left, and a repair is not taken back; `outboxctl status` says what it waits for, "+
		"`outboxctl skip KEY --relay %s --reason \"…\"` leaves one event out, `outboxctl pause --relay %s` lets it rest", g.Gap, *g.Left, g.Relay, g.Relay)
}
