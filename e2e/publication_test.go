//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPublicationChangedUnderTheRelay: whoever takes the outbox out of the
// publication, or makes the publication anew, makes a gap: rows of the time
// between are never sent. The relay finds it by itself and names it, also when
// everything looks as before, and stays stopped when it is started again, until
// the operator accepts the gap with the words that it prints.
func TestPublicationChangedUnderTheRelay(t *testing.T) {
	const create = ` FOR TABLE onceward.outbox, onceward.replays, onceward.controls WITH (publish = 'insert', publish_via_partition_root = true)`
	for _, tc := range []struct {
		name     string
		away     func(publication string) string
		restored func(publication string) string
		code     string
	}{
		{"TableRemovedAndAdded", func(p string) string { return "ALTER PUBLICATION " + p + " DROP TABLE onceward.outbox" },
			func(p string) string { return "ALTER PUBLICATION " + p + " ADD TABLE onceward.outbox" }, "PUBLICATION_CHANGED"},
		{"DroppedAndMadeAnew", func(p string) string { return "DROP PUBLICATION " + p },
			func(p string) string { return "CREATE PUBLICATION " + p + create }, "PUBLICATION_"}, // 15 misses it in the stream, 18 goes on without a word
		{"PublishesEverything", func(p string) string {
			return "ALTER PUBLICATION " + p + " SET (publish = 'insert, update, delete, truncate')"
		},
			nil, "PUBLICATION_C"}, // CHANGED while it runs, CONTENT at a start
	} {
		t.Run(tc.name, func(t *testing.T) {
			onVersions(t, func(t *testing.T, version string) {
				w := newWorld(t, version)
				r := streaming(t, w, "checkpoint_interval: 100ms")
				caughtUp(t, w, r)
				before := w.ends()
				w.execute(tc.away(w.slot()))
				missed := writeOne(t, w)
				if tc.restored != nil {
					w.execute(tc.restored(w.slot()))
				}
				began := time.Now()
				writeOne(t, w)
				log := r.wait(30 * time.Second)
				found := time.Since(began)
				require.Contains(t, log, tc.code)
				require.Contains(t, log, "To mend it")
				r.start()
				log = r.wait(30 * time.Second)
				require.Contains(t, log, tc.code, "it stays found")
				mend(t, w, log)
				r.start()
				caughtUp(t, w, r) // the cure works in one go
				t.Logf("PostgreSQL %s, %s: found after %s and mended by what was printed; event %s of the time between; %d records came in after the change",
					version, tc.name, found.Round(time.Millisecond), missed, w.ends()-before)
			})
		})
	}
}

// TestPublicationGone: the publication is dropped and nobody makes it again.
// Events go nowhere; the relay must not look healthy.
func TestPublicationGone(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		w := newWorld(t, version)
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
		r.stop()
	})
}
