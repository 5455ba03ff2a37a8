//go:build e2e

package consumer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// A database whose clock is two hours behind makes no letters: events wait, the
// error names it, and all are applied once the clock is right. One producer that is
// ahead makes letters, up to a bound.
func TestClockBehindBrakes(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			q.router = q.member(consumer.LetterGoOn)
			q.router.SetClock(2 * time.Hour) // as is that of the producer
			handle := func(rec consumer.Record) consumer.Delivery {
				if kind == "Moved" {
					return q.router.HandleRecords(t.Context(), []consumer.Record{rec, q.moved()})[0]
				}
				outcome, err := q.router.HandleRecord(t.Context(), rec)
				return consumer.Delivery{Outcome: outcome, Err: err}
			}
			ahead := func() consumer.Record {
				rec := q.next(kind, "A")
				rec.Headers[0].Value = []byte(keyAt(t, time.Now().Add(2*time.Hour)).String())
				return rec
			}
			for range 3 {
				d := handle(ahead())
				require.ErrorIs(t, d.Err, consumer.ErrClock)
				require.ErrorContains(t, d.Err, "that of the database is 2h0m0s behind this program's")
				require.True(t, consumer.IsInfrastructure(d.Err))
			}
			require.Zero(t, q.letters())
			before := q.claims()
			if kind == "Moved" {
				require.Equal(t, 3, before, "others of the transaction go on")
			}

			q.router.SetClock(0) // now it is the producer's
			letters, known := 0, consumer.Record{}
			for range consumer.FutureLetters + 60 {
				rec := ahead()
				if d := handle(rec); d.Err == nil {
					require.Equal(t, consumer.DeadLettered, d.Outcome)
					known = rec
					letters++
				} else {
					require.ErrorIs(t, d.Err, consumer.ErrClock)
					require.ErrorContains(t, d.Err, "look at the producer's clock")
				}
			}
			d := handle(known)
			require.NoError(t, d.Err, "its letter is there")
			require.Equal(t, consumer.DeadLettered, d.Outcome)
			if kind == "Moved" {
				require.Equal(t, consumer.FutureLetters+60, letters, "half of the events are in time")
				require.Greater(t, q.claims(), before+consumer.FutureLetters, "they were not held up")
			} else {
				require.Equal(t, consumer.FutureLetters, letters)
				q.deliver(q.next(kind, "B"), consumer.Processed)
				d = handle(ahead())
				require.NoError(t, d.Err, "one more has been applied")
			}
			if kind != "Moved" {
				letters++
			}
			require.Equal(t, letters, q.letters())
		})
	}
}

// moved is a record that is in time, for the same transaction.
func (q *queue) moved() consumer.Record { return q.next("Moved", "B") }
