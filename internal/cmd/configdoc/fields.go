package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
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
	asked    relay.Constraint // of the value; of each item of a list of texts: items
	items    relay.Constraint
	children []configField // of a list or map
}

// readFields reads the doc comments of the file and joins them with the types
// and defaults of relay.Config, and with what is asked of its values.
func readFields(path string) ([]configField, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	r := reader{docs: make(map[string]string), asked: make(map[string]relay.Constraint)}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					r.docs[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
				}
			}
		}
		return true
	})
	for _, c := range relay.Constraints() {
		r.asked[c.Key] = c
	}
	return r.describe(reflect.ValueOf(relay.Default()), ""), nil
}

// reader has what is known of a field beside its type.
type reader struct {
	docs  map[string]string // Type.Field → comment
	asked map[string]relay.Constraint
}

func (r *reader) describe(v reflect.Value, prefix string) []configField {
	var out []configField
	keys := keysOf(v.Type())
	for f, value := range v.Fields() {
		c := configField{path: prefix + f.Tag.Get("koanf"), doc: inWordsOfTheFile(r.docs[v.Type().Name()+"."+f.Name], f.Name, keys)}
		c.asked, c.items = r.asked[c.path], r.asked[c.path+"[]"]
		c.kind, c.fallback = kindOf(value)
		switch c.kind {
		case "map":
			c.children = r.describe(value, c.path+".")
		case "list":
			c.children = r.describe(reflect.Zero(value.Type().Elem()), c.path+"[].")
		}
		out = append(out, c)
	}
	return out
}

// keysOf are the keys of the file by the names of the fields.
func keysOf(t reflect.Type) map[string]string {
	keys := make(map[string]string)
	for f := range t.Fields() {
		keys[f.Name] = f.Tag.Get("koanf")
	}
	return keys
}

// A comment that begins with its field's name goes on with a verb; what follows "is" may
// stand for the whole.
var (
	oneWord    = regexp.MustCompile(`^([A-Z][a-z]+|[A-Z]+)$`) // TLS is one, too
	verb       = regexp.MustCompile(`^[a-z]+s$`)
	paraphrase = regexp.MustCompile(`^is (a|the|how|after) `)
)

// inWordsOfTheFile turns a field's comment into what somebody reads who knows the keys
// of the file, and not the names of Go.
func inWordsOfTheFile(doc, field string, keys map[string]string) string {
	first, rest, _ := strings.Cut(doc, " ")
	second, _, _ := strings.Cut(rest, " ")
	switch {
	case first != field:
	case paraphrase.MatchString(rest):
		doc = capital(strings.TrimPrefix(rest, "is "))
	case second == "is" || second == "and":
		doc = "`" + keys[field] + "` " + rest
	case verb.MatchString(second):
		doc = capital(rest)
	case !oneWord.MatchString(field):
		doc = capital(strings.ReplaceAll(keys[field], "_", " ")) + " " + rest
	}
	for name, key := range keys {
		if !oneWord.MatchString(name) {
			doc = regexp.MustCompile(`\b`+name+`\b`).ReplaceAllString(doc, "`"+key+"`")
		}
	}
	return doc
}

func capital(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
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
