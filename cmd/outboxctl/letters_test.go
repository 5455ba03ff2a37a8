package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/states"
)

const somePlace = "orders.order/3@4711"

func TestWrongCallsAboutLetters(t *testing.T) {
	t.Setenv(dsnVariable, "")
	for call1, want := range map[string]string{
		"dead list --side producer":                                    `--side "producer": want outbox`,
		"dead list --side consumer --slot a":                           "--slot is only for --side outbox",
		"dead list --group g":                                          "--group is only for --side consumer",
		"dead list --older 1h":                                         "--older is only for --side consumer",
		"dead list --side consumer --state retrying":                   `--state "retrying": want open, requested, redriven`,
		"dead list --side consumer --cause broken":                     `--cause "broken": want one of malformed, mismatch`,
		"dead list --side consumer --limit 0":                          "--limit 0: want 1 to 100000",
		"dead list --side consumer --older 0s":                         `--older "0s": want an age such as 7d, 1d12h or 15m`,
		"dead list --side consumer --older -1d":                        `--older "-1d": want an age`,
		"dead list --side consumer --older 1d2d":                       `--older "1d2d": want an age`,
		"dead redrive --older 7d --reason r":                           "no database; give --dsn",
		"dead discard --side consumer --older 1d12h --reason r":        "no database; give --dsn",
		"dead list --side consumer " + somePlace:                       "outboxctl dead show --side consumer PLACE",
		"dead show --side consumer":                                    "takes one PLACE or KEY, got 0; a place looks like orders.order/3@4711",
		"dead show --side consumer a@b":                                `place "a@b": a place looks like`,
		"dead show --side consumer a/9999999999@1":                     "partition or offset is out of range",
		"dead show --side consumer a/1@9999999999999999999":            "partition or offset is out of range",
		"dead show --side consumer somewhere":                          "a key looks like payments:",
		"dead redrive --reason r":                                      "say which letters: PLACEs, KEYs",
		"dead redrive --side outbox --all --reason r":                  "dead redrive is nothing for --side outbox",
		"dead retry --side consumer --all --reason r":                  "dead retry is nothing for --side consumer",
		"dead edit --side consumer " + someKey:                         "dead edit is nothing for --side consumer",
		"dead redrive --all --group g --reason r":                      "--all goes without PLACEs, KEYs and filters",
		"dead redrive --all":                                           "--reason is missing",
		"dead redrive --all --wait -1s --reason r":                     "--wait -1s: want 0 or more",
		"dead redrive " + somePlace + " --topic t --reason r":          "give PLACEs or filters, not both",
		"dead redrive " + someKey + " --type T --reason r":             "give KEYs or filters, not both",
		"dead redrive " + somePlace + " --reason r":                    "no database; give --dsn",
		"dead discard --side consumer --class c --reason r":            "--class is only for --side outbox",
		"dead discard --side consumer --wait 1s --all --reason r":      "--wait is only for --side outbox",
		"dead discard --side consumer " + somePlace + " --output no":   `--output "no"`,
		"dead redrive " + somePlace + " --aggregate-type t --reason r": "unknown flag --aggregate-type",
	} {
		t.Run(call1, func(t *testing.T) {
			code, stdout, stderr := call(t, strings.Fields(call1)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Contains(t, stderr, want)
			require.Empty(t, stdout)
		})
	}
}

func TestReadPlace(t *testing.T) {
	aside, err := readPlace("orders.order~0a1b2c3d/3@4711")
	require.NoError(t, err)
	require.Equal(t, place{"orders.order~0a1b2c3d", 3, 4711}, aside)
	p, err := readPlace(somePlace)
	require.NoError(t, err)
	require.Equal(t, place{"orders.order", 3, 4711}, p)
	require.Equal(t, somePlace, p.String())
	for _, text := range []string{"", "@", "a/1", "a/1@", "a/-1@1", "/1@1", "a b/1@1", "a/1@1 ", "a/1@1/2"} {
		_, err := readPlace(text)
		require.Error(t, err, text)
	}
}

func TestJudgeRedrive(t *testing.T) {
	before := groupLetter{Group: "billing", Place: somePlace, Attempts: 3, Generation: 1}
	for name, tc := range map[string]struct {
		is      groupLetterNow
		outcome string
		detail  string
	}{
		"waits":                 {groupLetterNow{states.LetterRequested, 2, 3, "old"}, states.OutcomePending, "no member of the group has handled it yet"},
		"redriven":              {groupLetterNow{states.LetterRedriven, 2, 3, "old"}, states.OutcomeDone, "redriven"},
		"failed again":          {groupLetterNow{states.LetterOpen, 2, 4, "new"}, states.OutcomeFailed, "failed again: new"},
		"back, never handled":   {groupLetterNow{states.LetterOpen, 2, 3, "old"}, states.OutcomeFailed, "open again: old"},
		"taken by another call": {groupLetterNow{states.LetterOpen, 1, 3, "old"}, states.OutcomeFailed, "was not asked for"},
		"discarded":             {groupLetterNow{states.LetterDiscarded, 2, 3, "old"}, states.OutcomeFailed, "discarded meanwhile"},
	} {
		o := judgeRedrive(before, true, tc.is)
		require.Equal(t, tc.outcome, o.Outcome, name)
		require.Contains(t, o.Detail, tc.detail, name)
		require.Equal(t, somePlace, o.Place)
	}
	require.Equal(t, "the letter is gone", judgeRedrive(before, false, groupLetterNow{}).Detail)
}

func TestJudgeDiscard(t *testing.T) {
	before := groupLetter{Generation: 1}
	is := func(state string) groupLetterOutcome { return judgeDiscard(before, true, groupLetterNow{state: state}) }
	require.Equal(t, states.OutcomeDone, is(states.LetterDiscarded).Outcome)
	require.Contains(t, is(states.LetterDiscarded).Detail, "kept for 30 days more")
	require.Contains(t, is(states.LetterRedriven).Detail, "redriven before")
	require.Contains(t, is(states.LetterRequested).Detail, "look at it")
	require.Equal(t, states.OutcomeFailed, judgeDiscard(before, false, groupLetterNow{}).Outcome)
}

func TestHeaderText(t *testing.T) {
	for kept, want := range map[string]string{
		`[["idempotency-key","b3JkZXJzOjE="],["empty",null]]`: "idempotency-key=orders:1 empty=", `[["a","\u001b"]]`: `[["a","\\u001b"]]`, ``: "", `{}`: "{}", `[["a","Gw=="]]`: `a=\x1b`,
	} {
		require.Equal(t, want, headerText(json.RawMessage(kept)), kept)
	}
}

func TestWhyALetterIsKept(t *testing.T) {
	require.Equal(t, "handler: no account", groupLetter{Cause: "handler", Error: "handler: no account"}.why(100))
	require.Equal(t, "late: the event time", groupLetter{Cause: "late", Error: "the event time"}.why(100))
}
