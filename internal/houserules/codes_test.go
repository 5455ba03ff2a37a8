package houserules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// codeName is how a constant that is a code is called, codeText how a code looks.
var (
	codeName = regexp.MustCompile(`^[cC]ode([A-Z]|$)`)
	codeText = regexp.MustCompile(`^[A-Z]+(_[A-Z]+)*$`)
)

// TestEveryCodeIsInTheDocument: docs/codes.md has a line for each code of the
// relay's side: each constant that is called one, and each text that a check gives
// as one.
func TestEveryCodeIsInTheDocument(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "docs", "codes.md"))
	require.NoError(t, err)
	codes := make(map[string]bool)
	for _, dir := range []string{"cdc", "relay", "relay/internal/*", "internal/operator/check", "relay/retention", "publisher", "internal/hostile"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go"))
		require.NoError(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.Inspect(parsed, func(n ast.Node) bool {
				for _, text := range codesIn(n) {
					codes[text] = true
				}
				return true
			})
		}
	}
	require.Greater(t, len(codes), 50, "they are found")
	for code := range codes {
		if !strings.Contains(string(data), "\n| `"+code+"` |") {
			t.Errorf("docs/codes.md has no line for %s", code)
		}
	}
	for line := range strings.Lines(string(data)) {
		if code, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` |"); ok && strings.HasPrefix(line, "| `") {
			require.True(t, codes[code], "docs/codes.md has %s, which is no code any more", code)
		}
	}
}

// codesIn returns the codes that a node gives a name or a field.
func codesIn(n ast.Node) (found []string) {
	take := func(name string, value ast.Expr) {
		literal, ok := value.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING || !codeName.MatchString(name) {
			return
		}
		if text, err := strconv.Unquote(literal.Value); err == nil && codeText.MatchString(text) {
			found = append(found, text)
		}
	}
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i < len(n.Values) {
				take(name.Name, n.Values[i])
			}
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok {
			take(key.Name, n.Value)
		}
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			if field, ok := left.(*ast.SelectorExpr); ok && i < len(n.Rhs) {
				take(field.Sel.Name, n.Rhs[i])
			}
		}
	}
	return found
}
