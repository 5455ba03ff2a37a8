package outbox

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestNewKeyParsesBack(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	k, err := NewKey("payments")
	require.NoError(t, err)
	require.Equal(t, "payments", k.Namespace())
	require.EqualValues(t, 7, k.UUID().Version())
	require.False(t, k.Time().Before(before))
	require.False(t, k.IsZero())
	back, err := ParseKey(k.String())
	require.NoError(t, err)
	require.Equal(t, k, back)
}

func TestNewKeyRefusesABadNamespace(t *testing.T) {
	for _, namespace := range []string{"", "Payments", "9lives", "-a", "a b", "a:b", "ä", strings.Repeat("a", 64)} {
		_, err := NewKey(namespace)
		var key *KeyError
		require.ErrorAs(t, err, &key, namespace)
		require.Equal(t, RuleNamespace, key.Rule, namespace)
	}
	for _, namespace := range []string{"a", "a9", "a.b_c-d", strings.Repeat("a", 63)} {
		_, err := NewKey(namespace)
		require.NoError(t, err, namespace)
	}
}

func TestParseKeyNamesTheRule(t *testing.T) {
	at := func(d time.Duration) string { return keyAt(noon.Add(d), 7).String() }
	for input, rule := range map[string]KeyRule{
		"":                                      RuleSeparator,
		"payments":                              RuleSeparator,
		":0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a": RuleNamespace,
		"Pay:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a": RuleNamespace,
		"pay:": RuleUUID,
		"pay:0199F3C4-7B1E-7C3A-9A51-3F0C2D1E4B5A":           RuleUUID,
		"pay:{0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a}":         RuleUUID,
		"pay:urn:uuid:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a":  RuleUUID,
		"pay:0199f3c47b1e7c3a9a513f0c2d1e4b5a":               RuleUUID,
		"pay:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5g":           RuleUUID,
		"pay:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a ":          RuleUUID,
		"pay:0199f3c4-7b1e-7c3a-1a51-3f0c2d1e4b5a":           RuleVariant,
		"pay:0199f3c4-7b1e-7c3a-da51-3f0c2d1e4b5a":           RuleVariant,
		"pay:0199f3c4-7b1e-4c3a-9a51-3f0c2d1e4b5a":           RuleVersion,
		"pay:00000000-0000-7000-8000-000000000000":           RulePast,
		"pay:00006955-7b1e-7c3a-9a51-3f0c2d1e4b5a":           RulePast, // seconds taken for milliseconds
		at(DefaultKeySkew + time.Millisecond):                RuleFuture,
		"pay:ffffffff-ffff-7fff-bfff-ffffffffffff":           RuleFuture,
		"pay:00000000-0000-0000-0000-000000000000":           RuleVariant,
		strings.Repeat("x", 200) + ":":                       RuleNamespace,
		"pay:0199f3c4_7b1e_7c3a_9a51_3f0c2d1e4b5a":           RuleUUID,
		"pay:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a:something": RuleUUID,
	} {
		_, err := ParseKeyAt(input, noon, DefaultKeySkew)
		var key *KeyError
		require.ErrorAs(t, err, &key, input)
		require.ErrorIs(t, err, ErrKey)
		require.Equal(t, rule, key.Rule, "%s: %v", input, err)
		require.LessOrEqual(t, len(key.Input), 120)
	}
	for _, input := range []string{at(0), at(DefaultKeySkew), at(-10 * 365 * 24 * time.Hour), keyAt(noon, 8).String()} {
		_, err := ParseKeyAt(input, noon, DefaultKeySkew)
		require.NoError(t, err, input)
	}
}

func TestNoSkewLimitAcceptsTheFuture(t *testing.T) {
	k := keyAt(noon.AddDate(900, 0, 0), 7)
	parsed, err := ParseKeyAt(k.String(), noon, NoSkewLimit)
	require.NoError(t, err)
	require.Equal(t, k, parsed)
}

func TestKeyFromChecksLikeParse(t *testing.T) {
	k := keyAt(noon, 7)
	back, err := KeyFrom(k.Namespace(), k.UUID(), noon, DefaultKeySkew)
	require.NoError(t, err)
	require.Equal(t, k, back)
	_, err = KeyFrom("Bad", k.UUID(), noon, DefaultKeySkew)
	require.ErrorIs(t, err, ErrKey)
	_, err = KeyFrom("good", uuid.New(), noon, DefaultKeySkew)
	require.ErrorContains(t, err, "version 4")
}

func TestKeyInJSON(t *testing.T) {
	k, err := NewKey("pay")
	require.NoError(t, err)
	text, err := json.Marshal(map[string]Key{"key": k})
	require.NoError(t, err)
	require.JSONEq(t, `{"key":"`+k.String()+`"}`, string(text))
	var back map[string]Key
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, k, back["key"])
	require.Error(t, json.Unmarshal([]byte(`{"key":"nonsense"}`), &back))
}

// Time and FirstID agree with PostgreSQL's order of UUIDs, which is that of
// their bytes: a key is at or after the bound of its time, and before the next.
func TestFirstIDBoundsTheKeysOfItsTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Int64Range(firstEventTime.UnixMilli(), 1<<48-2).Draw(t, "ms")
		at := time.UnixMilli(ms)
		k := keyAt(at, byte(rapid.IntRange(7, 8).Draw(t, "version")))
		low, high := FirstID(at), FirstID(at.Add(time.Millisecond))
		id := k.UUID()
		if strings.Compare(string(low[:]), string(id[:])) > 0 || strings.Compare(string(id[:]), string(high[:])) >= 0 {
			t.Fatalf("%s is not between %s and %s", id, low, high)
		}
		if !k.Time().Equal(at) {
			t.Fatalf("time %s, want %s", k.Time(), at)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add("payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")
	f.Add("a:00000000-0000-0000-0000-000000000000")
	f.Add(":")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseKeyAt(s, noon, DefaultKeySkew)
		if err == nil && k.String() != s {
			t.Fatalf("%q parsed to %q: not the only text of the key", s, k)
		}
	})
}

// keyAt makes a key with a given time and version.
func keyAt(at time.Time, version byte) Key {
	id := FirstID(at)
	copy(id[6:], uuid.New().NodeID())
	id[6] = version<<4 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
	return Key{namespace: "pay", id: id}
}
