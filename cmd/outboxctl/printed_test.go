package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/houserules"
	"github.com/onceward/onceward/internal/terminal/shell"
)

// inHelp are commands that are named to say what they are for; who reads on finds
// out what they take.
func inHelp(c houserules.Cure) bool { return c.Help || strings.HasPrefix(c.File, "migrations/outbox/") }

// TestPrintedCommandsAreWhole: every command of outboxctl that a text names exists,
// with its flags; and what is told to somebody to run it has the argument and the
// reason without which it is refused.
func TestPrintedCommandsAreWhole(t *testing.T) {
	cures, err := houserules.Cures("../..")
	require.NoError(t, err)
	consumers, err := houserules.ConsumersCures("../..")
	require.NoError(t, err)
	require.Greater(t, len(consumers), 30, "they are found")
	cures = append(cures, consumers...)
	app := newApp(io.Discard, io.Discard)
	commands := 0
	for _, c := range cures {
		text, ours := strings.CutPrefix(c.Command, "outboxctl ")
		if !ours {
			continue
		}
		commands++
		require.NotContains(t, text, "'{}'", "%s: a quote in what is filled in ends it; see terminal.Word", c)
		command, words, argument := named(t, app, c, strings.Fields(text))
		if inHelp(c) || slices.Contains(words, "--help") {
			continue
		}
		require.True(t, argument || command.ArgsUsage == "" || strings.HasPrefix(command.ArgsUsage, "["), "%s: it needs %s", c, command.ArgsUsage)
		given := func(flags ...string) bool {
			return slices.ContainsFunc(flags, func(name string) bool { return slices.Contains(words, "--"+name) })
		}
		// partitions maintain needs it for --drop-before only, skip not to take a word back, pause and resume not at all.
		free := command.Name == "maintain" && !given("drop-before") || command.Name == "pause" || command.Name == "resume"
		require.True(t, given("reason", "undo") || !has(command, "reason") || free, "%s: it needs --reason", c)
		require.True(t, given("side") || !strings.HasPrefix(text, "migrate ") || given("producer"), "%s: it needs --side", c)
		// Without it a day is closed that relay.yaml keeps.
		require.True(t, given("config", "side") || command.Name != "maintain", "%s: it needs --config", c)
		// Whether a topic is compacted has to be looked up, or to be known.
		require.True(t, given("config", "unchecked") || command.Name != "replay", "%s: it needs --config", c)
		require.True(t, given("apply", "print") || !has(command, "apply"), "%s: it needs --apply or --print", c)
		require.True(t, given("made", "not-made") || !has(command, "not-made"), "%s: it needs --made or --not-made", c)
		// The letters and fences of several groups have one place, or one key.
		require.True(t, given("group") || !slices.Contains([]string{"redrive", "forget", "reconcile", "release"}, command.Name), "%s: it needs --group", c)
		// Where a database has several relays, the command asks which one is meant.
		require.True(t, given("relay", "slot") || !has(command, "slot") || !slices.Contains([]string{"pause", "resume", "skip", "retire"}, command.Name), "%s: it needs --relay", c)
	}
	require.Greater(t, commands, 60, "they are found")
}

// named finds the command that the words begin with, and fails the test where there is
// none, or a flag of theirs is not there. It returns the words that are left, and whether
// there is an argument among them.
func named(t *testing.T, app *cli.App, where fmt.Stringer, words []string) (command *cli.Command, rest []string, argument bool) {
	t.Helper()
	for commands := app.Commands; len(words) > 0; {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.Name == words[0] })
		if i < 0 {
			break
		}
		command, commands, words = commands[i], commands[i].Subcommands, words[1:]
	}
	require.NotNil(t, command, "%s: there is no such command", where)
	require.Empty(t, shell.Names(command.Subcommands), "%s: a command is missing", where)
	for i, word := range words {
		if name, flag := strings.CutPrefix(word, "-"); flag {
			name = strings.TrimPrefix(name, "-")
			require.True(t, has(command, name) || name == "help", "%s: there is no flag --%s", where, name)
		} else if i == 0 || !strings.HasPrefix(words[i-1], "-") {
			argument = true
		}
	}
	return command, words, argument
}

func has(c *cli.Command, flag string) bool {
	return slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), flag) })
}

// TestNoHandWork: nobody is told to change tables of ours, or the slot's position.
func TestNoHandWork(t *testing.T) {
	texts, err := houserules.HandWork("../..")
	require.NoError(t, err)
	require.Empty(t, texts)
}

// TestOneIsNotMany: what is counted is said by label.Count, since it may be one; but for
// limits, which are not.
func TestOneIsNotMany(t *testing.T) {
	counted := regexp.MustCompile(`"[^"\n]*%d (dead )?(events|rows|letters|partitions|replays|classes|days|aggregates|copies|arguments)\b[^"\n]*`)
	limits := regexp.MustCompile(`want 1 to %d|more than %d|%d letters or more|kept for %d days more`)
	for _, dir := range []string{".", "../../internal/operator", "../../relay/retention", "../../relay/internal/beginning"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, found := range counted.FindAllString(string(text), -1) {
				require.True(t, limits.MatchString(found), "%s: %s", path, found)
			}
			return err
		}))
	}
}
