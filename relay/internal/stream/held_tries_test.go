package stream

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
	"github.com/onceward/onceward/relay/internal/state"
)

func TestTheWaitOfARouteGrowsToItsBound(t *testing.T) {
	l := newLanes()
	absent, passing, forbidden := &publisher.RouteError{Reason: "absent"}, &publisher.RouteError{Passing: true}, &publisher.RouteError{Reason: "forbidden"}
	now := time.Unix(0, 0)
	w := &heldLane{of: ledger.Lane{Namespace: "shop", AggregateType: "order"}}
	require.True(t, l.hold(w, "shop.order", absent, now))
	require.False(t, l.hold(&heldLane{of: ledger.Lane{Topic: "x"}}, "shop.order", absent, now), "one route, one try")
	var waits []time.Duration
	for range 8 {
		require.False(t, l.refused(w.route, absent, now))
		waits = append(waits, w.route.next.Sub(now))
	}
	require.Equal(t, []time.Duration{200e6, 400e6, 800e6, 1600e6, 3200e6, 5e9, 5e9, 5e9}, waits)
	for i := range 40_000 {
		l.hold(&heldLane{of: ledger.Lane{Topic: fmt.Sprint(i)}}, fmt.Sprint(i), absent, now)
	}
	require.True(t, l.refused(w.route, passing, now), "another reason is news")
	require.Equal(t, 10*time.Second, w.route.next.Sub(now), "what ends by itself is looked for soon")
	require.True(t, l.refused(w.route, forbidden, now))
	require.Equal(t, holdAnswer, w.route.next.Sub(now), "what a try has had looked up is seen soon")
	require.False(t, l.refused(w.route, &publisher.RouteError{Reason: "forbidden"}, now), "the same, said anew, is no news")
	require.Equal(t, 40_001*holdShare, w.route.next.Sub(now), "many routes are tried no more often than a few")
}

// A route may be found to be no topic name when it is tried, or its topic to have
// another partition count: the release deals with that, as with any event.
func TestATryLeavesToTheReleaseWhatIsNoRefusal(t *testing.T) {
	for _, why := range []error{&record.RowError{Field: "topic", Detail: "has a character"}, &publisher.PartitionError{Topic: "t", From: 1, To: 2}} {
		sink := newFakeSink()
		var now error = &publisher.RouteError{Route: "shop.order", Reason: "does not exist"}
		sink.refuse = func(publisher.Event) error { return now }
		p := testPump(sink)
		require.NoError(t, p.take(t.Context(), []cdc.Item{of("a"), commitAt(200)}))
		require.NoError(t, p.held.write(t.Context()))
		now = why
		p.held.lanes.due[0].next = time.Time{}
		require.NoError(t, p.releases.try(t.Context()))
		require.Len(t, p.held.lanes.ready, 1)
	}
}

// A lane at which a release ends goes behind the others, or a few that are refused
// each time, with little in them, would keep the rest waiting for ever.
func TestALaneThatIsRefusedAgainGoesLast(t *testing.T) {
	sink := newFakeSink()
	open := map[string]bool{}
	sink.refuse = func(ev publisher.Event) error {
		if !open[ev.Row.AggregateType] {
			return &publisher.RouteError{Route: ev.Row.AggregateType, Reason: "is full"}
		}
		return nil
	}
	p := testPump(sink)
	items := []cdc.Item{typed(200, "full"), typed(200, "big"), typed(200, "big"), commitAt(200)}
	require.NoError(t, p.take(t.Context(), items))
	require.NoError(t, p.held.write(t.Context()))
	free := func() {
		for _, r := range slices.Clone(p.held.lanes.due) {
			p.held.lanes.usable(r)
		}
	}
	settle := func() {
		for turned := false; !turned || p.releases.current != nil; turned = true {
			require.NoError(t, p.turn(t.Context(), true))
			acknowledgeAll(p, sink)
			save(t, p)
		}
	}
	free()
	settle()
	require.True(t, p.held.lanes.byKey[ledger.Lane{Namespace: "shop", AggregateType: "full"}].refused, "the one with the least came first")
	open["big"] = true
	free()
	require.NoError(t, p.releases.begin(t.Context()))
	require.Equal(t, "big", p.releases.current.order[0].of.AggregateType, "though it has more")
	settle()
	require.Len(t, sink.keys("big"), 2)
}

// A route that an operator lets go on is tried at once, however many others are held;
// and those that are shown by name stay the same.
func TestAResumedRouteIsTriedAtOnce(t *testing.T) {
	sink := newFakeSink()
	paused := true
	sink.refuse = func(ev publisher.Event) error {
		if ev.Row.AggregateType != "order" || paused {
			return &publisher.RouteError{Route: ev.Row.AggregateType, Reason: "rests", Wanted: ev.Row.AggregateType == "order"}
		}
		return nil
	}
	p := testPump(sink)
	var shown map[string]HeldRoute
	p.Holding = func(held map[string]HeldRoute) { shown = held }
	items := []cdc.Item{typed(200, "order")}
	for n := range 3 * shownRoutes {
		items = append(items, typed(200, fmt.Sprint("type-", n)))
	}
	require.NoError(t, p.take(t.Context(), append(items, commitAt(200))))
	for _, r := range p.held.lanes.due {
		r.next = time.Now().Add(time.Hour)
	}
	p.held.show(time.Now())
	first := slices.Collect(maps.Keys(shown))
	require.Len(t, first, shownRoutes+1)
	for n := range 5 {
		p.held.lanes.changed = true
		p.held.show(time.Now().Add(time.Duration(n+1) * time.Minute))
		require.ElementsMatch(t, first, slices.Collect(maps.Keys(shown)))
	}
	paused = false
	require.NoError(t, p.releases.try(t.Context()))
	require.Empty(t, p.held.lanes.ready)
	p.SetCommands(state.Commands{Routes: []string{"another"}})
	require.NoError(t, p.releases.try(t.Context()))
	require.Len(t, p.held.lanes.ready, 1)
}
