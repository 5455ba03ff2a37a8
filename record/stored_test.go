package record_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/record"
)

// What a letter keeps of a record comes back as it was: odd names, null values,
// empty values, order, repetition.
func TestHeadersComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		headers := rapid.SliceOf(header()).Draw(t, "headers")
		stored, err := record.StoreHeaders(headers)
		require.NoError(t, err)
		back, err := record.LoadHeaders(stored)
		require.NoError(t, err)
		require.Equal(t, headers, back)
	})
}

func header() *rapid.Generator[record.Header] {
	return rapid.Custom(func(t *rapid.T) record.Header {
		return record.Header{Name: oddText().Draw(t, "name"), Value: oddBytes().Draw(t, "value")}
	})
}

// oddText is any string, also one that no text column can hold, and one that
// looks like such a one when it is quoted.
func oddText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"", "idempotency-key", "a\x00", `"a\x00"`, `"`, `""`, "ü", "\xff"}),
	)
}

// oddBytes is null, empty, or anything.
func oddBytes() *rapid.Generator[[]byte] {
	return rapid.OneOf(rapid.Just([]byte(nil)), rapid.Just([]byte{}), rapid.SliceOf(rapid.Byte()))
}

func TestHeadersThatNobodyWrote(t *testing.T) {
	t.Parallel()
	for _, stored := range []string{``, `{}`, `[["a"]]`, `[[1,null]]`, `[["a","not base64!"]]`, `[["\"a",null]]`} {
		_, err := record.LoadHeaders([]byte(stored))
		require.Error(t, err, stored)
	}
}

// What is read of a stored text, whoever wrote it, is written and read again as it is.
func FuzzStoredHeaders(f *testing.F) {
	for _, seed := range []string{`[]`, `[["a","AA=="],["a",null],["",""]]`, `[["\"a\\x00\"",null]]`, `[["\"",null]]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		headers, err := record.LoadHeaders(stored)
		if err != nil {
			return
		}
		again, err := record.StoreHeaders(headers)
		require.NoError(t, err)
		back, err := record.LoadHeaders(again)
		require.NoError(t, err)
		require.Equal(t, headers, back)
	})
}
