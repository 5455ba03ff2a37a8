//go:build e2e

package consumer_test

import (
	"os"
	exec2 "os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/testdb"
)

// TestRestoredSnapshot (A4, W1): a data directory that was put back is another
// history, though system identifier and timeline are the same: marks of before
// would stand for effects that are gone.
func TestRestoredSnapshot(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			t.Parallel()
			server, pool := testdb.Own(t, pgserver.Options{Version: version})
			install(t, pool)
			e := &env{t: t, db: pool}
			apply := func(from, to int64) {
				r := e.router("billing", effect("billing"))
				for offset := from; offset <= to; offset++ {
					ev := newEvent(t)
					ev.Source = consumer.Source{Topic: "orders", Offset: offset}
					require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
				}
			}
			mark := func(high int64) []consumer.Mark { return []consumer.Mark{{Topic: "orders", High: high}} }
			apply(0, 19)
			r := e.router("billing", effect("billing"))
			require.NoError(t, r.SaveProgress(t.Context(), must(r.Progress(t.Context())).History, mark(19)))

			data := server.DataDir()
			again := func(between func()) {
				pool.Reset()
				require.NoError(t, server.Halt(t.Context(), pgserver.Fast))
				between()
				require.NoError(t, server.Resume(t.Context()))
			}
			snapshot := filepath.Join(t.TempDir(), "snapshot")
			again(func() { copyAll(t, data, snapshot) })
			before := must(r.Progress(t.Context()))
			apply(20, 24)
			again(func() { restore(t, snapshot, data) })
			require.Equal(t, 20, e.effects())
			err := r.SaveProgress(t.Context(), before.History, mark(24))
			require.ErrorIs(t, err, consumer.ErrHistory)
			now := must(r.Progress(t.Context()))
			require.EqualValues(t, 19, now.Marks[0].High, "what is lost is read again")
			require.NoError(t, r.SaveProgress(t.Context(), now.History, mark(20)))
		})
	}
}

// restore puts a data directory back in place.
func restore(t *testing.T, snapshot, data string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(data))
	copyAll(t, snapshot, data)
}

// copyAll copies a folder with owners and modes.
func copyAll(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec2.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
