package gaps

import (
	"context"
	"fmt"
	"slices"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
)

// decisions says from which states a gap can be decided to another, as
// onceward.decide_gap does.
var decisions = map[string][]string{
	states.GapRepairing: {states.GapOpen, states.GapAccepted, states.GapBefore},
	states.GapAccepted:  {states.GapOpen},
}

// Decision is a state to which a gap can be decided.
type Decision struct {
	gap *Gap
	to  string
}

// Decide refuses what cannot be decided any more, and a repair of nothing. It changes
// nothing.
func (g *Gap) Decide(to string) (*Decision, error) {
	if !slices.Contains(decisions[to], g.State) {
		return nil, g.decided()
	}
	if to == states.GapRepairing && g.gone() > 0 && *g.Left == 0 {
		return nil, g.nothingLeft()
	}
	return &Decision{g, to}, nil
}

// Question says what the decision means.
func (d *Decision) Question() string {
	g := d.gap
	if d.to == states.GapAccepted {
		return fmt.Sprintf("give up %s of gap %s of relay %s", g.leftOfCounted(), g.Gap, g.Relay)
	}
	what := fmt.Sprintf("have relay %s publish %s of gap %s", g.Relay, g.leftOfCounted(), g.Gap)
	if g.State != states.GapOpen {
		what += ", behind later events of their aggregates that are out by now"
	}
	return what
}

// CarryOut has the decision written, with who took it, by the database, unless the gap is
// in another state by now.
func (d *Decision) CarryOut(ctx context.Context, db *operator.Database, reason string) error {
	err := outboxdb.New(db).DecideGap(ctx, outboxdb.DecideGapParams{GapID: d.gap.Gap, Seen: d.gap.State, Decision: d.to,
		Reason: reason})
	return operator.ExplainWrite(err)
}

// leftOfCounted says how many events a decision is about.
func (g *Gap) leftOfCounted() string {
	if g.gone() == 0 {
		return "the " + label.Count(*g.Left, "event")
	}
	return fmt.Sprintf("the %s left of the %d", label.Count(*g.Left, "event that is", "events that are"), g.Events)
}

// nothingLeft refuses a repair that would call repaired what nobody can publish.
func (g *Gap) nothingLeft() error {
	next := "it stays " + g.State
	if g.State == states.GapOpen {
		next = fmt.Sprintf("`outboxctl gap accept %s --reason \"…\"` gives them up, and the relay goes on", g.Gap)
	}
	return fmt.Errorf("gap %s: none of the %s counted when it was found is left: they have no row any more, by retention or a DELETE, "+
		"became dead letters or wait for their route; there is nothing to publish: %s", g.Gap, label.Count(g.Events, "event that was", "events that were"), next)
}

// decided says why nothing is left to decide. A repair that has begun ends: were the
// rest of it given up, nobody could tell of the page that is under way which of its
// events are in Kafka.
func (g *Gap) decided() error {
	if g.State != states.GapRepairing {
		return fmt.Errorf("gap %s is %s: nothing is left to decide in this way", g.Gap, g.State)
	}
	return fmt.Errorf("gap %s is being repaired: %s left, and a repair is not taken back; `outboxctl status` says what it waits for, "+
		"`outboxctl skip KEY --relay %s --reason \"…\"` leaves one event out, `outboxctl pause --relay %s` lets it rest",
		g.Gap, label.Count(*g.Left, "of its events is", "of its events are"), g.Relay, g.Relay)
}
