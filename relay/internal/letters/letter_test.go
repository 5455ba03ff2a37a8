package letters

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/outbox"
)

func TestLetterTextIsWhatTheDatabaseTakes(t *testing.T) {
	require.Equal(t, "as it is", letterText("as it is"))
	require.True(t, strings.HasSuffix(letterText(strings.Repeat("é", maxLetterText)), "…"))
	rapid.Check(t, func(t *rapid.T) {
		text := letterText(string(rapid.SliceOfN(rapid.Byte(), 0, 2*maxLetterText).Draw(t, "raw")))
		require.True(t, utf8.ValidString(text))
		require.NotContains(t, text, "\x00")
		require.LessOrEqual(t, len(text), 3*maxLetterText+8, "a broken byte becomes three")
	})
}

func TestChunksKeepOrderAndAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all, seen []Dead
		for _, size := range rapid.SliceOfN(rapid.SampledFrom([]int{0, 10, 100_000, BatchBytes, 2 * BatchBytes}), 0, 30).Draw(t, "sizes") {
			all = append(all, Dead{Row: &outbox.Row{Payload: make([]byte, size), Seq: int64(len(all))}})
		}
		for chunk := range chunks(all) {
			require.NotEmpty(t, chunk)
			size := 0
			for _, c := range chunk[:len(chunk)-1] {
				size += len(c.Row.Payload)
			}
			require.Less(t, size, BatchBytes)
			seen = append(seen, chunk...)
		}
		require.Equal(t, all, seen)
	})
}

func TestOnlyEventsOfAKnownAggregatePark(t *testing.T) {
	row := func(kind, id string) *outbox.Row { return &outbox.Row{AggregateType: kind, AggregateID: []byte(id)} }
	for name, tc := range map[string]struct {
		c    Dead
		want bool
	}{
		"an event":          {Dead{Row: row("t", "a"), Holds: true}, true},
		"by policy":         {Dead{Row: row("t", "a")}, false},
		"a replay":          {Dead{Row: row("t", "a"), Holds: true, Replay: &cdc.Replay{}}, false},
		"no aggregate_id":   {Dead{Row: row("t", ""), Holds: true}, false},
		"no aggregate_type": {Dead{Row: row("", "a"), Holds: true}, false},
	} {
		require.Equal(t, tc.want, tc.c.Parks(), name)
	}
}

func TestHolderIsBefore(t *testing.T) {
	h := holder{commit: 16, seq: 5}
	require.True(t, h.before(17, 1))
	require.True(t, h.before(16, 6))
	require.False(t, h.before(16, 5))
	require.False(t, h.before(16, 4))
	require.False(t, h.before(15, 9))
}

func TestAControlIsSettledOnlyWhenItIsPassed(t *testing.T) {
	controls := []pglogrepl.LSN{100, 200, 300}
	for checkpoint, want := range map[pglogrepl.LSN]int{0: 0, 100: 0, 101: 1, 200: 1, 201: 2, 300: 2, 301: 3, 900: 3} {
		require.Equal(t, want, passed(controls, checkpoint), "checkpoint %d", checkpoint)
	}
	require.Zero(t, passed(nil, 500))
}
