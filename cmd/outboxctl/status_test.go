package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/status"
	"github.com/onceward/onceward/internal/terminal/watch"
)

// TestStatusNamesProcesses: a relay that has processes and no row of state is there all
// the same.
func TestStatusNamesProcesses(t *testing.T) {
	got := []relays.Relay{
		{Slot: "onceward_a", Relay: "a", Processes: []relays.Process{{Process: "h/1/a"}}},
		{Slot: "onceward_b", Relay: "b", NotBegun: true, Processes: []relays.Process{{Process: "h/2/b"}, {Process: "h/3/b"}}},
	}
	p := &page{}
	printStatus(p, &status.Report{Relays: got, Parked: []status.Parked{{Slot: "onceward_b", Namespace: "shop", AggregateType: "order", AggregateID: "1"}}})
	require.NotContains(t, p.text.String(), "no relay is known here")
	require.Regexp(t, `h/3/b +b +not connected`, p.text.String(), "with several relays it is seen whose a process is")
	require.Regexp(t, `shop order 1 +onceward_b`, p.text.String())
}

func TestStatusPrintsProblems(t *testing.T) {
	p := &page{}
	printStatus(p, &status.Report{Problems: operator.Problems("relay a is paused", "partitions reach only 6 days ahead")})
	require.Contains(t, p.text.String(), "! relay a is paused\n! partitions reach only 6 days ahead\n")
}

func TestAboutRows(t *testing.T) {
	require.Equal(t, "not analysed yet", aboutRows(-1), "no partition was analyzed")
	require.Equal(t, "about 0 rows", aboutRows(0))
}

func TestRemadeRowsClaimNoExactCount(t *testing.T) {
	require.Equal(t, "at least 0", remadeRows([]status.RemadeTopic{{Topic: "t", Times: 1}})[0][4], "a session that ended by an error is not counted")
}

// interrupted is an output whose reader ends the command after so many answers.
type interrupted struct {
	screen
	after int
	end   context.CancelFunc
}

func (w *interrupted) WriteString(text string) (int, error) {
	if w.after--; w.after == 0 {
		w.end()
	}
	return w.screen.WriteString(text)
}

// TestStatusTriesAgain: a look at a database that is away is shown, and another one comes.
// The exit code is that of the last one.
func TestStatusTriesAgain(t *testing.T) {
	t.Setenv("LINES", "")
	watched := func(args ...string) (stdout, stderr string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out, errs := &interrupted{after: 2, end: cancel}, &bytes.Buffer{}
		args = append([]string{"outboxctl", "status", "--watch", "--every", "100ms", "--insecure", "--dsn", "postgres://u:canary@127.0.0.1:1/d"}, args...)
		require.Equal(t, exitFailed, run(ctx, args, strings.NewReader(""), out, errs))
		require.NotContains(t, out.String()+errs.String(), "canary")
		return out.String(), errs.String()
	}
	stdout, stderr := watched()
	require.Equal(t, 2, strings.Count(stdout, "Z, again every 100ms"), stdout)
	require.Equal(t, 2, strings.Count(stdout, "! connect to PostgreSQL: "), stdout)
	require.Contains(t, stderr, "outboxctl: interrupted: connect to PostgreSQL")
	stdout, _ = watched("-o", "json")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 2, "an object a line")
	for _, line := range lines {
		var look struct {
			At    time.Time `json:"at"`
			Error string    `json:"error"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &look))
		require.Contains(t, look.Error, "connection refused")
		require.WithinDuration(t, time.Now(), look.At, time.Minute)
	}
	t.Setenv("LINES", "24")
	stdout, _ = watched()
	require.Equal(t, 2, strings.Count(stdout, "\x1b[H"), "each answer in the place of the one before")
	stdout, _ = watched("-o", "json")
	require.NotContains(t, stdout, "\x1b", "a terminal, too, gets an object a line")
}

// TestALookSaysHowItEnds: with what a single status would have ended.
func TestALookSaysHowItEnds(t *testing.T) {
	answer := func(format string, report *status.Report, err error) watch.Answer {
		set := flag.NewFlagSet("", flag.ContinueOnError)
		set.String("output", format, "")
		set.Duration("every", 2*time.Second, "")
		at := time.Date(2026, 11, 25, 22, 47, 54, 0, time.UTC)
		return statusLook{At: at, Report: report}.answer(cli.NewContext(newApp(nil, nil), set, nil), err)
	}
	fine, wrong := &status.Report{Database: "shop"}, &status.Report{Database: "shop", Problems: operator.Problems("relay a is paused")}
	got := answer(outputTable, fine, nil)
	require.NoError(t, got.Err)
	require.Regexp(t, "(?s)^2026-11-25 22:47:54.000Z, again every 2s\ndatabase +shop\n.*\n\n$", got.Text)
	got = answer(outputTable, wrong, nil)
	require.ErrorIs(t, got.Err, errWrong)
	require.Regexp(t, "^2026-11-25 22:47:54.000Z, again every 2s\n\n! relay a is paused\n\ndatabase +shop\n", got.Text, "a short terminal cuts the end off")
	got = answer(outputJSON, wrong, nil)
	require.ErrorIs(t, got.Err, errWrong)
	require.Regexp(t, `^\{"at":"2026-11-25T22:47:54Z","database":"shop".*"problems":\[\{"what":"relay a is paused","cures":\[\]\}\]\}\n$`, got.Text)
	away := errors.New("away")
	got = answer(outputTable, nil, away)
	require.ErrorIs(t, got.Err, away)
	require.False(t, got.Over)
	require.Contains(t, got.Text, "\n! away\n")
	require.True(t, answer(outputTable, nil, usage("no database")).Over, "no other look can do better")
}
