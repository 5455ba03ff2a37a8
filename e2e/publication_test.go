//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPublicationOfTooMuch: whoever has the relay's publication carry updates too
// is told at once, and what it takes to mend it; what may have been missed is
// published from the table.
func TestPublicationOfTooMuch(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		r := streaming(t, w, "checkpoint_interval: 100ms")
		caughtUp(t, w, r)
		w.execute("ALTER PUBLICATION " + w.slot() + " SET (publish = 'insert, update, delete, truncate')")
		writeOne(t, w)
		log := r.wait(30 * time.Second)
		require.Contains(t, log, "PUBLICATION_ACTIONS")
		mend(t, w, log)
		r.start()
		caughtUp(t, w, r) // the cure works in one go
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		r.stop()
		states, _ := requireTrue(t, w)
		require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
	})
}

// TestPublicationGone: the publication is dropped and nobody makes it again.
// Events go nowhere; the relay must not look healthy.
func TestPublicationGone(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		r := streaming(t, w, "checkpoint_interval: 100ms")
		caughtUp(t, w, r)
		w.execute("DROP PUBLICATION " + w.slot())
		writeOne(t, w)
		foreignLog(w, 4<<20) // the slot would be confirmed beyond the event
		log := r.wait(15 * time.Second)
		require.Contains(t, log, "PUBLICATION_")
		mend(t, w, log)
		r.start()
		caughtUp(t, w, r) // the cure works in one go
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		r.stop()
		states, _ := requireTrue(t, w)
		require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
	})
}

// TestPublicationOfAnotherTable: somebody puts a table of theirs into the relay's
// publication. Its rows stop the relay by name; once it is taken out again by what
// is printed, the relay goes on behind them, and nothing is lost.
func TestPublicationOfAnotherTable(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		r := streaming(t, w, "checkpoint_interval: 100ms")
		caughtUp(t, w, r)
		w.execute("ALTER PUBLICATION " + w.slot() + " ADD TABLE business")
		writeOne(t, w)
		log := r.wait(30 * time.Second)
		require.Contains(t, log, "row of table public.business")
		require.Contains(t, log, "PUBLICATION_TABLES: ")
		r.start()
		require.Contains(t, r.wait(30*time.Second), "1 tables or schemas besides the 3 tables")
		mend(t, w, r.log())
		r.start()
		caughtUp(t, w, r)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		r.stop()
		states, _ := requireTrue(t, w)
		require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
	})
}
