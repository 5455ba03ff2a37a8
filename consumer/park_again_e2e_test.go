//go:build e2e

package consumer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/record"
)

func (q *queue) parsed(rec consumer.Record) consumer.Event {
	q.t.Helper()
	read, err := record.Decode(rec)
	require.NoError(q.t, err)
	return consumer.Event{Event: read, Source: rec.Source, RecordHeaders: rec.Headers}
}

// mismatched is the next record of a key, with the event key of another one.
func (q *queue) mismatched(first consumer.Record) consumer.Record {
	m := q.next("Moved", "A")
	m.Headers[0].Value = first.Headers[0].Value
	m.Value = []byte(`{"amount":99}`)
	return m
}

// TestParkBehindALetterThatIsThere: what comes in one batch behind a record that has its
// letter already, decided or from when nothing was parked, is handled all the same.
func TestParkBehindALetterThatIsThere(t *testing.T) {
	for name, before := range map[string]consumer.LetterPolicy{"discarded": consumer.LetterPark, "of another policy": consumer.LetterGoOn} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t)
			park := q.router
			q.router = q.member(before)
			first := q.next("Moved", "A")
			q.deliver(first, consumer.Processed)
			m := q.mismatched(first)
			q.deliver(m, consumer.DeadLettered)
			if before == consumer.LetterPark {
				q.decide(2, "discarded")
				q.redrive(0)
			}
			q.router = park
			next := q.next("Moved", "A")
			for _, d := range q.router.HandleBatch(t.Context(), []consumer.Event{q.parsed(m), q.parsed(next)}) {
				require.Equal(t, consumer.Delivery{Outcome: consumer.DeadLettered}, d)
			}
			q.decide(2, "discarded")
			_, err := q.router.Redrive(t.Context(), 100)
			require.NoError(t, err)
			q.applied(1, 3)
			require.Zero(t, q.parkedKeys())
		})
	}
}

// TestCopyOfADiscardedBehindAnother: nobody applies what was parked and discarded, nor a
// copy of it that comes while its key is parked.
func TestCopyOfADiscardedBehindAnother(t *testing.T) {
	q := newQueue(t)
	q.fail(1, consumer.DeadLetter(errBroken))
	q.deliver(q.next("Moved", "A"), consumer.DeadLettered)
	x := q.next("Moved", "A")
	q.deliver(x, consumer.DeadLettered)
	q.decide(2, "discarded")
	y := q.next("Moved", "A")
	y.Headers = x.Headers
	q.deliver(y, consumer.DeadLettered)
	q.fail(1, nil)
	q.decide(1, "requested")
	_, err := q.router.Redrive(t.Context(), 100)
	require.NoError(t, err)
	q.applied(1)
}

// TestParkedFullHoldsNoNeighbour: what can be parked no more waits alone.
func TestParkedFullHoldsNoNeighbour(t *testing.T) {
	q := newQueue(t)
	q.router.Bounds(1, 10)
	q.fail(1, consumer.DeadLetter(errBroken))
	q.deliver(q.next("Moved", "A"), consumer.DeadLettered)
	q.deliver(q.next("Moved", "A"), consumer.DeadLettered)
	full, other := q.next("Moved", "A"), q.next("Moved", "B")
	got := q.router.HandleBatch(t.Context(), []consumer.Event{q.parsed(full), q.parsed(other)})
	require.ErrorIs(t, got[0].Err, consumer.ErrParkedFull)
	require.NoError(t, got[1].Err)
	q.applied(4)
}

// TestParkedMismatch: what was parked, and has the key of another event, says so in its turn.
func TestParkedMismatch(t *testing.T) {
	q := newQueue(t)
	q.fail(1, consumer.DeadLetter(errBroken))
	q.deliver(q.next("Paid", "A"), consumer.DeadLettered)
	first := q.next("Paid", "A")
	q.deliver(first, consumer.DeadLettered)
	other := q.next("Paid", "A")
	other.Headers, other.Value = first.Headers, []byte(`{"amount":9}`)
	q.deliver(other, consumer.DeadLettered)
	q.fail(1, nil)
	q.decide(1, "requested")
	_, err := q.router.Redrive(t.Context(), 100)
	require.NoError(t, err)
	q.states("1 redriven handler", "2 redriven parked", "3 open mismatch")
	q.applied(1, 2)
}

// TestParkedAndDiscardedIsRemembered: the letter of what was parked and discarded, which has no
// claim, is kept for as long as a copy of its event would be claimed anew.
func TestParkedAndDiscardedIsRemembered(t *testing.T) {
	q := newQueue(t)
	q.fail(1, consumer.DeadLetter(errBroken))
	q.deliver(q.next("Paid", "A"), consumer.DeadLettered)
	second := q.next("Paid", "A")
	q.deliver(second, consumer.DeadLettered)
	q.decide(2, "discarded")
	q.fail(1, nil)
	q.decide(1, "requested")
	q.redrive(1)
	exec(t, q.db, "UPDATE onceward.consumer_dead_letters SET expires_at = clock_timestamp() WHERE state = 'discarded'")
	q.maintain()
	q.deliver(second, consumer.DeadLettered)
	q.applied(1)

	exec(t, q.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() + interval '1 second', raised_at = clock_timestamp() - interval '1 hour'")
	q.maintain()
	require.Zero(t, count(t, q.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'discarded'"))
}
