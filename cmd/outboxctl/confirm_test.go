package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/terminal/device"
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
	require.False(t, device.IsTerminal(strings.NewReader("y")))
	file, err := os.Create(filepath.Join(t.TempDir(), "no terminal"))
	require.NoError(t, err)
	defer file.Close()
	require.False(t, device.IsTerminal(file))
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
