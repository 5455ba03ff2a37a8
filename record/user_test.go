package record_test

import (
	"encoding/json"
	"sort"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// userHeaders are those that the headers column of a row becomes.
func userHeaders(text []byte) ([]pair, error) {
	of := row("order-1", "{}")
	bare, err := record.AppendHeaders([]pair(nil), record.Copy{Row: of}, record.StyleOnceward)
	if err != nil {
		return nil, err
	}
	of.Headers = append([]byte{}, text...) // never nil, which means none
	all, err := record.AppendHeaders([]pair(nil), record.Copy{Row: of}, record.StyleOnceward)
	return all[min(len(bare), len(all)):], err
}

func TestHeadersThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                                 `at $: want an object of strings, found nothing`,
		`null`:                             `at $: want an object of strings, found null`,
		`"x"`:                              `found a string`,
		`[{"a":"b"}]`:                      `found an array`,
		`true`:                             `found a boolean`,
		`-1`:                               `found a number`,
		`{"a":1}`:                          `at $["a"]: want a string, found a number`,
		`{"a":null}`:                       `at $["a"]: want a string, found null`,
		`{"ok":"x","b.c":{"d":"e"}}`:       `at $["b.c"]: want a string, found an object`,
		`{"a":["b"]}`:                      `at $["a"]: want a string, found an array`,
		`{"a":false}`:                      `at $["a"]: want a string, found a boolean`,
		`{"":"x"}`:                         `needs a name`,
		`{"idempotency-key":"x"}`:          `at $["idempotency-key"]: reserved`,
		"{\"`drop`\":1}":                   `at $["'drop'"]: want a string`,
		`{"ce_id":"x"}`:                    `reserved`,
		`{"ce\u005fid":"x"}`:               `reserved`,
		`{"a":"1","b":"2","a":"3"}`:        `at $["a"]: this name appears twice`,
		`{"a":"b"} x`:                      `text after the end`,
		`{"a" "b"}`:                        `no colon`,
		`{"a":"b",}`:                       `malformed name`,
		`{"a":"b" "c":"d"}`:                `want a comma`,
		`{"a":"b`:                          `malformed string`,
		`{"a":"\x"}`:                       `malformed string`,
		"{\"a\":\"line\nbreak\"}":          `malformed string`,
		"{\"a\":\"\xff\"}":                 `malformed string`,
		"{\"a\":\"\\n\xff\"}":              `malformed string`,
		`{` + strings.Repeat(`{"a":`, 100): `malformed name`,
	} {
		_, err := userHeaders([]byte(text))
		var row *record.RowError
		require.ErrorAs(t, err, &row, text)
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, "headers at $", text)
	}
}

func TestHeadersAreSortedByName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(
			rapid.StringN(1, 20, -1).Filter(func(s string) bool { return !outbox.ReservedHeader(s) && utf8.ValidString(s) }),
			rapid.String(),
		).Draw(t, "headers")
		text, err := json.Marshal(want)
		require.NoError(t, err)
		got, err := userHeaders(text)
		require.NoError(t, err)
		require.Len(t, got, len(want))
		require.True(t, sort.SliceIsSorted(got, func(i, j int) bool { return string(got[i].Key) < string(got[j].Key) }))
		for _, h := range got {
			require.Equal(t, want[string(h.Key)], string(h.Value))
		}
	})
}

// What is accepted is what encoding/json reads as an object of strings.
func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{`{}`, ` { "a" : "b" , "c":"\u00e9\ud83d\ude00" } `, `{"a":1}`, `{"a":"b"}}`, `{"\"":"\\"}`, `{"a":"\ud800"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := userHeaders(text)
		var want map[string]*string
		jsonErr := json.Unmarshal(text, &want)
		if err != nil {
			var row *record.RowError
			require.ErrorAs(t, err, &row)
			return
		}
		require.NoError(t, jsonErr)
		require.Len(t, got, len(want))
		for _, h := range got {
			require.NotNil(t, want[string(h.Key)])
			require.Equal(t, *want[string(h.Key)], string(h.Value))
		}
	})
}
