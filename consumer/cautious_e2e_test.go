//go:build e2e

package consumer_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// recordOf is a record of an event.
func recordOf(ev consumer.Event, offset int64) consumer.Record {
	return consumer.Record{
		Source: consumer.Source{Topic: "orders", Offset: offset}, Key: []byte(ev.AggregateID), Value: ev.Payload,
		Headers: []consumer.Header{{Name: outbox.HeaderKey, Value: []byte(ev.Key.String())}, {Name: record.HeaderEventType, Value: []byte(ev.Type)}},
	}
}

// deadly starts programs, each of which stands for a process after a crash.
type deadly struct{ *env }

func (d *deadly) start() *consumer.Router {
	d.t.Helper()
	p, err := consumer.New(d.t.Context(), consumer.Config{Group: "billing", DB: d.db, Retry: consumer.Retry{MaxAttempts: 2}})
	require.NoError(d.t, err)
	r := consumer.NewRouter(p)
	work := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if string(ev.Payload) == "fails" {
			return errProvider
		}
		return effect("billing")(ctx, tx, ev)
	}
	r.Tx("Paid", work)
	r.Batch("Moved", consumer.BatchOptions{}, work)
	r.Func("Called", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Do(ctx, p, ev, func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, work(ctx, tx, ev) })
		return err
	})
	return r
}

// TestStartsThatDoNotComeBack (W6): the start of a handler that has not come back
// MaxAttempts times makes a letter of its event, whose redrive applies it; a start that
// came back, however, does not count.
func TestStartsThatDoNotComeBack(t *testing.T) {
	for _, eventType := range []string{"Paid", "Moved", "Called"} {
		t.Run(eventType, func(t *testing.T) {
			t.Parallel()
			d := &deadly{env: newEnv(t, nil)}
			ev := newEvent(t)
			ev.Type = eventType
			rec := recordOf(ev, 7)
			crash := func() { // what is left of a process that died within the handler
				exec(t, d.db, `INSERT INTO onceward.attempts AS a (event_id, consumer_group, attempts, starts, last_error, expires_at) VALUES ($1, 'billing', 0, 1, '', now() + interval '1 day')
					ON CONFLICT (event_id, consumer_group) DO UPDATE SET starts = a.starts + 1`, ev.Key.UUID())
			}
			other := newEvent(t)
			other.Type = eventType
			crash()
			out, err := d.start().HandleCautiously(t.Context(), recordOf(other, 6))
			require.NoError(t, err)
			require.Equal(t, consumer.Processed, out)
			require.Equal(t, 1, count(t, d.db, "SELECT count(*) FROM onceward.attempts"), "of the other one nothing is left")

			crash()
			r := d.start()
			out, err = r.HandleCautiously(t.Context(), rec)
			require.NoError(t, err)
			require.Equal(t, consumer.DeadLettered, out)
			require.Equal(t, 1, count(t, d.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'crash' AND attempts = 2 AND kafka_offset = 7"))
			require.Equal(t, 1, d.effects())
			out, err = r.HandleCautiously(t.Context(), rec)
			require.NoError(t, err)
			require.Equal(t, consumer.DeadLettered, out)
			require.Equal(t, 1, d.letters())

			exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested'")
			n, err := r.Redrive(t.Context(), 10)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, 2, d.effects())
		})
	}
}

// A handler that fails, or an event that was applied, has come back.
func TestStartsThatComeBack(t *testing.T) {
	d := &deadly{env: newEnv(t, nil)}
	r := d.start()
	ev, failing := newEvent(t), newEvent(t)
	failing.Payload = []byte("fails")
	for _, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate, consumer.Duplicate, consumer.Duplicate} {
		out, err := r.HandleCautiously(t.Context(), recordOf(ev, 1))
		require.NoError(t, err)
		require.Equal(t, want, out)
	}
	require.Zero(t, count(t, d.db, "SELECT count(*) FROM onceward.attempts"))
	_, err := r.HandleCautiously(t.Context(), recordOf(failing, 2))
	require.ErrorIs(t, err, errProvider)
	require.Equal(t, 1, count(t, d.db, "SELECT count(*) FROM onceward.attempts WHERE attempts = 1 AND starts = 0"))
	out, err := r.HandleCautiously(t.Context(), recordOf(failing, 2))
	require.NoError(t, err)
	require.Equal(t, consumer.DeadLettered, out)
	require.Equal(t, 1, count(t, d.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'handler'"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.HandleCautiously(ctx, recordOf(newEvent(t), 3))
	require.Error(t, err)
	require.True(t, consumer.IsInfrastructure(err))
	out, err = r.HandleCautiously(t.Context(), consumer.Record{Source: consumer.Source{Topic: "orders", Offset: 4}, Value: []byte("odd")})
	require.NoError(t, err)
	require.Equal(t, consumer.DeadLettered, out, "no handler gets it")
}

// TestOpenSessions (W6): a session that has ended leaves nothing; one that has not is
// found by every other one, and not by its own process.
func TestOpenSessions(t *testing.T) {
	e := newEnv(t, nil)
	first, second := e.router("billing", effect("billing")), e.router("billing", effect("billing"))
	marks := []consumer.Mark{{Topic: "orders", TopicID: uuid.New(), High: 4, Read: 9}}
	history := must(first.Progress(t.Context())).History
	crashed := func(r *consumer.Router) bool {
		t.Helper()
		m := must(r.Progress(t.Context())).Marks[0]
		require.EqualValues(t, 9, m.Read)
		return m.Crashed
	}
	require.NoError(t, first.BeginProgress(t.Context(), history, marks))
	require.NoError(t, first.SaveProgress(t.Context(), history, marks))
	require.True(t, crashed(second))
	require.False(t, crashed(first))
	require.NoError(t, first.EndProgress(t.Context(), marks))
	require.False(t, crashed(second))

	inherited := func() bool { return must(second.Progress(t.Context())).Marks[0].Inherited }
	require.NoError(t, first.BeginProgress(t.Context(), history, marks))
	require.True(t, crashed(second))
	require.False(t, inherited())
	doubtful := slices.Clone(marks)
	doubtful[0].Crashed = true
	require.NoError(t, first.EndProgress(t.Context(), doubtful))
	require.True(t, crashed(second))
	require.True(t, inherited())

	require.NoError(t, first.BeginProgress(t.Context(), history, marks))
	require.NoError(t, second.BeginProgress(t.Context(), history, marks))
	require.NoError(t, first.EndProgress(t.Context(), marks), "too late: another one has it")
	require.False(t, crashed(second))
	require.True(t, crashed(first))
}
