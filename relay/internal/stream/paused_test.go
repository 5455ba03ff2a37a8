package stream

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

// What an operator wanted is no error: a paused route is logged as one, and at INFO.
func TestAPausedRouteIsNoError(t *testing.T) {
	var out bytes.Buffer
	h := &held{lanes: newLanes(), log: slog.New(slog.NewTextHandler(&out, nil))}
	routing := NewRouting("orders", nil, publisher.Config{})
	routing.topics[[3]string{"n", "order", ""}] = "shop"
	row := &outbox.Row{Namespace: "n", AggregateType: "order"}
	why := routing.pausedBy(publisher.Event{Row: row}, []string{"shop"})
	require.NotNil(t, why)
	s := &step{it: &cdc.Item{Kind: cdc.KindEvent, Row: row}}
	w := &heldLane{of: s.lane()}
	h.sayHeld(t.Context(), s, w, why)
	h.sayAgain(t.Context(), why, "lane", w.name())
	require.Contains(t, out.String(), `level=INFO msg="route paused by an operator: its events wait`)
	require.Contains(t, out.String(), "`outboxctl resume --relay orders --route shop` lets it go on")
	require.NotContains(t, out.String(), "ERROR")
	require.NotContains(t, out.String(), "unusable")

	out.Reset()
	h.sayHeld(t.Context(), s, w, &publisher.RouteError{Topic: "shop", Route: "shop", Reason: "does not exist"})
	require.Contains(t, out.String(), `level=ERROR msg="route held`)
}
