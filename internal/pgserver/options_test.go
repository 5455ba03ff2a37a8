package pgserver

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestOptionsThatAreRefusedNameFieldAndValue(t *testing.T) {
	for name, c := range map[string]struct {
		opts Options
		want string
	}{
		"not a number":         {Options{Version: "new"}, `Version is "new"`},
		"minor version":        {Options{Version: "15.3"}, `Version is "15.3"`},
		"too old":              {Options{Version: "14"}, `Version is "14"`},
		"reserved setting":     {Options{Settings: map[string]string{"port": "5432"}}, `Settings["port"] is "5432"`},
		"not a setting":        {Options{Settings: map[string]string{"fsync = off #": "x"}}, `Settings["fsync = off #"]`},
		"two lines in a value": {Options{Settings: map[string]string{"timezone": "UTC\nport = 1"}}, `Settings["timezone"]`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Start(t.Context(), c.opts)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestConfigurationPutsSettingsOnTopOfDefaults(t *testing.T) {
	text := configuration(map[string]string{"fsync": "on", "my.note": `it's a \ sign`}, 5999)
	lines := strings.Split(text, "\n")
	require.Contains(t, lines, "fsync = 'on'")
	require.Contains(t, lines, "wal_level = 'logical'")
	require.Contains(t, lines, "port = '5999'")
	require.Contains(t, lines, `my.note = 'it''s a \\ sign'`)
	require.NotContains(t, text, "fsync = 'off'")
}

// A value, whatever it holds, stays inside its quotes: no value can set another
// setting.
func TestNoValueLeavesItsQuotes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`[a-z'\\ =#]{0,20}`).Draw(t, "value")
		line := ""
		for l := range strings.SplitSeq(configuration(map[string]string{"a": value}, 1), "\n") {
			if rest, ok := strings.CutPrefix(l, "a = "); ok {
				line = rest
			}
		}
		require.Equal(t, value, unquote(t, line))
	})
}

// unquote reads a quoted value as PostgreSQL's GUC_scanstr does, as far as our
// values go.
func unquote(t require.TestingT, s string) string {
	require.True(t, len(s) >= 2 && s[0] == '\'' && s[len(s)-1] == '\'', "%q has no quotes", s)
	inner, out := s[1:len(s)-1], strings.Builder{}
	for i := 0; i < len(inner); i++ {
		if inner[i] == '\'' || inner[i] == '\\' {
			require.Less(t, i+1, len(inner), "%q ends in an escape", s)
			require.Equal(t, inner[i], inner[i+1], "%q has a lone escape", s)
			i++
		}
		out.WriteByte(inner[i])
	}
	return out.String()
}
