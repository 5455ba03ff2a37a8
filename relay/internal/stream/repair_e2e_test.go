//go:build e2e

package stream

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
	onTables(t, map[string]func(*tables){"a partition is rewritten when the gap is read": rewrittenUnderRepair})
}

// rewrittenUnderRepair: to a snapshot that is older than its rewrite a table looks
// empty. The events of a gap are looked for with one that is taken when no rewrite is
// under way.
func rewrittenUnderRepair(b *tables) {
	ctx := b.T.Context()
	row := b.enqueued()
	pumps := state.New(b.Conn, b.Slot)
	taken, err := pumps.Queries.TakeSnapshot(ctx, outboxdb.TakeSnapshotParams{Publication: "none", Slot: b.Slot})
	require.NoError(b.T, err)
	id, err := uuid.NewV7()
	require.NoError(b.T, err)
	require.NoError(b.T, pumps.Queries.InsertGap(ctx, outboxdb.InsertGapParams{
		GapID: id, Slot: b.Slot, Cause: "WENT_BACK", Detail: "a test", FromSnapshot: snapshot.None, ToSnapshot: taken.Snapshot, Events: 1, State: "repairing",
	}))
	leaf := "onceward.outbox_" + partition.Day(row.CreatedAt).Format("20060102")
	b.Exec("BEGIN; ALTER TABLE " + leaf + " SET UNLOGGED; ALTER TABLE " + leaf + " SET LOGGED")
	rows, opened := &gapRows{pumps: pumps}, make(chan error, 1)
	go func() { opened <- rows.open(ctx, Gap{ID: id}) }()
	require.Eventually(b.T, func() bool {
		return b.Text(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == "1"
	}, 10*time.Second, 10*time.Millisecond, "the repair waits for the rewrite")
	b.Exec("COMMIT")
	require.NoError(b.T, <-opened)
	page, whole, err := rows.next(ctx)
	require.NoError(b.T, err)
	require.True(b.T, whole)
	require.Len(b.T, page, 1, "the table is not empty")
	require.Equal(b.T, row.ID, page[0].ID)
}
