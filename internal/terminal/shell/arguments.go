package shell

import (
	"flag"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// FlagsFirst moves the flags of a command before its arguments, because the
// flag package stops at the first argument: `show KEY --output json` works like
// `show --output json KEY`. What follows -- stays as it is.
func FlagsFirst(commands []*cli.Command, args []string) []string {
	if len(args) == 0 {
		return args
	}
	leaf, depth := Find(commands, args[1:])
	if leaf == nil {
		return args
	}
	head, rest := args[:1+depth], args[1+depth:]
	var flags, positional []string
	for i := 0; i < len(rest); i++ {
		switch arg := rest[i]; {
		case arg == "--":
			positional = append(positional, rest[i+1:]...)
			i = len(rest)
		case len(arg) > 1 && arg[0] == '-':
			flags = append(flags, arg)
			if TakesValue(leaf, arg) && i+1 < len(rest) {
				i++
				flags = append(flags, rest[i])
			}
		default:
			positional = append(positional, arg)
		}
	}
	out := append(append([]string{}, head...), flags...)
	if len(positional) == 0 {
		return out
	}
	return append(append(out, "--"), positional...)
}

// Find follows the names in args down to a command without
// subcommands, and says how many of args it took.
func Find(commands []*cli.Command, args []string) (leaf *cli.Command, depth int) {
	for _, arg := range args {
		var next *cli.Command
		for _, c := range commands {
			if c.HasName(arg) {
				next = c
			}
		}
		if next == nil {
			return nil, 0
		}
		depth++
		if len(next.Subcommands) == 0 {
			return next, depth
		}
		commands = next.Subcommands
	}
	return nil, 0
}

// TakesValue tells whether the next argument belongs to the flag. One that the
// command does not have takes none: it is refused in any case.
func TakesValue(c *cli.Command, arg string) bool {
	name, _, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if joined {
		return false
	}
	for _, f := range c.Flags {
		if slices.Contains(f.Names(), name) {
			_, boolean := f.(*cli.BoolFlag)
			return !boolean
		}
	}
	return false
}

// Typed is a line that somebody is typing: a command, up to the word that is to be
// completed.
type Typed struct {
	Path  []string // the names of the command
	Leaf  *cli.Command
	Flags *flag.FlagSet // with the arguments that are there already
	Word  string        // as far as it is typed
}

// Parse reads a line up to the cursor, as bash, zsh and fish give it. It returns false where no
// argument can be completed: without a command, in a flag or its value, and of a wrong call.
func Parse(commands []*cli.Command, line string) (Typed, bool) {
	words := split(line)
	args, word := words[:len(words)-1], words[len(words)-1]
	if len(args) == 0 || strings.HasPrefix(word, "-") {
		return Typed{}, false
	}
	leaf, depth := Find(commands, args[1:])
	if leaf == nil {
		return Typed{}, false
	}
	if last := args[len(args)-1]; strings.HasPrefix(last, "-") && TakesValue(leaf, last) {
		return Typed{}, false
	}
	set := flag.NewFlagSet(leaf.Name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range leaf.Flags {
		if f.Apply(set) != nil {
			return Typed{}, false
		}
	}
	if set.Parse(FlagsFirst(commands, args)[1+depth:]) != nil {
		return Typed{}, false
	}
	return Typed{Path: args[1 : 1+depth], Leaf: leaf, Flags: set, Word: word}, true
}

// split takes a line apart at blanks, but for those that are quoted. The last word is the one
// that is being typed, and may be empty. What else a shell does with a word is not done.
func split(line string) []string {
	words := []string{""}
	var quote rune
	escaped := false
	for _, r := range line {
		last := &words[len(words)-1]
		switch {
		case escaped:
			*last, escaped = *last+string(r), false
		case r == '\\' && quote != '\'':
			escaped = true
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote = r
		case quote == 0 && (r == ' ' || r == '\t'):
			if *last != "" {
				words = append(words, "")
			}
		default:
			*last += string(r)
		}
	}
	return words
}
