package main

import (
	"encoding/json"
	"strings"
)

// jsonSchema makes a JSON Schema (draft 2020-12), for editors and for CI.
func jsonSchema(fields []configField) ([]byte, error) {
	root := object(fields)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "relay.yaml"
	text, err := json.MarshalIndent(root, "", "  ")
	return append(text, '\n'), err
}

func object(fields []configField) map[string]any {
	properties := make(map[string]any)
	for _, f := range fields {
		name := f.path[strings.LastIndex(f.path, ".")+1:]
		properties[name] = property(f)
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

func property(f configField) map[string]any {
	var p map[string]any
	switch f.kind {
	case "map":
		p = object(f.children)
	case "list":
		p = map[string]any{"type": "array", "items": object(f.children)}
	case "list of texts":
		p = map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
	case "yes or no":
		p = map[string]any{"type": "boolean"}
	case "number":
		p = map[string]any{"type": "integer"}
	case "size":
		p = map[string]any{"type": []string{"string", "integer"}, "pattern": `^[0-9]+ ?([KMG]iB|kB|MB|GB|B)?$`}
	case "duration":
		p = map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}
	default:
		p = map[string]any{"type": "string"}
	}
	if f.doc != "" {
		p["description"] = f.doc
	}
	if f.fallback != "" {
		p["default"] = f.fallback
	}
	return p
}
