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
)

// memory is a group whose handlers give events up as long as they fail.
type memory struct {
	*crashed
	fails bool
}

// memoryKinds are the ways to handle an event.
var memoryKinds = []string{"Paid", "Moved", "Called", "Stepped"}

func (m *memory) start() *consumer.Router {
	m.t.Helper()
	r := consumer.NewRouter(m.crashed.start().Processor())
	work := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if m.fails {
			return consumer.DeadLetter(errBroken)
		}
		return effect("billing")(ctx, tx, ev)
	}
	r.Tx("Paid", work)
	r.Batch("Moved", consumer.BatchOptions{}, work)
	r.Func("Called", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Do(ctx, r.Processor(), ev, func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, work(ctx, tx, ev) })
		return err
	})
	r.Func("Stepped", func(ctx context.Context, ev consumer.Event) error { // its first effect is there when it is given up
		_, err := consumer.DoNamed(ctx, r.Processor(), ev, "first", func(context.Context, pgx.Tx) (int, error) { return 1, nil })
		if err == nil {
			_, err = consumer.DoNamed(ctx, r.Processor(), ev, "second", func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, work(ctx, tx, ev) })
		}
		return err
	})
	return r
}

// deliver wants an outcome of the event, also in a batch with another one.
func (m *memory) deliver(ev consumer.Event, want consumer.Outcome) {
	m.t.Helper()
	r := m.start()
	if ev.Type != "Moved" {
		require.NoError(m.t, deliver(m.t.Context(), r, ev, want))
		return
	}
	got := r.HandleBatch(m.t.Context(), []consumer.Event{ev})
	require.Equal(m.t, []consumer.Delivery{{Outcome: want}}, got)
}

func (m *memory) redrive() {
	m.t.Helper()
	exec(m.t, m.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE state = 'open'")
	require.Equal(m.t, 1, must(m.start().Redrive(m.t.Context(), 10)))
}

// memories are the ways by which an event is claimed by arrival.
var memories = map[string]struct {
	class consumer.Class
	at    time.Duration
}{
	"by arrival": {consumer.Class{Pattern: "*", Window: time.Minute, Keyed: consumer.ByArrival}, 0},
	"late":       {consumer.Class{Pattern: "*", Window: time.Minute}, -30 * aDay},
}

// overMemories runs a test for each way and each kind of handler.
func overMemories(t *testing.T, test func(t *testing.T, m *memory, ev consumer.Event)) {
	for name, way := range memories {
		for _, kind := range memoryKinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				m := &memory{crashed: &crashed{env: newEnv(t, nil), class: way.class}}
				m.start()
				test(t, m, at(m.event(kind, time.Now().Add(way.at), 5), 5))
			})
		}
	}
}

// TestCopyBesideItsLetter: a copy of an event whose letter waits, and whose claim is
// long gone, is left to the redrive, which applies it once.
func TestCopyBesideItsLetter(t *testing.T) {
	overMemories(t, func(t *testing.T, m *memory, ev consumer.Event) {
		m.fails = true
		m.deliver(ev, consumer.DeadLettered)
		m.fails = false
		m.outage()
		m.deliver(at(ev, 9), consumer.DeadLettered)
		require.Zero(t, m.effects())
		_, err := consumer.Do(t.Context(), m.start().Processor(), at(ev, 9), func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, effect("billing")(ctx, tx, ev) })
		require.ErrorIs(t, err, consumer.ErrNotApplied)
		m.redrive()
		m.outage()
		m.deliver(at(ev, 11), consumer.Duplicate)
		require.Equal(t, 1, m.effects())
		require.Equal(t, 1, m.letters())
	})
}

// TestRefusedBelowTheMark: an event that became a letter is no duplicate when its offset is read
// again, where the mark proves it finished: not before somebody has applied it. What the mark says
// of an event is taken for nothing else because another one had its key.
func TestRefusedBelowTheMark(t *testing.T) {
	overMemories(t, func(t *testing.T, m *memory, ev consumer.Event) {
		r, topic := m.start(), uuid.New()
		history := must(r.Progress(t.Context())).History
		ev.Source.TopicID = topic
		ask := func(want consumer.Outcome) {
			t.Helper()
			m.deliver(ev, want)
			rc, err := consumer.Do(t.Context(), m.start().Processor(), ev, func(context.Context, pgx.Tx) (int, error) { return 1, errBroken })
			if want == consumer.DeadLettered {
				require.ErrorIs(t, err, consumer.ErrNotApplied)
				return
			}
			require.NoError(t, err)
			require.Equal(t, want, rc.Outcome)
		}
		if ev.Key.Time().Before(time.Now().Add(-aDay)) {
			exec(t, m.db, "UPDATE onceward.dedup_windows SET late = 'dead-letter'")
		}
		m.fails = true
		m.deliver(ev, consumer.DeadLettered)
		m.fails = false
		m.outage()
		exec(t, m.db, "DELETE FROM onceward.fences")
		require.NoError(t, r.SaveProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", TopicID: topic, High: 9}}))
		ask(consumer.DeadLettered)
		require.Zero(t, m.effects())
		m.redrive()
		m.outage()
		exec(t, m.db, "DELETE FROM onceward.fences")
		ask(consumer.Duplicate)
		require.Equal(t, 1, m.effects())

		exec(t, m.db, "UPDATE onceward.consumer_dead_letters SET state = 'open', reason = 'handler', fingerprint = '\\x00'")
		ask(consumer.Duplicate)
		require.Equal(t, 1, m.letters())
	})
}

// TestCopyBesideAParkedLetter: what waits behind another letter is applied by its
// release, also when a copy comes from where its key is not parked.
func TestCopyBesideAParkedLetter(t *testing.T) {
	overMemories(t, func(t *testing.T, m *memory, ev consumer.Event) {
		m.fails = true
		m.deliver(ev, consumer.DeadLettered)
		m.fails = false
		exec(t, m.db, "UPDATE onceward.consumer_dead_letters SET reason = 'parked', state = 'parked'")
		exec(t, m.db, "INSERT INTO onceward.parked (consumer_group, topic, key_hash, record_key) SELECT consumer_group, topic, sha256(record_key), record_key FROM onceward.consumer_dead_letters")
		m.outage()
		other := at(ev, 9)
		other.Source.Topic = "others"
		m.deliver(other, consumer.DeadLettered)
		require.Zero(t, m.effects())
		require.Equal(t, 1, must(m.start().Redrive(t.Context(), 10)))
		m.outage()
		m.deliver(other, consumer.Duplicate)
		require.Equal(t, 1, m.effects())
		require.Equal(t, 1, m.letters())
	})
}

// TestCopyOfADiscarded: nobody applies it; but what the letter of a replay says is
// nothing of the first delivery.
func TestCopyOfADiscarded(t *testing.T) {
	overMemories(t, func(t *testing.T, m *memory, ev consumer.Event) {
		m.fails = true
		m.deliver(ev, consumer.DeadLettered)
		m.fails = false
		m.decideAll("discarded")
		exec(t, m.db, "DELETE FROM onceward.fences") // ended with it, and expired
		m.outage()
		m.deliver(at(ev, 9), consumer.DeadLettered)
		require.Zero(t, m.effects())
		exec(t, m.db, "UPDATE onceward.consumer_dead_letters SET reason = 'replay'")
		m.deliver(at(ev, 9), consumer.Processed)
	})
}

// TestAnotherEventBesideALetter: what letters say is said of one event, and not of
// another that carries its key, which it cannot have any more.
func TestAnotherEventBesideALetter(t *testing.T) {
	overMemories(t, func(t *testing.T, m *memory, ev consumer.Event) {
		other := at(ev, 9)
		other.Payload, other.AggregateID = []byte(`{"amount":999}`), "o-2"
		mismatches := func() int {
			return count(t, m.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'mismatch' AND state = 'open'")
		}
		m.fails = true
		m.deliver(ev, consumer.DeadLettered)
		m.fails = false
		exec(t, m.db, "DELETE FROM onceward.fences")
		m.outage()
		m.deliver(other, consumer.DeadLettered)
		require.Equal(t, 1, mismatches(), "the key was given up")
		_, err := consumer.Do(t.Context(), m.start().Processor(), other, func(context.Context, pgx.Tx) (int, error) { return 1, nil })
		var mismatch *consumer.MismatchError
		require.ErrorAs(t, err, &mismatch)
		require.Equal(t, ev.Fingerprint(), mismatch.Stored)

		exec(t, m.db, "DELETE FROM onceward.consumer_dead_letters WHERE reason = 'mismatch'")
		m.redrive()
		exec(t, m.db, "DELETE FROM onceward.fences")
		m.outage()
		m.deliver(other, consumer.DeadLettered)
		require.Equal(t, 1, mismatches(), "the key was applied")
		if ev.Type == "Moved" {
			got := m.start().HandleBatch(t.Context(), []consumer.Event{at(ev, 11), at(other, 12)})
			require.Equal(t, []consumer.Delivery{{Outcome: consumer.Duplicate}, {Outcome: consumer.DeadLettered}}, got)
			require.Equal(t, 2, mismatches())
		}
		require.Equal(t, 1, m.effects())

		exec(t, m.db, "DELETE FROM onceward.consumer_dead_letters WHERE reason = 'mismatch'")
		exec(t, m.db, "UPDATE onceward.consumer_dead_letters SET state = 'parked', reason = 'parked'")
		m.outage()
		m.deliver(at(other, 13), consumer.Processed) // which has left no claim
		require.Equal(t, 2, m.effects())
	})
}

// TestLetterOfAnOlderRelease: one without fingerprint speaks of its own event all the same,
// which its record tells from another one.
func TestLetterOfAnOlderRelease(t *testing.T) {
	m := &memory{crashed: &crashed{env: newEnv(t, nil), class: memories["by arrival"].class}}
	ev := at(m.event("Paid", time.Now(), 5), 5)
	other, another := at(ev, 9), at(ev, 10)
	other.Payload, another.Type = []byte(`{"amount":999}`), "Moved"
	m.fails = true
	m.deliver(ev, consumer.DeadLettered)
	m.fails = false
	exec(t, m.db, "UPDATE onceward.consumer_dead_letters SET fingerprint = NULL")
	for _, copied := range []consumer.Outcome{consumer.DeadLettered, consumer.Duplicate} {
		m.outage()
		m.deliver(at(ev, 8), copied)
		require.Equal(t, 1, m.letters())
		m.deliver(other, consumer.DeadLettered)
		m.deliver(another, consumer.DeadLettered)
		require.Equal(t, 2, count(t, m.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'mismatch'"), copied)
		exec(t, m.db, "DELETE FROM onceward.consumer_dead_letters WHERE reason = 'mismatch'")
		if copied == consumer.DeadLettered {
			m.redrive()
		}
	}
	require.Equal(t, 1, m.effects())
}
