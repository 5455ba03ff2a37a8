package relay

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/state"
)

func TestParkedSetCountsByKind(t *testing.T) {
	s := newParkedSet()
	a, b := aggregate{"shop", "order", "1"}, aggregate{"shop", "order", "2"}
	other := aggregate{"shop", "user", "1"}
	s.hold(a, holder{30, 1})
	s.hold(a, holder{20, 5}) // an older letter, found later
	s.hold(a, holder{40, 1})
	require.Equal(t, holder{20, 5}, s.oldest[a], "the oldest letter holds it")
	s.hold(b, holder{30, 2})
	s.hold(other, holder{30, 3})
	require.Equal(t, 2, s.of(a))
	require.Equal(t, 1, s.of(other))
	s.set(a, holder{40, 1}) // the oldest was discarded
	require.Equal(t, holder{40, 1}, s.oldest[a])
	require.Equal(t, 2, s.of(b))
	s.free(a)
	s.free(a)
	require.Equal(t, 1, s.of(a))
	s.free(b)
	require.Zero(t, s.of(b))
	require.Len(t, s.kinds, 1)
}

// The limit is a kind's own: beyond it nothing is written and the lane waits,
// with its reason; others go on, and so does it once a letter of it has ended.
func TestAdmitHasALimitForEachKind(t *testing.T) {
	l := &letters{state: new(state.State), oldest: newParkedSet(), maxParked: 2}
	dead := func(kind, id string) *casualty {
		return &casualty{row: &outbox.Row{ID: uuid.New(), Namespace: "shop", AggregateType: kind, AggregateID: []byte(id)}, commit: 200, cause: "too large", holds: true}
	}
	require.Nil(t, l.admit(dead("order", "1")))
	require.Nil(t, l.admit(dead("order", "2")))
	require.Nil(t, l.admit(dead("order", "1")), "it is parked already")
	require.Nil(t, l.admit(dead("user", "1")), "another kind")
	full := l.admit(dead("order", "3"))
	require.ErrorContains(t, full, "2 aggregates of shop/order are parked already, which is the limit (max_parked_aggregates), and event shop:")
	require.ErrorContains(t, full, "outboxctl dead discard KEY")
	require.Equal(t, "shop/order", full.Route)
	require.NotContains(t, l.oldest.oldest, aggregate{"shop", "order", "3"})
	l.oldest.free(aggregate{"shop", "order", "1"})
	require.Nil(t, l.admit(dead("order", "3")))
	loose := dead("order", "4")
	loose.holds = false
	require.Nil(t, l.admit(loose), "it parks nothing")
}

func TestTooManyParkedHoldsTheirLaneOnly(t *testing.T) {
	bad, behind, other := of("a"), of("b"), typed(200, "user")
	sink := poisonous(map[uuid.UUID]bool{bad.Row.ID: true})
	p := testPipeline(sink)
	morgue := p.morgue.(*fakeMorgue)
	morgue.limit = 1
	first := of("first")
	morgue.letters[first.Row.ID] = casualty{row: first.Row, holds: true}
	require.NoError(t, p.take(t.Context(), []cdc.Item{bad, behind, other}))
	require.NoError(t, p.turn(t.Context(), true))
	require.Len(t, sink.got, 1)
	require.Equal(t, "user", sink.got[0].Row.AggregateType)
	require.Contains(t, p.lanes.routes["shop/order"].reason(), "max_parked_aggregates")
	require.NotContains(t, morgue.letters, bad.Row.ID)
	p.hear(state.Commands{Skip: []uuid.UUID{bad.Row.ID}})
	require.NoError(t, p.turn(t.Context(), true))
	require.Equal(t, []uuid.UUID{bad.Row.ID}, morgue.skipped)
	p.keeper.(*table).dead = func(id uuid.UUID) bool { return id == bad.Row.ID }
	releaseAll(t, p)
	require.Len(t, sink.got, 2)
	require.False(t, p.lanes.any())
}

// The letters of a transaction go to the database together, and its aggregates
// are parked from the first on.
func TestLettersAreWrittenTogether(t *testing.T) {
	bad := map[uuid.UUID]bool{}
	sink := poisonous(bad)
	p := testPipeline(sink)
	morgue := withPolicy(p, PoisonParkAggregate)
	var batch []cdc.Item
	for i := range 60 {
		it := of(string(rune('a' + i%30)))
		bad[it.Row.ID] = i < 30 // the second of each aggregate is sound, and follows
		batch = append(batch, it)
	}
	require.NoError(t, p.take(t.Context(), append(batch, commitAt(200))))
	require.Zero(t, morgue.parks)
	require.EqualValues(t, 100, position(t, p), "nothing has ended before it is written")
	require.NoError(t, p.turn(t.Context(), true))
	require.Equal(t, 1, morgue.parks)
	require.Len(t, morgue.letters, 60)
	require.Empty(t, sink.got)
	require.EqualValues(t, 208, position(t, p))

	large := of("large")
	large.Row.Payload = make([]byte, letterBatch)
	bad[large.Row.ID] = true
	require.NoError(t, p.take(t.Context(), []cdc.Item{large}))
	require.Equal(t, 2, morgue.parks, "memory is a reason to write at once")
}

func TestOverTheLimitNamesTheEventAsTheCommandTakesIt(t *testing.T) {
	row := *of("a").Row
	row.ID = uuid.MustParse("01a205b2-e237-4e84-a491-0bc33d023801") // no key: version 4
	full := overLimit(aggregate{"shop", "order", "a"}, 1, "s", &casualty{row: &row, cause: "bad"})
	require.Contains(t, full.Cure, "outboxctl skip "+row.ID.String()+" --slot s")
}
