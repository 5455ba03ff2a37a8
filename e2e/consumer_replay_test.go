//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestReplayBelowFloor: events that were applied are delivered again when their
// claims are gone: asked for by an operator, by an offset that was set back, as a
// repair. Copies below the floor are reported and not applied; those above, and what
// an offset says was finished, are duplicates, of which nobody needs to hear. A replay that is for this group to
// reprocess is applied once more; and an event as old that was never delivered is
// applied as late.
func TestReplayBelowFloor(t *testing.T) {
	t.Parallel()
	events := 300
	if full() {
		events = 3000
	}
	onAVersion(t, func(t *testing.T, version string) {
		t.Parallel()
		r := newForgotten(t, version, events)
		r.relay.start()
		r.replay("redeliver")
		r.await(2*events, r.below)

		r.stop()
		r.rewind()
		r.start(2, 0)
		r.await(2*events, r.below) // the originals are known to be finished: no letter for each

		r.repair()
		r.await(2*events+2, r.below+1)

		r.replay("reprocess", "--aggregate", r.some.AggregateID, "--reprocess", r.group)
		again := scalar[int](r.w, `SELECT count(*) FROM onceward.outbox WHERE aggregate_id = $1`, r.some.AggregateID)
		r.await(2*events+2+again, r.below+1)
		r.relay.stop()
		require.Equal(t, events+again, scalar[int](r.w, `SELECT count(*) FROM effects`))

		r.newcomer()
		r.await(2*events+3+again, r.below+1)
		require.Equal(t, events+again+1, scalar[int](r.w, `SELECT count(*) FROM effects`))
		require.Equal(t, 1, scalar[int](r.w, `SELECT count(*) FROM effects WHERE late`))
		r.stop()
		t.Logf("PostgreSQL %s: %d events, %d of them below the floor %s: %d letters with the reason replay, %d effects, %d of them reprocessed and 1 late",
			version, events, r.below, r.floor().Format(time.RFC3339), r.below+1, events+again+1, again)
	})
}

// forgotten is a consumerGroup that has applied events of three days, and whose claims of
// the first of them are gone, because its window is one.
type forgotten struct {
	*consumerGroup
	t          *testing.T
	relay      *relayProcess
	below      int          // events below the floor
	some, last outbox.Event // one below the floor, and one above
}

func newForgotten(t *testing.T, version string, events int) *forgotten {
	t.Helper()
	f := &forgotten{consumerGroup: newConsumerGroup(t, version, 1), t: t}
	f.window, f.healthy, f.types = day, true, []string{"Tx", "Batch", "Set"}
	began := time.Now().Add(-3 * day)
	f.since(began.Add(-f.window))
	f.relay = f.consumerGroup.relay()
	f.spread(events-100, began, time.Now()) // the last ones are of now, in every partition
	f.enqueue(events)
	f.start(2, 0)
	f.finish()
	f.relay.kill()
	f.maintain()
	require.WithinDuration(t, partition.Day(time.Now().Add(-f.window)), f.floor(), day, "it may be tomorrow by now")
	require.Equal(t, f.floor(), f.oldestClaims(), "the claims below are gone")
	f.w.execute(`DELETE FROM onceward.processed_events WHERE substr(event_id::text, 15, 1) = '8'`) // those by arrival, two windows later
	f.below = scalar[int](f.w, `SELECT count(*) FROM effects WHERE split_part(key, ':', 2)::uuid < $1`, outbox.FirstID(f.floor()))
	require.Positive(t, f.below)
	require.Less(t, f.below, events)
	f.some, f.last = f.event("ORDER BY id LIMIT 1"), f.event("ORDER BY id DESC LIMIT 1")
	return f
}

func (f *forgotten) event(which string) (ev outbox.Event) {
	f.t.Helper()
	var key string
	require.NoError(f.t, f.w.pool.QueryRow(f.t.Context(), `SELECT namespace || ':' || id, aggregate_id, event_type, payload FROM onceward.outbox `+which).
		Scan(&key, &ev.AggregateID, &ev.Type, &ev.Payload))
	var err error
	ev.Key, err = outbox.ParseKey(key)
	require.NoError(f.t, err)
	return ev
}

// replay asks as an operator does for events to be published again: all of them
// unless the arguments say which.
func (f *forgotten) replay(reason string, args ...string) {
	f.t.Helper()
	if args == nil {
		args = []string{"--from", time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), "--to", time.Now().Add(time.Minute).UTC().Format(time.RFC3339)}
	}
	args = append([]string{"replay", "--config", f.relay.config, "--yes", "--reason", reason, "--namespace", f.w.name, "--aggregate-type", "order"}, args...)
	require.Contains(f.t, outboxctl(f.t, f.w.dsn(operatorLogin), args...), "asked for the replay of ")
}

// repair publishes one event below the floor and one above as a gap repair does.
func (f *forgotten) repair() {
	id := sarama.RecordHeader{Key: []byte(record.HeaderRepairID), Value: []byte(uuid.NewString())}
	f.send(f.message(f.some, id), f.message(f.last, id))
}

// newcomer publishes an event whose time is as old as that of the first one.
func (f *forgotten) newcomer() {
	f.times = f.some.Key.Time
	f.send(f.message(f.next()))
}

// await waits until the topic holds so many records and the group has finished
// them, and demands that many letters, all of replays.
func (f *forgotten) await(records, letters int) {
	f.t.Helper()
	workedOff(f.t, "records are not finished", func() int64 { return f.lag() + max(0, int64(records)-f.offsets()) })
	require.Equal(f.t, map[string]int{"replay": letters}, f.letters())
	require.Zero(f.t, scalar[int](f.w, `SELECT count(*) FROM onceward.consumer_dead_letters
		WHERE event_id >= $1 OR error NOT LIKE '%below the floor%'`, outbox.FirstID(f.floor())))
}
