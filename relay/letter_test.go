package relay

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/state"
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
		var all, seen []casualty
		for _, size := range rapid.SliceOfN(rapid.SampledFrom([]int{0, 10, 100_000, letterBatch, 2 * letterBatch}), 0, 30).Draw(t, "sizes") {
			all = append(all, casualty{row: &outbox.Row{Payload: make([]byte, size), Seq: int64(len(all))}})
		}
		for chunk := range chunks(all) {
			require.NotEmpty(t, chunk)
			size := 0
			for _, c := range chunk[:len(chunk)-1] {
				size += len(c.row.Payload)
			}
			require.Less(t, size, letterBatch)
			seen = append(seen, chunk...)
		}
		require.Equal(t, all, seen)
	})
}

func TestOnlyEventsOfAKnownAggregatePark(t *testing.T) {
	row := func(kind, id string) *outbox.Row { return &outbox.Row{AggregateType: kind, AggregateID: []byte(id)} }
	for name, tc := range map[string]struct {
		c    casualty
		want bool
	}{
		"an event":          {casualty{row: row("t", "a"), holds: true}, true},
		"by policy":         {casualty{row: row("t", "a")}, false},
		"a replay":          {casualty{row: row("t", "a"), holds: true, replay: &cdc.Replay{}}, false},
		"no aggregate_id":   {casualty{row: row("t", ""), holds: true}, false},
		"no aggregate_type": {casualty{row: row("", "a"), holds: true}, false},
	} {
		require.Equal(t, tc.want, tc.c.parks(), name)
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

func TestWordsSkip(t *testing.T) {
	id := uuid.New()
	require.True(t, (&state.Commands{Skip: []uuid.UUID{uuid.New(), id}}).Skips(id))
	require.False(t, (&state.Commands{}).Skips(id))
}

func TestAControlIsSettledOnlyWhenItIsPassed(t *testing.T) {
	controls := []pglogrepl.LSN{100, 200, 300}
	for checkpoint, want := range map[pglogrepl.LSN]int{0: 0, 100: 0, 101: 1, 200: 1, 201: 2, 300: 2, 301: 3, 900: 3} {
		require.Equal(t, want, passed(controls, checkpoint), "checkpoint %d", checkpoint)
	}
	require.Zero(t, passed(nil, 500))
}
