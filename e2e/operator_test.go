//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// What an operator gets wrong ends in a clear error that holds the cure.

func TestWrongConfigKey(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	r := w.newRelay(w.config("quue: {bytes: 1MiB}"), "")
	r.start()
	log := r.wait(10 * time.Second)
	require.Contains(t, log, "quue: unknown key; did you mean queue?")
	require.ErrorContains(t, r.process.Err(), "exit status 1")
}

func TestMissingTable(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "")
	r.start()
	log := r.wait(30 * time.Second)
	require.Contains(t, log, "TABLE_MISSING")
	require.Contains(t, log, "outboxctl migrate up --side outbox --relay "+w.name)
	require.Zero(t, scalar[int](w, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`), "no slot is made before the checks")
}

func TestMissingPublicationIsMendedByItsCure(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	w.install()
	_, err := w.pool.Exec(t.Context(), "DROP PUBLICATION onceward_"+w.name)
	require.NoError(t, err)
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "")
	r.start()
	require.Contains(t, r.wait(30*time.Second), "PUBLICATION_MISSING")
	_, err = w.pool.Exec(t.Context(), "CREATE PUBLICATION onceward_"+w.name+" FOR TABLE onceward.outbox, onceward.replays, onceward.controls WITH (publish = 'insert', publish_via_partition_root = true)")
	require.NoError(t, err)
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	r.stop()
}

// An unknown topic holds the event, says so, and heals by itself once the topic
// is there.
func TestUnknownTopicHoldsAndHeals(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	w.install()
	_, err := w.app.Exec(t.Context(), oneAggregate)
	require.NoError(t, err)
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	key := writeOne(t, w)
	eventually(t, "the relay names the topic and the cure", 30*time.Second, func() bool {
		return r.logs(w.topic()) && r.logs("kafka-topics") && r.logs("topics.create: true") && r.logs(key)
	})
	w.createTopic(nil)
	eventually(t, "the event arrives", 30*time.Second, func() bool { return r.logs("route released") })
	r.stop()
	records := w.records()
	require.Len(t, records, 1)
	require.Equal(t, key, headerOf(records[0], outbox.HeaderKey))
}

// Two relays of one name: one publishes, the other stands by and takes over.
func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	w.install()
	w.createTopic(nil)
	_, err := w.app.Exec(t.Context(), oneAggregate)
	require.NoError(t, err)
	holder, standby := w.newRelay(w.config(`admin: {listen: "off"}`), ""), w.newRelay(w.config(`admin: {listen: "off"}`), "")
	holder.start()
	eventually(t, "the first holds the slot", 30*time.Second, func() bool { return holder.logs("slot taken") })
	standby.start()
	eventually(t, "the second stands by", 30*time.Second, func() bool { return standby.logs("standby") })
	writeOne(t, w)
	holder.kill()
	eventually(t, "the second takes over", 10*time.Second, func() bool { return standby.logs("slot taken") })
	writeOne(t, w)
	caughtUp(t, w, standby)
	standby.stop()
	distinct := map[string]bool{}
	for _, r := range w.records() {
		distinct[headerOf(r, outbox.HeaderKey)] = true
	}
	require.Len(t, distinct, 3)
}

func TestMalformedKeyIsRefusedAtTheEdge(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	w.install()
	err := pgx.BeginFunc(t.Context(), w.app, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(t.Context(), tx, outbox.Event{AggregateType: "order", AggregateID: "1", Type: "T"})
		return err
	})
	require.ErrorIs(t, err, outbox.ErrEvent)
	require.ErrorContains(t, err, "outbox.NewKey")
	_, err = outbox.ParseKey("shop:6f1c3d5e-9f7a-4d0b-8e1e-0f6b1f2a3c4d")
	require.ErrorContains(t, err, "version 4 found, want 7 (NewKey) or 8")
}
