// Package jsonschema compares documents with a JSON Schema, for the tests of
// docs/relay.schema.json. It knows the keywords that this schema uses, and refuses to
// judge by one that it does not know.
//
// It is pure.
package jsonschema

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"unicode/utf8"
)

// Schema is a schema, or a part of one.
type Schema map[string]any

// Parse reads a schema.
func Parse(text []byte) (Schema, error) {
	var s Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("parse schema: %w", err)
	}
	return s, nil
}

// Check returns what the schema has against a value of maps, lists and scalars, as a
// parser of YAML or JSON makes them. Each line begins with the path of what is wrong.
func (s Schema) Check(value any) []string {
	c := new(checker)
	c.check(s, value, "")
	return c.found
}

type checker struct{ found []string }

func (c *checker) wrong(path, format string, args ...any) {
	c.found = append(c.found, path+": "+fmt.Sprintf(format, args...))
}

func (c *checker) check(s Schema, value any, path string) {
	for _, keyword := range slices.Sorted(maps.Keys(s)) {
		want := s[keyword]
		switch keyword {
		case "$schema", "$id", "title", "description", "default", "properties", "additionalProperties":
		case "type":
			c.kind(want, value, path)
		case "enum":
			if !slices.ContainsFunc(want.([]any), func(one any) bool { return reflect.DeepEqual(one, value) }) { //nolint:errcheck,forcetypeassert // a broken schema panics, in a test
				c.wrong(path, "%v is none of %v", value, want)
			}
		case "required", "minItems", "items":
			c.structure(keyword, want, value, path)
		case "pattern", "minLength":
			c.text(keyword, want, value, path)
		case "minimum", "maximum":
			n, limit := number(value), number(want)
			if keyword == "minimum" && n < limit || keyword == "maximum" && n > limit { // NaN is neither
				c.wrong(path, "%v: the %s is %v", value, keyword, want)
			}
		default:
			c.wrong(path, "the schema has a keyword that is not known here: %s", keyword)
		}
	}
	c.properties(s, value, path)
}

// kind checks the type; several stand in a list.
func (c *checker) kind(want, value any, path string) {
	kinds, several := want.([]any)
	if !several {
		kinds = []any{want}
	}
	if !slices.ContainsFunc(kinds, func(k any) bool { return isKind(k, value) }) {
		c.wrong(path, "%v is no %v", value, want)
	}
}

func isKind(kind, value any) bool {
	switch value.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case string:
		return kind == "string"
	case map[string]any:
		return kind == "object"
	case []any:
		return kind == "array"
	}
	n := number(value)
	return kind == "number" || kind == "integer" && n == math.Trunc(n)
}

// number is NaN for what is none.
func number(value any) float64 {
	v := reflect.ValueOf(value)
	switch {
	case !v.IsValid():
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	}
	return math.NaN()
}

// structure checks what a map must have, and a list.
func (c *checker) structure(keyword string, want, value any, path string) {
	object, isObject := value.(map[string]any)
	list, isList := value.([]any)
	switch {
	case keyword == "required" && isObject:
		for _, key := range want.([]any) { //nolint:errcheck,forcetypeassert // a broken schema panics, in a test
			if _, ok := object[key.(string)]; !ok { //nolint:errcheck,forcetypeassert // as above
				c.wrong(path, "%s is missing", key)
			}
		}
	case keyword == "minItems" && isList && float64(len(list)) < number(want):
		c.wrong(path, "has %d items, want %v", len(list), want)
	case keyword == "items":
		for i, item := range list {
			c.check(want.(map[string]any), item, fmt.Sprintf("%s[%d]", path, i)) //nolint:errcheck,forcetypeassert // as above
		}
	}
}

// text checks a string; other kinds are fine.
func (c *checker) text(keyword string, want, value any, path string) {
	text, ok := value.(string)
	switch {
	case !ok:
	case keyword == "minLength":
		if float64(utf8.RuneCountInString(text)) < number(want) {
			c.wrong(path, "%q is too short", text)
		}
	case !regexp.MustCompile(want.(string)).MatchString(text): //nolint:errcheck,forcetypeassert // a broken schema panics, in a test
		c.wrong(path, "%q does not match %s", text, want)
	}
}

func (c *checker) properties(s Schema, value any, path string) {
	object, ok := value.(map[string]any)
	if !ok {
		return
	}
	known, _ := s["properties"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		below := key
		if path != "" {
			below = path + "." + key
		}
		if property, ok := known[key].(map[string]any); ok {
			c.check(property, object[key], below)
		} else if s["additionalProperties"] == false {
			c.wrong(below, "is not a key")
		}
	}
}
