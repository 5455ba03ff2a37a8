// Package shell is what stands between a program's tree of commands and the shell that it
// is called from: it writes the scripts that complete the names in it, and sorts what the
// program is given.
//
// It is pure, and changes no command.
package shell

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// Bash is a script that offers commands, then subcommands, then flags. It knows no
// more than the names: keys, topics and files are the shell's to complete.
func Bash(commands []*cli.Command) string {
	var b strings.Builder
	b.WriteString("_outboxctl() {\n  local offer=\"\"\n  if [ \"$COMP_CWORD\" -eq 1 ]; then\n")
	fmt.Fprintf(&b, "    offer=%q\n  else\n    case \"${COMP_WORDS[1]}\" in\n", strings.Join(Names(commands), " "))
	for _, c := range commands {
		if len(c.Subcommands) == 0 {
			fmt.Fprintf(&b, "      %s) offer=%q ;;\n", c.Name, flagNames(c))
			continue
		}
		fmt.Fprintf(&b, "      %s)\n        if [ \"$COMP_CWORD\" -eq 2 ]; then\n          offer=%q\n        else\n          case \"${COMP_WORDS[2]}\" in\n",
			c.Name, strings.Join(Names(c.Subcommands), " "))
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

// Zsh is the same for zsh, which can read what bash does.
func Zsh(commands []*cli.Command) string {
	return "autoload -U +X bashcompinit && bashcompinit\n" + Bash(commands)
}

// Fish is the same for fish. The library's own generator never ends
// once help was shown in the process: its help command contains itself.
func Fish(commands []*cli.Command) string {
	var b strings.Builder
	offer := func(when, format string, args ...any) {
		fmt.Fprintf(&b, "complete -c outboxctl -n '%s' %s\n", when, fmt.Sprintf(format, args...))
	}
	for _, name := range Names(commands) {
		offer("__fish_use_subcommand", "-f -a %s", name)
	}
	for _, c := range commands {
		seen := "__fish_seen_subcommand_from " + c.Name
		for _, f := range c.Flags {
			offer(seen, "-l %s", f.Names()[0])
		}
		names := Names(c.Subcommands)
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

// Names are those of the commands that a person is shown.
func Names(commands []*cli.Command) []string {
	var out []string
	for _, c := range commands {
		if !c.Hidden && c.Name != "help" {
			out = append(out, c.Name)
		}
	}
	return out
}

func flagNames(c *cli.Command) string {
	var names []string
	for _, f := range c.Flags {
		names = append(names, "--"+f.Names()[0])
	}
	return strings.Join(append(names, "--help"), " ")
}
