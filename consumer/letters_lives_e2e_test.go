//go:build e2e

package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/retention"
)

// A place, topic/partition@offset, has another record in each life of its topic, and may
// have several in one: a range that nobody could read, and what is read of it after all.

// lives is a group by arrival, whose claims are soon gone.
type lives struct {
	*crashed
	router  *consumer.Router
	history string
}

func newLives(t *testing.T) *lives {
	t.Helper()
	l := &lives{crashed: &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute, Keyed: consumer.ByArrival}}}
	l.router = l.start()
	l.history = must(l.router.Progress(t.Context())).History
	return l
}

// unread keeps the offsets from 5 until 10 of a life as a range that nobody could read.
func (l *lives) unread(topic uuid.UUID) {
	l.t.Helper()
	from := consumer.Source{Topic: "orders", TopicID: topic, Offset: 5}
	require.NoError(l.t, l.router.KeepUnreadable(l.t.Context(), consumer.Unreadable{From: from, Until: 10, Why: errBroken}))
}

func (l *lives) saveMark(topic uuid.UUID, high int64) {
	l.t.Helper()
	require.NoError(l.t, l.router.SaveProgress(l.t.Context(), l.history, []consumer.Mark{{Topic: "orders", TopicID: topic, High: high}}))
}

func (l *lives) in(topic uuid.UUID, offset int64) consumer.Event {
	ev := l.event("Paid", time.Now(), offset)
	ev.Source.TopicID = topic
	return ev
}

// TestLettersOfEachLife: what no handler took has a letter in each life of its topic,
// also where it says the same, and however many have its place.
func TestLettersOfEachLife(t *testing.T) {
	l := newLives(t)
	ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	bad := consumer.Record{Source: consumer.Source{Topic: "orders", Offset: 5}, Key: []byte("A"), Value: []byte("no event")}
	for n, id := range ids {
		for range 2 {
			l.unread(id)
			bad.Source.TopicID = id
			require.NoError(t, deliverRecord(t.Context(), l.router, bad, consumer.DeadLettered))
			require.Equal(t, 2*n+2, l.letters())
		}
	}
	require.Equal(t, 3, count(t, l.db, "SELECT count(DISTINCT topic_id) FROM onceward.consumer_dead_letters WHERE reason = 'unreadable' AND topic_id = ANY($1)", ids))
	require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic = 'orders'"))
	for _, place := range []string{"orders/0@5", "orders~2/0@5", "orders~6/0@5"} {
		require.Contains(t, l.log.String(), place, "the log names the letter")
	}

	bad.Source.TopicID = uuid.Nil // by a proxy that hides it, or a broker that has none
	require.NoError(t, deliverRecord(t.Context(), l.router, bad, consumer.DeadLettered))
	require.Equal(t, 6, l.letters(), "it may be the one that is there")
}

// TestUnreadableOfAnotherLife: what could not be read of an earlier topic says nothing of
// the offsets of this one.
func TestUnreadableOfAnotherLife(t *testing.T) {
	l := newLives(t)
	l.unread(uuid.New())
	topic := uuid.New()
	ev := l.in(topic, 7)
	require.NoError(t, deliver(t.Context(), l.router, ev, consumer.Processed))
	l.saveMark(topic, 20)
	l.outage()
	require.NoError(t, deliver(t.Context(), l.start(), ev, consumer.Duplicate))
	require.Equal(t, 1, l.effects())
}

// TestReadAfterAll: an event of a range that could not be read, and was read after all, is
// remembered for as long as the range's letter keeps the mark from saying so.
func TestReadAfterAll(t *testing.T) {
	l := newLives(t)
	topic := uuid.New()
	l.unread(topic)
	l.saveMark(topic, 20)
	ev := l.in(topic, 7)
	require.NoError(t, deliver(t.Context(), l.router, ev, consumer.Processed))
	for range 2 {
		l.saveMark(topic, 30)
		l.outage()
		require.NoError(t, deliver(t.Context(), l.start(), ev, consumer.Duplicate))
		l.decideAll("discarded")
	}
	require.Equal(t, 1, l.effects())

	exec(t, l.db, "UPDATE onceward.consumer_dead_letters SET expires_at = clock_timestamp()")
	conn := must(l.db.Acquire(t.Context()))
	_, err := retention.Maintain(t.Context(), conn.Conn(), retention.Config{})
	conn.Release()
	require.NoError(t, err)
	require.Zero(t, l.letters())
	l.saveMark(topic, 31)
	require.Zero(t, count(t, l.db, "SELECT count(*) FROM onceward.ahead"), "the mark says it again")
	require.NoError(t, deliver(t.Context(), l.start(), ev, consumer.Duplicate))
}

// TestReadAfterAllAndReleased: so it is when it was parked, which leaves no claim, and was
// handled when the mark had passed it.
func TestReadAfterAllAndReleased(t *testing.T) {
	l := newLives(t)
	topic := uuid.New()
	l.unread(topic)
	var handled consumer.Source
	r := ordersOf(t, l.env, consumer.Config{Retry: consumer.Retry{MaxAttempts: 1, OnLetter: consumer.LetterPark}, Classes: []consumer.Class{l.class}},
		func(ev consumer.Event) bool { handled = ev.Source; return handled.Offset == 6 })
	parked := recordAt(t, topic, 7)
	require.NoError(t, deliverRecord(t.Context(), r, recordAt(t, topic, 6), consumer.DeadLettered))
	require.NoError(t, deliverRecord(t.Context(), r, parked, consumer.DeadLettered))
	l.saveMark(topic, 20)
	exec(t, l.db, "UPDATE onceward.consumer_dead_letters SET state = 'discarded', generation = generation + 1 WHERE kafka_offset = 6")
	require.Equal(t, 1, must(r.Redrive(t.Context(), 10)))
	require.Equal(t, 1, l.effects())
	require.Equal(t, parked.Source, handled, "with the topic's id")
	l.saveMark(topic, 30)
	l.outage()
	require.NoError(t, deliverRecord(t.Context(), r, parked, consumer.Duplicate))
	require.Equal(t, 1, l.effects())
}

// TestRedriveOfAnotherLife: the event of a letter is judged by the mark of the topic that it was
// read from, and not by that of the one that has the name now.
func TestRedriveOfAnotherLife(t *testing.T) {
	e := newEnv(t, nil)
	var got []consumer.Event
	r := consumer.NewRouter(must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, Classes: []consumer.Class{{Pattern: "*", Window: time.Minute}}})))
	r.Tx("Paid", func(_ context.Context, _ pgx.Tx, ev consumer.Event) error { got = append(got, ev); return nil })
	history, old := must(r.Progress(t.Context())).History, uuid.New()
	require.NoError(t, r.BeginProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", TopicID: old, Low: 400, High: 499}}))
	ev := newEvent(t)
	ev.Key = keyAt(t, time.Now().AddDate(0, 0, -30))
	ev = at(ev, 300)
	ev.Source.TopicID = old
	require.NoError(t, deliver(t.Context(), r, ev, consumer.DeadLettered))
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'replay'"))
	require.NoError(t, r.BeginProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", TopicID: uuid.New(), High: 9}}))
	e.decideAll("requested")
	require.Equal(t, 1, must(r.Redrive(t.Context(), 10)))
	require.Equal(t, old, got[0].Source.TopicID)
	require.True(t, got[0].Unprotected)
	require.False(t, got[0].Late)
}

// TestRedrivenKeepsItsPlace: the letter that says that an event was applied stays, when
// another record comes to its place.
func TestRedrivenKeepsItsPlace(t *testing.T) {
	d := newLetterGroup(t)
	rec := d.dead(1)[0]
	d.request()
	d.redrive(1)
	d.handle(func(context.Context, pgx.Tx, consumer.Event) error { return consumer.DeadLetter(errBroken) })
	other := d.record(newEvent(t))
	other.Source.Offset, other.Source.TopicID = rec.Source.Offset, uuid.New()
	d.deliver(other, consumer.DeadLettered)
	require.Equal(t, 2, d.letters())

	d.handle(effect("billing"))
	exec(t, d.db, "DELETE FROM onceward.processed_events")
	exec(t, d.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() + interval '1 minute', raised_at = clock_timestamp() - interval '1 hour'")
	d.router = d.member()
	rec.Source.Offset = 200 // a copy, much later
	d.deliver(rec, consumer.Duplicate)
	require.Equal(t, 1, d.effects())
}

// TestProofWaitsForTheOtherLetter: a letter that says that its event was applied is kept
// for as long as another letter of the event waits.
func TestProofWaitsForTheOtherLetter(t *testing.T) {
	d := newLetterGroup(t)
	d.dead(1)
	exec(t, d.db, `INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, claim_id, fingerprint, namespace, event_type, record_key, record_value, record_headers, reason, error)
		SELECT consumer_group, topic, kafka_partition, 11, event_id, claim_id, fingerprint, namespace, event_type, record_key, record_value, record_headers, reason, error FROM onceward.consumer_dead_letters`) // two members, at once
	maintain := func() {
		exec(t, d.db, "DELETE FROM onceward.processed_events")
		exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET expires_at = clock_timestamp() WHERE state = 'redriven'")
		conn := must(d.db.Acquire(t.Context()))
		defer conn.Release()
		_, err := retention.Maintain(t.Context(), conn.Conn(), retention.Config{})
		require.NoError(t, err)
	}
	exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE kafka_offset < 11")
	d.redrive(1)
	maintain()
	d.request()
	d.redrive(1)
	require.Equal(t, 1, d.effects())
	maintain()
	require.Zero(t, d.letters())
}

// TestLetterAsideBehindAFreePlace: a record whose letter is aside gets no second one where
// a place before that is free by now, or would be given up.
func TestLetterAsideBehindAFreePlace(t *testing.T) {
	for _, free := range []string{"orders", "orders~2"} {
		for what, statement := range map[string]string{
			"gone":      "DELETE FROM onceward.consumer_dead_letters WHERE topic = $1",
			"discarded": "UPDATE onceward.consumer_dead_letters SET state = 'discarded' WHERE topic = $1",
		} {
			l := newLives(t)
			bad := consumer.Record{Source: consumer.Source{Topic: "orders", Offset: 5}, Key: []byte("A"), Value: []byte("no event")}
			for range 3 {
				bad.Source.TopicID = uuid.New()
				require.NoError(t, deliverRecord(t.Context(), l.router, bad, consumer.DeadLettered))
			}
			exec(t, l.db, statement, free)
			before := l.letters()
			require.NoError(t, deliverRecord(t.Context(), l.router, bad, consumer.DeadLettered))
			require.Equal(t, before, l.letters(), what)
			require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic_id = $1", bad.Source.TopicID), what)
		}
	}
}
