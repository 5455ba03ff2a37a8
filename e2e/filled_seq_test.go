//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fillSeq writes n events into the table, all with one seq.
func (f *filledLeaf) fillSeq(n int, seq string) {
	f.w.t.Helper()
	f.w.execute("INSERT INTO onceward."+f.name+` (id, namespace, aggregate_type, aggregate_id, event_type, payload, seq)
		SELECT (left($1, 24) || lpad(to_hex(i), 12, '0'))::uuid, $2, 'order', 'old', 'T', '{}', $3::text::bigint FROM generate_series(1, $4::int) i`,
		f.id().String(), f.w.name, seq, n)
}

// TestFilledLeafOfAnySeq: rows of a partition that somebody filled have the seq that
// he wrote: 0, below, the smallest that there is, or one for many of them. All are published, also when the relay
// dies among them.
func TestFilledLeafOfAnySeq(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode, seq, crash string
		events           int
	}{
		"zero":                      {"idempotent", "0", "", 20},
		"negative, exactly once":    {"exactly-once", "-5", "", 20},
		"the smallest":              {"idempotent", "-9223372036854775808", "", 20},
		"the smallest, dies in it":  {"exactly-once", "-9223372036854775808", "CRASH_AT=in-repair:2", 600},
		"one seq":                   {"idempotent", "7", "CRASH_AT=in-repair:2", 600},
		"one seq, once, its cursor": {"exactly-once", "7", "CRASH_AT=before-cursor:2", 600},
		"one seq, exactly once":     {"exactly-once", "7", "CRASH_AT=in-repair:2", 600},
	} {
		t.Run(name, func(t *testing.T) {
			w := settled(t, versions[1])
			r := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "none").inMode(c.mode)
			begins(t, w, r)
			f := newFilledLeaf(t, w, 20)
			w.execute(f.create())
			f.fillSeq(c.events, c.seq)
			covered(w, r)
			w.execute(f.attach())
			require.Contains(t, r.wait(30*time.Second), "PARTITION_FILLED")
			outboxctl(t, w.dsn(maintainerLogin), "partitions", "adopt", f.name, "--reason", "old shop", "--yes")
			if c.crash != "" {
				plain := r.env
				r.env = append(append([]string{}, plain...), c.crash)
				r.start()
				r.wait(30 * time.Second)
				requireProven(t, w.published(), account(t, w))
				r.env = plain
			}
			r.start()
			seenBy(w, w.name)
			r.stop()
			in, old := (&replays{environment: w}).inTopic(w.topic()), 0
			for key, state := range account(t, w) {
				require.Equal(t, "published", state)
				require.Positive(t, in[key], key)
				old++
			}
			require.Greater(t, old, c.events)
		})
	}
}

// TestAdoptByDumpSetsTheSequence: logical replication does not carry sequences. What
// is written after the database was adopted comes behind what was there.
func TestAdoptByDumpSetsTheSequence(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[1])
	r := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "none")
	begins(t, w, r)
	writeOne(t, w)
	writeOne(t, w)
	r.stop()
	eventually(t, "the slot is free", 10*time.Second, func() bool { return scalar[bool](w, `SELECT NOT bool_or(active) FROM pg_replication_slots`) })
	last := scalar[int64](w, `SELECT max(seq) FROM onceward.outbox`)
	w.execute(`UPDATE onceward.relay_state SET system_identifier = '1'; ALTER TABLE onceward.outbox ALTER COLUMN seq RESTART WITH 1`)
	f := newFilledLeaf(t, w, 20)
	w.execute(f.create())
	f.fillSeq(1, "9223372036854775807")
	w.execute(f.attach())
	out, code := asked(t, w.dsn(maintainerLogin), "adopt", "--by", "dump", "--reason", "logical replication", "--yes")
	require.Equal(t, 1, code)
	require.Contains(t, out, " has seq 9223372036854775807, behind which the sequence of onceward.outbox has no room for what producers write: detach "+f.name)
	w.execute(f.detach() + "; UPDATE onceward." + f.name + " SET seq = 0; " + f.attach())
	outboxctl(t, w.dsn(maintainerLogin), "adopt", "--by", "dump", "--reason", "logical replication", "--yes")
	writeOne(t, w)
	require.Equal(t, last+1, scalar[int64](w, `SELECT max(seq) FROM onceward.outbox`))
}
