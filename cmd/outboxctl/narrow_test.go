package main

import (
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

var update = flag.Bool("update", false, "write the golden files of testdata/narrow")

// narrow is a terminal of 80 columns.
const narrow = 80

// written is what a person reads of a report.
func written[R any](report R, printed func(*page, R)) func(terminal.Screen) string {
	return func(look terminal.Screen) string {
		p := &page{text: terminal.Page{Screen: look, Wrong: wrongStates}}
		printed(p, report)
		return p.text.String()
	}
}

// TestAnswersAtANarrowTerminal: what each command says at 80 columns, with keys and
// texts that are long.
func TestAnswersAtANarrowTerminal(t *testing.T) {
	require.GreaterOrEqual(t, len(answers()), 25)
	for _, name := range slices.Sorted(maps.Keys(answers())) {
		t.Run(name, func(t *testing.T) {
			got := answers()[name](terminal.Screen{Width: narrow})
			path := filepath.Join("testdata", "narrow", name+".txt")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err, "go test ./cmd/outboxctl -run Narrow -update writes it")
			require.Equal(t, string(want), got, "if it is meant: go test ./cmd/outboxctl -run Narrow -update")
			require.NotContains(t, got, "\x1b")
		})
	}
	files, err := fs.Glob(os.DirFS("testdata/narrow"), "*.txt")
	require.NoError(t, err)
	require.Len(t, files, len(answers()), "none is left over")
}

// Wide is all of it: what a narrow table cuts is there, also where it is longer than a
// text that anybody may have written has to be.
func TestWideHasAllOfWhatIsCut(t *testing.T) {
	long := strings.Repeat("the account is closed ", 20) + "since May"
	for _, says := range []func(terminal.Screen) string{
		written(&letters.List{Letters: []letters.Letter{{Class: "record", Error: long}}}, printDeadLetters),
		written(&letters.GroupList{Letters: []letters.GroupLetter{{Cause: "handler", Error: long}}}, printGroupLetters),
		written(&events.List{State: states.Dead, Events: []events.Event{{Letter: &events.LetterOf{Error: long}}}}, printList),
		written(&events.Life{DeadLetters: []events.Letter{{Error: long}}}, printShow),
		written(&events.Life{Replays: []events.Replay{{Reason: long}}}, printShow),
	} {
		require.Contains(t, says(terminal.Screen{Width: narrow}), "all of ")
		require.Contains(t, says(terminal.Screen{}), long)
	}
}

// command stays whole, however long it is, and so does what is copied into the next one:
// a key or a place.
var (
	command = regexp.MustCompile("`[^`]+`")
	copied  = regexp.MustCompile("[a-z]+:[0-9a-f-]{3,}|[a-z.]+/[0-9]+@[0-9]+")
)

// TestNoLineIsTooLong, but where a command in it leaves no choice.
func TestNoLineIsTooLong(t *testing.T) {
	for name, answer := range answers() {
		for line := range strings.Lines(answer(terminal.Screen{Width: narrow})) {
			line = strings.TrimSuffix(line, "\n")
			if !command.MatchString(line) {
				require.LessOrEqual(t, utf8.RuneCountInString(line), narrow, "%s: %s", name, line)
			}
		}
	}
}

// TestNothingIsLostElsewhere: into a pipe or a file, and with -o wide, all is there, one
// line each, and no colour; colours change nothing but themselves.
func TestNothingIsLostElsewhere(t *testing.T) {
	colours := strings.NewReplacer("\x1b[1m", "", "\x1b[31m", "", "\x1b[0m", "")
	for name, answer := range answers() {
		whole := answer(terminal.Screen{})
		require.NotContains(t, whole, "-o wide", name)
		require.NotContains(t, whole, "\x1b", name)
		require.False(t, strings.HasPrefix(whole, "\n"), "%s: nothing is above the first line", name)
		require.Equal(t, whole, colours.Replace(answer(terminal.Screen{Colour: true})), name)
		at80 := terminal.Screen{Width: narrow, Colour: true}
		require.Equal(t, answer(terminal.Screen{Width: narrow}), colours.Replace(answer(at80)), name)
		for line := range strings.Lines(answer(terminal.Screen{Width: narrow})) {
			for _, key := range copied.FindAllString(line, -1) {
				require.Contains(t, whole, key, name)
				require.True(t, strings.Contains(key, "@") || len(key) == len(longKey), "%s: %s is cut", name, key)
			}
			require.Zero(t, strings.Count(line, "`")%2, "%s: a command is broken: %s", name, line)
		}
	}
}

// TestOutputAtATerminal: its width is asked for, and -o wide leaves it alone.
func TestOutputAtATerminal(t *testing.T) {
	t.Setenv("COLUMNS", "30")
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	path := configFile(t, relayYAML+"quue: {bytes: 1MiB}\n")
	said := func(format string) (string, bool) {
		var out screen
		code := run(t.Context(), []string{"outboxctl", "config", "check", "--config", path, "-o", format}, strings.NewReader(""), &out, &screen{})
		require.Equal(t, exitWrong, code)
		text := out.String()
		return text, strings.Contains(text, "\x1b[31m! ")
	}
	table, red := said(outputTable)
	require.True(t, red)
	require.Greater(t, strings.Count(table, "\n"), 1, table)
	wide, red := said(outputWide)
	require.True(t, red)
	require.Equal(t, 1, strings.Count(wide, "\n"), wide)
	document, red := said(outputJSON)
	require.False(t, red)
	require.NotContains(t, document, "\x1b")
	t.Setenv("NO_COLOR", "1")
	_, red = said(outputTable)
	require.False(t, red)
	_, piped, _ := call(t, "config", "check", "--config", path)
	require.NotContains(t, piped, "\x1b")
	require.Equal(t, 1, strings.Count(piped, "\n"), "a pipe has no width, whatever COLUMNS says")
}
