package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/onceward/onceward/relay"
)

// jsonSchema makes a JSON Schema (draft 2020-12), for editors and for CI.
func jsonSchema(fields []configField) ([]byte, error) {
	root, err := object(fields)
	if err != nil {
		return nil, err
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "relay.yaml"
	text, err := json.MarshalIndent(root, "", "  ")
	return append(text, '\n'), err
}

func object(fields []configField) (map[string]any, error) {
	properties, required := make(map[string]any), []string{}
	for _, f := range fields {
		name := f.path[strings.LastIndex(f.path, ".")+1:]
		p, err := property(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
		properties[name] = p
		if f.required() {
			required = append(required, name)
		}
	}
	o := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		slices.Sort(required)
		o["required"] = required
	}
	return o, nil
}

// required: the key, or one below it. Those below an item of a list are the item's.
func (f configField) required() bool {
	return f.asked.Required || f.kind == "map" && slices.ContainsFunc(f.children, configField.required)
}

func property(f configField) (map[string]any, error) {
	p, err := byKind(f)
	if err != nil {
		return nil, err
	}
	restrict(p, f.kind, f.asked)
	if f.doc != "" {
		p["description"] = f.doc
	}
	if f.fallback != "" {
		p["default"], err = fallback(f)
	}
	return p, err
}

func byKind(f configField) (map[string]any, error) {
	switch f.kind {
	case "map":
		p, err := object(f.children)
		if !f.required() { // all keys below it may be commented out
			p["type"] = []string{"object", "null"}
		}
		return p, err
	case "list":
		items, err := object(f.children)
		return map[string]any{"type": "array", "items": items}, err
	case "list of texts":
		items := map[string]any{"type": "string"}
		restrict(items, "text", f.items)
		return map[string]any{"type": "array", "items": items}, nil
	case "yes or no":
		return map[string]any{"type": "boolean"}, nil
	case "number":
		return map[string]any{"type": "integer"}, nil
	case "size":
		return map[string]any{"type": []string{"string", "integer"}, "pattern": `^[0-9]+ ?([KMG]iB|kB|MB|GB|B)?$`}, nil
	case "duration":
		return map[string]any{"type": "string", "pattern": `^(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`}, nil
	}
	return map[string]any{"type": "string"}, nil
}

// restrict adds what is asked of a value of this kind. The bounds of a duration are not
// among it: no keyword compares texts.
func restrict(p map[string]any, kind string, asked relay.Constraint) {
	switch {
	case asked.Key == "":
	case kind == "list" || kind == "list of texts":
		if asked.Required {
			p["minItems"] = 1
		}
	case kind == "number" || kind == "size":
		p["minimum"] = asked.Min
		if asked.Optional {
			p["minimum"] = 0 // stands for the default
		}
		if asked.Max > 0 {
			p["maximum"] = asked.Max
		}
	case len(asked.OneOf) > 0:
		p["enum"] = asked.OneOf
		if asked.Optional {
			p["enum"] = append(slices.Clone(asked.OneOf), "")
		}
	case asked.Pattern != "":
		p["pattern"] = asked.Pattern
	}
	if kind == "text" && asked.Required {
		p["minLength"] = 1
	}
}

// fallback is the default as JSON has it.
func fallback(f configField) (any, error) {
	switch f.kind {
	case "yes or no":
		return strconv.ParseBool(f.fallback)
	case "number":
		return strconv.Atoi(f.fallback)
	case "size":
		if n, err := strconv.Atoi(f.fallback); err == nil {
			return n, nil
		}
	}
	return f.fallback, nil
}
