package houserules

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Statement is a piece of SQL that a program of ours sends, or tells an operator
// to run.
type Statement struct {
	File string // relative to the root, with slashes
	Text string // what is put in at run time is $0
	// Open: it also runs where the search_path is not ours, in a transaction of a
	// service or on a connection of a caller.
	Open bool
}

// Statements returns the SQL below root: that of the query files and of the
// migrations, and the string literals of Go that hold some, but those of tests
// and of the servers for them.
func Statements(root string) ([]Statement, error) {
	files, err := readTree(root)
	if err != nil {
		return nil, err
	}
	found, err := queries(root)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		found = append(found, f.statements()...)
	}
	return found, nil
}

// queries reads the query files and the migrations. Those of the outbox are for
// pinned sessions only, and so are the migrations and two of the consumer's.
func queries(root string) ([]Statement, error) {
	var names []string
	for _, pattern := range []string{"internal/*db/*.sql", "migrations/*/*.sql"} {
		some, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, fmt.Errorf("find SQL files: %w", err)
		}
		names = append(names, some...)
	}
	var found []Statement
	for _, name := range names {
		text, err := os.ReadFile(name) //nolint:gosec // G304: below the root
		if err != nil {
			return nil, fmt.Errorf("read an SQL file: %w", err)
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return nil, fmt.Errorf("name %s: %w", name, err)
		}
		s := Statement{File: filepath.ToSlash(relative), Text: string(text)}
		base := filepath.Base(name)
		s.Open = within(s.File, "internal/consumerdb") && base != "audit.sql" && base != "operator.sql"
		found = append(found, s)
	}
	return found, nil
}

// someSQL tells SQL from other text.
var someSQL = regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|FROM|WHERE|HAVING|CHECK|CREATE|ALTER|EXECUTE)\b`)

// whole tells a statement from a sentence that names one.
var whole = regexp.MustCompile(`^\s*\(?(ALTER|COMMENT|CREATE|DELETE|DO|DROP|INSERT|LOCK|ROWS|SELECT|SET|UPDATE|WITH)\b`)

// verb is a verb of package fmt.
var verb = regexp.MustCompile(`%+(\[\d+\])?[a-zA-Z]`)

// statements returns the SQL in the file's string literals; a concatenation is
// one text.
func (f *file) statements() []Statement {
	if f.isTest() || f.isGenerated() || f.in("bench", "consumer/internal/claimstest", "e2e", "examples", "internal/houserules", "internal/pgserver", "internal/cmd/stack", "internal/testdb") {
		return nil
	}
	open := f.in("outbox", "internal/partition", "internal/pooler", "consumer", "relay/retention") || f.name == "migrations/version.go"
	if f.in("outbox/outboxtest") || strings.HasPrefix(f.name, "consumer/audit") {
		open = false // of a test's own database; pinned
	}
	var found []Statement
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		e, ok := node.(ast.Expr)
		if !ok {
			return true
		}
		text, ok := literal(e)
		if ok && someSQL.MatchString(text) && !strings.HasPrefix(text, "^") {
			text = verb.ReplaceAllString(text, "$$0")
			found = append(found, Statement{f.name, text, open && whole.MatchString(text)})
		}
		return !ok
	})
	return found
}

// literal returns the text of a string literal or of a concatenation with one.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, e.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		left, ok := literal(e.X)
		right, too := literal(e.Y)
		if e.Op != token.ADD || !ok && !too {
			return "", false
		}
		if !ok {
			left = "$0"
		}
		if !too {
			right = "$0"
		}
		return left + right, true
	}
	return "", false
}

// sqlToken is a token of SQL. What is in quotes is one, and so is a name with its schema.
var sqlToken = regexp.MustCompile(`(?s)--[^\n]*|'(?:[^']|'')*'|"[^"]*"|OPERATOR\([^)]*\)|[@$]?[A-Za-z_0-9]+(?:\.[A-Za-z_0-9"*]+)*|::|[-+*/<>=~!@#%^&|]+|\s+|.`)

func tokens(text string) []string {
	var out []string
	for _, t := range sqlToken.FindAllString(text, -1) {
		if !strings.HasPrefix(t, "--") {
			out = append(out, t)
		}
	}
	return out
}

// syntax is what looks like the call of a function and is none: it cannot be
// another's.
var syntax = strings.Fields(`all any array as bit by cast coalesce exists extract filter from greatest in join least not nullif numeric on or
	over row select set some using values varchar when where check and int`)

var word = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*$`)

// Calls returns the functions that SQL calls without naming their schema.
func Calls(text string) []string {
	var found []string
	all := tokens(text)
	for i, t := range all[:max(0, len(all)-1)] {
		alias := i > 0 && all[i-1] == ")" || i > 1 && (all[i-2] == ")" || strings.EqualFold(all[i-2], "AS")) // of a table, with its columns
		if all[i+1] == "(" && !alias && word.MatchString(t) && !slices.Contains(syntax, strings.ToLower(t)) {
			found = append(found, t)
		}
	}
	return found
}

// callsQualified: a function without its schema is looked up by the search_path
// and by the types of its arguments. Whoever may make functions in a schema of that path
// makes one that fits better, and it runs with our rights.
func callsQualified(s Statement) []string {
	var details []string
	for _, name := range Calls(s.Text) {
		details = append(details, fmt.Sprintf("%s() is called without its schema; write pg_catalog.%s or onceward.%s", name, name, name))
	}
	return details
}

// keywordTypes are types that the parser itself takes from pg_catalog.
var keywordTypes = strings.Fields("bigint bit boolean integer int interval numeric real smallint timestamp varchar")

// hidden is syntax that looks an operator up by the search_path, and has no form
// in which it could be named.
var hidden = strings.Fields("IN LIKE ILIKE BETWEEN SIMILAR NULLIF DISTINCT")

// comparison tells a hidden word that compares from the same word in SELECT
// DISTINCT, LOCK TABLE … IN … MODE and CREATE TABLE (LIKE …).
func comparison(hidden, before, after string) bool {
	switch hidden {
	case "DISTINCT":
		return strings.EqualFold(before, "IS") || strings.EqualFold(before, "NOT")
	case "IN":
		return after == "("
	case "LIKE":
		return before != "("
	}
	return true
}

// operatorsQualified: likewise, for operators and types, in SQL that runs where the search_path is
// not ours.
func operatorsQualified(s Statement) []string {
	if !s.Open {
		return nil
	}
	var details []string
	var last [3]string // the tokens before, without space
	set, depth := -1, 0
	all := slices.DeleteFunc(tokens(s.Text), func(t string) bool { return strings.TrimSpace(t) == "" })
	for i, t := range all {
		switch upper := strings.ToUpper(t); {
		case t == "(":
			depth++
		case t == ")":
			depth--
		case upper == "SET":
			set = depth
		case set == depth && (upper == "WHERE" || upper == "FROM" || upper == "RETURNING" || t == ";"):
			set = -1
		case t == "=" && set == depth && slices.Contains([]string{"SET", "LOCAL", ","}, strings.ToUpper(last[1])):
		case t == "*" && slices.Contains([]string{"(", "SELECT", "RETURNING"}, strings.ToUpper(last[0])):
		case strings.Trim(t, "-+*/<>=~!@#%^&|") == "":
			details = append(details, fmt.Sprintf("operator %s is used without its schema; write OPERATOR(pg_catalog.%s)", t, t))
		case slices.Contains(hidden, upper) && i+1 < len(all) && comparison(upper, last[0], all[i+1]):
			details = append(details, t+" looks its operator up by the search_path; write it out with OPERATOR(pg_catalog.=)")
		case last[0] == "::" && word.MatchString(t) && !slices.Contains(keywordTypes, strings.ToLower(t)):
			details = append(details, fmt.Sprintf("type %s is named without its schema; write pg_catalog.%s", t, t))
		}
		last = [3]string{t, last[0], last[1]}
	}
	return details
}
