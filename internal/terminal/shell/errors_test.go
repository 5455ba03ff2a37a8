package shell

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

func TestFlagError(t *testing.T) {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}}, &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}},
		&cli.IntFlag{Name: "limit"}, &cli.DurationFlag{Name: "wait"}, cli.HelpFlag,
	}
	for said, want := range map[string]string{
		"flag provided but not defined: -outptu":                  "unknown flag --outptu; did you mean --output?",
		"flag provided but not defined: -z":                       "unknown flag -z",
		"flag provided but not defined: -xy":                      "unknown flag --xy",
		"flag needs an argument: -o":                              "-o/--output: its value is missing",
		"flag needs an argument: -limit":                          "--limit: its value is missing",
		`invalid value "x" for flag -limit: parse error`:          `--limit "x": want a whole number`,
		`invalid value "x" for flag -wait: parse error`:           `--wait "x": want a length of time such as 10s or 1m30s`,
		`invalid boolean value "maybe" for -yes: parse error`:     `-y/--yes "maybe": want true or false`,
		"what the flag package says in another way in a new year": "what the flag package says in another way in a new year",
	} {
		require.Equal(t, want, FlagError(flags, errors.New(said)))
	}
	require.Equal(t, "-o/--output", FlagName(flags, "output"))
}

func TestUnprefixed(t *testing.T) {
	for said, want := range map[string]string{
		"outboxctl status takes no argument": "status takes no argument", "outboxctl: a command is missing": "a command is missing",
		"outboxctlx": "outboxctlx", "read status: away": "read status: away",
	} {
		require.Equal(t, want, Unprefixed("outboxctl", said))
	}
}
