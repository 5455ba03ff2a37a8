package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"time"

	"github.com/onceward/onceward/relay"
)

// configField is one key of relay.yaml.
type configField struct {
	path     string // e.g. kafka.tls.ca_file; [] stands for the items of a list
	kind     string // text, size, duration, number, yes or no, list of texts, list, map
	fallback string // the default, as one would write it
	doc      string
	children []configField // of a list or map
}

// readFields reads the doc comments of the file and joins them with the types
// and defaults of relay.Config.
func readFields(path string) ([]configField, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	docs := make(map[string]string) // Type.Field → comment
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					docs[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
				}
			}
		}
		return true
	})
	return describe(reflect.ValueOf(relay.Default()), "", docs), nil
}

func describe(v reflect.Value, prefix string, docs map[string]string) []configField {
	var out []configField
	for f, value := range v.Fields() {
		c := configField{path: prefix + f.Tag.Get("koanf"), doc: docs[v.Type().Name()+"."+f.Name]}
		c.kind, c.fallback = kindOf(value)
		switch c.kind {
		case "map":
			c.children = describe(value, c.path+".", docs)
		case "list":
			c.children = describe(reflect.Zero(value.Type().Elem()), c.path+"[].", docs)
		}
		out = append(out, c)
	}
	return out
}

// kindOf says what a value is and what it is by default.
func kindOf(v reflect.Value) (kind, fallback string) {
	switch x := v.Interface().(type) {
	case time.Duration:
		return "duration", unlessZero(x != 0, x.String())
	case relay.Bytes:
		return "size", unlessZero(x != 0, sizeText(int64(x)))
	case string:
		return "text", x
	case bool:
		return "yes or no", fmt.Sprint(x)
	case int:
		return "number", unlessZero(x != 0, fmt.Sprint(x))
	case []string:
		return "list of texts", ""
	}
	if v.Kind() == reflect.Slice {
		return "list", ""
	}
	return "map", ""
}

func unlessZero(set bool, text string) string {
	if !set {
		return ""
	}
	return text
}

func sizeText(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%dMiB", n>>20)
	}
	return fmt.Sprint(n)
}
