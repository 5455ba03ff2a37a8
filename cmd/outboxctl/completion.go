package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal/shell"
	"github.com/onceward/onceward/migrations"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a script that completes commands, flags and KEYs, for bash, zsh or fish",
		ArgsUsage: "SHELL",
		Description: "For a KEY the script asks the database that the environment, or a flag on the line, names: it offers up to\n" +
			"50 events that are pending, waiting or dead, to `outboxctl dead` those with a letter, and nothing where that\n" +
			"does not answer within 2 seconds. All else it knows by itself. For example:\n\n" +
			"  source <(outboxctl completion bash)                                     in ~/.bashrc or ~/.zshrc\n" +
			"  outboxctl completion fish > ~/.config/fish/completions/outboxctl.fish",
		Action: completion,
	}
}

func completion(c *cli.Context) error {
	name := c.Args().First()
	if name == "keys" && c.NArg() == 2 { // the script asks
		for _, key := range keysFor(c, c.Args().Get(1)) {
			fmt.Fprintln(c.App.Writer, key) //nolint:errcheck // the shell has gone on
		}
		return nil
	}
	if c.NArg() != 1 {
		return usage("completion takes one SHELL, got %d; want bash, zsh or fish", c.NArg())
	}
	keyed := func(path ...string) bool { return len(statesOfKeys(path)) > 0 }
	var script string
	switch name {
	case "bash":
		script = shell.Bash(c.App.Commands, keyed)
	case "zsh":
		script = shell.Zsh(c.App.Commands, keyed)
	case "fish":
		script = shell.Fish(c.App.Commands, keyed)
	default:
		return usage("completion %q: want bash, zsh or fish", name)
	}
	if _, err := io.WriteString(c.App.Writer, script); err != nil {
		return fmt.Errorf("write completion: %w", err)
	}
	return nil
}

// statesOfKeys are those of the events that a command may be about; none where it takes no
// key of the producer's database.
func statesOfKeys(path []string) []string {
	switch strings.Join(path, " ") {
	case "show", "replay", "skip":
		return []string{states.Pending, states.Waiting, states.Dead}
	case "dead show", "dead retry", "dead edit", "dead discard":
		return []string{states.Dead}
	}
	return nil
}

// keysFor are the keys that may end a line. Whatever goes wrong, there are none: who types
// is told nothing.
func keysFor(c *cli.Context, line string) []string {
	typed, ok := shell.Parse(c.App.Commands, line)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Context, 2*time.Second)
	defer cancel()
	asked := cli.NewContext(c.App, typed.Flags, c)
	asked.Context, asked.Command = ctx, typed.Leaf
	if asked.String("side") == string(migrations.Consumer) {
		return nil
	}
	db, err := connect(asked)
	if err != nil {
		return nil
	}
	defer db.Close()
	keys, err := events.Keys(ctx, db, statesOfKeys(typed.Path), typed.Word, typed.Flags.Args())
	if err != nil {
		return nil
	}
	return keys
}
