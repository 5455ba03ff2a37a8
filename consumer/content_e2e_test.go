//go:build e2e

package consumer_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// saying is a group whose class is keyed by content, and whose records all say the same: what
// tells them apart is where and when they come.
type saying struct {
	*env
	kind   string // "Paid" of Router.Tx, "Moved" of Batch, "Counted" of AtLeastOnce
	key    outbox.Key
	router *consumer.Router
	fails  atomic.Bool
	// enter is called by the handler, with the offset.
	enter func(offset int64)
}

const sayingWindow = time.Hour

func newSaying(t *testing.T, kind string, retry consumer.Retry) *saying {
	t.Helper()
	s := &saying{env: newEnv(t, nil), kind: kind, key: newEvent(t).Key, enter: func(int64) {}}
	exec(t, s.db, "CREATE TABLE applied (at bigserial, place bigint NOT NULL)")
	p, err := consumer.New(t.Context(), consumer.Config{
		Group: "billing", DB: s.db, Retry: retry, LockTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Classes: []consumer.Class{{Pattern: "*", Window: sayingWindow, Keyed: consumer.ByArrival, Content: true}},
	})
	require.NoError(t, err)
	s.router = consumer.NewRouter(p)
	s.router.Tx("Paid", s.apply)
	s.router.Batch("Moved", consumer.BatchOptions{}, s.apply)
	s.router.AtLeastOnce("Counted", func(ctx context.Context, ev consumer.Event) error {
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return s.apply(ctx, tx, ev) })
	})
	require.NoError(t, s.router.Err())
	return s
}

func (s *saying) apply(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
	s.enter(ev.Source.Offset)
	if s.fails.Load() {
		return errBroken
	}
	_, err := tx.Exec(ctx, "INSERT INTO applied (place) VALUES ($1)", ev.Source.Offset)
	return err
}

func (s *saying) record(offset int64) consumer.Record {
	return consumer.Record{Source: consumer.Source{Topic: "readings", Offset: offset}, Key: []byte("meter"), Value: []byte("20.5"), Headers: []consumer.Header{
		{Name: outbox.HeaderKey, Value: []byte(s.key.String())}, {Name: record.HeaderEventType, Value: []byte(s.kind)},
	}}
}

// comes delivers the record of an offset.
func (s *saying) comes(offset int64, want consumer.Outcome) {
	s.t.Helper()
	d := []consumer.Delivery{{}}
	if s.kind == "Moved" {
		d = s.router.HandleRecords(s.t.Context(), []consumer.Record{s.record(offset)})
	} else {
		d[0].Outcome, d[0].Err = s.router.HandleRecord(s.t.Context(), s.record(offset))
	}
	require.NoError(s.t, d[0].Err)
	require.Equal(s.t, want.String(), d[0].Outcome.String(), offset)
}

// passes lets all that has happened be so long ago: letters, and their claims.
func (s *saying) passes(ago time.Duration) {
	s.t.Helper()
	rows, err := s.db.Query(s.t.Context(), "SELECT created_at FROM onceward.consumer_dead_letters")
	require.NoError(s.t, err)
	letters, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	require.NoError(s.t, err)
	for _, at := range letters {
		then := claims.IDs(s.key.UUID(), sayingWindow, at.Add(-ago))
		for i, id := range claims.IDs(s.key.UUID(), sayingWindow, at) {
			exec(s.t, s.db, "UPDATE onceward.processed_events SET event_id = $2 WHERE event_id = $1 AND outcome = 'd'", id, then[i])
		}
	}
	exec(s.t, s.db, "DELETE FROM onceward.processed_events WHERE outcome = 'p'") // the new ones meet none of them
	exec(s.t, s.db, "UPDATE onceward.consumer_dead_letters SET created_at = created_at - $1::interval", ago)
	exec(s.t, s.db, "UPDATE onceward.consumer_dead_letters SET kafka_offset = kafka_offset - 1 WHERE topic LIKE 'from:%'") // of another claim
	exec(s.t, s.db, "UPDATE onceward.attempts SET expires_at = expires_at - $1::interval", ago)
}

func (s *saying) redrive(want int) {
	s.t.Helper()
	require.NoError(s.t, s.redriven(want))
}

func (s *saying) redriven(want int) error {
	_, err := s.db.Exec(s.t.Context(), "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE state = 'open'")
	if err != nil {
		return err
	}
	done, err := s.router.Redrive(s.t.Context(), 10)
	if err == nil && done != want {
		err = fmt.Errorf("%d letters redriven, want %d", done, want)
	}
	return err
}

func (s *saying) applied(want ...int64) {
	s.t.Helper()
	rows, err := s.db.Query(s.t.Context(), "SELECT place FROM applied ORDER BY at")
	require.NoError(s.t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(s.t, err)
	require.Equal(s.t, want, got)
}

func (s *saying) settled() {
	s.t.Helper()
	require.Zero(s.t, count(s.t, s.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state <> 'redriven'"))
	report, err := audit.Check(s.t.Context(), s.db, audit.Config{})
	require.NoError(s.t, err)
	require.Empty(s.t, report.Findings)
}

// TestALetterStandsForItsWindow: what says the same as a letter is left to that within the
// window; two windows later it is another event, with a letter of its own when it fails, and
// no redrive of the old one takes anything from it, nor it from the redrive.
func TestALetterStandsForItsWindow(t *testing.T) {
	for kind, late := range map[string]bool{"Paid": false, "Moved": true} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSaying(t, kind, consumer.Retry{MaxAttempts: 1})
			s.fails.Store(true)
			s.comes(1, consumer.DeadLettered)
			s.comes(2, consumer.DeadLettered)
			require.Equal(t, 1, s.letters(), "the second is the first one's copy")
			exec(t, s.db, "CREATE TABLE dead AS SELECT * FROM onceward.processed_events")
			exec(t, s.db, "DELETE FROM onceward.processed_events")
			s.comes(3, consumer.DeadLettered)
			require.Equal(t, 1, s.letters(), "so it is by the letter alone")
			exec(t, s.db, "INSERT INTO onceward.processed_events SELECT * FROM dead")

			s.passes(2 * sayingWindow)
			s.comes(4, consumer.DeadLettered)
			require.Equal(t, 2, s.letters(), "another event")
			s.passes(2 * sayingWindow)
			s.fails.Store(false)
			s.comes(1, consumer.DeadLettered) // which is that of its letter, however long ago
			if late {
				s.comes(5, consumer.Processed)
				s.redrive(2)
				s.applied(5, 1, 4)
			} else {
				s.redrive(2)
				s.comes(5, consumer.Processed)
				s.applied(1, 4, 5)
			}
			for _, copied := range []int64{1, 4, 6} {
				s.comes(copied, consumer.Duplicate)
			}
			s.settled()
			require.Equal(t, 6, s.claims(), "each where it arrived")
			require.Zero(t, count(t, s.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd'"))
		})
	}
}

// TestALetterOfAWindowThatIsGone: its redrive claims nothing, and is the last thing that becomes of it.
func TestALetterOfAWindowThatIsGone(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 1})
	s.fails.Store(true)
	s.comes(1, consumer.DeadLettered)
	exec(t, s.db, "DELETE FROM onceward.processed_events")
	s.passes(400 * aDay)
	s.redrive(1) // and it fails again
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'open' AND attempts = 2"))
	s.fails.Store(false)
	s.comes(2, consumer.Processed)
	s.redrive(1)
	s.comes(1, consumer.Duplicate)
	s.applied(2, 1)
	s.settled()
	require.Equal(t, 2, s.claims())
}

// TestALetterWithoutAClaim: so it is of a handler whose events leave none.
func TestALetterWithoutAClaim(t *testing.T) {
	t.Parallel()
	for _, ago := range []time.Duration{0, 400 * aDay} {
		s := newSaying(t, "Counted", consumer.Retry{MaxAttempts: 1})
		s.fails.Store(true)
		s.comes(1, consumer.DeadLettered)
		s.fails.Store(false)
		s.comes(2, consumer.Processed)
		if ago > 0 {
			exec(t, s.db, "DELETE FROM onceward.processed_events")
		}
		s.passes(ago)
		s.redrive(1)
		s.applied(2, 1)
		s.settled()
	}
}

// TestACopyIsDiscardedWithItsLetter: within the window, and no other.
func TestACopyIsDiscardedWithItsLetter(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Moved", consumer.Retry{MaxAttempts: 1})
	s.fails.Store(true)
	s.comes(1, consumer.DeadLettered)
	s.fails.Store(false)
	exec(t, s.db, "UPDATE onceward.consumer_dead_letters SET state = 'discarded'")
	s.comes(2, consumer.DeadLettered)
	s.passes(2 * sayingWindow)
	s.comes(1, consumer.DeadLettered)
	s.comes(3, consumer.Processed)
	s.applied(3)
}

// TestRedriveBesideTheSame: while a redrive is in its handler, a copy is left to it, and
// what says the same two windows later waits for nobody.
func TestRedriveBesideTheSame(t *testing.T) {
	for name, c := range map[string]struct {
		age     time.Duration
		beside  consumer.Outcome
		applied []int64
	}{
		"a copy": {0, consumer.DeadLettered, []int64{1}}, "another event": {2 * sayingWindow, consumer.Processed, []int64{2, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 1})
			s.fails.Store(true)
			s.comes(1, consumer.DeadLettered)
			s.fails.Store(false)
			s.passes(c.age)
			entered, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			s.enter = func(offset int64) {
				if offset == 1 {
					close(entered)
					<-goOn
				}
			}
			go func() { done <- s.redriven(1) }()
			<-entered
			s.comes(2, c.beside)
			close(goOn)
			require.NoError(t, <-done)
			s.applied(c.applied...)
			s.comes(3, consumer.Duplicate)
			s.settled()
		})
	}
}

// TestRedriveBehindTheSameUnderWay: the other way round.
func TestRedriveBehindTheSameUnderWay(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 1})
	s.fails.Store(true)
	s.comes(1, consumer.DeadLettered)
	s.fails.Store(false)
	s.passes(2 * sayingWindow)
	entered, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	s.enter = func(offset int64) {
		if offset == 2 {
			close(entered)
			<-goOn
		}
	}
	go func() { done <- deliverRecord(t.Context(), s.router, s.record(2), consumer.Processed) }()
	<-entered
	s.redrive(1)
	close(goOn)
	require.NoError(t, <-done)
	s.applied(1, 2)
	s.settled()
}

// TestTheSameInABatch: what is known of a record by its place is said of it alone.
func TestTheSameInABatch(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Moved", consumer.Retry{MaxAttempts: 1})
	s.fails.Store(true)
	s.comes(1, consumer.DeadLettered)
	s.passes(2 * sayingWindow)
	s.fails.Store(false)
	got := s.router.HandleRecords(t.Context(), []consumer.Record{s.record(1), s.record(2), s.record(3)})
	require.Equal(t, []consumer.Delivery{{Outcome: consumer.DeadLettered}, {Outcome: consumer.Processed}, {Outcome: consumer.Duplicate}}, got)
	s.redrive(1)
	s.applied(2, 1)
}

// TestParkedByContent: what was parked, or discarded behind a letter, swallows nothing that
// says the same later; of what was parked within a window one is applied.
func TestParkedByContent(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Moved", consumer.Retry{MaxAttempts: 1, OnLetter: consumer.LetterPark})
	other := func(offset int64, want consumer.Outcome) {
		t.Helper()
		rec := s.record(offset)
		rec.Headers[0].Value = []byte(keyAt(t, time.Now()).String())
		require.NoError(t, deliverRecord(t.Context(), s.router, rec, want))
	}
	s.fails.Store(true)
	other(1, consumer.DeadLettered)
	s.fails.Store(false)
	s.comes(2, consumer.DeadLettered)
	exec(t, s.db, "UPDATE onceward.consumer_dead_letters SET state = 'discarded' WHERE state = 'parked'")
	s.comes(3, consumer.DeadLettered)
	require.Equal(t, 2, s.letters(), "a copy of what was discarded")
	s.passes(2 * sayingWindow)
	s.comes(4, consumer.DeadLettered)
	require.Equal(t, 3, s.letters(), "is parked itself")
	s.comes(5, consumer.DeadLettered)
	require.Equal(t, 3, s.letters(), "is a copy of it")
	s.passes(2 * sayingWindow)
	s.comes(6, consumer.DeadLettered)
	require.Equal(t, 4, s.letters())
	exec(t, s.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE state = 'open'")
	require.Equal(t, 3, must(s.router.Redrive(t.Context(), 10)))
	s.applied(1, 4, 6)
	s.comes(7, consumer.Duplicate)
	s.passes(2 * sayingWindow)
	s.comes(8, consumer.Processed)
}

// TestLettersFromNoTopicByContent: each has its place.
func TestLettersFromNoTopicByContent(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 2})
	ev := consumer.Event{Event: record.Event{Key: s.key, Type: "Paid", AggregateID: "meter", Payload: []byte("20.5")}}
	comes := func(want consumer.Outcome) {
		t.Helper()
		rc, err := consumer.Do(t.Context(), s.router.Processor(), ev, func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, s.apply(ctx, tx, ev) })
		if rc.Outcome, err = consumer.CountFailure(t.Context(), s.router.Processor(), ev, err); want == 0 {
			require.ErrorIs(t, err, errBroken)
			return
		}
		if want == consumer.DeadLettered && err != nil {
			require.ErrorIs(t, err, consumer.ErrNotApplied)
			return
		}
		require.NoError(t, err)
		require.Equal(t, want, rc.Outcome)
	}
	s.fails.Store(true)
	comes(0)
	comes(consumer.DeadLettered)
	comes(consumer.DeadLettered)
	var offset int64
	var at time.Time
	require.NoError(t, s.db.QueryRow(t.Context(), "SELECT kafka_offset, created_at FROM onceward.consumer_dead_letters").Scan(&offset, &at))
	place := uuid.NewSHA1(s.key.UUID(), must(claims.IDs(s.key.UUID(), sayingWindow, at)[0].MarshalBinary()))
	require.Equal(t, int64(binary.BigEndian.Uint64(place[8:])&(1<<62-1)), offset, "a place of its claim")
	s.passes(2 * sayingWindow)
	comes(0)
	comes(consumer.DeadLettered)
	require.Equal(t, 2, s.letters())
	s.passes(2 * sayingWindow)
	s.fails.Store(false)
	s.redrive(2)
	s.applied(0, 0)
	s.settled()
}

// TestLettersOfTwoLivesByContent: in a topic that was made anew the same bytes at the same offset
// are another event, also beside the letter of the one before.
func TestLettersOfTwoLivesByContent(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 1})
	s.fails.Store(true)
	for range 2 {
		rec := s.record(1)
		rec.Source.TopicID = uuid.New()
		require.NoError(t, deliverRecord(t.Context(), s.router, rec, consumer.DeadLettered))
		exec(t, s.db, "DELETE FROM onceward.ahead") // as a save of the mark does
		s.passes(2 * sayingWindow)
	}
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic = 'readings~2'"))
	s.fails.Store(false)
	s.redrive(2)
	s.applied(1, 1)
	s.settled()
}

// TestFailuresOfOneWindow: what has failed before does not count for what says the same later.
func TestFailuresOfOneWindow(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{MaxAttempts: 2})
	fails := func(offset int64) {
		t.Helper()
		_, err := s.router.HandleRecord(t.Context(), s.record(offset))
		require.ErrorIs(t, err, errBroken)
	}
	s.fails.Store(true)
	fails(1)
	s.fails.Store(false)
	s.comes(1, consumer.Processed)
	s.passes(2 * sayingWindow)
	s.fails.Store(true)
	fails(2)
	s.comes(2, consumer.DeadLettered)
	s.redrive(1) // fails, and counts from now on
	s.passes(2 * sayingWindow)
	fails(3)
	s.comes(3, consumer.DeadLettered)
	require.Equal(t, 2, s.letters())
}

// TestFenceByContent: refused, because nothing is written that could outlive the window.
func TestFenceByContent(t *testing.T) {
	t.Parallel()
	s := newSaying(t, "Paid", consumer.Retry{})
	ev := consumer.Event{Event: record.Event{Key: s.key, Type: "Paid"}, Source: consumer.Source{Topic: "readings", TopicID: uuid.New()}}
	_, err := consumer.Fence(t.Context(), s.router.Processor(), ev, consumer.Effect[int]{Name: "charge", Do: func(context.Context, consumer.Call) (int, error) { panic("called") }})
	require.ErrorIs(t, err, consumer.ErrRegistration)
	_, err = consumer.Handle(t.Context(), s.router.Processor(), ev, func(context.Context, consumer.Event) error { panic("called") })
	require.ErrorIs(t, err, consumer.ErrRegistration)
	require.Zero(t, count(t, s.db, "SELECT count(*) FROM onceward.fences"))
	rc, err := consumer.Do(t.Context(), s.router.Processor(), ev, func(context.Context, pgx.Tx) (int, error) { return 1, nil })
	require.NoError(t, err)
	require.Equal(t, consumer.Processed, rc.Outcome)
}
