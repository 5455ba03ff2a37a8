package houserules_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// ours is what the path of each module of this repository begins with.
const ours = "github.com/onceward/onceward"

// TestWhatAProgramSees: how many modules a program sees that imports what it needs of
// ours, by `go list -m all` and without our workspace, and which version of Go it has to
// have. A number that grows is more for every user to load and to review; what a program links
// is another thing, and less: TestConsumersDoNotLinkRedis.
func TestWhatAProgramSees(t *testing.T) {
	for packages, want := range map[string]struct {
		modules int
		version string
	}{
		"outbox":                   {25, "1.24.0"}, // 19 on 2026-11-25
		"outbox outbox/outboxotel": {29, "1.24.0"},
		"consumer":                 {72, "1.26.0"},
		"consumer/saramagroup":     {79, "1.26.0"},
		"relay":                    {81, "1.26.0"},
	} {
		dir := t.TempDir()
		write := func(name, text string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		program := "package main\n"
		for pkg := range strings.FieldsSeq(packages) {
			program += "\nimport _ \"" + ours + "/" + pkg + "\"\n"
		}
		write("main.go", program+"\nfunc main() {}\n")
		mod := "module example.com/program\n\ngo 1.24.0\n"
		for _, module := range published {
			place, err := filepath.Abs(filepath.Join(root, module))
			require.NoError(t, err)
			mod += "\nreplace " + filepath.ToSlash(filepath.Join(ours, module)) + " => " + place + "\n"
		}
		write("go.mod", mod)
		run := func(args ...string) string {
			// The sums of what is here were compared when it was loaded.
			out, err := process.Run(t.Context(), process.Spec{Path: "go", Args: args, Dir: dir, Env: []string{"GOWORK=off", "GOFLAGS=-mod=mod", "GOSUMDB=off"}})
			require.NoError(t, err)
			return out
		}
		run("mod", "tidy")
		// -e: a go.mod that was needed to choose versions has been read; others may be missing offline.
		seen := strings.Fields(run("list", "-m", "-e", "-f", "{{if not .Main}}{{.Path}}{{end}}", "all"))
		t.Logf("%s: %d modules", packages, len(seen))
		require.Contains(t, seen, "github.com/jackc/pgx/v5", "%s: they are found", packages)
		require.LessOrEqual(t, len(seen), want.modules, "%s: %v", packages, seen)
		require.Equal(t, want.version+"\n", run("list", "-m", "-f", "{{.GoVersion}}"), packages)
	}
}

// TestNoReplacement: with one, go.mod's module cannot be installed in a version.
func TestNoReplacement(t *testing.T) {
	for _, dir := range published {
		mod, err := os.ReadFile(filepath.Join(root, dir, "go.mod"))
		require.NoError(t, err)
		require.NotRegexp(t, `(?m)^replace\b`, string(mod), dir)
	}
}
