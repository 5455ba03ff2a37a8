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
