//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/process"
)

// TestSnapshotRestored: the storage of the server is put back to a copy that was
// made before, under a relay that lives. What was written in between is in Kafka and
// not in the database any more. The relay says that the database went back in time,
// and asks; repaired, everything that is in the table is in the topic.
func TestSnapshotRestored(t *testing.T) {
	for _, mode := range []string{"idempotent", "exactly-once"} {
		onVersions(t, func(t *testing.T, version string) {
			t.Run(mode, func(t *testing.T) {
				w := ownWorld(t, version, nil)
				w.prepareTables()
				r := staying(w, "checkpoint_interval: 50ms").inMode(mode)
				begins(t, w, r)
				kept := writeOne(t, w)
				caughtUp(t, w, r)
				saved := filepath.Join(t.TempDir(), "data")
				replaceData(t, w, func(data string) { copied(t, data, saved) })
				gone := writeOne(t, w)
				caughtUp(t, w, r)
				eventually(t, "it is published", 30*time.Second, func() bool { return w.published()[gone] > 0 })
				replaceData(t, w, func(data string) {
					require.NoError(t, os.RemoveAll(data))
					copied(t, saved, data)
				})
				later := writeOne(t, w)
				halted(t, r, "WENT_BACK")
				gap := scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
				outboxctl(t, w.dsn(operatorLogin), "gap", "repair", gap, "--reason", "a snapshot was restored", "--yes")
				eventually(t, "the relay goes on by itself", time.Minute, func() bool { return readyz(t, r).State == "streaming" })
				caughtUp(t, w, r)
				eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
				r.stop()
				inTopic := w.published()
				require.Positive(t, inTopic[kept])
				require.Positive(t, inTopic[later])
				require.Positive(t, inTopic[gone])
				states, _ := requireTrue(t, w)
				require.NotContains(t, account(t, w), gone)
				require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
			})
		})
	}
}

// copied copies a folder with the owners of its files.
func copied(t *testing.T, from, to string) {
	t.Helper()
	out, err := process.Run(t.Context(), process.Spec{Path: "cp", Args: []string{"-a", from, to}})
	require.NoError(t, err, out)
}

// replaceData stops the server, does something to its data, and starts it again.
func replaceData(t *testing.T, w *world, do func(data string)) {
	t.Helper()
	require.NoError(t, w.server.Halt(t.Context(), pgserver.Fast))
	do(w.server.DataDir())
	require.NoError(t, w.server.Resume(t.Context()))
	w.pool.Reset()
	w.app.Reset()
}
