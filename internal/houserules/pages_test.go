package houserules_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/houserules"
)

// checkers are what looks at the blocks of a language. Where it is another package, or
// where nothing can be wrong, it says so.
var checkers = map[string]func(*testing.T, houserules.Block){
	"sh":      nil, // TestPagesCallWhatIsThere, here and in both programs; README's quick start and docs/quickstart.md: e2e/quickstart
	"yaml":    nil, // relay/config: TestThePagesConfigureWhatIsThere
	"mermaid": nil, // a drawing: nothing that reads it is installed
	"text":    isPrinted,
	"sql":     isRun,
	"go": func(t *testing.T, b houserules.Block) {
		isPartOf(t, b, "*/example_test.go", "*/*/example_test.go", "*/*/*/example_test.go", "examples/*/*.go")
	},
	"python": func(t *testing.T, b houserules.Block) { isPartOf(t, b, "examples/*/*.py") },
	"java":   func(t *testing.T, b houserules.Block) { isRun(t, b); compiles(t, b) },
}

// TestEveryBlockIsChecked: no page has a block that nothing checks.
func TestEveryBlockIsChecked(t *testing.T) {
	blocks, err := houserules.Blocks(root)
	require.NoError(t, err)
	require.Greater(t, len(blocks), 40, "they are found")
	for _, b := range blocks {
		check, ok := checkers[b.Language]
		require.True(t, ok, "%s: nothing checks a block of %q", b.Page, b.Language)
		if check != nil {
			check(t, b)
		}
	}
}

var number = regexp.MustCompile(`=[0-9A-Z]`)

// isPrinted demands that a program has the text in its sources, numbers apart.
func isPrinted(t *testing.T, b houserules.Block) {
	t.Helper()
	format := number.ReplaceAllString(strings.TrimSpace(b.Text), "=%d")
	require.True(t, stands(t, `"`+format+`"`, "*/*/*.go", "*/*/*/*.go"), "%s: no program prints it", b.Page)
}

// isRun demands that a test takes the block by its name.
func isRun(t *testing.T, b houserules.Block) {
	t.Helper()
	require.NotEmpty(t, b.Test, "%s: no test runs it; name one by <!-- test: … --> before it", b.Page)
	require.True(t, stands(t, fmt.Sprintf("documented(t, %q)", b.Test), "e2e/*_test.go", "e2e/*/*_test.go"), "%s: no such test", b.Page)
}

// isPartOf demands that the parts of the block, between its empty lines, stand in a file
// that is compiled or run, white space apart.
func isPartOf(t *testing.T, b houserules.Block, patterns ...string) {
	t.Helper()
	for part := range strings.SplitSeq(b.Text, "\n\n") {
		require.True(t, stands(t, part, patterns...), "%s: no example has\n%s", b.Page, part)
	}
}

// stands reports whether one of the files that match has the text, white space apart.
func stands(t *testing.T, text string, patterns ...string) bool {
	t.Helper()
	spaced := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			if strings.Contains(spaced(string(content)), spaced(text)) {
				return true
			}
		}
	}
	return false
}

// compiles has javac read the statements of a method that has a connection and a key.
func compiles(t *testing.T, b houserules.Block) {
	t.Helper()
	javac, err := exec.LookPath("javac")
	if err != nil {
		t.Logf("%s is not compiled: %v", b.Page, err)
		return
	}
	file := filepath.Join(t.TempDir(), "Pay.java")
	require.NoError(t, os.WriteFile(file, []byte("import java.nio.charset.StandardCharsets;\nimport java.sql.*;\n"+
		"class Pay { void pay(Connection connection, String key) throws SQLException {\n"+b.Text+"} }\n"), 0o600))
	out, err := exec.CommandContext(t.Context(), javac, "-d", t.TempDir(), file).CombinedOutput()
	require.NoError(t, err, "%s: %s", b.Page, out)
}

var target = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)

// TestPagesCallWhatIsThere: what pages tell make to do is a target, and what of our tree
// they hand to go or python is there. The calls of our programs are looked at where these
// are, in cmd.
func TestPagesCallWhatIsThere(t *testing.T) {
	calls, err := houserules.PageCalls(t.Context(), root)
	require.NoError(t, err)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	targets := make(map[string]bool)
	for _, found := range target.FindAllSubmatch(makefile, -1) {
		targets[string(found[1])] = true
	}
	made, gone := 0, 0
	for _, c := range calls {
		for _, word := range c.Args[1:] {
			switch c.Args[0] {
			case "make":
				made++
				require.True(t, targets[word] || strings.Contains(word, "="), "%s: make has no target %s", c, word)
			case "go", "python":
				name, _, _ := strings.Cut(strings.TrimSuffix(word, "/..."), "@")
				name, _, _ = strings.Cut(name, "=") // what replaces it is beside the reader's module
				name, module := strings.CutPrefix(name, "github.com/onceward/onceward")
				if !module && !strings.HasPrefix(name, "./") && !strings.HasPrefix(name, "examples/") || strings.HasPrefix(name, "./hello/") {
					continue // no part of the tree: the quick start makes hello
				}
				gone++
				_, err := os.Stat(filepath.Join(root, filepath.FromSlash(name)))
				require.NoError(t, err, "%s", c)
			}
		}
	}
	require.Greater(t, made, 25, "they are found")
	require.Greater(t, gone, 8, "they are found")
}

// TestRolesComeBeforeTables: the pages that say how to install have one order. The tables
// belong to a role, which has to be there.
func TestRolesComeBeforeTables(t *testing.T) {
	calls, err := houserules.PageCalls(t.Context(), root)
	require.NoError(t, err)
	for _, page := range []string{"README.md", "docs/operations.md", "docs/consuming.md"} {
		var order []string
		for _, c := range calls {
			if strings.HasPrefix(c.Page, page) && len(c.Args) > 3 && c.Args[1] == "migrate" {
				order = append(order, c.Args[2])
			}
		}
		require.Greater(t, len(order), 1, page)
		require.Equal(t, []string{"roles", "up"}, order[:2], page)
	}
}
