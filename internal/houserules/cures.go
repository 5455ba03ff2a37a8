package houserules

import (
	"errors"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Cure is a command that a text of the programs tells somebody to run.
type Cure struct {
	File    string // relative to the root
	Command string // {} stands for what is filled in, "…" for what the reader puts there
	Help    bool   // it stands in the description of a command, and no error leads to it
}

// String is how a list names the cure.
func (c Cure) String() string { return c.File + ": " + c.Command }

// Cures collects the commands that the relay's side prints: those of outboxctl,
// and the SQL of the fields named Cure. What the consumer's side prints is left
// out, and so are tests and what stands in comments.
func Cures(root string) ([]Cure, error) {
	texts, err := printed(root, relays)
	return curesIn(texts), err
}

// ConsumersCures is [Cures] of the consumer's side.
func ConsumersCures(root string) ([]Cure, error) {
	texts, err := printed(root, consumers)
	return curesIn(texts), err
}

func curesIn(texts []printedText) (found []Cure) {
	for _, p := range texts {
		commands := ourCommands(p.text)
		if p.cure {
			commands = append(commands, printedSQL.FindAllString(p.text, -1)...)
		}
		for _, command := range commands {
			c := Cure{File: p.file, Command: command, Help: p.help}
			if !slices.Contains(found, c) {
				found = append(found, c)
			}
		}
	}
	return found
}

// HandWork lists the texts of both sides that tell somebody to change our tables,
// or the slot's position, by SQL of their own: there may be none.
func HandWork(root string) ([]string, error) {
	texts, err := printed(root, relays)
	more, failed := printed(root, consumers)
	var out []string
	for _, p := range append(texts, more...) {
		if (p.cure || !statementBegins.MatchString(p.text)) && handWork.MatchString(p.text) {
			out = append(out, p.file+": "+p.text)
		}
	}
	return out, errors.Join(err, failed)
}

var (
	handWork        = regexp.MustCompile(`\b(UPDATE|DELETE FROM|INSERT INTO|TRUNCATE)( ONLY| TABLE)? onceward\.|\bpg_replication_slot_advance\b`)
	statementBegins = regexp.MustCompile(`^\s*(--|SELECT|INSERT|UPDATE|DELETE|WITH|DECLARE|ALTER|CREATE|DROP|GRANT|REVOKE|LOCK|DO|BEGIN|IF|EXECUTE|FOR|LOOP)\b`)
	printedSQL      = regexp.MustCompile(`\b(ALTER|CREATE|DROP|GRANT|REVOKE|SELECT)\b [^;]*;`)
	filled          = regexp.MustCompile(`%(\[\d+\])?[-+# 0-9.]*[a-zA-Z]|\$0`)
)

// printedText is a string of the sources, what is filled into it being {}.
type printedText struct {
	file, text string
	cure       bool // it is a cure by its name
	help       bool // it describes a command
}

// relaysSide are the folders whose texts are collected.
var relaysSide = []string{
	"cdc", "publisher", "relay", "cmd/relay", "cmd/outboxctl", "internal/operator", "migrations", "outbox", "internal/hostile", "internal/partition", "internal/pgconf",
}

// consumersSide are files of outboxctl, and rooms of what it asks, that serve it.
var consumersSide = regexp.MustCompile(`^cmd/outboxctl/(letters|fences|processed|windows|partitions_claims|audit)|` +
	`^internal/operator/(explain_consumer|audit/|windows/|partitions/claims|letters/group|fences/|claims/)`)

// side is one of the two: its migrations and its files.
type side struct {
	schema string
	has    func(*file) bool
}

var (
	relays    = side{"outbox", func(f *file) bool { return f.in(relaysSide...) && !consumersSide.MatchString(f.name) }}
	consumers = side{"consumer", func(f *file) bool { return f.in("consumer") || consumersSide.MatchString(f.name) }}
)

// printed collects the texts of the files of a side, with what its database says.
func printed(root string, of side) ([]printedText, error) {
	files, err := readTree(root)
	if err != nil {
		return nil, err
	}
	var out []printedText
	for _, f := range files {
		if !f.isTest() && of.has(f) {
			out = append(out, f.printed()...)
		}
	}
	said, err := raised(root, of.schema)
	return append(out, said...), err
}

// printed lists the strings of a file.
func (f *file) printed() (out []printedText) {
	var inside []ast.Node
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		if node == nil {
			inside = inside[:len(inside)-1]
			return true
		}
		if _, imported := node.(*ast.ImportSpec); imported {
			return false
		}
		e, _ := node.(ast.Expr)
		text, ok := literal(e)
		if !ok {
			inside = append(inside, node)
			return true
		}
		p := printedText{file: f.name, text: filled.ReplaceAllString(text, "{}")}
		for _, outer := range inside {
			p.cure = p.cure || named(outer, "cure") || advice(outer)
			p.help = p.help || named(outer, "Description") || named(outer, "Usage")
		}
		out = append(out, p)
		return false
	})
	return out
}

// advice reports whether a node is the field Do of a finding.
func advice(node ast.Node) bool {
	field, ok := node.(*ast.KeyValueExpr)
	if !ok {
		return false
	}
	key, ok := field.Key.(*ast.Ident)
	return ok && key.Name == "Do"
}

// named reports whether a field, a variable or a function has the word in its name.
func named(node ast.Node, word string) bool {
	has := func(e ast.Node) bool {
		name := ""
		switch e := e.(type) {
		case *ast.Ident:
			name = e.Name
		case *ast.SelectorExpr:
			name = e.Sel.Name
		}
		return strings.Contains(strings.ToLower(name), strings.ToLower(word))
	}
	switch node := node.(type) {
	case *ast.KeyValueExpr:
		return has(node.Key)
	case *ast.ValueSpec:
		return has(node.Names[0])
	case *ast.AssignStmt:
		return slices.ContainsFunc(node.Lhs, func(e ast.Expr) bool { return has(e) })
	case *ast.FuncDecl:
		return has(node.Name)
	}
	return false
}

var raisedText = regexp.MustCompile(`(?:RAISE EXCEPTION|HINT =) '((?:[^']|'')*)'`)

// raised lists what functions of a side say.
func raised(root, schema string) ([]printedText, error) {
	names, err := filepath.Glob(filepath.Join(root, "migrations", schema, "*.sql"))
	var out []printedText
	for _, name := range names {
		text, err := os.ReadFile(name) //nolint:gosec // G304: a file of the tree that is checked
		if err != nil {
			return nil, err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		for _, found := range raisedText.FindAllStringSubmatch(up, -1) {
			said := strings.ReplaceAll(strings.ReplaceAll(found[1], "''", "'"), "%", "{}")
			out = append(out, printedText{file: "migrations/" + schema + "/" + path.Base(filepath.ToSlash(name)), text: said})
		}
	}
	return out, err
}

// groups are the commands of outboxctl that have commands below them.
const groups = "migrate|dead|gap|partitions|config|processed|fences|windows|topics"

// alone are those that have none.
const alone = "status|doctor|list|show|replay|adopt|retire|pause|resume|skip|audit|completion"

const argument = `(?: (?:--[a-z-]+(?: (?:"…"|'…'|'?\{\}'?|[A-Z]+\b|outbox\b|consumer\b|copy\b|dump\b|continue\b|from-position\b|gap\b|relay\.yaml\b))?|'?\{\}'?(?::?\{\})?|[A-Z]+\b))*`

var (
	ours   = regexp.MustCompile(`(?:outboxctl |` + "`" + `)((?:(?:` + groups + `) [a-z]+|(?:` + alone + `)\b)` + argument + `)`)
	sequel = regexp.MustCompile(`(?:, or |\(or )(--by [a-z]+ --reason "…"|migrate up --side outbox)`)
)

// ourCommands finds commands of outboxctl in a text, whether its name stands
// before them or not.
func ourCommands(text string) (found []string) {
	last := ""
	for _, m := range ours.FindAllStringSubmatch(text, -1) {
		last = m[1]
		found = append(found, "outboxctl "+last)
	}
	for _, m := range sequel.FindAllStringSubmatch(text, -1) {
		command := m[1]
		if strings.HasPrefix(command, "--") {
			command = strings.Fields(last)[0] + " " + command
		}
		found = append(found, "outboxctl "+command)
	}
	return found
}
