package jsonschema

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachKeyword(t *testing.T) {
	for _, tc := range []struct {
		schema      string
		fine, wrong []any
	}{
		{`{"type": "string"}`, []any{"", "x"}, []any{1, nil, true, map[string]any{}, []any{}}},
		{`{"type": "integer"}`, []any{1, 2.0, uint8(3)}, []any{1.5, "1", nil}},
		{`{"type": "number"}`, []any{1, 1.5}, []any{"1"}},
		{`{"type": "boolean"}`, []any{false}, []any{"false", 0}},
		{`{"type": ["object", "null"]}`, []any{nil, map[string]any{}}, []any{[]any{}, "x"}},
		{`{"type": "array"}`, []any{[]any{}}, []any{map[string]any{}}},
		{`{"enum": ["a", ""]}`, []any{"a", ""}, []any{"b", nil}},
		{`{"pattern": "^[ab]+$"}`, []any{"ab", 5}, []any{"abc", ""}},
		{`{"minLength": 2}`, []any{"éa", 5}, []any{"é"}},
		{`{"minimum": 1, "maximum": 3}`, []any{1, 3.0, "x"}, []any{0, 4}},
		{`{"required": ["a"]}`, []any{map[string]any{"a": nil}, "x"}, []any{map[string]any{"b": 1}}},
		{`{"minItems": 1, "items": {"type": "string"}}`, []any{[]any{"x"}, 5}, []any{[]any{}, []any{"x", 1}}},
		{`{"properties": {"a": {"type": "string"}}, "additionalProperties": false}`,
			[]any{map[string]any{"a": "x"}, "x"}, []any{map[string]any{"a": 1}, map[string]any{"b": "x"}}},
		{`{"oneOf": []}`, nil, []any{"a keyword that nobody knows refuses all"}},
	} {
		s, err := Parse([]byte(tc.schema))
		require.NoError(t, err)
		for _, value := range tc.fine {
			require.Empty(t, s.Check(value), "%s: %v", tc.schema, value)
		}
		for _, value := range tc.wrong {
			require.Len(t, s.Check(value), 1, "%s: %v", tc.schema, value)
		}
	}
	_, err := Parse([]byte("{"))
	require.Error(t, err)
}

func TestAPathSaysWhere(t *testing.T) {
	s, err := Parse([]byte(`{"properties": {"routes": {"items": {"properties": {"topic": {"type": "string"}}}}}}`))
	require.NoError(t, err)
	found := s.Check(map[string]any{"routes": []any{map[string]any{"topic": "x"}, map[string]any{"topic": 1}}})
	require.Equal(t, []string{"routes[1].topic: 1 is no string"}, found)
}
