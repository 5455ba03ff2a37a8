//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/outbox"
)

// hugeBar is what a relay may have resident, in MiB, while it publishes rows that
// are as large as the table lets in: what it may otherwise, and six times the row: how
// much stands before the collector comes depends on its turn.
const hugeBar = memoryBar + 6*(outbox.MaxPayload>>20)

// TestHugeRow: rows that are as large in every column as the table lets in go through
// the relay whole, one after the other, from the log and from a gap's repair, through a hard kill,
// and between small ones that keep their order. What the relay has resident grows with
// the largest row, not with how many there are. Where the relay's limit, which is Kafka's own by default, is
// below the row it becomes a dead letter, which costs no more.
func TestHugeRow(t *testing.T) {
	roomy := roomyKafka(t)
	for i, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode+"/PostgreSQL"+versions[i], func(t *testing.T) {
			hugeRows(t, newEnvironmentBetween(t, postgres(t, versions[i]), roomy.Addrs()), mode)
		})
	}
}

// roomyKafka is a broker that has the memory for records of 64 MiB, which the shared
// one has not.
func roomyKafka(t *testing.T) *kafkaserver.Cluster {
	t.Helper()
	c, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Brokers: 1, JVM: []string{"-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, c.Stop(ctx))
	})
	return c
}

func hugeRows(t *testing.T, w *environment, mode string) {
	w.partitions = 1
	w.install()
	w.createTopic(map[string]string{"max.message.bytes": "67108864"})
	w.execute(`CREATE TABLE counters (aggregate text PRIMARY KEY, n int NOT NULL); CREATE TABLE business (key text PRIMARY KEY);
		INSERT INTO counters VALUES ('a-0', 0); GRANT ALL ON counters, business TO PUBLIC`)
	r := w.newRelay(w.config("checkpoint_interval: 100ms", `admin: {listen: "off"}`), "").inMode(mode)
	plain := slices.Clone(r.env)
	r.env = append(r.env, "ONCEWARD_KAFKA_MAX_MESSAGE_BYTES=64MiB")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	caughtUp(t, w, r)
	small := memory(t, r, "VmHWM")

	h := &hugeWriter{w: w, random: rand.NewChaCha8([32]byte{1}), payloads: map[string][]byte{}}
	h.write(t, 1)
	h.ended(t, r)
	one := memory(t, r, "VmHWM")
	h.write(t, 3)
	h.ended(t, r)
	four := memory(t, r, "VmHWM")
	r.kill()
	h.write(t, 1)
	loseSlot(t, w)
	r.start()
	h.ended(t, r)
	repaired := memory(t, r, "VmHWM")
	r.stop()
	r.env = plain
	refused := h.write(t, 1)
	r.start()
	eventually(t, "it is a dead letter", time.Minute, func() bool {
		return scalar[int](w, `SELECT count(*) FROM onceward.dead_letters WHERE letter_id = $1`, refused[0].UUID()) == 1
	})
	delete(h.payloads, refused[0].String())
	caughtUp(t, w, r)
	letter := memory(t, r, "VmHWM")
	r.stop()
	t.Logf("%s: resident at most %.0f MiB before, %.0f MiB after one row of %d MiB, %.0f MiB after four, %.0f MiB in a process that repaired one, %.0f MiB in one that refused one",
		mode, small, one, outbox.MaxPayload>>20, four, repaired, letter)
	h.verify(t)
	require.LessOrEqual(t, max(one, four, repaired, letter), float64(hugeBar))
}

// hugeWriter writes rows that are as large as the table lets in.
type hugeWriter struct {
	w        *environment
	random   *rand.ChaCha8
	payloads map[string][]byte // the beginning of each
}

// headOf is as much of a payload as the test remembers.
const headOf = 1 << 20

// write commits n huge rows in one transaction, with small ones between them.
func (h *hugeWriter) write(t *testing.T, n int) (keys []outbox.Key) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), h.w.app, func(tx pgx.Tx) error {
		for range n {
			key, err := outbox.NewKey(h.w.name)
			require.NoError(t, err)
			payload := make([]byte, outbox.MaxPayload)
			_, _ = h.random.Read(payload) // it never fails; nothing compresses it
			_, err = outbox.Enqueue(t.Context(), tx, outbox.Event{
				Key: key, AggregateType: "order", AggregateID: strings.Repeat("a", 4096), Type: strings.Repeat("T", 255), ContentType: strings.Repeat("c", 255),
				Payload: payload, Headers: map[string]string{"h": strings.Repeat("x", 64<<10-1)},
			})
			if err != nil {
				return err
			}
			h.payloads[key.String()] = bytes.Clone(payload[:headOf])
			keys = append(keys, key)
			if _, err := (&writers{namespace: h.w.name}).row(t.Context(), tx, 0, "a-0"); err != nil {
				return err
			}
		}
		return nil
	}))
	return keys
}

// ended waits until nothing is owed.
func (h *hugeWriter) ended(t *testing.T, r *relayProcess) {
	t.Helper()
	eventually(t, "nothing is pending", 2*time.Minute, func() bool {
		select {
		case <-r.process.Done():
			t.Fatal("the relay ended by itself")
		default:
		}
		return owed(h.w) == 0
	})
}

// verify compares what is in the topic.
func (h *hugeWriter) verify(t *testing.T) {
	t.Helper()
	found := map[string]int{}
	for _, m := range h.w.committed(h.w.topic()) {
		if len(m.Value) < headOf {
			continue
		}
		key := headerOf(m, outbox.HeaderKey)
		require.Len(t, m.Value, outbox.MaxPayload)
		require.True(t, bytes.Equal(h.payloads[key], m.Value[:headOf]), key)
		found[key]++
	}
	require.Len(t, found, len(h.payloads))
	for key, n := range found {
		require.Equal(t, 1, n, key)
	}
	require.Equal(t, map[string]int{"published": 2*len(h.payloads) + 3, "parked": 1}, h.states())
}

func (h *hugeWriter) states() map[string]int {
	states := map[string]int{}
	rows, err := h.w.pool.Query(h.w.t.Context(), `SELECT a.state, count(*) FROM onceward.outbox o, onceward.account(o.id, o.tx_id, o.seq) a GROUP BY 1`)
	require.NoError(h.w.t, err)
	var state string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&state, &n}, func() error { states[state] = n; return nil })
	require.NoError(h.w.t, err)
	return states
}
