package letters

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

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

// The limit is a kind's own: beyond it nothing is admitted, until a letter of it has
// ended.
func TestAdmitHasALimitForEachKind(t *testing.T) {
	l := &Store{State: new(state.State), oldest: newParkedSet(), maxParked: 2}
	dead := func(kind, id string) *Dead {
		return &Dead{Row: &outbox.Row{ID: uuid.New(), Namespace: "shop", AggregateType: kind, AggregateID: []byte(id)}, Commit: 200, Cause: "too large", Holds: true}
	}
	require.Nil(t, l.Admit(dead("order", "1")))
	require.Nil(t, l.Admit(dead("order", "2")))
	require.Nil(t, l.Admit(dead("order", "1")), "it is parked already")
	require.Nil(t, l.Admit(dead("user", "1")), "another kind")
	full := l.Admit(dead("order", "3"))
	require.ErrorContains(t, full, "2 aggregates of shop/order are parked already, which is the limit (max_parked_aggregates), and event shop:")
	require.ErrorContains(t, full, "outboxctl dead discard KEY")
	require.Equal(t, "shop/order", full.Route)
	require.NotContains(t, l.oldest.oldest, aggregate{"shop", "order", "3"})
	l.oldest.free(aggregate{"shop", "order", "1"})
	require.Nil(t, l.Admit(dead("order", "3")))
	loose := dead("order", "4")
	loose.Holds = false
	require.Nil(t, l.Admit(loose), "it parks nothing")
}

func TestOverTheLimitNamesTheEventAsTheCommandTakesIt(t *testing.T) {
	row := *rowOf("a")
	row.ID = uuid.MustParse("01a205b2-e237-4e84-a491-0bc33d023801") // no key: version 4
	full := overLimit(aggregate{"shop", "order", "a"}, 1, "s", &Dead{Row: &row, Cause: "bad"})
	require.Contains(t, full.Cure, "outboxctl skip "+row.ID.String()+" --slot s")
}
