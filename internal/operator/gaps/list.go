package gaps

import (
	"context"
	"fmt"
	"slices"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// Report is a list of gaps.
type Report struct {
	Gaps     []Gap              `json:"gaps"`
	Problems []operator.Problem `json:"problems"` // what waits for a decision, or is being repaired
}

// List lists the gaps that are not repaired, or all.
func List(ctx context.Context, db *operator.Database, all bool) (*Report, error) {
	meant := []string{states.GapOpen, states.GapRepairing, states.GapAccepted, states.GapBefore}
	if all {
		meant = []string{}
	}
	q := outboxdb.New(db)
	rows, err := q.ListGaps(ctx, outboxdb.ListGapsParams{States: meant})
	if err != nil {
		return nil, fmt.Errorf("list gaps: %w", operator.Explain(err, migrations.Outbox))
	}
	report := &Report{Gaps: []Gap{}, Problems: []operator.Problem{}}
	for _, v := range rows {
		report.Gaps = append(report.Gaps, newGap(v))
	}
	known, err := relays.Read(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("list gaps: look for relays: %w", operator.Explain(err, migrations.Outbox))
	}
	NoteRepairs(report.Gaps, known)
	for _, g := range report.Gaps {
		if problem, ok := g.Problem(); ok && (g.State == states.GapOpen || g.State == states.GapRepairing) {
			report.Problems = append(report.Problems, problem)
		}
	}
	return report, nil
}

// Wrong tells that a gap waits for a decision.
func (r *Report) Wrong() bool {
	return slices.ContainsFunc(r.Gaps, func(g Gap) bool { return g.State == states.GapOpen })
}

// Open are those that are not over.
func Open(ctx context.Context, q *outboxdb.Queries) ([]Gap, error) {
	out := []Gap{}
	rows, err := q.ListGaps(ctx, outboxdb.ListGapsParams{States: []string{states.GapOpen, states.GapRepairing}})
	for _, v := range rows {
		out = append(out, newGap(v))
	}
	return out, err
}

// NoteRepairs says of gaps under repair that nobody repairs them now.
func NoteRepairs(gaps []Gap, known []relays.Relay) {
	for i := range gaps {
		g := &gaps[i]
		runs := slices.ContainsFunc(known, func(r relays.Relay) bool { return r.Slot == g.Slot && r.Streams() })
		if g.State == states.GapRepairing && !runs {
			g.Note = "once it runs"
		}
	}
}

// Problem is what an operator should know of a gap; false: nothing.
func (g Gap) Problem() (operator.Problem, bool) {
	says := g.says()
	return operator.NewProblem(says).Of("gap", g.Relay, g.Slot), says != ""
}

func (g Gap) says() string {
	switch {
	case g.State == states.GapOpen:
		return fmt.Sprintf("relay %s: gap %s (%s) of %s waits for a decision: `outboxctl gap show %s`", g.Relay, g.Gap, g.Cause, label.Count(g.Events, "event"), g.Gap)
	case g.Cause == states.CauseFirstStart:
		return ""
	case g.Note != "":
		return fmt.Sprintf("relay %s will repair gap %s (%s) of %s %s", g.Relay, g.Gap, g.Cause, label.Count(g.Events, "event"), g.Note)
	}
	return fmt.Sprintf("relay %s repairs gap %s (%s) of %s", g.Relay, g.Gap, g.Cause, label.Count(g.Events, "event"))
}
