//go:build e2e

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAdoptedBesideARelayThatReads: a partition is adopted while a relay that has not
// come to it yet is in the middle of the stream, with an event of it whose topic is
// missing. What it would write down to wait has the transaction of before, which the
// row has no more: it is fenced, and calls nothing erased.
func TestAdoptedBesideARelayThatReads(t *testing.T) {
	t.Parallel()
	modes := []string{"idempotent", "exactly-once"}
	if !full() {
		modes = modes[:1]
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			w := settled(t, versions[1])
			r := w.newRelay(w.config("checkpoint_interval: 3s", `admin: {listen: "off"}`), "none").inMode(mode)
			begins(t, w, r)
			r.stop()
			r.env = append(r.env, "ONCEWARD_TOPICS_CREATE=false", "ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=60s")
			r.start()
			caughtUp(t, w, r)
			f := newFilledLeaf(t, w, 20)
			fill, strange := f.fill()
			w.execute(f.create())
			w.execute(fill)
			covered(w, r)
			require.NoError(t, r.process.Signal(syscall.SIGSTOP))
			w.execute(f.attach())
			late, waits := f.fillAs("outbox", "late")
			w.execute(late)
			outboxctl(t, w.dsn(maintainerLogin), "partitions", "adopt", f.name, "--reason", "the old shop", "--yes")
			require.NoError(t, r.process.Signal(syscall.SIGCONT))
			seenBy(w, w.name)
			require.Equal(t, "waiting", account(t, w)[waits])
			(&replays{environment: w}).topicOf(w.name + ".late")
			eventually(t, "nothing waits", time.Minute, func() bool { return scalar[int](w, `SELECT count(*) FROM onceward.waiting`) == 0 })
			seenBy(w, w.name)
			r.stop()
			require.Equal(t, "published", account(t, w)[waits])
			require.Positive(t, countIn(w, w.name+".late", waits))
			require.Positive(t, countIn(w, w.topic(), strange))
			require.False(t, r.logs("event erased"))
			require.False(t, r.logs("another process"), "it was the command")
		})
	}
}

// TestAdoptedLeafOfADay: a day is partitioned by hash, and one of its partitions is
// detached and attached again: its events are published again, and no others.
func TestAdoptedLeafOfADay(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[0])
	r := w.newRelay(w.config(`admin: {listen: "off"}`, "checkpoint_interval: 50ms"), "")
	begins(t, w, r)
	f := newFilledLeaf(t, w, 20)
	above, leaf := "onceward."+f.name+"_above", f.name+"_1"
	w.execute("CREATE TABLE " + above + " (LIKE onceward.outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY HASH (id); ALTER TABLE " + above + " OWNER TO onceward_owner")
	for _, rest := range []string{"0", "1"} {
		name := "onceward." + f.name + "_" + rest
		w.execute("CREATE TABLE " + name + " PARTITION OF " + above + " FOR VALUES WITH (MODULUS 2, REMAINDER " + rest + "); ALTER TABLE " + name + " OWNER TO onceward_owner")
	}
	w.execute(strings.Replace(f.attach(), "onceward."+f.name, above, 1))
	seenBy(w, w.name)
	var keys []string
	for range 40 {
		sql, key := f.fillAs("outbox", "order")
		w.execute(sql)
		keys = append(keys, key)
	}
	covered(w, r)
	w.execute("ALTER TABLE " + above + " DETACH PARTITION onceward." + leaf)
	w.execute("ALTER TABLE " + above + " ATTACH PARTITION onceward." + leaf + " FOR VALUES WITH (MODULUS 2, REMAINDER 1)")
	require.Contains(t, r.wait(30*time.Second), "PARTITION_FILLED: partition "+leaf)
	outboxctl(t, w.dsn(maintainerLogin), "partitions", "adopt", leaf, "--reason", "detached by mistake", "--yes")
	r.start()
	seenBy(w, w.name)
	r.stop()
	twice, inTopic := 0, w.published()
	for _, key := range keys {
		if inTopic[key] > 1 {
			twice++
		}
	}
	require.Equal(t, scalar[int](w, "SELECT count(*) FROM onceward."+leaf), twice)
}

// TestSchemaBehind: a relay over the schema of the release before halts by name, and
// goes on by itself once that was brought up.
func TestSchemaBehind(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[0])
	r := startRelay(t, w, "checkpoint_interval: 50ms")
	caughtUp(t, w, r)
	r.stop()
	for _, earlier := range []string{
		`DELETE FROM onceward.outbox_migrations WHERE version_id >= 14`, // which makes a function alone
		`ALTER TABLE onceward.published_snapshots DROP COLUMN attachings; DELETE FROM onceward.outbox_migrations WHERE version_id >= 12`,
	} {
		w.execute(earlier)
		r.start()
		log := r.wait(30 * time.Second)
		require.Contains(t, log, "SCHEMA_BEHIND: ")
		require.Contains(t, log, "outboxctl migrate up --side outbox")
		out, code := relayCheck(t, r.config)
		require.Equal(t, 3, code)
		require.Contains(t, out, "SCHEMA_BEHIND")
		outboxctl(t, w.dsn(maintainerLogin), "migrate", "up", "--side", "outbox")
	}
	r.start()
	writeOne(t, w)
	caughtUp(t, w, r)
	r.stop()
}
