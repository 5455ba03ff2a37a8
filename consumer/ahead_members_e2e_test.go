//go:build e2e

package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// TestMarkOfAnUnknownIDIsHigher: what a member has finished that was not told the topic's
// id is not applied again where the mark of the id lies below it.
func TestMarkOfAnUnknownIDIsHigher(t *testing.T) {
	x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute}}
	ev := x.lateAt("Paid", 5)
	topic := ev.Source.TopicID
	knows, blind := x.start(), x.start()
	history := must(knows.Progress(t.Context())).History
	must(blind.Progress(t.Context()))
	known := []consumer.Mark{{Topic: "orders", TopicID: topic, High: 3}}
	require.NoError(t, knows.BeginProgress(t.Context(), history, known))
	ev.Source.TopicID = uuid.Nil
	require.NoError(t, deliver(t.Context(), blind, ev, consumer.Processed))
	require.NoError(t, blind.SaveProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", High: 10}}))
	x.outage()
	ev.Source.TopicID = topic
	r := x.start()
	must(r.Progress(t.Context()))
	require.NoError(t, r.BeginProgress(t.Context(), history, known))
	require.NoError(t, deliver(t.Context(), r, ev, consumer.DeadLettered), "nobody knows whether it is of this topic")
	require.Equal(t, "open replay", x.reasons())
	require.Equal(t, 1, x.effects())
	next := x.lateAt("Paid", 11)
	require.NoError(t, deliver(t.Context(), r, next, consumer.Processed))
}

// TestAFuncEventInTwoMembers: as in TestOneOffsetInTwoMembers, with a Func handler that fails.
func TestAFuncEventInTwoMembers(t *testing.T) {
	for _, marked := range []bool{false, true} {
		x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute}}
		young, old := x.start(), consumer.NewRouter(x.start().Processor())
		history := must(young.Progress(t.Context())).History
		ev := x.lateAt("Called", 10)
		old.Func("Called", func(ctx context.Context, _ consumer.Event) (err error) {
			x.inOtherBuckets(ctx, func() { err = deliver(ctx, young, ev, consumer.Processed) })
			require.NoError(t, err)
			if marked {
				require.NoError(t, young.SaveProgress(ctx, history, []consumer.Mark{{Topic: "orders", TopicID: ev.Source.TopicID, High: 10}}))
			}
			return consumer.DeadLetter(errBroken)
		})
		got, err := old.Handle(t.Context(), ev)
		if marked {
			require.ErrorContains(t, err, "another member has finished the offset")
			got, err = old.Handle(t.Context(), ev)
		}
		require.NoError(t, err)
		require.Equal(t, consumer.Duplicate, got)
		require.Equal(t, 1, x.effects())
		require.Zero(t, x.letters())
	}
}

// TestOneOffsetTwiceInABatch: what is claimed by arrival and comes twice in one batch is
// a duplicate the second time; another event at its place goes alone.
func TestOneOffsetTwiceInABatch(t *testing.T) {
	for name, id := range map[string]uuid.UUID{"known": {1}, "unknown": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute}}
			r := x.start()
			ev, next, other := x.lateAt("Moved", 5), x.lateAt("Moved", 6), x.lateAt("Moved", 5)
			ev.Source.TopicID, other.Source.TopicID = id, id
			want := []consumer.Delivery{{Outcome: consumer.Processed}, {Outcome: consumer.Processed}, {Outcome: consumer.Duplicate}}
			require.Equal(t, want, r.HandleBatch(t.Context(), []consumer.Event{ev, next, ev}))
			want[0].Outcome = consumer.Duplicate
			require.Equal(t, want, r.HandleBatch(t.Context(), []consumer.Event{ev, other, next}))
			require.Equal(t, 3, x.effects())
		})
	}
}
