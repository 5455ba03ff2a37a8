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
	"github.com/onceward/onceward/record"
)

// A letter that is kept aside is redriven as the event that it was: readers and handlers
// see the topic that Kafka has, its effects end with it, and beyond the mark, only, its
// offset is remembered until the mark has passed it.
func TestRedriveOfALetterAside(t *testing.T) {
	e := newEnv(t, nil)
	var read, handled []string
	broken := true
	p, err := consumer.New(t.Context(), consumer.Config{
		Group: "billing", DB: e.db, Retry: consumer.Retry{MaxAttempts: 1}, Classes: []consumer.Class{{Pattern: "*", Window: time.Hour, Keyed: consumer.ByArrival}},
		Readers: []consumer.RecordReader{func(rec consumer.Record) (record.Event, bool, error) {
			read = append(read, rec.Source.Topic)
			return record.Event{}, false, nil
		}},
	})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	see := func(ev consumer.Event) error {
		handled = append(handled, ev.Source.Topic)
		if broken {
			return consumer.DeadLetter(errBroken)
		}
		return nil
	}
	r.Tx("Paid", func(_ context.Context, _ pgx.Tx, ev consumer.Event) error { return see(ev) })
	r.Func("Called", func(ctx context.Context, ev consumer.Event) error {
		if _, err := consumer.Do(ctx, p, ev, func(context.Context, pgx.Tx) (int, error) { return 1, nil }); err != nil {
			return err
		}
		return see(ev)
	})
	dead := func(offset int64, eventType string, more ...consumer.Header) {
		rec := recordAt(t, uuid.New(), offset)
		rec.Headers[1].Value = []byte(eventType)
		rec.Headers = append(rec.Headers, more...)
		require.NoError(t, deliverRecord(t.Context(), r, rec, consumer.DeadLettered))
	}
	save := func(high int64) {
		history := must(r.Progress(t.Context())).History
		require.NoError(t, r.SaveProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", High: high}}))
		require.Zero(t, count(t, e.db, "SELECT count(*) FROM onceward.ahead"))
	}
	redrive := func(letters int) {
		broken = false
		exec(t, e.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE state = 'open'")
		require.Equal(t, letters, must(r.Redrive(t.Context(), 100)))
		broken = true
	}

	dead(5, "Paid")
	dead(5, "Called", consumer.Header{Name: record.HeaderReplayID, Value: []byte(newEvent(t).Key.UUID().String())},
		consumer.Header{Name: record.HeaderReplayMode, Value: []byte("reprocess")}, consumer.Header{Name: record.HeaderReplayGroup, Value: []byte("billing")})
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic LIKE 'orders~%'"))
	save(10)
	redrive(2)
	require.Equal(t, 2, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'"))
	require.Zero(t, count(t, e.db, "SELECT count(*) FROM onceward.ahead"), "the mark has passed them")
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.fences WHERE expires_at IS NOT NULL"), "the event has ended")

	dead(20, "Paid")
	dead(20, "Paid")
	exec(t, e.db, "DELETE FROM onceward.ahead")
	redrive(2)
	require.Equal(t, 2, count(t, e.db, "SELECT count(*) FROM onceward.ahead WHERE topic = 'orders' AND kafka_offset = 20"), "in each of two lives")
	save(20)
	for _, topic := range append(read, handled...) {
		require.Equal(t, "orders", topic)
	}
	require.Len(t, handled, 8)
}
