package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/terminal/shell"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a script that completes commands and flags, for bash, zsh or fish",
		ArgsUsage: "SHELL",
		Description: "The script is static: a completion runs nothing. For example:\n\n" +
			"  source <(outboxctl completion bash)                                     in ~/.bashrc or ~/.zshrc\n" +
			"  outboxctl completion fish > ~/.config/fish/completions/outboxctl.fish",
		Action: completion,
	}
}

func completion(c *cli.Context) error {
	if c.NArg() != 1 {
		return usage("completion takes one SHELL, got %d; want bash, zsh or fish", c.NArg())
	}
	var script string
	switch name := c.Args().First(); name {
	case "bash":
		script = shell.Bash(c.App.Commands)
	case "zsh":
		script = shell.Zsh(c.App.Commands)
	case "fish":
		script = shell.Fish(c.App.Commands)
	default:
		return usage("completion %q: want bash, zsh or fish", name)
	}
	if _, err := io.WriteString(c.App.Writer, script); err != nil {
		return fmt.Errorf("write completion: %w", err)
	}
	return nil
}
