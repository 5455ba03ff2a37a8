// Package manualtest holds a program's man page to its commands, and to the tools that
// show man pages.
package manualtest

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

// shows are the tools, each with what makes it say all that it dislikes and show nothing.
var shows = [][]string{
	{"groff", "-man", "-ww", "-z", "-T", "utf8"},
	{"man", "--warnings", "--troff", "-l", "-"},
	{"mandoc", "-T", "lint", "-W", "warning"},
}

// Holds fails unless each command that a person is shown, and each flag of it, is in the
// page, and the tools that are installed take it without a warning.
func Holds(t *testing.T, page string, app *cli.App) {
	t.Helper()
	commands(t, strings.NewReplacer(`\-`, "-", `\&`, "").Replace(page), app.Name, app.Commands)
	tried := 0
	for _, show := range shows {
		if _, err := exec.LookPath(show[0]); err != nil {
			continue
		}
		tried++
		said := ""
		cmd := exec.CommandContext(t.Context(), show[0], show[1:]...) //nolint:gosec // G204: one of the tools above
		cmd.Stdin = strings.NewReader(page)
		cmd.Stderr = (*text)(&said)
		if show[0] == "mandoc" {
			cmd.Stdout = cmd.Stderr
		}
		require.NoError(t, cmd.Run(), "%v: %s", show, said)
		require.Empty(t, said, "%v", show)
	}
	if tried == 0 {
		t.Log("no tool that shows man pages is installed here: groff, man or mandoc")
	}
}

// text collects what is written.
type text string

// Write implements io.Writer.
func (s *text) Write(p []byte) (int, error) {
	*s += text(p)
	return len(p), nil
}

// commands looks for each in its own part of the page: several have the same flags.
func commands(t *testing.T, page, path string, all []*cli.Command) {
	t.Helper()
	for _, c := range all {
		if c.Hidden || c.Name == "help" {
			continue
		}
		name := strings.TrimSpace(path + " " + c.Name + " " + c.ArgsUsage)
		_, after, found := strings.Cut(page, "\n.SS \""+strings.ReplaceAll(name, "…", `\[u2026]`)+"\"\n")
		require.True(t, found, "%s is missing", name)
		own, _, _ := strings.Cut(after, "\n.S")
		for _, f := range c.Flags {
			visible, ok := f.(cli.VisibleFlag)
			if ok && visible.IsVisible() {
				require.Contains(t, own, "\n.TP\n\\fB--"+f.Names()[0], "%s --%s is missing", name, f.Names()[0])
			}
		}
		commands(t, page, path+" "+c.Name, c.Subcommands)
	}
}
