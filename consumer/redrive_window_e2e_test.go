//go:build e2e

package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/record"
)

// TestRedriveBelowTheFloor: an operator's word applies what the class refuses.
func TestRedriveBelowTheFloor(t *testing.T) {
	for _, days := range []int{2, 30} {
		for name, c := range map[string]struct {
			offset int64
			class  consumer.Class
			reason string
		}{
			"late":   {100, consumer.Class{Late: consumer.LateDeadLetter}, "late 100"},
			"replay": {10, consumer.Class{}, "replay 10"},
		} {
			t.Run(fmt.Sprintf("%s/%d days", name, days), func(t *testing.T) {
				t.Parallel()
				b := newBelow(t, nil, c.class, days)
				d := &letterGroup{env: b.env, router: b.router, offset: c.offset - 1}
				ev := b.event(c.offset)
				rec := d.record(ev)
				rec.Source.Topic = windowTopic
				d.deliver(rec, consumer.DeadLettered)
				require.NoError(t, b.left(0, c.reason))
				exec(t, d.db, "UPDATE onceward.progress SET high_offset = 150") // the offset of the letter counts as finished
				d.request()
				d.redrive(1)
				require.NoError(t, b.left(1, c.reason))
				require.Equal(t, "redriven", d.letter(rec).State)
				require.Equal(t, name == "late", b.seen[0].Late, "the group sees it for the first time")
				require.Equal(t, name == "replay", b.seen[0].Unprotected)

				// The record comes again, and another letter of the same event.
				outcome, err := d.router.HandleRecord(t.Context(), rec)
				require.NoError(t, err)
				require.True(t, outcome == consumer.Duplicate || outcome == consumer.DeadLettered, outcome)
				exec(t, d.db, `INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, record_key, record_value, record_headers, reason, error, state)
					SELECT consumer_group, topic, kafka_partition, 200, record_key, record_value, record_headers, reason, error, 'requested' FROM onceward.consumer_dead_letters`)
				d.redrive(1)
				require.Equal(t, 1, d.effects(), "claimed by arrival, a second copy is a duplicate")
				require.Equal(t, 2, count(t, d.db, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'`))
			})
		}
	}
}

// TestRedriveIsTheFirstSight: the event of a letter that says that it was never applied is
// late when the mark has passed it, and no copy that may have been.
func TestRedriveIsTheFirstSight(t *testing.T) {
	repair := []consumer.Header{{Name: record.HeaderRepairID, Value: []byte(uuid.NewString())}}
	never := []string{"handler", "crash", "no-handler", "parked", "from-future", "late", "malformed"}
	for name, c := range map[string]struct {
		reasons []string
		class   consumer.Class
		headers []consumer.Header
		late    bool
	}{
		"never applied":              {reasons: never, late: true},
		"a replay":                   {reasons: []string{"replay"}},
		"a repair that was judged":   {reasons: []string{"handler", "parked"}, headers: repair, late: true},
		"a repair that was not":      {reasons: []string{"malformed", "replay"}, headers: repair},
		"late, replays are applied":  {reasons: []string{"late"}, class: consumer.Class{Replay: consumer.ReplayProcess}, late: true},
		"where replays are applied":  {reasons: []string{"handler"}, class: consumer.Class{Replay: consumer.ReplayProcess}},
		"by arrival there is no day": {reasons: []string{"handler"}, class: consumer.Class{Keyed: consumer.ByArrival}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBelow(t, nil, c.class, 2)
			d := &letterGroup{env: b.env, router: b.router}
			for i, reason := range c.reasons {
				rec := d.record(b.event(0))
				exec(t, d.db, `INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, record_key, record_value, record_headers, reason, error, state)
					VALUES ('billing', $1, 0, $2, $3, $4, $5::text::jsonb, $6, 'before', 'requested')`,
					windowTopic, i, rec.Key, rec.Value, string(must(record.StoreHeaders(append(rec.Headers, c.headers...)))), reason)
			}
			d.redrive(len(c.reasons))
			require.Len(t, b.seen, len(c.reasons))
			for i, ev := range b.seen {
				require.Equal(t, c.late, ev.Late, c.reasons[i])
				require.Equal(t, !c.late && c.class.Keyed != consumer.ByArrival, ev.Unprotected, c.reasons[i])
			}
		})
	}
}

// TestRedriveOfTheDeadBelowTheFloor: the floor has passed the event since it was
// given up.
func TestRedriveOfTheDeadBelowTheFloor(t *testing.T) {
	d := newLetterGroup(t)
	rec := d.dead(1)[0]
	exec(t, d.db, `UPDATE onceward.dedup_windows SET floor = clock_timestamp() + interval '1 day', raised_at = clock_timestamp()`)
	d.router = d.member()
	d.request()
	d.redrive(1)
	require.Equal(t, 1, d.effects())
	require.Equal(t, "redriven", d.letter(rec).State)
	require.Zero(t, count(t, d.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd'"))
	d.deliver(rec, consumer.Duplicate)
	require.Equal(t, 1, d.effects())
}

// TestRedriveFromTheFuture waits for the time to come.
func TestRedriveFromTheFuture(t *testing.T) {
	d := newLetterGroup(t)
	ev := newEvent(t)
	ev.Key = keyAt(t, time.Now().Add(time.Hour))
	rec := d.record(ev)
	d.deliver(rec, consumer.DeadLettered)
	d.request()
	d.redrive(1)
	require.Equal(t, "open", d.letter(rec).State)
	require.Contains(t, d.letter(rec).Error, "has still not come")
	require.NoError(t, d.expect(0, 0))
}

// TestOpenLetterDoesNotPinADay (C5): the day goes, and with it the claim that says
// dead; the letter says it as well. Nobody but its redrive applies the event, once.
func TestOpenLetterDoesNotPinADay(t *testing.T) {
	for name, state := range map[string]string{"redriven": "requested", "discarded": "discarded", "discarded, of a crash": "discarded"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBelow(t, nil, consumer.Class{}, 2)
			d := &letterGroup{env: b.env, offset: 100}
			fails := true
			member := func() *consumer.Router {
				r := consumer.NewRouter(b.processor())
				r.Tx("Paid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
					if fails {
						return consumer.DeadLetter(errBroken)
					}
					return effect("billing")(ctx, tx, ev)
				})
				return r
			}
			exec(t, d.db, "UPDATE onceward.dedup_windows SET floor = floor - interval '7 days'")
			d.router = member()
			ev := newEvent(t)
			ev.Key = keyAt(t, time.Now().AddDate(0, 0, -2))
			rec := d.record(ev)
			d.deliver(rec, consumer.DeadLettered)
			require.Equal(t, 3, d.claims(), "by its id, and by arrival")
			fails = false
			if name == "discarded, of a crash" {
				exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET reason = 'crash'")
			}

			exec(t, d.db, `UPDATE onceward.dedup_windows SET floor = date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', raised_at = now() - interval '1 hour'`)
			conn, err := d.db.Acquire(t.Context())
			require.NoError(t, err)
			report, err := retention.Maintain(t.Context(), conn.Conn(), retention.Config{})
			conn.Release()
			require.NoError(t, err)
			require.Equal(t, 2, d.claims(), report.Leaves)
			exec(t, d.db, "DELETE FROM onceward.processed_events") // and the buckets' days, later
			found, err := audit.Check(t.Context(), d.db, audit.Config{})
			require.NoError(t, err)
			require.Empty(t, found.Findings)

			d.router = member()
			d.deliver(rec, consumer.DeadLettered) // its offset is known, beyond the mark, and the letter says that it was not applied
			copied := rec
			copied.Source.Offset = 200 // an offset that the group has not seen: late, but for the letter
			d.deliver(copied, consumer.DeadLettered)
			require.NoError(t, d.expect(0, 0))
			require.Equal(t, 1, d.letters())

			exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET state = $1, generation = generation + 1", state)
			want := 0
			if state == "requested" {
				want = 1
			}
			var members sync.WaitGroup
			for range 4 {
				r := member()
				members.Go(func() { _, _ = r.Redrive(t.Context(), 10) })
			}
			members.Wait()
			require.Equal(t, want, d.effects())
			_, err = d.router.HandleRecord(t.Context(), rec)
			require.NoError(t, err)
			_, err = d.router.HandleRecord(t.Context(), copied)
			require.NoError(t, err)
			require.Equal(t, want, d.effects())
		})
	}
}
