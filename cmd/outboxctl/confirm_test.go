package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/process"
)

func TestConfirm(t *testing.T) {
	for typed, want := range map[string]error{
		"y\n": nil, "YES \n": nil, "y": nil, "\n": errDeclined, "n\n": errDeclined, "": errDeclined, "yeah\n": errDeclined,
	} {
		var asked screen
		app := &cli.App{Reader: &keyboard{*strings.NewReader(typed)}, ErrWriter: &asked, Flags: []cli.Flag{yesFlag()}}
		app.Action = func(c *cli.Context) error { return confirm(c, "drop the moon") }
		app.ExitErrHandler = func(*cli.Context, error) {}
		require.ErrorIs(t, app.RunContext(t.Context(), []string{"x"}), want, "%q", typed)
		require.Equal(t, "Drop the moon? [y/N] ", asked.String())
		require.NoError(t, app.RunContext(t.Context(), []string{"x", "--yes"}), "--yes does not ask")
	}
	require.False(t, terminal(strings.NewReader("y")))
	file, err := os.Create(filepath.Join(t.TempDir(), "no terminal"))
	require.NoError(t, err)
	defer file.Close()
	require.False(t, terminal(file))
}

// Nobody answers, and Ctrl-C comes.
func TestConfirmIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	app := &cli.App{Reader: reader, ErrWriter: &screen{}}
	var line error
	app.Action = func(c *cli.Context) error {
		cancel()
		_, line = readLine(ctx, c)
		return nil
	}
	require.NoError(t, app.Run([]string{"x"}))
	require.ErrorIs(t, line, context.Canceled)
	require.NoError(t, errors.Join(writer.Close(), reader.Close()))
}

func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := pacer{rate: 100}
		for range 10 {
			require.NoError(t, p.wait(t.Context(), 10))
		}
		require.Equal(t, 900*time.Millisecond, time.Since(began), "the first ten go at once")
		time.Sleep(time.Hour) // fake time: a database that stood still
		began = time.Now()
		for range 11 {
			require.NoError(t, p.wait(t.Context(), 10))
		}
		require.Equal(t, time.Second, time.Since(began), "what was lost is not made up for")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, p.wait(ctx, 1), context.Canceled)
	})
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var terminal screen
		p := newProgress(&terminal, "asked for", 200)
		time.Sleep(time.Second)
		p.show(50)
		p.show(51) // too soon to draw again
		p.show(200)
		p.end()
		require.Equal(t, "\rasked for 50 of 200 (25 %), 3s left\x1b[K\rasked for 200 of 200 (100 %)\x1b[K\n", terminal.String())

		var file strings.Builder
		p = newProgress(&file, "asked for", 200)
		p.show(200)
		p.end()
		require.Empty(t, file.String())
	})
}

func TestCompletion(t *testing.T) {
	code, script, stderr := call(t, "completion", "bash")
	require.Equal(t, exitFine, code, stderr)
	for typed, want := range map[string]string{
		"pa": "pause partitions", "dead re": "retry", "dead retry --al": "--all", "dead retry KEY --rea": "--reason", "replay --from x --un": "--unchecked", "nothing ": "",
	} {
		words := append([]string{"outboxctl"}, strings.Split(typed, " ")...)
		text := fmt.Sprintf("%s\nCOMP_WORDS=(%s \"\"); COMP_CWORD=%d; _outboxctl; echo \"${COMPREPLY[*]}\"", script, strings.Join(words[:len(words)-1], " ")+" '"+words[len(words)-1]+"'", len(words)-1)
		out, err := process.Run(t.Context(), process.Spec{Path: "bash", Args: []string{"-c", text}})
		require.NoError(t, err, out)
		require.Equal(t, want, strings.TrimSpace(out), typed)
	}
	_, zsh, _ := call(t, "completion", "zsh")
	require.Contains(t, zsh, "bashcompinit\n"+script)
	_, fish, _ := call(t, "completion", "fish")
	require.Contains(t, fish, "-n '__fish_use_subcommand' -f -a replay\n")
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from dead; and not __fish_seen_subcommand_from list show retry edit discard' -f -a retry\n")
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from replay' -l unchecked\n")
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from dead; and __fish_seen_subcommand_from retry' -l only\n")
}
