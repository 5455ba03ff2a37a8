package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

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
		"not read":                  {actionRetry, now{letter: letter("open", nil), found: true}, outcomePending, "not read yet"},
		"an older word":             {actionRetry, now{letter: letter("open", &other), found: true}, outcomePending, "not read yet"},
		"an older retry that runs":  {actionRetry, now{letter: with(letter("open", &other), released), found: true}, outcomePending, "not read yet"},
		"retrying":                  {actionRetry, now{letter: letter("retrying", &ours), found: true, result: acted("")}, outcomePending, "being published"},
		"taken back by a restart":   {actionRetry, now{letter: with(letter("open", &ours), released), found: true, result: acted("")}, outcomePending, "being published"},
		"waits for its route":       {actionRetry, now{letter: with(letter("open", &ours), waits), found: true, result: acted("")}, outcomePending, "waits for its route"},
		"published":                 {actionRetry, now{letter: letter("replayed", &ours), found: true}, outcomeDone, "replayed"},
		"published by another word": {actionRetry, now{letter: letter("replayed", &other), found: true}, outcomeDone, "replayed"},
		"refused again":             {actionRetry, now{letter: with(letter("open", &ours), twice), found: true, result: acted("")}, outcomeFailed, "refused again: 2 MB"},
		"behind a refused one":      {actionRetry, now{letter: letter("open", &ours), found: true, result: acted("")}, outcomeFailed, "waits on, behind"},
		"discarded before":          {actionRetry, now{letter: letter("discarded", &other), found: true}, outcomeFailed, "it was discarded before"},
		"nothing to do":             {actionRetry, now{letter: letter("open", nil), found: true, result: acted("too young")}, outcomeFailed, "did nothing: too young"},
		"not this one":              {actionRetry, now{letter: letter("open", nil), found: true, result: acted("")}, outcomeFailed, "did not act on this letter"},
		"gone":                      {actionRetry, now{}, outcomeFailed, "the letter is gone"},
		"discarded":                 {actionDiscard, now{letter: letter("discarded", &ours), found: true}, outcomeDone, "discarded"},
		"discarded in vain":         {actionDiscard, now{letter: letter("retrying", &other), found: true, result: acted("it is retrying")}, outcomeFailed, "did nothing: it is retrying"},
		"published instead":         {actionDiscard, now{letter: letter("replayed", &other), found: true}, outcomeFailed, "it was replayed before"},
		"edited":                    {actionEdit, now{letter: letter("open", &ours), found: true}, outcomeDone, "changed"},
		"edited, then published":    {actionEdit, now{letter: letter("replayed", &other), found: true}, outcomeFailed, "it was replayed before"},
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
	require.NoError(t, is(true, outcomeDone))
	require.NoError(t, is(false, outcomeDone, outcomePending))
	require.ErrorIs(t, is(true, outcomeDone, outcomePending), errWrong)
	require.ErrorIs(t, is(false, outcomeFailed), errWrong)
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
