package houserules

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// module is the path of the module of the root; those of the others begin with it.
const module = "github.com/onceward/onceward"

// file is one parsed source file.
type file struct {
	name    string // relative to the root, with slashes
	lines   int
	syntax  *ast.File
	imports map[string]string // import path to the name it has in the file
}

// dir is the file's package, relative to the module; "." is the root.
func (f *file) dir() string { return path.Dir(f.name) }

func (f *file) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

func (f *file) isGenerated() bool { return ast.IsGenerated(f.syntax) }

// in reports whether the file lies in one of the folders, at any depth.
func (f *file) in(dirs ...string) bool { return within(f.dir(), dirs...) }

// within reports whether a folder is one of dirs or below one.
func within(dir string, dirs ...string) bool {
	for _, d := range dirs {
		if dir == d || strings.HasPrefix(dir, d+"/") {
			return true
		}
	}
	return false
}

// internalImports returns the imports of this module's own packages, relative
// to the module.
func (f *file) internalImports() []string {
	var own []string
	for imported := range f.imports {
		if imported == module {
			own = append(own, ".")
		} else if rest, ok := strings.CutPrefix(imported, module+"/"); ok {
			own = append(own, rest)
		}
	}
	return own
}

// readTree parses all Go files below root, but those of a module that go.work does not
// join.
func readTree(root string) ([]*file, error) {
	var files []*file
	modules, err := workspace(root)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("walk the sources: %w", err)
		}
		if entry.IsDir() {
			if name != root && !modules[name] && skipped(name) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		parsed, err := readFile(root, name)
		if err == nil {
			files = append(files, parsed)
		}
		return err
	})
	return files, err
}

// used is a line of go.work that names the folder of a module.
var used = regexp.MustCompile(`(?m)^\t(\.\S*)$`)

// workspace returns the folders of the modules that go.work of root joins.
func workspace(root string) (map[string]bool, error) {
	text, err := os.ReadFile(filepath.Join(root, "go.work")) //nolint:gosec // G304: below the root
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the modules of the workspace: %w", err)
	}
	modules := map[string]bool{}
	for _, line := range used.FindAllStringSubmatch(string(text), -1) {
		modules[filepath.Join(root, filepath.FromSlash(line[1]))] = true
	}
	return modules, nil
}

func skipped(dir string) bool {
	base := filepath.Base(dir)
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return !errors.Is(err, fs.ErrNotExist)
}

func readFile(root, name string) (*file, error) {
	relative, err := filepath.Rel(root, name)
	if err != nil {
		return nil, fmt.Errorf("name %s: %w", name, err)
	}
	positions := token.NewFileSet()
	syntax, err := parser.ParseFile(positions, name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", relative, err)
	}
	f := &file{
		name: filepath.ToSlash(relative), syntax: syntax, imports: map[string]string{},
		lines: positions.File(syntax.Pos()).LineCount(),
	}
	for _, spec := range syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("read the imports of %s: %w", relative, err)
		}
		f.imports[imported] = path.Base(imported)
		if spec.Name != nil {
			f.imports[imported] = spec.Name.Name
		}
	}
	return f, nil
}

// uses reports whether the file names one of the identifiers of an imported
// package, as in sarama.NewConfig, under whatever name it is imported.
func (f *file) uses(imported string, identifiers ...string) (string, bool) {
	local, ok := f.imports[imported]
	if !ok {
		return "", false
	}
	found := ""
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name, ok := selector.X.(*ast.Ident)
		if !ok || name.Name != local {
			return true
		}
		for _, identifier := range identifiers {
			if selector.Sel.Name == identifier {
				found = local + "." + identifier
			}
		}
		return true
	})
	return found, found != ""
}

// builds reports whether the file makes a value of a type of an imported
// package by a literal or new.
func (f *file) builds(imported, typeName string) bool {
	local, ok := f.imports[imported]
	if !ok {
		return false
	}
	isType := func(e ast.Expr) bool {
		selector, ok := e.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		name, ok := selector.X.(*ast.Ident)
		return ok && name.Name == local && selector.Sel.Name == typeName
	}
	found := false
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.CompositeLit:
			found = found || isType(n.Type)
		case *ast.CallExpr:
			callee, ok := n.Fun.(*ast.Ident)
			found = found || ok && callee.Name == "new" && len(n.Args) == 1 && isType(n.Args[0])
		}
		return true
	})
	return found
}
