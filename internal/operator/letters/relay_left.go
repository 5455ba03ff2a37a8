package letters

import (
	"context"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
)

// Remains is an aggregate of which letters were discarded, and others wait on:
// nothing but an order of the operator ends them.
type Remains struct {
	Key           string `json:"key"` // of the oldest that waits
	AggregateType string `json:"aggregate_type"`
	AggregateID   string `json:"aggregate_id"`
	Letters       int64  `json:"letters"`
}

// leftBehind looks what a discard has left of the aggregates of its letters.
func leftBehind(ctx context.Context, q *outboxdb.Queries, commands []*command, done *Became) ([]Remains, error) {
	over := make(map[string]bool) // discarded, by key
	for _, l := range done.Letters {
		over[l.Key] = over[l.Key] || l.Outcome == states.OutcomeDone
	}
	meant := make(map[aggregateRef]bool)
	var all outboxdb.LettersOfAggregatesParams
	for _, w := range commands {
		a := w.aggregate
		discarded := w.control.Action == states.ActionDiscard && len(w.letters) > 0 &&
			over[operator.KeyText(w.letters[0].namespace, w.letters[0].id)]
		if !discarded || meant[a] {
			continue
		}
		meant[a] = true
		all.Namespaces, all.AggregateTypes, all.AggregateIds = append(all.Namespaces,
			a.namespace), append(all.AggregateTypes, a.aggregateType), append(all.AggregateIds, a.id)
	}
	if len(meant) == 0 {
		return nil, nil
	}
	rows, err := q.LettersOfAggregates(ctx, all)
	return countLeft(rows), err
}

// countLeft counts the letters that hold their aggregate. A replay's holds none.
func countLeft(rows []outboxdb.LettersOfAggregatesRow) (left []Remains) {
	at := make(map[aggregateRef]int)
	for _, v := range rows {
		if !v.Holds {
			continue
		}
		a := aggregateRef{v.Namespace, v.AggregateType, v.AggregateID}
		i, known := at[a]
		if !known {
			i, at[a] = len(left), len(left)
			left = append(left, Remains{Key: operator.NameText(v.Namespace, v.LetterID), AggregateType: v.AggregateType,
				AggregateID: v.AggregateID})
		}
		left[i].Letters++
	}
	return left
}
