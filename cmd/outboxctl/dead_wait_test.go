package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
)

func TestJudgeWord(t *testing.T) {
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
	waits := func(l *outboxdb.LettersNowRow) { l.Released, l.Waits = true, true }
	acted := func(note string) *outboxdb.ResultsOfControlsRow { return &outboxdb.ResultsOfControlsRow{Note: note} }
	for name, tc := range map[string]struct {
		action  string
		is      now
		outcome string
		detail  string
	}{
		"not read":                  {states.ActionRetry, now{letter: letter("open", nil), found: true}, states.OutcomePending, "not read yet"},
		"an older word":             {states.ActionRetry, now{letter: letter("open", &other), found: true}, states.OutcomePending, "not read yet"},
		"an older retry that runs":  {states.ActionRetry, now{letter: with(letter("open", &other), released), found: true}, states.OutcomePending, "not read yet"},
		"retrying":                  {states.ActionRetry, now{letter: letter("retrying", &ours), found: true, result: acted("")}, states.OutcomePending, "being published"},
		"taken back by a restart":   {states.ActionRetry, now{letter: with(letter("open", &ours), released), found: true, result: acted("")}, states.OutcomePending, "being published"},
		"waits for its route":       {states.ActionRetry, now{letter: with(letter("open", &ours), waits), found: true, result: acted("")}, states.OutcomePending, "waits for its route"},
		"published":                 {states.ActionRetry, now{letter: letter("replayed", &ours), found: true}, states.OutcomeDone, "replayed"},
		"published by another word": {states.ActionRetry, now{letter: letter("replayed", &other), found: true}, states.OutcomeDone, "replayed"},
		"refused again":             {states.ActionRetry, now{letter: with(letter("open", &ours), twice), found: true, result: acted("")}, states.OutcomeFailed, "refused again: 2 MB"},
		"behind a refused one":      {states.ActionRetry, now{letter: letter("open", &ours), found: true, result: acted("")}, states.OutcomeFailed, "waits on, behind"},
		"discarded before":          {states.ActionRetry, now{letter: letter("discarded", &other), found: true}, states.OutcomeFailed, "it was discarded before"},
		"nothing to do":             {states.ActionRetry, now{letter: letter("open", nil), found: true, result: acted("too young")}, states.OutcomeFailed, "did nothing: too young"},
		"not this one":              {states.ActionRetry, now{letter: letter("open", nil), found: true, result: acted("")}, states.OutcomeFailed, "did not act on this letter"},
		"gone":                      {states.ActionRetry, now{}, states.OutcomeFailed, "the letter is gone"},
		"discarded":                 {states.ActionDiscard, now{letter: letter("discarded", &ours), found: true}, states.OutcomeDone, "discarded"},
		"discarded in vain":         {states.ActionDiscard, now{letter: letter("retrying", &other), found: true, result: acted("it is retrying")}, states.OutcomeFailed, "did nothing: it is retrying"},
		"published instead":         {states.ActionDiscard, now{letter: letter("replayed", &other), found: true}, states.OutcomeFailed, "it was replayed before"},
		"edited":                    {states.ActionEdit, now{letter: letter("open", &ours), found: true}, states.OutcomeDone, "changed"},
		"edited, then published":    {states.ActionEdit, now{letter: letter("replayed", &other), found: true}, states.OutcomeFailed, "it was replayed before"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &word{control: outboxdb.InsertControlParams{ControlID: ours, Action: tc.action}}
			got := w.judge(letterRef{slot: "s", id: uuid.UUID{9}, namespace: "orders", attempts: 1}, tc.is)
			require.Equal(t, tc.outcome, got.Outcome)
			require.Contains(t, got.Detail, tc.detail)
			require.True(t, strings.HasPrefix(got.Key, "orders:09"))
		})
	}
}

func TestVerdictOfWords(t *testing.T) {
	is := func(waited bool, outcomes ...string) error {
		r := wordReport{Waited: waited}
		for _, o := range outcomes {
			r.Letters = append(r.Letters, letterOutcome{Outcome: o})
		}
		return r.verdict()
	}
	require.NoError(t, is(true, states.OutcomeDone))
	require.NoError(t, is(false, states.OutcomeDone, states.OutcomePending))
	require.ErrorIs(t, is(true, states.OutcomeDone, states.OutcomePending), errWrong)
	require.ErrorIs(t, is(false, states.OutcomeFailed), errWrong)
}

func TestEditedHeadersKeepToTheContract(t *testing.T) {
	for text, want := range map[string]string{
		`{"tenant": "t1"}`: "", `{}`: "", `{"a": 1}`: "no JSON object of strings", `null`: "no JSON object", `[]`: "no JSON object", ``: "no JSON object",
		`{"": "x"}`: "1 to 255 bytes", `{"` + strings.Repeat("n", 256) + `": "x"}`: "1 to 255 bytes",
		`{"idempotency-key": "x"}`: "reserved", `{"ce_id": "x"}`: "reserved", `{"a": "` + strings.Repeat("v", maxHeaders) + `"}`: "more than 64.0 KiB",
		`{"a": "` + strings.Repeat("v", 2*maxHeaders) + `"}`: "more than 128.0 KiB",
	} {
		path := filepath.Join(t.TempDir(), "headers.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		data, err := readHeaders(path)
		if want == "" {
			require.NoError(t, err)
			require.JSONEq(t, text, string(data))
			continue
		}
		require.ErrorContains(t, err, want, "%.40s", text)
	}
	_, err := readHeaders("/nowhere")
	require.ErrorContains(t, err, "read --headers-file")
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	data, err := readFile("payload-file", empty, 1)
	require.NoError(t, err)
	require.NotNil(t, data, "an empty payload is no tombstone")
}
