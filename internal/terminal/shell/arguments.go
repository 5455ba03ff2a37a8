package shell

import (
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
