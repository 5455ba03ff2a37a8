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
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/record"
)

// TestTheSameOffsetOfAnotherTopicByContent: what was applied ahead of the mark of a topic that is gone
// says nothing of what says the same at that offset of the next one, two windows later.
func TestTheSameOffsetOfAnotherTopicByContent(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{})
	life := func(id uuid.UUID, want consumer.Outcome) {
		t.Helper()
		rec := s.record(7)
		rec.Source.TopicID = id
		require.NoError(t, deliverRecord(t.Context(), s.router, rec, want))
	}
	first, second := uuid.New(), uuid.New()
	life(first, consumer.Processed)
	s.passes(2 * sayingWindow)
	life(first, consumer.Duplicate) // it is delivered again, before a mark has passed it
	life(second, consumer.Processed)
	life(second, consumer.Duplicate)
	life(uuid.Nil, consumer.Duplicate) // of whichever of the two
	s.applied(7, 7)
}

// TestTriesOfItsOwnRecord: failures, and starts that have not come back, of what said the same before are
// not counted for a record, however long ago, and however often its handling has begun since.
func TestTriesOfItsOwnRecord(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 2})
	cautiously := func(offset int64) (consumer.Outcome, error) {
		return s.router.HandleCautiously(t.Context(), s.record(offset))
	}
	s.fails.Store(true)
	_, err := cautiously(1)
	require.ErrorIs(t, err, errBroken)
	s.fails.Store(false)
	s.enter = func(int64) { // as if the process had died of it once before
		exec(t, s.db, "UPDATE onceward.attempts SET starts = starts + 1")
	}
	got, err := cautiously(1)
	require.NoError(t, err)
	require.Equal(t, consumer.Processed, got)
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.attempts WHERE starts = 1 AND attempts = 1"))
	s.enter = func(int64) {}

	s.passes(2 * sayingWindow)
	s.fails.Store(true)
	for offset := range int64(2) { // each has two attempts
		_, err = cautiously(2 + offset)
		require.ErrorIs(t, err, errBroken)
	}
	got, err = cautiously(2)
	require.NoError(t, err)
	require.Equal(t, consumer.DeadLettered, got)
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'handler' AND attempts = 2"))
}

// TestRedriveOverAChangedWindow: a letter of before the window was changed is redriven where it was claimed
// then, so that what said the same later, and was another event, is none of it; and a letter of it is not either.
func TestRedriveOverAChangedWindow(t *testing.T) {
	for name, c := range map[string]struct {
		later consumer.Outcome // what became of the later one
		twice bool             // the window was changed twice
	}{
		"applied": {consumer.Processed, false}, "dead": {consumer.DeadLettered, false},
		"applied, changed twice": {consumer.Processed, true}, "dead, changed twice": {consumer.DeadLettered, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 1})
			midnight := time.Now().UTC().Truncate(aDay)
			moved := func(at time.Time) { // what has just come came then
				t.Helper()
				to := claims.IDs(s.key.UUID(), sayingWindow, at)
				for i, now := range s.newest(t) {
					exec(t, s.db, "UPDATE onceward.processed_events SET event_id = $2 WHERE event_id = $1", now, to[i])
				}
				exec(t, s.db, "UPDATE onceward.consumer_dead_letters SET created_at = $1 WHERE created_at > now() - interval '1 minute'", at)
			}
			s.fails.Store(true)
			s.comes(1, consumer.DeadLettered)
			moved(midnight.Add(-14 * time.Hour))
			s.fails.Store(c.later == consumer.DeadLettered)
			s.comes(2, c.later)
			moved(midnight.Add(-30 * time.Minute))
			s.fails.Store(false)
			if s.changes(aDay, sayingWindow); c.twice {
				s.changes(2*aDay, aDay)
			}
			if s.redrive(s.letters()); c.later == consumer.Processed {
				s.applied(2, 1)
			} else {
				s.applied(1, 2)
			}
			s.comes(1, consumer.Duplicate)
			s.comes(2, consumer.Duplicate)
			if !c.twice { // else its first claims are not found
				require.Zero(t, count(t, s.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd'"))
			}
		})
	}
}

// newest are the ids of the two claims that were made last.
func (s *saying) newest(t *testing.T) (ids []uuid.UUID) {
	t.Helper()
	rows, err := s.db.Query(t.Context(), "SELECT event_id FROM (SELECT * FROM onceward.processed_events ORDER BY processed_at DESC LIMIT 2) last ORDER BY event_id")
	require.NoError(t, err)
	for rows.Next() {
		var id uuid.UUID
		require.NoError(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(t, rows.Err())
	require.Len(t, ids, 2)
	return ids
}

// TestALetterOverAChangedWindow: a letter says of what comes behind a change of the window no more than its
// claims do, which are of before.
func TestALetterOverAChangedWindow(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 1})
	s.fails.Store(true)
	s.comes(1, consumer.DeadLettered)
	s.passes(3 * sayingWindow)
	s.changes(aDay, sayingWindow)
	s.fails.Store(false)
	s.comes(2, consumer.Processed)
	s.redrive(1)
	s.applied(2, 1)
	s.comes(3, consumer.Duplicate)
	s.settled()
}

// TestTriesOfARecordThatWaits: a record whose attempts are further apart than its window is given up all the
// same, and does not hold its aggregate for ever.
func TestTriesOfARecordThatWaits(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Moved", consumer.Retry{MaxAttempts: 3})
	s.fails.Store(true)
	for range 2 {
		d := s.router.HandleRecords(t.Context(), []consumer.Record{s.record(1)})
		require.ErrorIs(t, d[0].Err, errBroken)
		s.passes(3 * sayingWindow)
	}
	s.comes(1, consumer.DeadLettered)
}

// TestTriesBesideARedrive: of an event from no topic, which has nothing but its id, the redrive of an old
// letter of what says the same keeps no failure longer than it lasts.
func TestTriesBesideARedrive(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 2})
	ev := consumer.Event{Event: record.Event{Key: s.key, Type: "Paid", AggregateID: "meter", Payload: []byte("20.5")}}
	fails := func(want consumer.Outcome) {
		t.Helper()
		_, err := consumer.Do(t.Context(), s.router.Processor(), ev, func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, s.apply(ctx, tx, ev) })
		require.ErrorIs(t, err, errBroken)
		got, _ := consumer.CountFailure(t.Context(), s.router.Processor(), ev, err)
		require.Equal(t, want, got)
	}
	s.fails.Store(true)
	fails(0)
	fails(consumer.DeadLettered)
	s.passes(2 * sayingWindow)
	fails(0)
	s.redrive(1) // fails
	s.passes(2 * sayingWindow)
	fails(0)
	fails(consumer.DeadLettered)
}

// changes has the class of a window become one of another, a minute ago.
func (s *saying) changes(to, from time.Duration) {
	s.t.Helper()
	exec(s.t, s.db, `UPDATE onceward.dedup_windows SET time_window = $1, bucket = $1, old_bucket = $2, old_until = now() - interval '1 minute' + 2 * $2::interval + interval '1 day'`, to, from)
	consumer.AgeFloors(s.router.Processor(), time.Hour)
}
