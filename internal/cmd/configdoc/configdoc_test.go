package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/relay"
)

func fields(t *testing.T) []configField {
	t.Helper()
	all, err := readFields(filepath.Join("..", "..", "..", "relay", "config.go"))
	require.NoError(t, err)
	return all
}

func TestEveryKeyHasWords(t *testing.T) {
	var walk func([]configField)
	walk = func(list []configField) {
		for _, f := range list {
			if f.kind != "map" && f.doc == "" {
				t.Errorf("%s has no comment in relay/config.go", f.path)
			}
			walk(f.children)
		}
	}
	walk(fields(t))
}

func TestReferenceNamesKeysAndDefaults(t *testing.T) {
	text := string(markdown(fields(t)))
	for _, want := range []string{"| `queue.bytes` | size | `16MiB` |", "| `routes[].match.namespace` | text |", "| `stop_grace` | duration | `30s` |", "| `topics.create` | yes or no | `false` |"} {
		require.Contains(t, text, want)
	}
}

// schemaAt is the part of the schema that a path of keys leads to.
func schemaAt(t *testing.T, path ...string) map[string]any {
	t.Helper()
	text, err := jsonSchema(fields(t))
	require.NoError(t, err)
	var at map[string]any
	require.NoError(t, json.Unmarshal(text, &at))
	for _, key := range path {
		if items, ok := at["items"]; ok {
			at = items.(map[string]any)
		}
		at = at["properties"].(map[string]any)[key].(map[string]any)
	}
	return at
}

func TestSchemaIsStrict(t *testing.T) {
	require.Equal(t, false, schemaAt(t)["additionalProperties"])
	kafka := schemaAt(t, "kafka")
	require.Equal(t, false, kafka["additionalProperties"])
	require.Contains(t, kafka["properties"], "sasl")
	require.Equal(t, []any{"kafka", "name", "routes"}, schemaAt(t)["required"])
	require.Equal(t, []any{"brokers"}, kafka["required"])
	require.Equal(t, []any{"topic"}, schemaAt(t, "routes")["items"].(map[string]any)["required"])
	require.NotContains(t, schemaAt(t, "postgres"), "required", "the environment may have it")
}

func TestDefaultsHaveTheirTypes(t *testing.T) {
	for want, path := range map[any][]string{
		false: {"postgres", "insecure"}, true: {"postgres", "slot", "failover"}, 12.0: {"topics", "partitions"},
		1e6: {"kafka", "max_message_bytes"}, "16MiB": {"queue", "bytes"}, "30s": {"stop_grace"}, "lz4": {"kafka", "compression"},
	} {
		require.Equal(t, want, schemaAt(t, path...)["default"], path)
	}
}

func TestWhatIsAskedOfAValueIsInTheSchema(t *testing.T) {
	require.Equal(t, []any{"idempotent", "exactly-once"}, schemaAt(t, "kafka", "mode")["enum"])
	require.Equal(t, []any{"park-aggregate", "park", "halt", ""}, schemaAt(t, "routes", "poison")["enum"])
	require.InDelta(t, 65536, schemaAt(t, "queue", "bytes")["minimum"], 0)
	require.InDelta(t, 3660, schemaAt(t, "outbox", "partitions", "keep")["maximum"], 0)
	require.Equal(t, `^[a-z0-9_]{1,54}$`, schemaAt(t, "name")["pattern"])
	require.InDelta(t, 1, schemaAt(t, "name")["minLength"], 0)
	for _, c := range relay.Constraints() {
		path := strings.Split(strings.ReplaceAll(c.Key, "[]", ""), ".")
		at := schemaAt(t, path...)
		if items, ok := at["items"].(map[string]any); ok && strings.HasSuffix(c.Key, "[]") {
			at = items
		}
		require.True(t, len(c.OneOf) == 0 || at["enum"] != nil, "%s has no enum", c.Key)
		require.True(t, c.Pattern == "" || at["pattern"] == c.Pattern, "%s has no pattern", c.Key)
	}
}

// Who reads a description knows the keys of the file, and not Go.
func TestWordsHaveNoNamesOfGo(t *testing.T) {
	for said, want := range map[string]string{
		"DSNFile is a file; read anew.":    "A file; read anew.",
		"ExitOnHalt ends it.":              "Ends it.",
		"Mode is idempotent or not.":       "`mode` is idempotent or not.",
		"ClientID in the brokers' logs.":   "Client id in the brokers' logs.",
		"Brokers to learn from.":           "Brokers to learn from.",
		"DSN of it: prefer DSNFile to TLS": "DSN of it: prefer `dsn_file` to TLS",
	} {
		keys := map[string]string{"DSNFile": "dsn_file", "ExitOnHalt": "exit_on_halt", "Mode": "mode", "ClientID": "client_id", "DSN": "dsn", "TLS": "tls"}
		first, _, _ := strings.Cut(said, " ")
		require.Equal(t, want, inWordsOfTheFile(said, first, keys))
	}
	mixed := regexp.MustCompile(`\b([A-Z]+[a-z]+[A-Z]\w*|[A-Z]{2,}[a-z]+\w*)\b`)
	brands := regexp.MustCompile(`PostgreSQL|CloudEvents|[KMG]iB`)
	var walk func([]configField)
	walk = func(list []configField) {
		for _, f := range list {
			require.Empty(t, mixed.FindString(brands.ReplaceAllString(f.doc, "")), "%s: %s", f.path, f.doc)
			require.NotRegexp(t, `^[A-Z]\w* (is|says|ends|bounds|holds|lists|allows|makes|asks) `, f.doc, f.path)
			walk(f.children)
		}
	}
	walk(fields(t))
}
