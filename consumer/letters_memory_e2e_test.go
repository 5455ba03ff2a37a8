//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/record"
)

// Letters outlive the claims of their events, and say what those said: which event
// was given up, and which was applied.

// ordersOf is a group with one class whose handler of type Paid fails where it is told
// to.
func ordersOf(t *testing.T, e *env, cfg consumer.Config, fails func(consumer.Event) bool) *consumer.Router {
	t.Helper()
	cfg.Group, cfg.DB = "billing", e.db
	r := consumer.NewRouter(must(consumer.New(t.Context(), cfg)))
	r.Unknown(consumer.UnknownDeadLetter)
	r.Tx("Paid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if fails != nil && fails(ev) {
			return consumer.DeadLetter(errBroken)
		}
		return effect("billing")(ctx, tx, ev)
	})
	return r
}

func (e *env) decideAll(state string) {
	e.t.Helper()
	exec(e.t, e.db, "UPDATE onceward.consumer_dead_letters SET state = $1, generation = generation + 1, expires_at = CASE WHEN $1 = 'discarded' THEN clock_timestamp() + interval '30 days' END", state)
}

// TestUnreadableKeepsItsPlace: the letter of a range that was not read, and was
// discarded, says so still when one of its messages becomes a letter.
func TestUnreadableKeepsItsPlace(t *testing.T) {
	for name, c := range map[string]struct {
		class   consumer.Class
		outcome consumer.Outcome // of what is read after all
	}{
		"by arrival":      {consumer.Class{Pattern: "*", Window: time.Hour, Keyed: consumer.ByArrival}, consumer.Processed},
		"below the floor": {consumer.Class{Pattern: "*", Window: time.Minute}, consumer.DeadLettered}, // a replay
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil)
			r := ordersOf(t, e, consumer.Config{Classes: []consumer.Class{c.class}}, func(ev consumer.Event) bool { return ev.Source.Offset == 100 })
			topic := uuid.New()
			h := must(r.Progress(t.Context())).History
			require.NoError(t, r.BeginProgress(t.Context(), h, []consumer.Mark{{Topic: "orders", TopicID: topic, High: 99}}))
			require.NoError(t, r.KeepUnreadable(t.Context(), consumer.Unreadable{From: consumer.Source{Topic: "orders", Offset: 100, TopicID: topic}, Until: 110, Why: errBroken}))
			require.NoError(t, r.SaveProgress(t.Context(), h, []consumer.Mark{{Topic: "orders", TopicID: topic, High: 120}}))
			e.decideAll("discarded")
			for offset, want := range []consumer.Outcome{consumer.DeadLettered, c.outcome, c.outcome} {
				ev := newEvent(t)
				ev.Key = keyAt(t, time.Now().AddDate(0, 0, -2))
				ev.Source = consumer.Source{Topic: "orders", Offset: 100 + int64(offset), TopicID: topic}
				require.NoError(t, deliver(t.Context(), r, ev, want), ev.Source)
			}
		})
	}
}

// TestAppliedBesideItsLetter: an event of which a letter waits has its effect once,
// whoever applies it, and however late the letter is redriven.
func TestAppliedBesideItsLetter(t *testing.T) {
	t.Run("no handler", func(t *testing.T) {
		for _, keyed := range []consumer.Keying{consumer.ByEventTime, consumer.ByArrival} {
			x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Hour, Keyed: keyed}}
			old := x.start()
			old.Unknown(consumer.UnknownDeadLetter)
			ev := at(x.event("Unready", time.Now(), 5), 5)
			require.NoError(t, deliver(t.Context(), old, ev, consumer.DeadLettered))
			young := x.start()
			young.Tx("Unready", effect("billing"))
			require.NoError(t, deliver(t.Context(), young, ev, consumer.DeadLettered), "it waits for the redrive")
			x.decideAll("requested")
			require.Equal(t, 1, must(young.Redrive(t.Context(), 10)))
			require.NoError(t, deliver(t.Context(), young, ev, consumer.Duplicate))
			require.NoError(t, deliver(t.Context(), old, ev, consumer.Duplicate), "no second letter")
			require.Equal(t, 1, x.effects())
		}
	})
	t.Run("from the future", func(t *testing.T) {
		b := newBelow(t, nil, consumer.Class{}, 2)
		d := &letterGroup{env: b.env, offset: 100}
		exec(t, d.db, "UPDATE onceward.dedup_windows SET floor = floor - interval '7 days'")
		ev := newEvent(t)
		ev.Key = keyAt(t, time.Now().AddDate(0, 0, -2))
		rec := d.record(ev)
		r := ordersOf(t, d.env, consumer.Config{}, nil)
		require.NoError(t, deliverRecord(t.Context(), r, rec, consumer.Processed)) // its time had come
		require.NoError(t, deliverRecord(t.Context(), r, recordAt(t, uuid.New(), 9), consumer.Processed))
		exec(t, d.db, `INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, claim_id, namespace, event_type, record_key, record_value, record_headers, reason, error)
			SELECT 'billing', $1, 0, $2, $3, $3, 'shop', 'Paid', $4, $5, $6::text::jsonb, 'from-future', 'before'`,
			rec.Source.Topic, rec.Source.Offset, ev.Key.UUID(), rec.Key, rec.Value, string(must(record.StoreHeaders(rec.Headers))))
		exec(t, d.db, `INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, claim_id, fingerprint, namespace, event_type, record_headers, reason, error)
			SELECT consumer_group, topic, kafka_partition, kafka_offset + 1, event_id, claim_id, '\x00', namespace, event_type, record_headers, 'parked', 'another event with its key' FROM onceward.consumer_dead_letters`)
		exec(t, d.db, `UPDATE onceward.dedup_windows SET floor = date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', raised_at = now() - interval '1 hour'`)
		conn := must(d.db.Acquire(t.Context()))
		_, err := retention.Maintain(t.Context(), conn.Conn(), retention.Config{})
		conn.Release()
		require.NoError(t, err)
		require.Equal(t, 1, d.claims(), "its day is gone")
		require.Equal(t, 1, count(t, d.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'"))
		exec(t, d.db, "DELETE FROM onceward.consumer_dead_letters WHERE fingerprint IS NOT NULL")
		exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE state = 'open'")
		require.Zero(t, must(ordersOf(t, d.env, consumer.Config{}, nil).Redrive(t.Context(), 10)))
		require.Equal(t, 2, d.effects())
	})
}

// TestTwoLettersOfOneEvent: the second of two letters of one event finds that the first
// was redriven, also when no claim is left.
func TestTwoLettersOfOneEvent(t *testing.T) {
	x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute, Late: consumer.LateDeadLetter}}
	r := x.start()
	first := at(x.event("Paid", time.Now().AddDate(0, 0, -30), 10), 10)
	second := at(first, 11)
	require.NoError(t, deliver(t.Context(), r, first, consumer.DeadLettered))
	require.NoError(t, deliver(t.Context(), r, second, consumer.DeadLettered))
	require.Equal(t, 1, x.letters(), "one letter of an event says why")
	exec(t, x.db, `INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, claim_id, namespace, event_type, record_key, record_value, record_headers, reason, error)
		SELECT consumer_group, topic, kafka_partition, 11, event_id, claim_id, namespace, event_type, record_key, record_value, record_headers, reason, error FROM onceward.consumer_dead_letters`) // two members, at once
	for _, offset := range []int{10, 11} {
		exec(t, x.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE kafka_offset = $1", offset)
		require.Equal(t, 1, must(r.Redrive(t.Context(), 10)))
		x.outage() // of more than two buckets
		r = x.start()
	}
	require.Equal(t, 1, x.effects())
	require.Equal(t, 2, count(t, x.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'"))
	require.NoError(t, deliver(t.Context(), r, at(first, 12), consumer.Duplicate), "a copy much later")
}

// TestTwoLettersInTwoMembers: while one of two letters of an event is redriven, however
// long that takes, the other one waits, and finds a duplicate then.
func TestTwoLettersInTwoMembers(t *testing.T) {
	for _, eventType := range []string{"Paid", "Moved", "Called"} {
		t.Run(eventType, func(t *testing.T) {
			t.Parallel()
			x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute, Keyed: consumer.ByArrival}}
			member := func(work consumer.TxHandler) *consumer.Router {
				r := consumer.NewRouter(must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: x.db, LockTimeout: 200 * time.Millisecond, Classes: []consumer.Class{x.class}})))
				r.Tx("Paid", work)
				r.Batch("Moved", consumer.BatchOptions{}, work)
				r.Func("Called", func(ctx context.Context, ev consumer.Event) error {
					_, err := consumer.Do(ctx, r.Processor(), ev, func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, work(ctx, tx, ev) })
					return err
				})
				return r
			}
			fails := member(func(context.Context, pgx.Tx, consumer.Event) error { return consumer.DeadLetter(errBroken) })
			require.NoError(t, deliver(t.Context(), fails, at(x.event(eventType, time.Now(), 10), 10), consumer.DeadLettered))
			exec(t, x.db, "DELETE FROM onceward.processed_events")
			exec(t, x.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested'")
			exec(t, x.db, `INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, event_id, claim_id, fingerprint, namespace, event_type, record_key, record_value, record_headers, reason, error, state)
				SELECT consumer_group, topic, kafka_partition, 11, event_id, claim_id, fingerprint, namespace, event_type, record_key, record_value, record_headers, reason, error, state FROM onceward.consumer_dead_letters`)
			other, meanwhile := member(effect("billing")), -1
			slow := member(func(ctx context.Context, tx pgx.Tx, ev consumer.Event) (err error) {
				x.inOtherBuckets(ctx, func() { meanwhile, err = other.Redrive(ctx, 10) })
				return errors.Join(err, effect("billing")(ctx, tx, ev))
			})
			require.Equal(t, 1, must(slow.Redrive(t.Context(), 1)))
			require.Zero(t, meanwhile)
			x.outage()
			require.Equal(t, 1, must(other.Redrive(t.Context(), 10)))
			require.Equal(t, 1, x.effects())
			require.Equal(t, 2, count(t, x.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'"))
		})
	}
}

// TestDiscardedSpeaksOfItsEvent: what was parked and discarded is not applied, and
// nothing else is taken for it.
func TestDiscardedSpeaksOfItsEvent(t *testing.T) {
	parkedAndDiscarded := func(t *testing.T, kind string, change func(*consumer.Record)) (*queue, consumer.Record) {
		q := newQueue(t)
		q.fail(1, consumer.DeadLetter(errBroken))
		q.deliver(q.next(kind, "A"), consumer.DeadLettered)
		rec := q.next(kind, "A")
		parked := rec
		if change != nil {
			change(&parked)
		}
		q.deliver(parked, consumer.DeadLettered)
		q.decide(2, "discarded")
		q.decide(1, "discarded")
		_, err := q.router.Redrive(t.Context(), 100)
		require.NoError(t, err)
		return q, rec
	}
	for _, kind := range kinds {
		t.Run("other content/"+kind, func(t *testing.T) {
			q, rec := parkedAndDiscarded(t, kind, nil)
			rec.Source.Offset = 8
			require.NoError(t, deliverRecord(t.Context(), q.router, rec, consumer.DeadLettered), "the event")
			require.Zero(t, count(t, q.db, "SELECT count(*) FROM applied"))
			rec.Source.Offset, rec.Value = 9, []byte(`{"amount":999}`)
			require.NoError(t, deliverRecord(t.Context(), q.router, rec, consumer.Processed), "its key was never applied")
		})
	}
	t.Run("a replay of it", func(t *testing.T) {
		q, rec := parkedAndDiscarded(t, "Paid", func(r *consumer.Record) {
			r.Headers = append(append([]consumer.Header{}, r.Headers...), consumer.Header{Name: record.HeaderReplayID, Value: []byte(newEvent(t).Key.UUID().String())},
				consumer.Header{Name: record.HeaderReplayMode, Value: []byte(record.ReplayReprocess)}, consumer.Header{Name: record.HeaderReplayGroup, Value: []byte("billing")})
		})
		rec.Source.Offset = 3
		require.NoError(t, deliverRecord(t.Context(), q.router, rec, consumer.Processed))
	})
	t.Run("for its window", func(t *testing.T) {
		e := newEnv(t, nil)
		cfg := consumer.Config{Retry: consumer.Retry{MaxAttempts: 1, OnLetter: consumer.LetterPark}, Classes: []consumer.Class{{Pattern: "*", Window: 60 * 24 * time.Hour}}}
		r := ordersOf(t, e, cfg, func(ev consumer.Event) bool { return ev.Source.Offset == 1 })
		topic := uuid.New()
		require.NoError(t, deliverRecord(t.Context(), r, recordAt(t, topic, 1), consumer.DeadLettered))
		require.NoError(t, deliverRecord(t.Context(), r, recordAt(t, topic, 2), consumer.DeadLettered))
		given := consumerdb.DiscardGroupLettersParams{Reason: "test", Keep: pgtype.Interval{Days: 30, Valid: true}} // as outboxctl does
		for offset := range int64(2) {
			given.ConsumerGroups, given.Topics, given.KafkaPartitions = append(given.ConsumerGroups, "billing"), append(given.Topics, "orders"), append(given.KafkaPartitions, 0)
			given.KafkaOffsets, given.Generations = append(given.KafkaOffsets, offset+1), append(given.Generations, 0)
		}
		require.Len(t, must(consumerdb.New(e.db).DiscardGroupLetters(t.Context(), given)), 2)
		require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'parked' AND expires_at > clock_timestamp() + interval '120 days'"))
		require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'handler' AND expires_at < clock_timestamp() + interval '31 days'"))
	})
}

// TestReplayLetterIsNotTheEvents: a reprocessing replay that was given up says nothing
// of the event's own first delivery, however late that comes.
func TestReplayLetterIsNotTheEvents(t *testing.T) {
	for _, state := range []string{"open", "discarded"} {
		x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: 7 * 24 * time.Hour}}
		r := x.start()
		ev := at(x.event("Late", time.Now().AddDate(0, 0, -30), 10), 10)
		replay := ev
		replay.Source = consumer.Source{Topic: "replays", Offset: 3}
		replay.ReplayID, replay.ReplayMode, replay.ReplayGroup = newEvent(t).Key.UUID(), record.ReplayReprocess, "billing"
		fails := true
		r.Tx("Late", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
			if fails {
				return consumer.DeadLetter(errBroken)
			}
			return effect("billing")(ctx, tx, ev)
		})
		require.NoError(t, deliver(t.Context(), r, replay, consumer.DeadLettered))
		x.decideAll(state)
		fails = false
		require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed), state)
	}
}

// TestParkOverLives: records of a key wait for its letter, also when the topic was made
// anew and their offsets are lower.
func TestParkOverLives(t *testing.T) {
	q := newQueue(t)
	q.fail(500, consumer.DeadLetter(errBroken))
	q.deliver(recordAt(t, uuid.New(), 500), consumer.DeadLettered)
	topic := uuid.New()
	for offset := range int64(3) {
		q.deliver(recordAt(t, topic, offset), consumer.DeadLettered)
	}
	require.Zero(t, must(q.router.Redrive(t.Context(), 100)), "the letter was not decided")
	q.fail(500, nil)
	q.decide(500, "requested")
	require.Equal(t, 4, must(q.router.Redrive(t.Context(), 100)))
	q.applied(500, 0, 1, 2)
}

// TestEffectsTellContents: effects that outlive their claim are those of one event, and
// not of another that carries its key.
func TestEffectsTellContents(t *testing.T) {
	l := newTill(t, 3)
	l.event.Source = consumer.Source{}
	require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.Processed))
	exec(t, l.db, "DELETE FROM onceward.processed_events")
	exec(t, l.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() + interval '1 minute', raised_at = clock_timestamp() - interval '1 hour'")
	consumer.AgeFloors(l.processor, time.Minute)
	require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.Duplicate))
	other := l.event
	other.Payload = []byte(`{"amount":1000000}`)
	var mismatch *consumer.MismatchError
	_, err := l.router.Handle(t.Context(), other)
	require.ErrorAs(t, err, &mismatch)
	_, err = consumer.Fence(t.Context(), l.processor, other, l.effect)
	require.ErrorAs(t, err, &mismatch)
}

// TestForgottenAndParkedAgain: an event that was parked, released and forgotten is parked
// anew, and is released.
func TestForgottenAndParkedAgain(t *testing.T) {
	q := newQueue(t)
	q.fail(1, consumer.DeadLetter(errBroken))
	q.deliver(q.next("Paid", "A"), consumer.DeadLettered)
	second := q.next("Paid", "A")
	q.deliver(second, consumer.DeadLettered)
	q.decide(1, "discarded")
	require.Equal(t, 1, must(q.router.Redrive(t.Context(), 100)))
	q.applied(2)
	q.fail(3, consumer.DeadLetter(errBroken))
	q.deliver(q.next("Paid", "A"), consumer.DeadLettered)
	exec(t, q.db, "DELETE FROM onceward.processed_events")
	exec(t, q.db, "DELETE FROM applied")
	q.deliver(second, consumer.DeadLettered)
	q.decide(3, "discarded")
	require.Equal(t, 1, must(q.router.Redrive(t.Context(), 100)))
	q.applied(2)
}
