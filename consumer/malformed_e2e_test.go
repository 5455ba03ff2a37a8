//go:build e2e

package consumer_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/record"
)

// stranger is a group whose first program could not read a record, so that its letter knows no
// event. The next one can; its handler charges, and then mails.
type stranger struct {
	*env
	cfg            consumer.Config
	event          consumer.Event
	record         consumer.Record
	router         *consumer.Router
	charges, mails int
	fails          error // of the mail
}

func newStranger(t *testing.T) *stranger {
	t.Helper()
	s := &stranger{env: newEnv(t, nil), event: newEvent(t), fails: errBroken}
	s.record = consumer.Record{Source: consumer.Source{Topic: "orders", Offset: 5}, Key: []byte("A"), Value: []byte("x")}
	s.event.Type, s.event.AggregateID, s.event.Payload = "Asked", string(s.record.Key), s.record.Value
	s.cfg = consumer.Config{Group: "billing", DB: s.db, Retry: consumer.Retry{MaxAttempts: 1}}
	s.start()
	require.NoError(t, deliverRecord(t.Context(), s.router, s.record, consumer.DeadLettered))
	s.cfg.Readers = []consumer.RecordReader{func(consumer.Record) (record.Event, bool, error) { return s.event.Event, true, nil }}
	s.start()
	return s
}

func (s *stranger) start() {
	s.t.Helper()
	p := must(consumer.New(s.t.Context(), s.cfg))
	s.router = consumer.NewRouter(p)
	s.router.Func("Asked", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "charge", Do: func(context.Context, consumer.Call) (int, error) { s.charges++; return s.charges, nil }})
		if err == nil {
			err = s.fails
		}
		if err == nil {
			_, err = consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "mail", Do: func(context.Context, consumer.Call) (int, error) { s.mails++; return s.mails, nil }})
		}
		return err
	})
}

func (s *stranger) redrive(want int) {
	s.t.Helper()
	exec(s.t, s.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE state = 'open'")
	require.Equal(s.t, want, must(s.router.Redrive(s.t.Context(), 10)))
}

// recover is the recovery job, long after anybody was at the event.
func (s *stranger) recover() int {
	s.t.Helper()
	exec(s.t, s.db, "UPDATE onceward.fences SET lease_until = lease_until - interval '1 hour', completed_at = completed_at - interval '1 hour'")
	return must(s.router.RecoverFences(s.t.Context(), 10))
}

// months is what time and retention take away.
func (s *stranger) months() {
	s.t.Helper()
	exec(s.t, s.db, "UPDATE onceward.fences SET expires_at = clock_timestamp() - interval '1 second' WHERE expires_at IS NOT NULL")
	exec(s.t, s.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() + interval '1 second', raised_at = clock_timestamp() - interval '1 hour'")
	s.maintain()
	exec(s.t, s.db, "DELETE FROM onceward.processed_events")
	s.start()
}

func (e *env) reasons() string {
	e.t.Helper()
	var s string
	require.NoError(e.t, e.db.QueryRow(e.t.Context(), "SELECT string_agg(state || ' ' || reason, ', ' ORDER BY topic, kafka_offset) FROM onceward.consumer_dead_letters").Scan(&s))
	return s
}

// TestMalformedLetterHoldsItsEvent: once its record was read, a letter holds what a handler
// has left of its event, as any other does.
func TestMalformedLetterHoldsItsEvent(t *testing.T) {
	for name, first := range map[string]func(*stranger){
		"redriven": func(s *stranger) { s.redrive(1) },
		"delivered again": func(s *stranger) {
			require.NoError(t, deliverRecord(t.Context(), s.router, s.record, consumer.DeadLettered))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t)
			first(s)
			require.Equal(t, 1, s.charges)
			require.Empty(t, must(audit.Check(t.Context(), s.db, audit.Config{})).Findings)
			s.fails = nil
			require.Zero(t, s.recover())
			s.months()
			s.redrive(1)
			require.Equal(t, []int{1, 1}, []int{s.charges, s.mails})
			require.Equal(t, 1, s.letters())
		})
	}
	t.Run("discarded", func(t *testing.T) {
		s := newStranger(t)
		s.redrive(1)
		rows, err := consumerdb.New(s.db).DiscardGroupLetters(t.Context(), consumerdb.DiscardGroupLettersParams{
			ConsumerGroups: []string{"billing"}, Topics: []string{"orders"}, KafkaPartitions: []int32{0}, KafkaOffsets: []int64{5}, Generations: []int32{1},
			Reason: "test", Keep: pgtype.Interval{Days: 30, Valid: true},
		})
		require.NoError(t, err)
		require.Len(t, rows, 1)
		s.fails = nil
		require.Zero(t, s.recover())
		require.Zero(t, s.mails)
	})
}

// TestMalformedLetterOfATakenKey: one whose event has the key of another one says so, and does
// not hold that.
func TestMalformedLetterOfATakenKey(t *testing.T) {
	s := newStranger(t)
	other := at(s.event, 9)
	other.Payload = []byte("another")
	s.cfg.Retry.MaxAttempts = 3
	s.start()
	_, err := s.router.Handle(t.Context(), other)
	require.ErrorIs(t, err, errBroken)
	s.redrive(1)
	require.Equal(t, "open mismatch", s.reasons())
	s.fails = nil
	require.Equal(t, 1, s.recover())
	require.Equal(t, []int{1, 1}, []int{s.charges, s.mails})
}
