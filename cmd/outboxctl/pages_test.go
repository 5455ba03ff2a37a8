package main

import (
	"cmp"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/houserules"
)

// placeholders are words of the pages that a reader replaces, by what they stand for.
var placeholders = map[string]string{
	"KEY": someKey, "PLACE": "orders.order/3@4711", "GAP": "0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a", "DAY": "2026-11-20", "FILE": "relay.yaml", "PREFIX": "onceward", "N": "orders",
	"NAME": "orders", "GROUP": "billing", "PARTITION": "outbox_20261120", "…": "relay.yaml",
	"/run/secrets/maintainer_dsn":          "consumer.dsn",
	"/run/secrets/consumer_maintainer_dsn": "consumer.dsn",
}

// shortened is a key as the pages show it.
var shortened = regexp.MustCompile(`^[a-z]+:[0-9a-f]{8}-…$`)

// TestPagesCallWhatIsThere: every command of outboxctl in the pages exists, with its flags.
// One that is there to be run is run: it has all that it needs, and gets as far as to the
// database, or to Kafka, of which there is none.
func TestPagesCallWhatIsThere(t *testing.T) {
	calls, err := houserules.PageCalls(t.Context(), "../..")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	const nowhere = "127.0.0.1:1"
	require.NoError(t, os.Mkdir(".stack", 0o700))
	for file, text := range map[string]string{
		"relay.yaml":   "name: orders\npostgres: {dsn: \"host=127.0.0.1 port=1\", insecure: true}\nkafka: {brokers: [\"" + nowhere + "\"], insecure: true}\nroutes: [{topic: orders.order}]\n",
		"consumer.dsn": "postgres://app@" + nowhere + "/db",
		"small.json":   "{}",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(".stack", file), []byte(text), 0o600))
	}
	t.Setenv(dsnVariable, "postgres://app@"+nowhere+"/db")
	t.Setenv(insecureVariable, "true")
	app := newApp(io.Discard, io.Discard)
	ran := 0
	for _, c := range calls {
		words := slices.Clone(c.Args[1:])
		if c.Args[0] != "outboxctl" || c.Part && len(words) == 1 && len(app.Command(words[0]).Subcommands) > 0 {
			continue // a group of commands has a name, too
		}
		if c.Part && words[len(words)-1] == "…" {
			words = words[:len(words)-1]
		}
		named(t, app, c, words)
		if c.Part {
			continue
		}
		ran++
		words = slices.DeleteFunc(words, func(word string) bool { return word == "--watch" }) // it has no end
		for i, word := range words {
			words[i] = cmp.Or(placeholders[shortened.ReplaceAllString(word, "KEY")], word)
		}
		code, stdout, stderr := call(t, words...)
		// What needs no database is done; a person at a terminal is asked.
		if code != exitFine && !strings.Contains(stderr, "standard input is no terminal to ask at") {
			require.Contains(t, stderr, nowhere, "%s: %s", c, stdout)
			require.Equal(t, exitFailed, code, "%s: %s%s", c, stdout, stderr)
		}
	}
	require.Greater(t, ran, 100, "they are found")
}
