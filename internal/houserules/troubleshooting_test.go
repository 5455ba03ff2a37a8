package houserules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// codeName is how a constant that is a code is called, codeText how a code looks.
	codeName = regexp.MustCompile(`^[cC]ode([A-Z]|$)`)
	codeText = regexp.MustCompile(`^[A-Z]+(_[A-Z]+)*$`)
	// The constants that say why an event became a dead letter of a relay or of a group.
	whyName = regexp.MustCompile(`^([cC]lass|reason)[A-Z]`)
	whyText = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	// An error that callers branch on, and a SQLSTATE that our functions raise.
	errName  = regexp.MustCompile(`^Err[A-Z]`)
	sqlState = regexp.MustCompile(`'(OW\d{3})'`)
	ticked   = regexp.MustCompile("`([^`]+)`")
)

// TestEveryMessageIsInTheDocument: docs/troubleshooting.md has a line for each code of
// the relay's side (each constant that is called one, and each text that a check gives
// as one), each cause of a dead letter, each SQLSTATE of ours, and each error that a
// producer or a consumer may get, with its words; and for nothing else.
func TestEveryMessageIsInTheDocument(t *testing.T) {
	known := make(map[string]string) // to the words that the line has
	for _, dir := range []string{"cdc", "relay", "relay/internal/*", "internal/operator/check", "relay/retention", "publisher", "internal/hostile"} {
		constants(t, dir, codeName, codeText, known)
	}
	require.Greater(t, len(known), 50, "codes are found")
	constants(t, "relay/internal/letters", whyName, whyText, known)
	constants(t, "consumer", whyName, whyText, known)
	for _, why := range []string{"bad-row", "skipped", "malformed", "unreadable"} {
		require.Contains(t, known, why)
	}
	for _, file := range sources(t, "migrations/outbox/*.sql") {
		for _, found := range sqlState.FindAllStringSubmatch(file, -1) {
			known[found[1]] = ""
		}
	}
	maps.Copy(known, errorsOf(t))

	rows := rowsOfTroubleshooting(t)
	for name, words := range known {
		row, ok := rows[name]
		if !ok {
			t.Errorf("docs/troubleshooting.md has no line for %s: %s", name, words)
		}
		if ok && !strings.Contains(row, words) {
			t.Errorf("docs/troubleshooting.md says of %s other words than %q", name, words)
		}
	}
	programs := strings.Join(slices.Concat(sources(t, "consumer/*.go"), sources(t, "consumer/saramagroup/*.go"), sources(t, "consumer/saramagroup/internal/*/*.go")), "\n")
	for name := range rows {
		if words, quoted := strings.CutPrefix(name, `"`); quoted {
			if !strings.Contains(programs, strings.TrimSuffix(words, `"`)) {
				t.Errorf("docs/troubleshooting.md has %s, which no consumer says any more", name)
			}
			continue
		}
		if _, ok := known[name]; !ok {
			t.Errorf("docs/troubleshooting.md has %s, which is no code, cause or error any more", name)
		}
	}
}

// rowsOfTroubleshooting returns the lines of the page's tables that say what a message
// means, by the names in their first cell; a quoted line of a log is a name, too. The
// table of symptoms, in the first part, names none.
func rowsOfTroubleshooting(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "docs", "troubleshooting.md"))
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(data), "\n## The producer\n")
	require.True(t, ok)
	rows := make(map[string]string)
	for line := range strings.Lines(text) {
		cells := strings.Split(line, " | ")
		first := strings.TrimPrefix(cells[0], "| ")
		var names []string
		switch {
		case strings.HasPrefix(line, "| `"):
			for _, found := range ticked.FindAllStringSubmatch(first, -1) {
				names = append(names, found[1])
			}
		case strings.HasPrefix(line, `| "`):
			names = []string{first}
		}
		for _, name := range names {
			require.NotContains(t, rows, name, "two lines of one name")
			rows[name] = line
		}
	}
	return rows
}

// errorsOf returns the exported errors of what a service links, by the names that the
// page gives them, with their words up to what follows from them.
func errorsOf(t *testing.T) map[string]string {
	t.Helper()
	words := make(map[string]string)
	for _, dir := range []string{"consumer/internal/*", "internal/pooler"} {
		for name, value := range variables(t, dir) {
			words[name] = literalOf(value)
		}
	}
	out := make(map[string]string)
	for _, dir := range []string{"consumer", "consumer/saramagroup", "consumer/retention", "outbox", "record"} {
		for name, value := range variables(t, dir) {
			text := literalOf(value)
			if alias, ok := value.(*ast.SelectorExpr); ok {
				from, ok := alias.X.(*ast.Ident)
				require.True(t, ok)
				text = words[from.Name+"."+alias.Sel.Name]
			}
			if !errName.MatchString(path.Ext(name)[1:]) {
				continue
			}
			require.NotEmpty(t, text, "the words of %s", name)
			text, _, _ = strings.Cut(text, ";")
			text, _, _ = strings.Cut(text, ":")
			out[strings.TrimPrefix(name, "consumer.")] = text
		}
	}
	require.Greater(t, len(out), 30, "errors are found")
	return out
}

// literalOf returns the text that a call is given, as in errors.New.
func literalOf(value ast.Expr) string {
	call, ok := value.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return ""
	}
	return textOf(call.Args[0])
}

func textOf(value ast.Expr) string {
	literal, ok := value.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(literal.Value)
	if err != nil {
		return ""
	}
	return text
}

// variables returns what the variables of packages are, as package.Name.
func variables(t *testing.T, dir string) map[string]ast.Expr {
	t.Helper()
	found := make(map[string]ast.Expr)
	for _, text := range sources(t, dir+"/*.go") {
		parsed, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.VAR {
				continue
			}
			for _, spec := range group.Specs {
				if value, ok := spec.(*ast.ValueSpec); ok && len(value.Values) == len(value.Names) {
					for i, name := range value.Names {
						found[parsed.Name.Name+"."+name.Name] = value.Values[i]
					}
				}
			}
		}
	}
	return found
}

// sources returns the texts of files that are no tests.
func sources(t *testing.T, pattern string) (texts []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
	require.NoError(t, err)
	require.NotEmpty(t, files, pattern)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		texts = append(texts, string(text))
	}
	return texts
}

// constants adds the texts that look right of what is called so in packages.
func constants(t *testing.T, dir string, name, text *regexp.Regexp, known map[string]string) {
	t.Helper()
	for _, source := range sources(t, dir+"/*.go") {
		parsed, err := parser.ParseFile(token.NewFileSet(), "", source, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			for _, found := range named(n, name) {
				if text.MatchString(found) {
					known[found] = ""
				}
			}
			return true
		})
	}
}

// named returns the texts that a node gives to a name or a field that is called so.
func named(n ast.Node, name *regexp.Regexp) (found []string) {
	take := func(of string, value ast.Expr) {
		if name.MatchString(of) {
			found = append(found, textOf(value))
		}
	}
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, of := range n.Names {
			if i < len(n.Values) {
				take(of.Name, n.Values[i])
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
