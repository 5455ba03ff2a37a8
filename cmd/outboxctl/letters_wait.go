package main

import (
	"slices"

	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

func printRedriven(p *page, r *letters.GroupBecame) {
	if len(r.Problems) > 0 {
		for _, problem := range r.Problems {
			p.line("! %s", problem)
		}
		p.line("nothing was decided")
		return
	}
	if len(r.Letters) == 0 {
		p.line("no letter waits that is meant; nothing was decided")
		return
	}
	printOutcomes(p, r.Action, r.Outcomes(), []string{"group", "place", "key", "outcome", "detail"}, func(i int) []string {
		l := r.Letters[i]
		return []string{l.Group, l.Place, orDash(l.Key), l.Outcome, terminal.Preview([]byte(l.Detail), 2*terminal.PreviewBytes)}
	})
	if slices.Contains(r.Outcomes(), states.OutcomePending) {
		p.line("\na member of the group handles what is pending when one runs; the request stands")
	}
}
