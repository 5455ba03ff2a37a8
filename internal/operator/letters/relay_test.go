package letters

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
)

func TestJudgeOrder(t *testing.T) {
	ours, other := uuid.UUID{1}, uuid.UUID{2}
	letter := func(state string, control *uuid.UUID) outboxdb.LettersNowRow {
		return outboxdb.LettersNowRow{State: state, ControlID: control, Attempts: 1, Error: "2 MB"}
	}
	with := func(l outboxdb.LettersNowRow, change func(*outboxdb.LettersNowRow)) outboxdb.LettersNowRow {
		change(&l)
		return l
	}
	twice := func(l *outboxdb.LettersNowRow) { l.Attempts = 2 }
	released := func(l *outboxdb.LettersNowRow) { l.Released = true }
	cured := func(l *outboxdb.LettersNowRow) { l.Attempts, l.Error = 2, "raise it with `kafka-configs.sh …`" }
	waits := func(l *outboxdb.LettersNowRow) { l.Released, l.Waits = true, true }
	acted := func(note string) *outboxdb.ResultsOfControlsRow { return &outboxdb.ResultsOfControlsRow{Note: note} }
	for name, tc := range map[string]struct {
		action  string
		is      now
		outcome string
		detail  string
	}{
		"not read":                   {states.ActionRetry, now{letter: letter("open", nil), found: true}, states.OutcomePending, "not read yet"},
		"an older order":             {states.ActionRetry, now{letter: letter("open", &other), found: true}, states.OutcomePending, "not read yet"},
		"an older retry that runs":   {states.ActionRetry, now{letter: with(letter("open", &other), released), found: true}, states.OutcomePending, "not read yet"},
		"retrying":                   {states.ActionRetry, now{letter: letter("retrying", &ours), found: true, result: acted("")}, states.OutcomePending, "being published"},
		"taken back by a restart":    {states.ActionRetry, now{letter: with(letter("open", &ours), released), found: true, result: acted("")}, states.OutcomePending, "being published"},
		"waits for its route":        {states.ActionRetry, now{letter: with(letter("open", &ours), waits), found: true, result: acted("")}, states.OutcomePending, "waits for its route"},
		"published":                  {states.ActionRetry, now{letter: letter("replayed", &ours), found: true}, states.OutcomeDone, "replayed"},
		"published by another order": {states.ActionRetry, now{letter: letter("replayed", &other), found: true}, states.OutcomeDone, "replayed"},
		"refused again":              {states.ActionRetry, now{letter: with(letter("open", &ours), twice), found: true, result: acted("")}, states.OutcomeFailed, "refused again: 2 MB"},
		"refused, with a cure":       {states.ActionRetry, now{letter: with(letter("open", &ours), cured), found: true, result: acted("")}, states.OutcomeFailed, "refused again: raise it with `kafka-configs.sh …`"},
		"behind a refused one":       {states.ActionRetry, now{letter: letter("open", &ours), found: true, result: acted("")}, states.OutcomeFailed, "waits on, behind"},
		"discarded before":           {states.ActionRetry, now{letter: letter("discarded", &other), found: true}, states.OutcomeFailed, "it was discarded before"},
		"nothing to do":              {states.ActionRetry, now{letter: letter("open", nil), found: true, result: acted("too young")}, states.OutcomeFailed, "did nothing: too young"},
		"not this one":               {states.ActionRetry, now{letter: letter("open", nil), found: true, result: acted("")}, states.OutcomeFailed, "did not act on this letter"},
		"gone":                       {states.ActionRetry, now{}, states.OutcomeFailed, "the letter is gone"},
		"discarded":                  {states.ActionDiscard, now{letter: letter("discarded", &ours), found: true}, states.OutcomeDone, "discarded"},
		"discarded in vain":          {states.ActionDiscard, now{letter: letter("retrying", &other), found: true, result: acted("it is retrying")}, states.OutcomeFailed, "did nothing: it is retrying"},
		"published instead":          {states.ActionDiscard, now{letter: letter("replayed", &other), found: true}, states.OutcomeFailed, "it was replayed before"},
		"edited":                     {states.ActionEdit, now{letter: letter("open", &ours), found: true}, states.OutcomeDone, "changed"},
		"edited, then published":     {states.ActionEdit, now{letter: letter("replayed", &other), found: true}, states.OutcomeFailed, "it was replayed before"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &command{control: outboxdb.InsertControlParams{ControlID: ours, Action: tc.action}}
			got := w.judge(letterRef{slot: "s", id: uuid.UUID{9}, namespace: "orders", attempts: 1}, tc.is)
			require.Equal(t, tc.outcome, got.Outcome)
			require.Contains(t, got.Detail, tc.detail)
			require.True(t, strings.HasPrefix(got.Key, "orders:09"))
		})
	}
}

func TestAnOrderThatWentWrong(t *testing.T) {
	is := func(waited bool, outcomes ...string) bool {
		r := Became{Waited: waited}
		for _, o := range outcomes {
			r.Letters = append(r.Letters, Outcome{Outcome: o})
		}
		return r.Wrong()
	}
	require.False(t, is(true, states.OutcomeDone))
	require.False(t, is(false, states.OutcomeDone, states.OutcomePending))
	require.True(t, is(true, states.OutcomeDone, states.OutcomePending))
	require.True(t, is(false, states.OutcomeFailed))
}

// TestLeftBehind: what holds its aggregate is counted, and the oldest of it named.
func TestLeftBehind(t *testing.T) {
	id := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5b")
	row := func(holds bool, id uuid.UUID) outboxdb.LettersOfAggregatesRow {
		return outboxdb.LettersOfAggregatesRow{Namespace: "orders", AggregateType: "order", AggregateID: "7", LetterID: id, Holds: holds}
	}
	got := countLeft([]outboxdb.LettersOfAggregatesRow{row(false, uuid.UUID{1}), row(true, id), row(true, uuid.UUID{2})})
	require.Equal(t, []Remains{{Key: "orders:" + id.String(), AggregateType: "order", AggregateID: "7", Letters: 2}}, got)
	require.Empty(t, countLeft([]outboxdb.LettersOfAggregatesRow{row(false, id)}), "a replay's letter waits for nobody")
}
