package outbox

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// vectors are the golden vectors, which other languages read too.
type vectors struct {
	Derived []struct {
		Namespace string
		AtMS      int64 `json:"at_ms"`
		Parts     []string
		Key       string
	}
	External []struct {
		Namespace    string
		ExternalID   string `json:"external_id"`
		OccurredAtMS int64  `json:"occurred_at_ms"`
		Key          string
	}
	Parse struct {
		NowMS  int64 `json:"now_ms"`
		SkewMS int64 `json:"skew_ms"`
		Good   []string
		Bad    []struct {
			Input string
			Rule  KeyRule
		}
	}
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	text, err := os.ReadFile("testdata/keys.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &v))
	require.NotEmpty(t, v.Derived)
	require.NotEmpty(t, v.External)
	require.NotEmpty(t, v.Parse.Good)
	return v
}

func TestGoldenKeys(t *testing.T) {
	v := readVectors(t)
	for _, c := range v.Derived {
		k, err := DeriveKey(c.Namespace, time.UnixMilli(c.AtMS), c.Parts...)
		require.NoError(t, err, c.Key)
		require.Equal(t, c.Key, k.String())
	}
	for _, c := range v.External {
		k, err := ExternalKey(c.Namespace, c.ExternalID, time.UnixMilli(c.OccurredAtMS))
		require.NoError(t, err, c.Key)
		require.Equal(t, c.Key, k.String())
	}
}

func TestGoldenParses(t *testing.T) {
	v := readVectors(t)
	now, skew := time.UnixMilli(v.Parse.NowMS), time.Duration(v.Parse.SkewMS)*time.Millisecond
	require.Equal(t, DefaultKeySkew, skew)
	for _, input := range v.Parse.Good {
		k, err := ParseKeyAt(input, now, skew)
		require.NoError(t, err, input)
		require.Equal(t, input, k.String())
	}
	seen := map[KeyRule]bool{}
	for _, c := range v.Parse.Bad {
		_, err := ParseKeyAt(c.Input, now, skew)
		var key *KeyError
		require.ErrorAs(t, err, &key, "%q", c.Input)
		require.Equal(t, c.Rule, key.Rule, "%q: %v", c.Input, err)
		seen[c.Rule] = true
	}
	for _, rule := range []KeyRule{RuleSeparator, RuleNamespace, RuleUUID, RuleVariant, RuleVersion, RulePast, RuleFuture} {
		require.True(t, seen[rule], "no bad vector for rule %q", rule)
	}
}

// The contract's words are enough to make the same keys in another language.
func TestGoldenKeysInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("python3 is not installed, which reads the vectors independently of Go: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-B", "testdata/keys.py", "testdata/keys.json")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "vectors checked")
}

func TestDerivedKeysRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		namespace string
		at        time.Time
		parts     []string
		rule      KeyRule
		want      string
	}{
		"namespace":  {"Billing", noon, []string{"a"}, RuleNamespace, "byte 0"},
		"zero time":  {"billing", time.Time{}, []string{"a"}, RulePast, "was it set?"},
		"2014":       {"billing", firstEventTime.Add(-1), []string{"a"}, RulePast, "2014-12-31"},
		"year 10889": {"billing", lastEventTime.Add(time.Millisecond), []string{"a"}, RuleFuture, "48 bits"},
		"no parts":   {"billing", noon, nil, RuleParts, "no part given"},
		"empty part": {"billing", noon, []string{"a", ""}, RuleParts, "part 1 is empty"},
		"binary":     {"billing", noon, []string{"\xff"}, RuleParts, "part 0 is not valid UTF-8"},
	} {
		_, err := DeriveKey(c.namespace, c.at, c.parts...)
		var key *KeyError
		require.ErrorAs(t, err, &key, name)
		require.Equal(t, c.rule, key.Rule, name)
		require.ErrorContains(t, err, c.want, name)
	}
	_, err := ExternalKey("stripe", "", noon)
	require.ErrorContains(t, err, "part 0 is empty")
	_, err = ExternalKey("stripe", "evt_1", time.Time{})
	require.ErrorIs(t, err, ErrKey)
}

// The event time is the given instant to the millisecond, in whatever zone and
// with whatever is below a millisecond.
func TestDerivedKeysCarryTheirTime(t *testing.T) {
	at := time.Date(2026, 11, 21, 13, 0, 0, 123_999_999, time.FixedZone("CET", 3600))
	k, err := DeriveKey("billing", at, "a")
	require.NoError(t, err)
	require.Equal(t, noon.Add(123*time.Millisecond), k.Time())
	same, err := DeriveKey("billing", at.UTC().Truncate(time.Millisecond), "a")
	require.NoError(t, err)
	require.Equal(t, k, same)
}

func genPart() *rapid.Generator[string] {
	return rapid.StringN(1, 8, -1).Filter(func(s string) bool { return s != "" })
}

// A derived key is accepted by the parser, is a function of its arguments, and
// no other arguments give it: neither another grouping of the same bytes into
// parts, nor the other layout, namespace or instant.
func TestDerivedKeysAreOneToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		namespace := rapid.StringMatching(`[a-z][a-z0-9._-]{0,6}`).Draw(t, "namespace")
		at := time.UnixMilli(rapid.Int64Range(firstEventTime.UnixMilli(), noon.UnixMilli()).Draw(t, "ms"))
		parts := rapid.SliceOfN(genPart(), 1, 4).Draw(t, "parts")
		k, err := DeriveKey(namespace, at, parts...)
		require.NoError(t, err)
		parsed, err := ParseKeyAt(k.String(), noon, DefaultKeySkew)
		require.NoError(t, err)
		require.Equal(t, k, parsed)
		require.EqualValues(t, 8, k.UUID().Version())
		require.True(t, k.Time().Equal(at))

		other := rapid.SliceOfN(genPart(), 1, 4).Draw(t, "other parts")
		if rapid.Bool().Draw(t, "same bytes, grouped otherwise") {
			other = []string{strings.Join(parts, "")}
		}
		o, err := DeriveKey(namespace, at, other...)
		require.NoError(t, err)
		require.Equal(t, slices.Equal(parts, other), k == o)

		x, err := ExternalKey(namespace, parts[0], at)
		require.NoError(t, err)
		require.NotEqual(t, k.UUID(), x.UUID(), "the layouts never meet")
		n, err := DeriveKey(namespace+"x", at, parts...)
		require.NoError(t, err)
		require.NotEqual(t, k.UUID(), n.UUID(), "the UUID alone tells namespaces apart: it is the table's primary key")
		l, err := DeriveKey(namespace, at.Add(time.Millisecond), parts...)
		require.NoError(t, err)
		require.NotEqual(t, k.UUID(), l.UUID())
	})
}

func FuzzDeriveKey(f *testing.F) {
	f.Add("billing", int64(1795219200000), "a", "bc", "ab", "c")
	f.Add("a", int64(0), "", "\xff", "x", "y")
	f.Fuzz(func(t *testing.T, namespace string, ms int64, a, b, c, d string) {
		at := time.UnixMilli(ms)
		k, err := DeriveKey(namespace, at, a, b)
		if err != nil {
			require.ErrorIs(t, err, ErrKey)
			return
		}
		back, err := ParseKeyAt(k.String(), noon, NoSkewLimit)
		require.NoError(t, err)
		require.Equal(t, k, back)
		if o, err := DeriveKey(namespace, at, c, d); err == nil {
			require.Equal(t, a == c && b == d, k == o)
		}
	})
}
