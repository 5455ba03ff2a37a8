package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/secret"
)

// flagsFirst moves the flags of a command before its arguments, because the
// flag package stops at the first argument: `show KEY --output json` works like
// `show --output json KEY`. What follows -- stays as it is.
func flagsFirst(commands []*cli.Command, args []string) []string {
	if len(args) == 0 {
		return args
	}
	leaf, depth := findCommand(commands, args[1:])
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
			if takesValue(leaf, arg) && i+1 < len(rest) {
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

// findCommand follows the names in args down to a command without
// subcommands, and says how many of args it took.
func findCommand(commands []*cli.Command, args []string) (leaf *cli.Command, depth int) {
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

// takesValue tells whether the next argument belongs to the flag. One that the
// command does not have takes none: it is refused in any case.
func takesValue(c *cli.Command, arg string) bool {
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

// noArgument refuses positional arguments; instead says what may be meant, or is
// empty.
func noArgument(c *cli.Context, instead string) error {
	if !c.Args().Present() {
		return nil
	}
	if instead != "" {
		instead = "; " + instead
	}
	return usage("%s takes no argument, got %s%s", c.Command.HelpName, secret.Argument(c.Args().First()), instead)
}

// checkLimit checks --limit, of what is listed.
func checkLimit(c *cli.Context) error {
	if c.Int("limit") < 1 || c.Int("limit") > operator.MaxListed {
		return usage("--limit %d: want 1 to %d", c.Int("limit"), operator.MaxListed)
	}
	return nil
}
