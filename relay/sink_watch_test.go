package relay

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/stream"
)

func TestSinkWatchKnowsTheOldestThatIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSinkWatch()
		sink := watchedSink{newKafka(), w}
		require.Zero(t, w.look().since)
		began := time.Now()
		for tag := range uint64(3) {
			row := &outbox.Row{ID: uuid.UUID{byte(tag)}, Namespace: "shop"}
			require.NoError(t, sink.Publish(t.Context(), publisher.Event{Tag: tag, Row: row}))
			<-time.After(10 * time.Second)
		}
		o := w.look()
		require.Equal(t, began, o.since)
		require.Equal(t, 3, o.events)
		topic := func(*outbox.Row) string { return "shop.order" }
		waits := o.wait(time.Now(), kafkaPatience, []string{"k:9092"}, topic)
		require.Len(t, waits, 1)
		require.Contains(t, waits[0].Detail, "shop:00000000-")
		require.Contains(t, waits[0].Detail, "topic shop.order")
		require.Contains(t, waits[0].Detail, "k:9092")
		require.Empty(t, o.wait(began.Add(kafkaPatience-1), kafkaPatience, nil, topic), "it may take a moment")
		w.ended(2, 0)
		require.Equal(t, began.Add(10*time.Second), w.look().since, "another partition may be the one that stands still")
		w.ended(1)
		require.Zero(t, w.look().since)
	})
}

// What was not handed over is not owed; an acknowledgement may come before the
// call has returned; a commit answers for everything.
func TestSinkWatchForgetsWhatHasEnded(t *testing.T) {
	w := newSinkWatch()
	inner := newKafka()
	sink := watchedSink{inner, w}
	inner.refuse = func(publisher.Event) error { return errors.New("no") }
	require.Error(t, sink.Publish(t.Context(), publisher.Event{Tag: 1, Row: &outbox.Row{}}))
	require.Zero(t, w.look().since)
	inner.refuse = func(ev publisher.Event) error { w.ended(ev.Tag); return nil }
	require.NoError(t, sink.Publish(t.Context(), publisher.Event{Tag: 2, Row: &outbox.Row{}}))
	require.Zero(t, w.look().since)
	inner.refuse = nil
	require.NoError(t, sink.Publish(t.Context(), publisher.Event{Tag: 3, Row: &outbox.Row{}}))
	require.NoError(t, sink.Publish(t.Context(), publisher.Event{Tag: stream.NoTag, Row: &outbox.Row{}}))
	require.Equal(t, 1, w.look().events)
	require.NoError(t, watchedLedger{&commits{}, w}.Commit(t.Context(), publisher.Position{}))
	require.Zero(t, w.look().since)
}

func TestSinkWatchSeesACallThatDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSinkWatch()
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		go func() { _ = watchedLedger{&commits{stuck: true}, w}.Commit(ctx, publisher.Position{}) }()
		<-time.After(time.Minute)
		o := w.look()
		require.Equal(t, began, o.since)
		require.Contains(t, o.wait(time.Now(), kafkaPatience, nil, nil)[0].Detail, "a transaction is to be committed")
		cancel()
		synctest.Wait()
		require.Zero(t, w.look().since)
	})
}

// commits is a ledger whose commits end at once, or with their context.
type commits struct {
	stream.Transactional
	stuck bool
}

func (c *commits) Commit(ctx context.Context, _ publisher.Position) error {
	if c.stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}
