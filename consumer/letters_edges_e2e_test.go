//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// A copy that was a duplicate beyond the mark is one after a crash and an outage, too;
// also one in the same batch.
func TestCopiesBeyondTheMark(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		class consumer.Class
		kind  string
		at    time.Time
	}{
		"late":       {consumer.Class{Pattern: "*", Window: time.Minute}, "Paid", now.AddDate(0, 0, -30)},
		"by arrival": {consumer.Class{Pattern: "*", Window: time.Minute, Keyed: consumer.ByArrival}, "Paid", now},
		"in a batch": {consumer.Class{Pattern: "*", Window: time.Minute, Keyed: consumer.ByArrival}, "Moved", now},
	} {
		t.Run(name, func(t *testing.T) {
			x := &crashed{env: newEnv(t, nil), class: c.class}
			first := x.event(c.kind, c.at, 10)
			second := first
			second.Source.Offset = 11
			for _, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate} {
				r := x.start()
				if c.kind == "Moved" {
					d := r.HandleBatch(t.Context(), []consumer.Event{first, second})
					require.NoError(t, errors.Join(d[0].Err, d[1].Err))
					require.Equal(t, []consumer.Outcome{want, consumer.Duplicate}, []consumer.Outcome{d[0].Outcome, d[1].Outcome})
				} else {
					require.NoError(t, deliver(t.Context(), r, first, want))
					require.NoError(t, deliver(t.Context(), r, second, consumer.Duplicate))
				}
				x.outage()
			}
			require.Equal(t, 1, x.effects())
		})
	}
}

// recordAt is a record of the key A, of a topic with this id.
func recordAt(t *testing.T, topic uuid.UUID, offset int64) consumer.Record {
	t.Helper()
	ev := newEvent(t)
	return consumer.Record{Source: consumer.Source{Topic: "orders", Offset: offset, TopicID: topic}, Key: []byte("A"), Value: ev.Payload, Headers: []consumer.Header{
		{Name: outbox.HeaderKey, Value: []byte(ev.Key.String())}, {Name: record.HeaderEventType, Value: []byte("Paid")},
	}}
}

// The place of a discarded letter is not its event: what comes there later, when the
// topic was made anew, is applied.
func TestParkKnowsADiscardedEvent(t *testing.T) {
	q := newQueue(t)
	q.fail(1, consumer.DeadLetter(errBroken))
	q.deliver(q.next("Paid", "A"), consumer.DeadLettered)
	parked := q.next("Paid", "A")
	q.deliver(parked, consumer.DeadLettered)
	q.decide(2, "discarded")
	q.decide(1, "discarded")
	_, err := q.router.Redrive(t.Context(), 100)
	require.NoError(t, err)
	q.fail(1, nil)
	for offset := range int64(2) {
		q.deliver(recordAt(t, uuid.New(), offset+1), consumer.Processed)
	}
	applied := count(t, q.db, "SELECT count(*) FROM applied")
	require.Equal(t, 2, applied)
	parked.Source.Offset = 9 // a copy
	q.deliver(parked, consumer.DeadLettered)
	require.Equal(t, applied, count(t, q.db, "SELECT count(*) FROM applied"))
}

// A letter that is kept aside is open, because nothing would release it.
func TestParkLeavesALetterAsideOpen(t *testing.T) {
	q := newQueue(t)
	q.fail(1, consumer.DeadLetter(errBroken))
	for range 2 {
		q.deliver(q.next("Paid", "A"), consumer.DeadLettered)
	}
	q.deliver(recordAt(t, uuid.New(), 2), consumer.DeadLettered)
	q.fail(1, nil)
	exec(t, q.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE state = 'open'")
	_, err := q.router.Redrive(t.Context(), 100)
	require.NoError(t, err)
	require.Zero(t, count(t, q.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state <> 'redriven'"))
	require.Equal(t, 3, count(t, q.db, "SELECT count(*) FROM applied"))
}

// The key that is parked is the record's, whatever a reader makes of it.
func TestParkOfForeignRecords(t *testing.T) {
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{
		Group: "billing", DB: e.db, Retry: consumer.Retry{MaxAttempts: 1, OnLetter: consumer.LetterPark},
		Readers: []consumer.RecordReader{func(rec consumer.Record) (record.Event, bool, error) {
			k, err := outbox.ExternalKey("other", string(rec.Value), time.Now().Truncate(time.Hour))
			return record.Event{Key: k, Type: "Paid", AggregateID: "agg-" + string(rec.Key), Payload: rec.Value}, true, err
		}},
	})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.Tx("Paid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if ev.Source.Offset == 1 {
			return consumer.DeadLetter(errBroken)
		}
		return effect("billing")(ctx, tx, ev)
	})
	for i := int64(1); i <= 2; i++ {
		rec := consumer.Record{Source: consumer.Source{Topic: "orders", Offset: i}, Key: []byte("A"), Value: []byte{byte('a' + i)}}
		require.NoError(t, deliverRecord(t.Context(), r, rec, consumer.DeadLettered))
	}
	require.Zero(t, e.effects())
}

// The letter that says that an event was given up stays, when another record comes to
// its place; and two ranges that nobody could read are two.
func TestDiscardedLettersThatStay(t *testing.T) {
	d := newLetterGroup(t)
	rec := d.dead(1)[0]
	exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET state = 'discarded', expires_at = clock_timestamp() + interval '30 days'")
	d.handle(func(context.Context, pgx.Tx, consumer.Event) error { return consumer.DeadLetter(errBroken) })
	other := d.record(newEvent(t))
	other.Source.Offset, other.Source.TopicID = rec.Source.Offset, uuid.New()
	require.NoError(t, deliverRecord(t.Context(), d.router, other, consumer.DeadLettered))
	require.Equal(t, 2, d.letters())
	require.Equal(t, "discarded", d.letter(rec).State)

	from := consumer.Source{Topic: "orders", Partition: 7, Offset: 5}
	require.NoError(t, d.router.KeepUnreadable(t.Context(), consumer.Unreadable{From: from, Until: 8, Why: errBroken}))
	exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET state = 'discarded' WHERE reason = 'unreadable'")
	require.NoError(t, d.router.KeepUnreadable(t.Context(), consumer.Unreadable{From: from, Until: 300, Why: errBroken}))
	require.Equal(t, 1, count(t, d.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'unreadable' AND state = 'open' AND unreadable_until = 300"))
}
