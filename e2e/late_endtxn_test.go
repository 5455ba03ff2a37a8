//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// TestLateEndTxn: the network holds the commit of a transaction back; the relay
// commits over another connection, and while its next transaction has records in
// the topic, the late commit arrives. It must not end that transaction: the relay
// is killed then, what it had open is published again, and readers of committed
// records must not find it twice. A relay that keeps its producer fails here; see
// TestExactlyOnceUnderFaultsCatchesDefects.
func TestLateEndTxn(t *testing.T) {
	t.Run("first attempt", func(t *testing.T) { lateEndTxn(t, "15", 1) })
	t.Run("first two attempts", func(t *testing.T) { lateEndTxn(t, "18", 2) })
}

func lateEndTxn(t *testing.T, version string, times int) {
	a := newArena(t, version, 1)
	r := a.relay("relay", "", exactlyOnce(time.Minute))
	a.streams(r)
	load := startWild(a, 11)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	network := a.ground.network

	late := network.Inject(kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.Late, Times: times})
	require.NoError(t, late.Wait(ctx, times))
	next := network.Inject(kafkaproxy.Fault{Key: kafkaproxy.TxnOffsetCommit, Action: kafkaproxy.Hold, Times: 1})
	require.NoError(t, next.Wait(ctx, 1), "the relay goes on with another transaction")
	visible := a.count(kgo.ReadCommitted())
	open := a.count(kgo.ReadUncommitted()) - visible
	require.Positive(t, open, "which has records in the topic")
	require.NoError(t, late.Deliver(ctx))
	require.Equal(t, visible, a.count(kgo.ReadCommitted()), "the late commit shows nobody what is not committed")
	r.kill()
	next.Release()
	a.streams(r)
	load.stop()
	a.confirmed(time.Minute)
	r.stop()
	events := a.requireOnce(load.ghosts())
	t.Logf("%d commit(s) delivered late into a transaction of %d records, which stayed open and was published again; %d events, each once", times, open, events)
}
