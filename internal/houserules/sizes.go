package houserules

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
)

// size is how large something is: the methods of a receiver and the files that they
// are in, or the files of a package and their lines. Tests and generated code do not count.
type size struct{ methods, files, lines int }

// within reports whether nothing of it is more than of another.
func (s size) within(most size) bool {
	return s.methods <= most.methods && s.files <= most.files && s.lines <= most.lines
}

// String names what there is of it.
func (s size) String() string {
	if s.lines == 0 {
		return fmt.Sprintf("%d methods in %d files", s.methods, s.files)
	}
	return fmt.Sprintf("%d files, %d lines", s.files, s.lines)
}

// The most that one noun may be.
var (
	maxReceiver = size{methods: 25, files: 4}
	maxPackage  = size{files: 25, lines: 4500}
)

// thing is a package, or a receiver of one.
type thing struct{ dir, receiver string }

func (t thing) String() string { return strings.TrimSuffix(path.Base(t.dir)+"."+t.receiver, ".") }

func (t thing) most() size {
	if t.receiver == "" {
		return maxPackage
	}
	return maxReceiver
}

// large are the exceptions, each with the size that it may not exceed, and why it is
// one.
var large = map[thing]size{
	// One file a command, each flat: flags, one call of internal/operator, and the printing.
	{"cmd/outboxctl", ""}: {files: 53, lines: 5050},
	// An event's one path reads claims, window, fence and letter of one delivery: what would
	// cross a wall was measured, and stands in its doc.go. A handler without a claim (ADR 30) is
	// a branch of that path, and what a letter says of an event that is known by its content
	// (Class.Content) is one of each of its parts.
	{"consumer", ""}: {files: 34, lines: 6731},
	// What begins at a rebalance ends with it.
	{"consumer/saramagroup", "member"}: {methods: 27, files: 4},
	// The exported commands of a migration, and of the rights, which have two fields.
	{"migrations", "Migrator"}: {methods: 44, files: 9},
	{"migrations", "Roles"}:    {methods: 36, files: 3},
	// Any cut that was measured crosses 20 to 30 names.
	{"publisher", ""}:              {files: 30, lines: 4783},
	{"publisher", "Transactional"}: {methods: 28, files: 7},
	// One beginning of a session, which is over when the stream begins.
	{"relay/internal/beginning", "Beginner"}: {methods: 34, files: 6},
}

// sizes: a package is one room, and a receiver one noun in it. What is an exception may
// become smaller, never larger.
func sizes(files []*file, exceptions map[thing]size) (found []Violation) {
	for t, is := range measure(files) {
		most, ok := exceptions[t]
		switch {
		case is.within(t.most()):
		case !ok:
			found = append(found, Violation{"size", t.dir, fmt.Sprintf("%s: %s, at most %s are allowed; it holds more than one noun", t, is, t.most())})
		case !is.within(most):
			found = append(found, Violation{"size", t.dir, fmt.Sprintf("%s: %s, and was %s when it became an exception; it may not grow", t, is, most)})
		}
	}
	return found
}

// Small lists the exceptions from the sizes of packages and receivers that are none any
// more: what they name is gone, or is as small as anything has to be.
func Small(root string) (names []string, err error) {
	files, err := readTree(root)
	there := measure(files)
	for t := range large {
		if there[t].within(t.most()) {
			names = append(names, t.String())
		}
	}
	slices.Sort(names)
	return names, err
}

// measure returns the sizes of all packages and receivers.
func measure(files []*file) map[thing]size {
	there := make(map[thing]size)
	for _, f := range files {
		if f.isTest() || f.isGenerated() {
			continue
		}
		room := there[thing{dir: f.dir()}]
		there[thing{dir: f.dir()}] = size{files: room.files + 1, lines: room.lines + f.lines}
		methods := make(map[thing]int)
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods[thing{f.dir(), receiver(fn.Recv.List[0].Type)}]++
			}
		}
		for t := range maps.Keys(methods) {
			there[t] = size{methods: there[t].methods + methods[t], files: there[t].files + 1}
		}
	}
	return there
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}
