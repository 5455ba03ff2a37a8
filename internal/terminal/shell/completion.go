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

// Keyed tells whether a command takes keys, which the program completes itself:
// `completion keys LINE` prints those that continue LINE, the text up to the cursor.
type Keyed func(path ...string) bool

// Bash is a script that offers commands, then subcommands, then keys, or else flags. Topics
// and files are the shell's to complete.
func Bash(commands []*cli.Command, keyed Keyed) string {
	offer := func(c *cli.Command, path ...string) string {
		text := fmt.Sprintf("offer=%q", flagNames(c))
		if keyed(path...) {
			text += "; keys=1"
		}
		return text
	}
	var b strings.Builder
	b.WriteString("_outboxctl() {\n  local offer=\"\" keys=\"\"\n  if [ \"$COMP_CWORD\" -eq 1 ]; then\n")
	fmt.Fprintf(&b, "    offer=%q\n  else\n    case \"${COMP_WORDS[1]}\" in\n", strings.Join(Names(commands), " "))
	for _, c := range commands {
		if len(c.Subcommands) == 0 {
			fmt.Fprintf(&b, "      %s) %s ;;\n", c.Name, offer(c, c.Name))
			continue
		}
		fmt.Fprintf(&b, "      %s)\n        if [ \"$COMP_CWORD\" -eq 2 ]; then\n          offer=%q\n        else\n          case \"${COMP_WORDS[2]}\" in\n",
			c.Name, strings.Join(Names(c.Subcommands), " "))
		for _, sub := range c.Subcommands {
			fmt.Fprintf(&b, "            %s) %s ;;\n", sub.Name, offer(sub, c.Name, sub.Name))
		}
		b.WriteString("          esac\n        fi ;;\n")
	}
	b.WriteString("    esac\n  fi\n  local word; COMPREPLY=()\n" + bashKeys +
		"  while IFS= read -r word; do COMPREPLY+=(\"$word\"); done < <(compgen -W \"$offer\" -- \"${COMP_WORDS[COMP_CWORD]}\")\n}\n")
	b.WriteString("complete -o default -F _outboxctl outboxctl\n")
	return b.String()
}

// bashKeys asks the program for keys. Where bash takes a colon for the end of a word, it
// replaces only what is behind that: what is before it is cut from the keys.
const bashKeys = `  case "$keys${COMP_WORDS[COMP_CWORD]}" in
    1-*|"") ;;
    1*)
      local line="${COMP_LINE:0:COMP_POINT}" before=""
      case "$COMP_WORDBREAKS" in *:*) before="${line##* }"; before="${before%"${before##*:}"}" ;; esac
      while IFS= read -r word; do COMPREPLY+=("${word#"$before"}"); done < <("${COMP_WORDS[0]}" completion keys "$line" 2>/dev/null)
      [ "${#COMPREPLY[@]}" -gt 0 ] && return ;;
  esac
`

// Zsh is the same for zsh, which can read what bash does.
func Zsh(commands []*cli.Command, keyed Keyed) string {
	return "autoload -U +X bashcompinit && bashcompinit\n" + Bash(commands, keyed)
}

// Fish is the same for fish. The library's own generator never ends
// once help was shown in the process: its help command contains itself.
func Fish(commands []*cli.Command, keyed Keyed) string {
	var b strings.Builder
	offer := func(when, format string, args ...any) {
		fmt.Fprintf(&b, "complete -c outboxctl -n '%s' %s\n", when, fmt.Sprintf(format, args...))
	}
	keys := func(when string, path ...string) {
		if keyed(path...) {
			offer(when, "-f -a '(outboxctl completion keys (commandline -cp) 2>/dev/null)'")
		}
	}
	var groups []string
	for _, c := range commands {
		if len(c.Subcommands) > 0 {
			groups = append(groups, c.Name)
		}
	}
	for _, name := range Names(commands) {
		offer("__fish_use_subcommand", "-f -a %s", name)
	}
	for _, c := range commands {
		seen := "__fish_seen_subcommand_from " + c.Name
		for _, f := range c.Flags {
			offer(seen, "-l %s", f.Names()[0])
		}
		keys(seen+"; and not __fish_seen_subcommand_from "+strings.Join(groups, " "), c.Name)
		names := Names(c.Subcommands)
		for _, sub := range c.Subcommands {
			if sub.Name == "help" {
				continue
			}
			offer(seen+"; and not __fish_seen_subcommand_from "+strings.Join(names, " "), "-f -a %s", sub.Name)
			for _, f := range sub.Flags {
				offer(seen+"; and __fish_seen_subcommand_from "+sub.Name, "-l %s", f.Names()[0])
			}
			keys(seen+"; and __fish_seen_subcommand_from "+sub.Name, c.Name, sub.Name)
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
