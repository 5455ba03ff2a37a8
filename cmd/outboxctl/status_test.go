package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/status"
)

// TestStatusNamesProcesses: a relay that has processes and no row of state is there all
// the same.
func TestStatusNamesProcesses(t *testing.T) {
	got := []relays.Relay{
		{Slot: "onceward_a", Relay: "a", Processes: []relays.Process{{Process: "h/1/a"}}},
		{Slot: "onceward_b", Relay: "b", NotBegun: true, Processes: []relays.Process{{Process: "h/2/b"}, {Process: "h/3/b"}}},
	}
	p := &page{}
	printStatus(p, &status.Report{Relays: got, Parked: []status.Parked{{Slot: "onceward_b", Namespace: "shop", AggregateType: "order", AggregateID: "1"}}})
	require.NotContains(t, p.text.String(), "no relay is known here")
	require.Regexp(t, `h/3/b +b +not connected`, p.text.String(), "with several relays it is seen whose a process is")
	require.Regexp(t, `shop order 1 +onceward_b`, p.text.String())
}

func TestStatusPrintsProblems(t *testing.T) {
	p := &page{}
	printStatus(p, &status.Report{Problems: []string{"relay a is paused", "partitions reach only 6 days ahead"}})
	require.Contains(t, p.text.String(), "! relay a is paused\n! partitions reach only 6 days ahead\n")
}

func TestAboutRows(t *testing.T) {
	require.Equal(t, "not analysed yet", aboutRows(-1), "no partition was analyzed")
	require.Equal(t, "about 0 rows", aboutRows(0))
}

func TestRemadeRowsClaimNoExactCount(t *testing.T) {
	require.Equal(t, "at least 0", remadeRows([]status.RemadeTopic{{Topic: "t", Times: 1}})[0][4], "a session that ended by an error is not counted")
}
