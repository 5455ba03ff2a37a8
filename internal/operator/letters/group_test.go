package letters

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/states"
)

const onePlace = "orders.order/3@4711"

func TestJudgeRedrive(t *testing.T) {
	before := GroupLetter{Group: "billing", Place: onePlace, Attempts: 3, Generation: 1}
	for name, tc := range map[string]struct {
		is      groupNow
		outcome string
		detail  string
	}{
		"waits":                 {groupNow{states.LetterRequested, 2, 3, "old"}, states.OutcomePending, "no member of the group has handled it yet"},
		"redriven":              {groupNow{states.LetterRedriven, 2, 3, "old"}, states.OutcomeDone, "redriven"},
		"failed again":          {groupNow{states.LetterOpen, 2, 4, "new"}, states.OutcomeFailed, "failed again: new"},
		"back, never handled":   {groupNow{states.LetterOpen, 2, 3, "old"}, states.OutcomeFailed, "open again: old"},
		"taken by another call": {groupNow{states.LetterOpen, 1, 3, "old"}, states.OutcomeFailed, "was not asked for"},
		"discarded":             {groupNow{states.LetterDiscarded, 2, 3, "old"}, states.OutcomeFailed, "discarded meanwhile"},
	} {
		o := judgeRedrive(before, true, tc.is)
		require.Equal(t, tc.outcome, o.Outcome, name)
		require.Contains(t, o.Detail, tc.detail, name)
		require.Equal(t, onePlace, o.Place)
	}
	require.Equal(t, "the letter is gone", judgeRedrive(before, false, groupNow{}).Detail)
}

func TestWhoIsWaitedFor(t *testing.T) {
	r := &GroupBecame{Letters: []GroupOutcome{{Group: "billing", Outcome: states.OutcomePending}, {Group: "mail", Outcome: states.OutcomeDone}, {Group: "billing", Outcome: states.OutcomePending}}}
	require.Equal(t, "waiting for a member of group billing, 30s at most (--wait); the request stands when this ends", r.waiting(30*time.Second))
	r.Letters[1].Outcome = states.OutcomePending
	require.Contains(t, r.waiting(time.Minute), "of the groups billing, mail, 1m0s at most")
}

// TestBriefHasNoStack: a list has none; show has it.
func TestBriefHasNoStack(t *testing.T) {
	l := GroupLetter{Cause: states.CauseHandler, Error: "handler: panic: no such account\ngoroutine 7 [running]:\nmain.apply()"}
	require.Equal(t, states.CauseHandler+": panic: no such account", l.Brief())
	require.Contains(t, l.Why(2000), "main.apply()")
}

func TestJudgeDiscard(t *testing.T) {
	before := GroupLetter{Generation: 1}
	is := func(state string) GroupOutcome { return judgeDiscard(before, true, groupNow{state: state}) }
	require.Equal(t, states.OutcomeDone, is(states.LetterDiscarded).Outcome)
	require.Contains(t, is(states.LetterDiscarded).Detail, "kept for 30 days more")
	require.Contains(t, is(states.LetterRedriven).Detail, "redriven before")
	require.Contains(t, is(states.LetterRequested).Detail, "look at it")
	require.Equal(t, states.OutcomeFailed, judgeDiscard(before, false, groupNow{}).Outcome)
}

// TestNextOfAGroupsLetter: redrive or discard; what can never be applied is only discarded,
// and nothing is said of a letter that nobody has to decide about.
func TestNextOfAGroupsLetter(t *testing.T) {
	redrive := "outboxctl dead redrive " + onePlace + " --group 'the mail' --reason \"…\""
	discard := "outboxctl dead discard --side consumer " + onePlace + " --group 'the mail' --reason \"…\""
	for state, causes := range map[string]map[string][]string{
		states.LetterOpen: {
			states.CauseHandler: {redrive, discard}, states.CauseMismatch: {discard}, states.CauseUnreadable: {discard},
		},
		states.LetterRequested: {states.CauseHandler: nil},
		states.LetterRedriven:  {states.CauseHandler: nil},
		states.LetterDiscarded: {states.CauseHandler: nil},
	} {
		for cause, want := range causes {
			require.Equal(t, want, GroupLetter{Group: "the mail", Place: onePlace, State: state, Cause: cause}.Next(), "%s, %s", state, cause)
		}
	}
}
