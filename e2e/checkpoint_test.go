//go:build e2e

package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEveryEventIsCheckpointed: single events with pauses between them, so that
// each acknowledgement meets the checkpoint's tick at another point. None may be
// left for the next event to confirm: until then a restart would publish it
// again, and the slot keeps its log.
func TestEveryEventIsCheckpointed(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	r := streaming(t, w, "checkpoint_interval: 20ms")
	random := rand.New(rand.NewPCG(1, 2))
	var slowest time.Duration
	for range 150 {
		pause := time.NewTimer(time.Duration(random.IntN(30_000)) * time.Microsecond)
		<-pause.C
		last := scalar[string](w, `SELECT pg_current_wal_insert_lsn()::text`)
		writeOne(t, w)
		began := time.Now()
		eventually(t, "the event is covered by a checkpoint", 3*time.Second, func() bool {
			return scalar[bool](w, `SELECT confirmed_lsn > $1::pg_lsn FROM onceward.relay_state`, last)
		})
		slowest = max(slowest, time.Since(began))
	}
	r.stop()
	require.EqualValues(t, 150, w.ends())
	t.Logf("150 events, each checkpointed; slowest after %s (interval 20ms)", slowest.Round(time.Millisecond))
}
