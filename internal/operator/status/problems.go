package status

import (
	"fmt"
	"slices"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/operator/states"
)

// problems says what an operator should act on, each with what to do.
func (r *Report) problems() []operator.Problem {
	out := []operator.Problem{}
	add := func(check string, problem operator.Problem) { out = append(out, problem.Of(check, "", "")) }
	if r.newer != nil {
		problem := operator.NewProblem(r.newer.Error() + ": what it says here may not be all")
		problem.Code = "SCHEMA_AHEAD"
		add("schema", problem)
	}
	if r.nobodys > 0 {
		add("no-relay", operator.NewProblem(r.nobodysEvents()))
	}
	for i := range r.Relays {
		out = append(out, r.Relays[i].Problems()...)
	}
	for _, g := range r.Gaps {
		if problem, ok := g.Problem(); ok {
			out = append(out, problem)
		}
	}
	few := partitions.Few(r.Partitions.DaysAhead, !r.Partitions.NoToday, partitions.Unknown)
	switch {
	case r.Partitions.Default != "":
		add("partitions", operator.ProblemOf(cdc.DefaultPartition(r.Partitions.Default)))
	case few != nil:
		add("partitions", operator.ProblemOf(few))
	}
	if n := len(r.Held); n > 0 {
		kinds := "kinds of events wait"
		if n == 1 {
			kinds = "kind of events waits"
		}
		says := fmt.Sprintf("%d %s for a route that cannot be used, the first is %s; /readyz of the relay says why", n, kinds, r.Held[0].Name())
		add("held", operator.NewProblem(says+r.unwanted()))
	}
	for _, l := range r.DeadLetters {
		if l.State == states.LetterOpen && l.Letters > 0 {
			says := fmt.Sprintf("slot %s has %s; see `outboxctl dead list`", l.Slot, label.Count(l.Letters, "open dead letter"))
			out = append(out, operator.NewProblem(says).Of("dead-letters", "", l.Slot))
		}
	}
	return out
}

// unwanted says how replays to a topic are given up that is not to be made: its name may
// have been mistyped.
func (r *Report) unwanted() string {
	i := slices.IndexFunc(r.Held, func(v Held) bool { return v.First != "" })
	if i < 0 {
		return ""
	}
	v := r.Held[i]
	return fmt.Sprintf("; where topic %s of replays is not to be made, `outboxctl skip %s --slot %s --reason \"…\"` gives up the first of %d; "+
		"many are given up at once by making the topic, and deleting it when they are published", label.Foreign(v.Topic), v.First, v.Slot, v.Events)
}

// nobodysEvents says that there are events and no relay, as after the last one was retired.
func (r *Report) nobodysEvents() string {
	holds := label.Count(r.nobodys, "event")
	if r.nobodys > maxNobodys {
		holds = "more than " + label.Count(maxNobodys, "event")
	}
	return "no relay is known, and onceward.outbox holds " + holds + ": nobody publishes what of it is not in Kafka yet. Start a relay: " +
		"at its first start it asks whether to publish them all (outbox.start: all), also what a retired relay had published, or none of them (now)"
}

// Wrong tells that there are problems.
func (r *Report) Wrong() bool { return len(r.Problems) > 0 }
