package main

import (
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

// maxOutcomes are shown to a person one by one.
const maxOutcomes = 50

// printOutcomes counts what became of the letters, and shows the first of them.
func printOutcomes(p *page, action string, outcomes, heading []string, row func(i int) []string) {
	counts := make(map[string]int)
	var rows [][]string
	for i, outcome := range outcomes {
		counts[outcome]++
		if i < maxOutcomes {
			rows = append(rows, row(i))
		}
	}
	p.line("%s of %d letters: %d done, %d pending, %d failed", action, len(outcomes), counts[states.OutcomeDone], counts[states.OutcomePending], counts[states.OutcomeFailed])
	p.table(heading, rows)
	if len(outcomes) > maxOutcomes {
		p.line("\nthe first %d are shown; --output json has all", maxOutcomes)
	}
}

func printDecided(p *page, r *letters.Became) {
	if len(r.Problems) > 0 {
		for _, problem := range r.Problems {
			p.line("! %s", problem)
		}
		p.line("nothing was ordered")
		return
	}
	if len(r.Letters) == 0 {
		p.line("no letter waits that is meant; nothing was ordered")
		return
	}
	printOutcomes(p, r.Action, r.Outcomes(), []string{"key", "slot", "outcome", "detail"}, func(i int) []string {
		l := r.Letters[i]
		return []string{l.Key, l.Slot, l.Outcome, terminal.Preview([]byte(l.Detail), 2*terminal.PreviewBytes)}
	})
	for i, l := range r.Left {
		if i == maxOutcomes {
			break
		}
		p.line("\n%d letters of the aggregate %s still wait: `outboxctl dead retry %s --reason \"…\"` publishes them",
			l.Letters, short(l.AggregateType+" "+l.AggregateID), l.Key)
	}
	for _, relay := range r.Relays {
		p.line("\n%s", relay)
	}
}
