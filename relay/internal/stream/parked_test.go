package stream

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/state"
)

// The limit is a kind's own: beyond it nothing is written and the lane waits,
// with its reason; others go on, and so does it once a letter of it has ended.
func TestTooManyParkedHoldsTheirLaneOnly(t *testing.T) {
	bad, behind, other := of("a"), of("b"), typed(200, "user")
	sink := poisonous(map[uuid.UUID]bool{bad.Row.ID: true})
	p := testPump(sink)
	kept := p.letters.store.(*fakeLetters)
	kept.limit = 1
	first := of("first")
	kept.letters[first.Row.ID] = letters.Dead{Row: first.Row, Holds: true}
	require.NoError(t, p.take(t.Context(), []cdc.Item{bad, behind, other}))
	require.NoError(t, p.turn(t.Context(), true))
	require.Len(t, sink.got, 1)
	require.Equal(t, "user", sink.got[0].Row.AggregateType)
	require.Contains(t, p.held.lanes.routes["shop/order"].reason(), "max_parked_aggregates")
	require.NotContains(t, kept.letters, bad.Row.ID)
	p.SetCommands(state.Commands{Skip: []uuid.UUID{bad.Row.ID}})
	require.NoError(t, p.turn(t.Context(), true))
	require.Equal(t, []uuid.UUID{bad.Row.ID}, kept.skipped)
	p.held.keeper.(*table).dead = func(id uuid.UUID) bool { return id == bad.Row.ID }
	releaseAll(t, p)
	require.Len(t, sink.got, 2)
	require.False(t, p.held.lanes.any())
}

// The letters of a transaction go to the database together, and its aggregates
// are parked from the first on.
func TestLettersAreWrittenTogether(t *testing.T) {
	bad := map[uuid.UUID]bool{}
	sink := poisonous(bad)
	p := testPump(sink)
	kept := withPolicy(p, PolicyParkAggregate)
	var batch []cdc.Item
	for i := range 60 {
		it := of(string(rune('a' + i%30)))
		bad[it.Row.ID] = i < 30 // the second of each aggregate is sound, and follows
		batch = append(batch, it)
	}
	require.NoError(t, p.take(t.Context(), append(batch, commitAt(200))))
	require.Zero(t, kept.parks)
	require.EqualValues(t, 100, position(t, p), "nothing has ended before it is written")
	require.NoError(t, p.turn(t.Context(), true))
	require.Equal(t, 1, kept.parks)
	require.Len(t, kept.letters, 60)
	require.Empty(t, sink.got)
	require.EqualValues(t, 208, position(t, p))

	large := of("large")
	large.Row.Payload = make([]byte, letters.BatchBytes)
	bad[large.Row.ID] = true
	require.NoError(t, p.take(t.Context(), []cdc.Item{large}))
	require.Equal(t, 2, kept.parks, "memory is a reason to write at once")
}

// What is shown of parked aggregates follows the control that frees them: it needs no
// other letter, and no new session.
func TestParkedAggregatesAreShownAsTheyAre(t *testing.T) {
	for _, action := range []string{cdc.ActionRetry, cdc.ActionDiscard} {
		bad := of("a")
		p := testPump(poisonous(map[uuid.UUID]bool{bad.Row.ID: true}))
		kept := withPolicy(p, PolicyParkAggregate)
		require.NoError(t, p.take(t.Context(), []cdc.Item{bad, commitAt(200)}))
		require.NoError(t, p.turn(t.Context(), true))
		require.Equal(t, 1, tallyOf(p).parkedNow)
		kept.acted = func(*cdc.Control) pages {
			delete(kept.letters, bad.Row.ID)
			return nil
		}
		decided := cdc.Item{Kind: cdc.KindControl, Commit: lsn(300), Control: &cdc.Control{ID: uuid.New(), Action: action, LetterID: bad.Row.ID}}
		require.NoError(t, p.take(t.Context(), []cdc.Item{decided, commitAt(300)}))
		require.NoError(t, p.turn(t.Context(), true))
		require.Zero(t, tallyOf(p).parkedNow, action)
	}
}
