//go:build e2e

package relay

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
)

func TestRepair(t *testing.T) {
	onEachServer(t, map[string]func(*letterbox){"a partition is rewritten when the gap is read": rewrittenUnderRepair})
}

// rewrittenUnderRepair: to a snapshot that is older than its rewrite a table looks
// empty. The events of a gap are looked for with one that is taken when no rewrite is
// under way.
func rewrittenUnderRepair(b *letterbox) {
	ctx := b.t.Context()
	row := b.enqueued()
	pumps := state.New(b.conn, b.slot)
	taken, err := pumps.Queries.TakeSnapshot(ctx, outboxdb.TakeSnapshotParams{Publication: "none", Slot: b.slot})
	require.NoError(b.t, err)
	id, err := uuid.NewV7()
	require.NoError(b.t, err)
	require.NoError(b.t, pumps.Queries.InsertGap(ctx, outboxdb.InsertGapParams{
		GapID: id, Slot: b.slot, Cause: CodeWentBack, Detail: "a test", FromSnapshot: snapshot.None, ToSnapshot: taken.Snapshot, Events: 1, State: gapRepairing,
	}))
	leaf := "onceward.outbox_" + partition.Day(row.CreatedAt).Format("20060102")
	b.exec("BEGIN; ALTER TABLE " + leaf + " SET UNLOGGED; ALTER TABLE " + leaf + " SET LOGGED")
	rows, opened := &gapRows{pumps: pumps}, make(chan error, 1)
	go func() { opened <- rows.open(ctx, gap{id: id}) }()
	require.Eventually(b.t, func() bool {
		return b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == "1"
	}, 10*time.Second, 10*time.Millisecond, "the repair waits for the rewrite")
	b.exec("COMMIT")
	require.NoError(b.t, <-opened)
	page, whole, err := rows.next(ctx)
	require.NoError(b.t, err)
	require.True(b.t, whole)
	require.Len(b.t, page, 1, "the table is not empty")
	require.Equal(b.t, row.ID, page[0].ID)
}
