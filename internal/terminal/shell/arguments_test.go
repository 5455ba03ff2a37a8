package shell

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

// tree has a command with arguments, and one with commands below it.
func tree() []*cli.Command {
	text := func(name string, more ...string) cli.Flag { return &cli.StringFlag{Name: name, Aliases: more} }
	return []*cli.Command{
		{Name: "show", ArgsUsage: "KEY", Flags: []cli.Flag{text("output", "o"), text("dsn"), &cli.BoolFlag{Name: "payload"}}},
		{Name: "migrate", Subcommands: []*cli.Command{
			{Name: "up", Flags: []cli.Flag{text("side")}},
			{Name: "down", Flags: []cli.Flag{text("side"), &cli.BoolFlag{Name: "yes"}}},
		}},
	}
}

func TestFlagsFirst(t *testing.T) {
	for given, want := range map[string]string{
		"outboxctl":                                "outboxctl",
		"outboxctl show K --output json":           "outboxctl show --output json -- K",
		"outboxctl show K --payload L":             "outboxctl show --payload -- K L",
		"outboxctl show --dsn=x K -o json":         "outboxctl show --dsn=x -o json -- K",
		"outboxctl show --payload -- K --output x": "outboxctl show --payload -- K --output x",
		"outboxctl migrate up --side outbox":       "outboxctl migrate up --side outbox",
		"outboxctl migrate down --yes --side x":    "outboxctl migrate down --yes --side x",
		"outboxctl migrate --side x up":            "outboxctl migrate --side x up",
		"outboxctl show K --dsn":                   "outboxctl show --dsn -- K",
		"outboxctl bogus --x":                      "outboxctl bogus --x",
	} {
		require.Equal(t, want, strings.Join(FlagsFirst(tree(), strings.Fields(given)), " "), given)
	}
	require.Empty(t, FlagsFirst(tree(), nil))
}

func TestParse(t *testing.T) {
	for line, want := range map[string]string{
		"outboxctl show pay":                      "show  pay",
		"outboxctl show ":                         "show  ",
		`outboxctl show --dsn 'a b' K\ 1 "x y`:    "show K 1 x y",
		"outboxctl migrate down --yes --side x a": "migrate down  a",
		"outboxctl show --payload ":               "show  ",
	} {
		typed, ok := Parse(tree(), line)
		require.True(t, ok, line)
		require.Equal(t, want, strings.Join(typed.Path, " ")+" "+strings.Join(typed.Flags.Args(), " ")+" "+typed.Word, line)
	}
	typed, _ := Parse(tree(), "outboxctl show --dsn 'a b' ")
	require.Equal(t, "a b", typed.Flags.Lookup("dsn").Value.String())
	for _, line := range []string{"", "outboxctl", "outboxctl ", "outboxctl sho", "outboxctl migrate ", "outboxctl show --out", "outboxctl show --output ", "outboxctl show --nonsense "} {
		_, ok := Parse(tree(), line)
		require.False(t, ok, line)
	}
}
