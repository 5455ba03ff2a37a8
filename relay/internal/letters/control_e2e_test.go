//go:build e2e

package letters

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/relay/internal/testoutbox"
)

func TestControls(t *testing.T) {
	onEachServer(t, map[string]func(*letterbox){
		"retry of an aggregate":                     retryAggregate,
		"retry of one letter":                       retryLetter,
		"a retry that fails again":                  retryFails,
		"a retry that is taken back":                takenBack,
		"a letter of a held retry is given up":      skipReleased,
		"a discard that was said with a skip":       besideSkip,
		"what a retry of one letter waits behind":   laneOfLetter,
		"read again, a word does nothing new":       readAgain,
		"read again behind an older letter":         readAgainBehind,
		"discard":                                   discardLetters,
		"edit":                                      editLetter,
		"only below its own position":               belowItsPosition,
		"words that find nothing to do":             nothingToDo,
		"each relay has its own letters":            eachRelay,
		"a control is settled only when it is past": settledWhenPast,
	})
}

func retryAggregate(b *letterbox) {
	t := b.T
	// Written out of order, and two in one transaction: it is (position, seq) that counts.
	b.parks(deadEvent(7, "A"), deadEvent(3, "A", func(c *Dead) { c.Row.Seq = 900 }), deadEvent(5, "A", holdsNothing), deadEvent(4, "B"),
		deadEvent(9, "A", replayOf(1)), deadEvent(8, "A", func(c *Dead) { c.Commit = testoutbox.LSN(7) }))
	require.True(t, b.follows(10, "A"))
	_, out := b.say(11, cdc.ActionRetry, "A")
	require.Equal(t, []int{3, 5, 7, 8, 9}, out)
	require.False(t, b.follows(12, "A"))
	require.True(t, b.follows(12, "B"))
	require.Equal(t, "3=retrying 4=open 5=retrying 7=retrying 8=retrying 9=retrying", b.states())
	require.Equal(t, "5 ", b.note(11))
	require.Equal(t, "alice reason 11 0/B0", b.Text("SELECT concat_ws(' ', decided_by, decided_why, retry_position) FROM onceward.dead_letters WHERE letter_id = $1", testoutbox.ID(3)))
	require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(12)))
	require.Equal(t, "3=replayed 4=open 5=replayed 7=replayed 8=replayed 9=replayed", b.states())
	b.reopen(0)
	require.True(t, b.has(3), "and the rows have ended for good")
}

func retryLetter(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A", holdsNothing), deadEvent(2, "A"), deadEvent(3, "A"), deadEvent(4, "A", holdsNothing), deadEvent(5, "A", replayOf(1)))
	_, out := b.say(11, cdc.ActionRetry, 3)
	require.Empty(t, out, "it would overtake")
	require.Equal(t, "0 an older letter holds the letter's aggregate: retry the aggregate, or discard the older one", b.note(11))
	for i, n := range []int{4, 5, 1} {
		_, out = b.say(12+i, cdc.ActionRetry, n)
		require.Equal(t, []int{n}, out, "outside the order")
	}
	require.True(t, b.follows(9, "A"))
	_, out = b.say(16, cdc.ActionRetry, 2)
	require.Equal(t, []int{2}, out, "the oldest")
	require.True(t, b.follows(9, "A"), "the next one holds it still")
	require.False(t, b.follows(3, "A"))
	_, out = b.say(17, cdc.ActionRetry, 3)
	require.Equal(t, []int{3}, out, "now the oldest")
	require.False(t, b.follows(9, "A"))
}

func retryFails(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "A"), deadEvent(3, "A", holdsNothing), deadEvent(4, "A"), deadEvent(5, "B"))
	r, err := b.Apply(t.Context(), wordOf(11, cdc.ActionRetry, "A"), nil, testoutbox.LSN(11), false)
	require.NoError(t, err)
	page, err := r.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{1, 2, 3, 4}, numbers(page))
	require.NoError(t, r.Fail(t.Context(), page[1], ClassRecord, "still too large"))
	require.Equal(t, "1=retrying 2=open 3=retrying 4=open 5=open", b.states())
	require.True(t, b.follows(12, "A"), "parked again")
	require.False(t, b.follows(2, "A"))
	require.Equal(t, "2 still too large", b.Text("SELECT attempts || ' ' || error FROM onceward.dead_letters WHERE letter_id = $1", testoutbox.ID(2)))
	require.Equal(t, "1 record too large", b.Text("SELECT attempts || ' ' || error FROM onceward.dead_letters WHERE letter_id = $1", testoutbox.ID(4)))
	require.NoError(t, r.Fail(t.Context(), page[2], ClassRecord, "loose"), "it takes nobody along")
	require.Equal(t, "1=retrying 2=open 3=open 4=open 5=open", b.states())

	// Read again, only what has not failed comes again, with its old place.
	b.reopen(0)
	require.Equal(t, "1=open 2=open 3=open 4=open 5=open", b.states())
	r, err = b.Apply(t.Context(), wordOf(11, cdc.ActionRetry, "A"), nil, testoutbox.LSN(11), false)
	require.NoError(t, err)
	again := b.pages(r)
	require.Equal(t, []int{1}, numbers(again))
	require.Zero(t, again[0].Index)
	require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(12)))
	require.Equal(t, "1=replayed 2=open 3=open 4=open 5=open", b.states())
	_, out := b.say(13, cdc.ActionRetry, "A")
	require.Equal(t, []int{2, 3, 4}, out)
}

// A letter whose retry is under way, or held, is given up by the word that is
// state, and stays so when the control is read again. Those behind it go on.
func skipReleased(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "A"))
	r, err := b.Apply(t.Context(), wordOf(11, cdc.ActionRetry, "A"), nil, testoutbox.LSN(11), false)
	require.NoError(t, err)
	page, err := r.Next(t.Context())
	require.NoError(t, err)
	b.Exec("UPDATE onceward.relay_state SET skip = ARRAY[$1::uuid]", page[0].ID)
	before := b.Text("SELECT dead_letters::text FROM onceward.relay_state WHERE slot = $1", testoutbox.Slot)
	done, err := r.Skip(t.Context(), page[1])
	require.NoError(t, err)
	require.False(t, done, "no word names it, or it was taken back")
	done, err = r.Skip(t.Context(), page[0])
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, "1=discarded 2=retrying", b.states())
	require.Equal(t, "an operator relay_state.skip {}", b.Text("SELECT concat_ws(' ', decided_by, decided_why, skip) FROM onceward.dead_letters d JOIN onceward.relay_state USING (slot) WHERE letter_id = $1", testoutbox.ID(1)))
	require.NotEqual(t, before, b.Text("SELECT dead_letters::text FROM onceward.relay_state WHERE slot = $1", testoutbox.Slot), "a checkpoint says that it was written")
	b.Exec("UPDATE onceward.relay_state SET skip = ARRAY[$1::uuid]", page[0].ID)
	_, err = r.Skip(t.Context(), page[0])
	require.ErrorContains(t, err, "has not released it, or it has ended")
	_, out := b.say(12, cdc.ActionDiscard, 2)
	require.Empty(t, out)
	require.Contains(t, b.note(12), "` gives it up")
	b.reopen(0)
	_, out = b.say(11, cdc.ActionRetry, "A")
	require.Equal(t, []int{2}, out)
}

// A discard that was said with the word skip is for what has become a letter
// meanwhile, and counts as long as that word stands.
func besideSkip(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "B"))
	beside := func(n, of int) string {
		c := wordOf(n, cdc.ActionDiscard, of)
		c.PayloadNull = true
		_, err := b.Apply(t.Context(), c, nil, testoutbox.LSN(n), false)
		require.NoError(t, err)
		return b.note(n)
	}
	require.Equal(t, "0 the skip that it was said with does not stand any more", beside(11, 1))
	b.Exec("UPDATE onceward.relay_state SET skip = ARRAY[$1, $2, $3]::uuid[]", testoutbox.ID(1), testoutbox.ID(2), testoutbox.ID(9))
	require.Equal(t, "1 ", beside(12, 1))
	require.Equal(t, "0 there is no such letter", beside(13, 9))
	require.Equal(t, "1=discarded 2=open", b.states())
	require.Equal(t, "{"+testoutbox.ID(2).String()+","+testoutbox.ID(9).String()+"}", b.Text("SELECT skip::text FROM onceward.relay_state"), "it was carried out")
	require.False(t, b.follows(12, "A"))
	_, _ = b.say(14, cdc.ActionDiscard, 2)
	require.Equal(t, "1=discarded 2=discarded", b.states(), "one that was said alone needs no word")
}

func laneOfLetter(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "A", replayOf(1)), deadEvent(3, "A", replayOf(1), func(c *Dead) { c.Replay.Topic = "again" }))
	for n, want := range map[int]ledger.Lane{1: {Namespace: "orders", AggregateType: "order"}, 3: {Topic: "again"}, 4: {}} {
		of, err := b.LaneOf(t.Context(), testoutbox.ID(n))
		require.NoError(t, err)
		require.Equal(t, want, of, n)
	}
}

func takenBack(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "A"), deadEvent(3, "A"), deadEvent(4, "B"))
	_, out := b.say(5, cdc.ActionRetry, "A")
	require.Equal(t, []int{1, 2, 3}, out)
	_, _ = b.say(6, cdc.ActionRetry, "B")
	for range 2 {
		b.reopen(testoutbox.LSN(5)) // the checkpoint ends where the control's commit starts: not passed
		require.Equal(t, "1=open 2=open 3=open 4=open", b.states())
		require.True(t, b.follows(9, "A"))
		r, err := b.Apply(t.Context(), wordOf(5, cdc.ActionRetry, "A"), nil, testoutbox.LSN(5), false)
		require.NoError(t, err)
		again := b.pages(r)
		require.Equal(t, []int{1, 2, 3}, numbers(again))
		require.EqualValues(t, 2, again[2].Index)
		require.False(t, b.follows(9, "A"))
		require.Equal(t, "3 ", b.note(5))
	}
	b.reopen(testoutbox.LSN(5) + 1)
	require.Equal(t, "1=replayed 2=replayed 3=replayed 4=open", b.states(), "the other control is beyond the checkpoint")
	require.True(t, b.follows(9, "B"))
	_, out = b.say(6, cdc.ActionRetry, "B")
	require.Equal(t, []int{4}, out)

	// The control was lost with a failover: a new one serves.
	b.reopen(0)
	_, out = b.say(8, cdc.ActionRetry, "B")
	require.Equal(t, []int{4}, out)
}

// Whatever has happened since, a word that is read again changes nothing of it.
func readAgain(b *letterbox) {
	t := b.T
	_, out := b.say(2, cdc.ActionRetry, "A") // finds nothing, for ever
	require.Empty(t, out)
	b.parks(deadEvent(1, "A"), deadEvent(3, "A"), deadEvent(4, "B"), deadEvent(5, "C"))
	_, _ = b.say(6, cdc.ActionRetry, "A")
	edit := wordOf(7, cdc.ActionEdit, 4)
	edit.Payload = []byte("once")
	_, err := b.Apply(t.Context(), edit, nil, testoutbox.LSN(7), false)
	require.NoError(t, err)
	_, _ = b.say(8, cdc.ActionDiscard, 4)
	require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(7)))
	b.parks(deadEvent(9, "B"), deadEvent(10, "A"))
	before := b.everything()
	for range 2 {
		for n, action := range map[int]string{2: cdc.ActionRetry, 6: cdc.ActionRetry} {
			_, out = b.say(n, action, "A")
			require.Empty(t, out)
		}
		_, err = b.Apply(t.Context(), edit, nil, testoutbox.LSN(7), false)
		require.NoError(t, err)
		_, out = b.say(8, cdc.ActionDiscard, 4)
		require.Empty(t, out)
		require.Equal(t, before, b.everything())
	}
	require.True(t, b.follows(11, "A"))
	require.True(t, b.follows(11, "B"))

	// Discarded, or released by another word, after it was taken back.
	_, out = b.say(12, cdc.ActionRetry, "C")
	require.Equal(t, []int{5}, out)
	b.reopen(testoutbox.LSN(11))
	_, _ = b.say(13, cdc.ActionDiscard, 5)
	_, out = b.say(12, cdc.ActionRetry, "C")
	require.Empty(t, out)
}

// Two words released one letter each; the first letter fails only after the
// second was released. Read again, the second must not pass it.
func readAgainBehind(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "A"))
	_, out := b.say(3, cdc.ActionRetry, 1)
	require.Equal(t, []int{1}, out)
	_, out = b.say(4, cdc.ActionRetry, 2)
	require.Equal(t, []int{2}, out)
	b.reopen(0)
	r, err := b.Apply(t.Context(), wordOf(3, cdc.ActionRetry, 1), nil, testoutbox.LSN(3), false)
	require.NoError(t, err)
	page := b.pages(r)
	require.Equal(t, []int{1}, numbers(page))
	require.NoError(t, r.Fail(t.Context(), page[0], ClassRecord, "refused by the broker"))
	_, out = b.say(4, cdc.ActionRetry, 2)
	require.Empty(t, out)
	require.Equal(t, "1=open 2=open", b.states())
	require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(5)))
	require.Equal(t, "1=open 2=open", b.states())

	// That stays so: Kafka's checkpoint may count the second word as dealt with.
	_, _ = b.say(6, cdc.ActionDiscard, 1)
	b.reopen(0)
	_, out = b.say(4, cdc.ActionRetry, 2)
	require.Empty(t, out)
	_, out = b.say(7, cdc.ActionRetry, "A")
	require.Equal(t, []int{2}, out)
}

func discardLetters(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "A"), deadEvent(3, "B"), deadEvent(4, "B"), deadEvent(5, "B", holdsNothing))
	_, out := b.say(11, cdc.ActionDiscard, 1)
	require.Empty(t, out)
	require.True(t, b.follows(9, "A"))
	require.False(t, b.follows(2, "A"), "the hold begins later now")
	_, _ = b.say(12, cdc.ActionDiscard, 2)
	require.False(t, b.follows(9, "A"), "the last one takes the hold away")
	_, _ = b.say(13, cdc.ActionDiscard, "B")
	require.Equal(t, "3 ", b.note(13))
	require.Zero(t, b.ParkedCount())
	require.Equal(t, "1=discarded 2=discarded 3=discarded 4=discarded 5=discarded", b.states())
	require.Equal(t, "alice reason 13", b.Text("SELECT decided_by || ' ' || decided_why FROM onceward.dead_letters WHERE letter_id = $1", testoutbox.ID(4)))
	b.reopen(0)
	require.Zero(t, b.ParkedCount())
	require.True(t, b.has(1))
}

func editLetter(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "A"))
	edit := func(n, letter int, change func(*cdc.Control)) {
		c := wordOf(n, cdc.ActionEdit, letter)
		change(c)
		r, err := b.Apply(t.Context(), c, nil, testoutbox.LSN(n), false)
		require.NoError(t, err)
		require.Nil(t, r, "an edit releases nothing")
	}
	edit(11, 1, func(c *cdc.Control) { c.Payload = []byte("first") })
	edit(12, 1, func(c *cdc.Control) { c.Headers = []byte(`{}`) })
	edit(13, 2, func(c *cdc.Control) { c.PayloadNull = true })
	require.True(t, b.follows(9, "A"))
	require.Equal(t, "1=open 2=open", b.states())
	require.Equal(t, `first|{}|payload 1|{"a": "b"}|alice|reason 12`, b.Text(`SELECT concat_ws('|', convert_from(payload, 'UTF8'), headers,
		convert_from(original_payload, 'UTF8'), original_headers, edited_by, edited_why) FROM onceward.dead_letters WHERE letter_id = $1`, testoutbox.ID(1)))
	r, err := b.Apply(t.Context(), wordOf(14, cdc.ActionRetry, "A"), nil, testoutbox.LSN(14), false)
	require.NoError(t, err)
	page := b.pages(r)
	require.Equal(t, []byte("first"), page[0].Row.Payload)
	require.Equal(t, []byte("{}"), page[0].Row.Headers)
	require.Nil(t, page[1].Row.Payload, "a tombstone")
	require.JSONEq(t, `{"a": "b"}`, string(page[1].Row.Headers))
	edit(15, 1, func(c *cdc.Control) { c.Payload = []byte("too late") })
	require.Contains(t, b.note(15), "0 the letter is retrying: ")
	require.Equal(t, "alice|reason 12", b.Text("SELECT edited_by || '|' || edited_why FROM onceward.dead_letters WHERE letter_id = $1", testoutbox.ID(1)), "the retry does not hide the edit")
}

func belowItsPosition(b *letterbox) {
	t := b.T
	b.parks(deadEvent(5, "A"), deadEvent(6, "A"), deadEvent(7, "A"))
	_, out := b.say(6, cdc.ActionRetry, "A")
	require.Equal(t, []int{5}, out, "not those of its own transaction, nor later ones")
	require.True(t, b.follows(8, "A"))
	require.False(t, b.follows(6, "A"))
	for _, action := range []string{cdc.ActionRetry, cdc.ActionDiscard, cdc.ActionEdit} {
		n := map[string]int{cdc.ActionRetry: 101, cdc.ActionDiscard: 102, cdc.ActionEdit: 103}[action]
		r, err := b.Apply(t.Context(), wordOf(n, action, 7), nil, testoutbox.LSN(7), false)
		require.NoError(t, err)
		require.Nil(t, r)
		require.Equal(t, "0 the letter's event committed after it", b.note(n))
	}
	_, _ = b.say(104, cdc.ActionDiscard, "A")
	require.Equal(t, "5=retrying 6=discarded 7=discarded", b.states())
}

func nothingToDo(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"))
	for n, tc := range map[int]struct {
		c    *cdc.Control
		bad  error
		note string
	}{
		20: {wordOf(20, cdc.ActionRetry, "Z"), nil, "the aggregate has no open letter that committed before it"},
		21: {wordOf(21, cdc.ActionDiscard, "Z"), nil, "the aggregate has no open letter"},
		22: {wordOf(22, cdc.ActionRetry, 99), nil, "there is no such letter"},
		23: {wordOf(23, cdc.ActionRetry, "A"), errors.New("tx_id 5 \x00 forged"), "its row is bad: tx_id 5"},
		24: {wordOf(24, cdc.ActionEdit, "A"), nil, `it says "edit" of an aggregate or is unknown to this release`},
		25: {wordOf(25, "resurrect", "A"), nil, `it says "resurrect"`},
		26: {&cdc.Control{ID: testoutbox.ID(1_000_026), Action: cdc.ActionRetry}, nil, "it names neither one letter nor one aggregate"},
		27: {&cdc.Control{ID: testoutbox.ID(1_000_027), Action: cdc.ActionRetry, LetterID: uuid.Max, AggregateID: []byte("A")}, nil, "it names neither"},
	} {
		r, err := b.Apply(t.Context(), tc.c, tc.bad, testoutbox.LSN(n), false)
		require.NoError(t, err)
		require.Nil(t, r)
		require.Contains(t, b.note(n), "0 "+tc.note)
	}
	require.Equal(t, "1=open", b.states())
}

func eachRelay(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"))
	first := b.Store
	b.Slot = "onceward_copy"
	b.Conn = testoutbox.Connected(t, b.As("onceward_relay"))
	b.AddRelay(b.Slot)
	b.reopen(0)
	require.False(t, b.has(1))
	require.False(t, b.follows(9, "A"))
	b.parks(deadEvent(1, "A", holdsNothing))
	_, out := b.say(5, cdc.ActionDiscard, "A")
	require.Empty(t, out)
	require.Equal(t, "1=discarded", b.states())
	r, err := first.Apply(t.Context(), wordOf(5, cdc.ActionRetry, "A"), nil, testoutbox.LSN(5), false)
	require.NoError(t, err)
	require.Equal(t, []int{1}, numbers(b.pages(r)))
}

func settledWhenPast(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "B"))
	_, _ = b.say(5, cdc.ActionRetry, "A")
	_, _ = b.say(7, cdc.ActionRetry, "B")
	for _, step := range []struct {
		at    int
		extra pglogrepl.LSN
		want  string
	}{{5, 0, "1=retrying 2=retrying"}, {6, 0, "1=replayed 2=retrying"}, {7, 0, "1=replayed 2=retrying"}, {7, 1, "1=replayed 2=replayed"}} {
		require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(step.at)+step.extra))
		require.Equal(t, step.want, b.states())
	}
	require.NoError(t, b.Conn.Close(t.Context()))
	require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(100)), "with nothing to settle nobody asks the database")
}
