package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
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
	switch shell := c.Args().First(); shell {
	case "bash":
		script = bashCompletion(c.App.Commands)
	case "zsh":
		script = "autoload -U +X bashcompinit && bashcompinit\n" + bashCompletion(c.App.Commands)
	case "fish":
		script = fishCompletion(c.App.Commands)
	default:
		return usage("completion %q: want bash, zsh or fish", shell)
	}
	if _, err := io.WriteString(c.App.Writer, script); err != nil {
		return fmt.Errorf("write completion: %w", err)
	}
	return nil
}

// bashCompletion offers commands, then subcommands, then flags. It knows no
// more than the names: keys, topics and files are the shell's to complete.
func bashCompletion(commands []*cli.Command) string {
	var b strings.Builder
	b.WriteString("_outboxctl() {\n  local offer=\"\"\n  if [ \"$COMP_CWORD\" -eq 1 ]; then\n")
	fmt.Fprintf(&b, "    offer=%q\n  else\n    case \"${COMP_WORDS[1]}\" in\n", strings.Join(commandNames(commands), " "))
	for _, c := range commands {
		if len(c.Subcommands) == 0 {
			fmt.Fprintf(&b, "      %s) offer=%q ;;\n", c.Name, flagNames(c))
			continue
		}
		fmt.Fprintf(&b, "      %s)\n        if [ \"$COMP_CWORD\" -eq 2 ]; then\n          offer=%q\n        else\n          case \"${COMP_WORDS[2]}\" in\n",
			c.Name, strings.Join(commandNames(c.Subcommands), " "))
		for _, sub := range c.Subcommands {
			fmt.Fprintf(&b, "            %s) offer=%q ;;\n", sub.Name, flagNames(sub))
		}
		b.WriteString("          esac\n        fi ;;\n")
	}
	b.WriteString("    esac\n  fi\n  local word; COMPREPLY=()\n" +
		"  while IFS= read -r word; do COMPREPLY+=(\"$word\"); done < <(compgen -W \"$offer\" -- \"${COMP_WORDS[COMP_CWORD]}\")\n}\n")
	b.WriteString("complete -o default -F _outboxctl outboxctl\n")
	return b.String()
}

// fishCompletion is the same for fish. The library's own generator never ends
// once help was shown in the process: its help command contains itself.
func fishCompletion(commands []*cli.Command) string {
	var b strings.Builder
	offer := func(when, format string, args ...any) {
		fmt.Fprintf(&b, "complete -c outboxctl -n '%s' %s\n", when, fmt.Sprintf(format, args...))
	}
	for _, name := range commandNames(commands) {
		offer("__fish_use_subcommand", "-f -a %s", name)
	}
	for _, c := range commands {
		seen := "__fish_seen_subcommand_from " + c.Name
		for _, f := range c.Flags {
			offer(seen, "-l %s", f.Names()[0])
		}
		names := commandNames(c.Subcommands)
		for _, sub := range c.Subcommands {
			if sub.Name == "help" {
				continue
			}
			offer(seen+"; and not __fish_seen_subcommand_from "+strings.Join(names, " "), "-f -a %s", sub.Name)
			for _, f := range sub.Flags {
				offer(seen+"; and __fish_seen_subcommand_from "+sub.Name, "-l %s", f.Names()[0])
			}
		}
	}
	return b.String()
}

func flagNames(c *cli.Command) string {
	var names []string
	for _, f := range c.Flags {
		names = append(names, "--"+f.Names()[0])
	}
	return strings.Join(append(names, "--help"), " ")
}
