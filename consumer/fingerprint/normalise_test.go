package fingerprint_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/fingerprint"
	"github.com/onceward/onceward/record"
)

func source(t require.TestingT, form fingerprint.Form, fields ...string) *fingerprint.Source {
	s, err := fingerprint.New(fingerprint.Config{Namespace: "meters", Type: "Read", Fields: fields, Unicode: form})
	require.NoError(t, err)
	return s
}

func event(t require.TestingT, s *fingerprint.Source, message string) record.Event {
	ev, err := s.Event("", []byte(message))
	require.NoError(t, err, "%s", message)
	return ev
}

// TestNormalForm: what counts as the same, and what does not.
func TestNormalForm(t *testing.T) {
	for _, tc := range []struct{ message, want string }{
		{` {"b":1.0,"a":" x "} `, `{"a":"x","b":1}`}, {`"\u00e9"`, `"é"`}, {`"<&>\u2028."`, `"<&>\u2028."`}, {`[2,1,null,true,{}]`, `[2,1,null,true,{}]`},
		{`-0.0`, `0`}, {`0e99999999999`, `0`}, {`1e2`, `100`}, {`1000e-3`, `1`}, {`-1.50`, `-1.5`}, {`0.10`, `0.1`}, {`0.0000012`, `0.0000012`}, {`1.2E-6`, `0.0000012`}, {`12e-8`, `12e-8`}, {`1e21`, `1e21`}, {`1e+20`, `100000000000000000000`},
		{`1.00000000000000000000000001`, `1.00000000000000000000000001`}, {`9007199254740993`, `9007199254740993`}, {`1e400`, `1e400`}, {`"\ud83d\ude00 \\ud800"`, `"😀 \\ud800"`},
	} {
		require.Equal(t, tc.want, string(event(t, source(t, fingerprint.AsWritten), tc.message).Payload), tc.message)
	}
	composed, apart := `{"caf\u00e9":"\u00e9"}`, `{"cafe\u0301":"e\u0301"}`
	require.NotEqual(t, event(t, source(t, fingerprint.AsWritten), composed).Key, event(t, source(t, fingerprint.AsWritten), apart).Key)
	require.Equal(t, event(t, source(t, fingerprint.NFC), composed), event(t, source(t, fingerprint.NFC), apart))
	require.NotEqual(t, event(t, source(t, fingerprint.NFC), `"ﬁ"`).Key, event(t, source(t, fingerprint.NFC), `"fi"`).Key)
	require.Equal(t, event(t, source(t, fingerprint.NFKC), `"ﬁ"`), event(t, source(t, fingerprint.NFKC), `"fi"`))
}

// TestNoFingerprint: what readers of JSON understand in several ways is an error.
func TestNoFingerprint(t *testing.T) {
	for message, want := range map[string]string{
		``: "not one value", `{} {}`: "not one value", `{"a":1,}`: "not one value", `[1`: "not one value", `01`: "not one value", `NaN`: "not one value",
		`{"a":1,"a":1}`: `name "a" twice`, `[{"b":{"a":1,"\u0061":2}}]`: `name "a" twice`, "\"\xff\"": "not UTF-8", `"\ud800"`: `\ud800, half`, `"\ud83d\u0041"`: `\ud83d, half`, `"\uDE00"`: `\uDE00, half`, `1e99999999999`: "too large", `-1e-9999999999999999999999`: "too large or too small",
	} {
		_, err := source(t, fingerprint.AsWritten).Event("", []byte(message))
		require.ErrorIs(t, err, consumer.ErrEvent)
		require.ErrorContains(t, err, want, message)
	}
	_, err := source(t, fingerprint.NFC).Event("", []byte(`{"\u00e9":1,"e\u0301":1}`))
	require.ErrorContains(t, err, "twice", "under the form they are one")
}

// TestFields: what is not chosen counts for nothing, what is chosen has to be there.
func TestFields(t *testing.T) {
	s := source(t, fingerprint.AsWritten, "/meter", "/reading/value", "/reading", "/a~1b/~0c")
	first := event(t, s, `{"meter":"m-1","reading":{"value":20.50,"unit":"C"},"sent":1,"a/b":{"~c":null,"d":1}}`)
	require.True(t, bytes.Equal([]byte(`{"a/b":{"~c":null},"meter":"m-1","reading":{"unit":"C","value":20.5}}`), first.Payload), "%s", first.Payload)
	require.Equal(t, first, event(t, s, `{"sent":2,"a/b":{"~c":null},"reading":{"unit":"C ","value":205e-1},"meter":"m-1"}`))
	require.NotEqual(t, first.Key, event(t, s, `{"sent":1,"a/b":{"~c":null},"reading":{"unit":"F","value":20.5},"meter":"m-1"}`).Key)
	for message, missing := range map[string]string{`{"reading":{"value":1},"a/b":{"~c":1}}`: "/meter", `{"meter":1,"reading":[1],"a/b":{"~c":1}}`: "/reading/value", `[]`: "/meter", `{"meter":1,"reading":{"value":1},"a/b":2}`: "/a~1b/~0c"} {
		_, err := s.Event("", []byte(message))
		require.ErrorContains(t, err, "the field "+missing+" is not there")
	}
	other, err := s.Event("line-2", []byte(`{"meter":"m-1","reading":{"value":20.50,"unit":"C"},"a/b":{"~c":null}}`))
	require.NoError(t, err)
	require.NotEqual(t, first.Key, other.Key, "the aggregate counts")
	same, mine, err := s.Read(record.Record{Key: []byte("line-2"), Value: []byte(`{"meter":"m-1","reading":{"value":20.50,"unit":"C"},"a/b":{"~c":null}}`)})
	require.NoError(t, err)
	require.True(t, mine)
	require.Equal(t, other, same)
	require.True(t, record.Timeless(same.Key), "so that only a class by arrival takes it")
	classes, err := consumer.CheckClasses([]consumer.Class{fingerprint.Window("Read", time.Minute)})
	require.NoError(t, err)
	require.True(t, classes[0].Content, "so that nothing outlives it")
}

func TestConfig(t *testing.T) {
	good := fingerprint.Config{Namespace: "meters", Type: "Read"}
	for want, change := range map[string]func(*fingerprint.Config){
		"Namespace": func(c *fingerprint.Config) { c.Namespace = "Meters!" }, "Type": func(c *fingerprint.Config) { c.Type = "" }, "Fields[1]": func(c *fingerprint.Config) { c.Fields = []string{"/a", "b"} }, "Fields[0]": func(c *fingerprint.Config) { c.Fields = []string{"/a~2"} }, "Unicode": func(c *fingerprint.Config) { c.Unicode = "NFD" },
	} {
		cfg := good
		change(&cfg)
		_, err := fingerprint.New(cfg)
		require.ErrorContains(t, err, "config: "+want)
	}
}

// decimal is a number of a test, which can be written in several ways.
type decimal struct {
	digits int64
	shift  int
}

// plain is what a value is, in a form that shares nothing with the normaliser: numbers as
// fractions, strings without white space at their ends.
func plain(v any) any {
	switch v := v.(type) {
	case decimal:
		ten := new(big.Rat).SetFrac(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(v.shift, -v.shift))), nil), big.NewInt(1))
		if v.shift < 0 {
			ten.Inv(ten)
		}
		return "number " + ten.Mul(ten, new(big.Rat).SetInt64(v.digits)).RatString()
	case string:
		return "string " + strings.TrimSpace(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any)
		for name, member := range v {
			out[name] = plain(member)
		}
		return out
	}
	return v
}

// values are few and alike, so that two of them are often the same.
func values(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.Custom(func(t *rapid.T) any {
			return decimal{rapid.Int64Range(-12, 12).Draw(t, "digits"), rapid.IntRange(-25, 25).Draw(t, "shift")}
		}),
		rapid.Custom(func(t *rapid.T) any { return decimal{rapid.Int64().Draw(t, "digits"), 0} }),
		rapid.SampledFrom([]any{nil, true, false, "", " ", "a", " a", "a\u00a0", "1", "null", "é", "<", "\ufffd", "\x01", `\`, "\u2028"}),
		rapid.Custom(func(t *rapid.T) any { return rapid.String().Draw(t, "text") }),
	}
	if depth == 0 {
		return rapid.OneOf(leaves...)
	}
	return rapid.OneOf(append(leaves,
		rapid.Custom(func(t *rapid.T) any { return rapid.SliceOfN(values(depth-1), 0, 3).Draw(t, "list") }),
		rapid.Custom(func(t *rapid.T) any {
			return rapid.MapOfN(rapid.OneOf(rapid.SampledFrom([]string{"a", "b", " a", ""}), rapid.String()), values(depth-1), 0, 4).Draw(t, "object")
		}))...)
}

// spelled writes a value in one of many ways.
func spelled(t *rapid.T, v any) string {
	blank := func() string { return rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(t, "blank") }
	var text string
	switch v := v.(type) {
	case decimal:
		zeros := rapid.IntRange(0, 3).Draw(t, "zeros")
		text = fmt.Sprint(v.digits)
		if rapid.Bool().Draw(t, "point") {
			text += "." + strings.Repeat("0", zeros)
			if zeros == 0 {
				text += "0"
			}
		}
		if v.shift != 0 || rapid.Bool().Draw(t, "exponent") {
			text += rapid.SampledFrom([]string{"e", "E"}).Draw(t, "letter") + fmt.Sprint(v.shift)
		}
	case []any:
		var parts []string
		for _, member := range v {
			parts = append(parts, spelled(t, member))
		}
		text = "[" + blank() + strings.Join(parts, ",") + "]"
	case map[string]any:
		var parts []string
		for name := range v {
			parts = append(parts, name)
		}
		slices.Sort(parts)
		parts = rapid.Permutation(parts).Draw(t, "order")
		for i, name := range parts {
			parts[i] = spelled(t, name) + ":" + spelled(t, v[name])
		}
		text = "{" + blank() + strings.Join(parts, ",") + "}"
	case string:
		quoted, err := json.Marshal(v)
		require.NoError(t, err)
		if text = string(quoted); rapid.Bool().Draw(t, "escaped") && !strings.Contains(text, `\`) {
			text = strings.ReplaceAll(strings.ReplaceAll(text, "a", `\u0061`), "é", `\u00E9`)
		}
	default:
		quoted, err := json.Marshal(v)
		require.NoError(t, err)
		text = string(quoted)
	}
	return blank() + text + blank()
}

// TestNormaliser: two messages have one normal form, and one key, if and only if they
// say the same, however they are written; and the normal form is its own.
func TestNormaliser(t *testing.T) {
	forms := []fingerprint.Form{fingerprint.AsWritten, fingerprint.NFC, fingerprint.NFKC}
	rapid.Check(t, func(t *rapid.T) {
		s := source(t, fingerprint.AsWritten)
		a, b := values(2).Draw(t, "a"), values(2).Draw(t, "b")
		first, again, other := event(t, s, spelled(t, a)), event(t, s, spelled(t, a)), event(t, s, spelled(t, b))
		require.Equal(t, first, again, "spelled otherwise")
		same := reflect.DeepEqual(plain(a), plain(b))
		require.Equal(t, same, bytes.Equal(first.Payload, other.Payload), "%s and %s", first.Payload, other.Payload)
		require.Equal(t, same, first.Key == other.Key)
		for _, form := range forms {
			s := source(t, form)
			once, err := s.Event("", []byte(spelled(t, a)))
			if err != nil { // names that are one under the form
				require.ErrorContains(t, err, "twice")
				continue
			}
			require.True(t, json.Valid(once.Payload))
			require.Equal(t, once, event(t, s, string(once.Payload)), "idempotent")
		}
	})
}

// FuzzNormaliser: whatever has a normal form, that is JSON, and its own.
func FuzzNormaliser(f *testing.F) {
	for _, seed := range []string{`{"b":[1.0,"\ud83d\ude00"],"a":null}`, `1e-7`, `-0`, `"\\ud800"`, `{"e\u0301":" x"}`, `"\u2000 \u00b4"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		for _, form := range []fingerprint.Form{fingerprint.AsWritten, fingerprint.NFC, fingerprint.NFKC} {
			s := source(t, form)
			ev, err := s.Event("", message)
			if err != nil {
				continue
			}
			require.True(t, json.Valid(ev.Payload))
			again, err := s.Event("", ev.Payload)
			require.NoError(t, err)
			require.Equal(t, ev, again)
		}
	})
}
