//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// TestFilledLeafAttachedBeforeACrash: a partition is made, filled and attached by one
// transaction, and the server crashes before a relay has looked. What it replays from
// its log has lost by which command it was written, of rows and of the attaching, of
// one of them or of both: the relay stops all the same, and the event is published once.
func TestFilledLeafAttachedBeforeACrash(t *testing.T) {
	t.Parallel()
	for name, attach := range map[string]func(w *environment, f *filledLeaf, fill string){
		"both are replayed": func(w *environment, f *filledLeaf, fill string) {
			w.execute("CHECKPOINT")
			w.attachEmpty(25)
			w.execute(f.create() + "; " + fill + "; " + f.attach())
		},
		"the attaching is replayed": func(w *environment, f *filledLeaf, fill string) {
			tx, err := w.pool.Begin(w.t.Context())
			require.NoError(w.t, err)
			_, err = tx.Exec(w.t.Context(), "SELECT 1; SELECT 2; "+f.create()+"; "+fill)
			require.NoError(w.t, err)
			w.execute("CHECKPOINT")
			w.attachEmpty(25)
			_, err = tx.Exec(w.t.Context(), f.attach())
			require.NoError(w.t, err)
			require.NoError(w.t, tx.Commit(w.t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			onVersions(t, func(t *testing.T, version string) {
				w := ownEnvironment(t, version, map[string]string{"full_page_writes": "off"}) // or a page of before the crash may come whole from the log
				w.prepareTables()
				r := startRelay(t, w, "checkpoint_interval: 50ms")
				caughtUp(t, w, r)
				r.stop()
				f := newFilledLeaf(t, w, 20)
				fill, key := f.fill()
				attach(w, f, fill)
				w.serverAgain(pgserver.Immediate)
				require.True(t, scalar[bool](w, `SELECT cmin::text = '0' FROM pg_inherits WHERE inhrelid = $1::regclass`, "onceward."+f.name), "the attaching was not replayed")
				r.start()
				require.Contains(t, r.wait(30*time.Second), "PARTITION_FILLED: partition "+f.name)
				outboxctl(t, w.dsn(maintainerLogin), "partitions", "adopt", f.name, "--reason", "rows of the old shop", "--yes")
				r.start()
				caughtUp(t, w, r)
				eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
				r.stop()
				require.Equal(t, 1, w.published()[key])
				requireTrue(t, w)
			})
		})
	}
}

// attachEmpty makes a partition of one day that nobody writes to.
func (w *environment) attachEmpty(daysOld int) {
	f := newFilledLeaf(w.t, w, daysOld)
	w.execute(f.create() + "; " + f.attach())
}
