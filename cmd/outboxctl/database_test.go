package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheDatabaseIsNamedWhereTwoCouldBeMeant: with --config and a login of one's own. It is named before
// anything is asked, so that what follows is read as an answer, or as an error, of that one.
func TestTheDatabaseIsNamedWhereTwoCouldBeMeant(t *testing.T) {
	path := configFile(t, relayYAML) // shop on 127.0.0.1:5433
	secretElsewhere := configFile(t, strings.Replace(relayYAML, `dsn: "postgres://app:s3cr3t@127.0.0.1:5433/shop?sslmode=disable"`, "dsn_file: /nowhere/dsn", 1))
	noted := func(file string, command ...string) string {
		t.Helper()
		code, stdout, stderr := call(t, append(command, "--config", file, "--insecure")...)
		require.NotEqual(t, exitFine, code)
		require.NotContains(t, stdout+stderr, "s3cr3t")
		note, rest, ok := strings.Cut(stderr, "\n")
		if !ok || !strings.HasPrefix(note, "note: ") {
			return ""
		}
		require.Contains(t, rest, "connect to PostgreSQL", "it comes first")
		return strings.ReplaceAll(note, file, "relay.yaml")
	}
	commands := [][]string{
		{"show", someKey}, {"replay", someKey, "--unchecked", "--reason", "r", "--yes"}, {"pause"},
		{"partitions", "status"}, {"partitions", "maintain"},
		{"adopt", "--kafka", "continue", "--cluster", "c", "--reason", "r", "--yes"},
	}
	const other = "postgres://operator:s3cr3t@127.0.0.1:1/other?sslmode=disable"
	t.Setenv(dsnVariable, other)
	for _, command := range commands {
		require.Equal(t, "note: this is database other on 127.0.0.1:1, by OUTBOXCTL_DSN; that of relay.yaml, shop on 127.0.0.1:5433, is not asked",
			noted(path, command...), command)
	}
	require.Contains(t, noted(secretElsewhere, "show", someKey), "; that of relay.yaml, which cannot be told here, is not asked")
	file := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(file, []byte(other), 0o600))
	t.Setenv(dsnVariable, "postgres://operator:s3cr3t@127.0.0.1:2/third?sslmode=disable")
	require.Contains(t, noted(path, "show", someKey, "--dsn", other), "note: this is database other on 127.0.0.1:1, by --dsn; ")
	require.Contains(t, noted(path, "show", someKey, "--dsn-file", file), "note: this is database other on 127.0.0.1:1, by --dsn-file; ")
	t.Setenv(dsnVariable, "postgres://operator:s3cr3t@127.0.0.1:5433/shop?sslmode=disable")
	require.Empty(t, noted(path, "show", someKey), "another login of the same database")
	t.Setenv(dsnVariable, "")
	require.Empty(t, noted(path, "show", someKey), "there is one only")
}
