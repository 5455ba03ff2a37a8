package shell

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/terminal"
)

// Unprefixed takes the name of a program off what it is about to say behind it. What is said of
// a command begins with the whole name of that.
func Unprefixed(program, said string) string {
	return strings.TrimPrefix(strings.TrimPrefix(said, program+": "), program+" ")
}

// FlagError says in our words what the flag package says of a wrong call.
func FlagError(flags []cli.Flag, err error) string {
	said := err.Error()
	if given, ok := strings.CutPrefix(said, "flag provided but not defined: -"); ok {
		return unknownFlag(flags, strings.TrimLeft(given, "-"))
	}
	if name, ok := strings.CutPrefix(said, "flag needs an argument: -"); ok {
		return FlagName(flags, name) + ": its value is missing"
	}
	if found := wrongValue.FindStringSubmatch(said); found != nil {
		return fmt.Sprintf("%s %s: want %s", FlagName(flags, found[2]), found[1], wanted(flags, found[2]))
	}
	return said
}

var wrongValue = regexp.MustCompile(`(?s)^invalid (?:boolean )?value (".*") for (?:flag )?-(\S+): `)

func unknownFlag(flags []cli.Flag, given string) string {
	var known []string
	for _, f := range flags {
		known = append(known, f.Names()...)
	}
	meant := terminal.Nearest(given, known)
	if len(given) == 1 || len(meant) == 1 || !terminal.Resembles(given, meant) { // any letter resembles any other
		return "unknown flag " + dashed(given)
	}
	return "unknown flag " + dashed(given) + "; did you mean " + dashed(meant) + "?"
}

// FlagName is how a flag is called, with the letter that stands for it: -o/--output.
func FlagName(flags []cli.Flag, name string) string {
	names := []string{name}
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			names = f.Names()
		}
	}
	names = slices.Clone(names)
	slices.SortStableFunc(names, func(a, b string) int { return len(a) - len(b) })
	for i, n := range names {
		names[i] = dashed(n)
	}
	return strings.Join(names, "/")
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func wanted(flags []cli.Flag, name string) string {
	for _, f := range flags {
		if !slices.Contains(f.Names(), name) {
			continue
		}
		switch f.(type) {
		case *cli.BoolFlag:
			return "true or false"
		case *cli.DurationFlag:
			return "a length of time such as 10s or 1m30s"
		case *cli.IntFlag:
			return "a whole number"
		}
	}
	return "another value"
}
