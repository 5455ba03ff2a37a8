package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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

func TestSchemaIsStrict(t *testing.T) {
	text, err := jsonSchema(fields(t))
	require.NoError(t, err)
	var schema map[string]any
	require.NoError(t, json.Unmarshal(text, &schema))
	require.Equal(t, false, schema["additionalProperties"])
	kafka := schema["properties"].(map[string]any)["kafka"].(map[string]any)
	require.Equal(t, false, kafka["additionalProperties"])
	require.Contains(t, kafka["properties"], "sasl")
}
