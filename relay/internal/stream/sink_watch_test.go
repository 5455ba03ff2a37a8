package stream

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

func TestSinkWatchKnowsTheOldestThatIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSinkWatch()
		out := output{sink: newFakeSink(), watch: w}
		require.Zero(t, w.look().Since)
		began := time.Now()
		for tag := range uint64(3) {
			row := &outbox.Row{ID: uuid.UUID{byte(tag)}, Namespace: "shop"}
			require.NoError(t, out.hand(t.Context(), publisher.Event{Tag: tag, Row: row}, time.Time{}))
			<-time.After(10 * time.Second)
		}
		o := w.look()
		require.Equal(t, began, o.Since)
		require.Equal(t, 3, o.Events)
		topic := func(*outbox.Row) string { return "shop.order" }
		require.True(t, o.Overdue(time.Now(), patience))
		detail := o.Detail([]string{"k:9092"}, topic, func(topic string) (string, time.Time) { return "trouble with " + topic, time.Time{} })
		require.Contains(t, detail, "shop:00000000-")
		require.Contains(t, detail, "topic shop.order; they answer: trouble with shop.order")
		require.Contains(t, detail, "k:9092")
		require.False(t, o.Overdue(began.Add(patience-1), patience), "it may take a moment")
		w.ended(2, 0)
		require.Equal(t, began.Add(10*time.Second), w.look().Since, "another partition may be the one that stands still")
		w.ended(1)
		require.Zero(t, w.look().Since)
	})
}

// What was not handed over is not owed; an acknowledgement may come before the
// call has returned.
func TestSinkWatchForgetsWhatHasEnded(t *testing.T) {
	w := newSinkWatch()
	inner := newFakeSink()
	out := output{sink: inner, watch: w}
	inner.refuse = func(publisher.Event) error { return errors.New("no") }
	require.Error(t, out.hand(t.Context(), publisher.Event{Tag: 1, Row: &outbox.Row{}}, time.Time{}))
	require.Zero(t, w.look().Since)
	inner.refuse = func(ev publisher.Event) error { w.ended(ev.Tag); return nil }
	require.NoError(t, out.hand(t.Context(), publisher.Event{Tag: 2, Row: &outbox.Row{}}, time.Time{}))
	require.Zero(t, w.look().Since)
	inner.refuse = nil
	require.NoError(t, out.hand(t.Context(), publisher.Event{Tag: 3, Row: &outbox.Row{}}, time.Time{}))
	require.NoError(t, out.hand(t.Context(), publisher.Event{Tag: noTag, Row: &outbox.Row{}}, time.Time{}))
	require.Equal(t, 1, w.look().Events)
	w.ended(3)
	require.Zero(t, w.look().Since)
}

// A transaction owes an answer since its first event, whose row is the only one that is
// kept, until the commit answers for all.
func TestSinkWatchOfATransaction(t *testing.T) {
	w := newSinkWatch()
	w.together = true
	inner := newFakeSink()
	out := output{sink: inner, watch: w}
	inner.refuse = func(publisher.Event) error { return errors.New("no") }
	require.Error(t, out.hand(t.Context(), publisher.Event{Tag: 1, Row: &outbox.Row{}}, time.Time{}))
	require.Zero(t, w.look())
	inner.refuse = nil
	first := &outbox.Row{ID: uuid.UUID{1}}
	require.NoError(t, out.hand(t.Context(), publisher.Event{Tag: 2, Row: first}, time.Time{}))
	since := w.look().Since
	require.NoError(t, out.hand(t.Context(), publisher.Event{Tag: 3, Row: &outbox.Row{}}, time.Time{}))
	inner.refuse = func(publisher.Event) error { return errors.New("no") }
	require.Error(t, out.hand(t.Context(), publisher.Event{Tag: 4, Row: &outbox.Row{}}, time.Time{}))
	require.Equal(t, Owed{Since: since, Events: 2, row: first}, w.look())
	require.Empty(t, w.open)
	require.NoError(t, watchedTransactions{&commits{}, w, 0}.Commit(t.Context(), publisher.Position{}))
	require.Zero(t, w.look().Since)
}

func TestSinkWatchSeesACallThatDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSinkWatch()
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		go func() { _ = watchedTransactions{&commits{stuck: true}, w, 0}.Commit(ctx, publisher.Position{}) }()
		<-time.After(time.Minute)
		o := w.look()
		require.Equal(t, began, o.Since)
		require.True(t, o.Overdue(time.Now(), patience))
		require.Equal(t, "brokers [k:9092] have not answered: a transaction is to be committed; they answer: a quota of \"\"",
			o.Detail([]string{"k:9092"}, nil, func(topic string) (string, time.Time) { return fmt.Sprintf("a quota of %q", topic), time.Now() }))
		none := func(string) (string, time.Time) { return "", time.Time{} }
		require.Equal(t, "brokers [] have not answered: a transaction is to be committed", o.Detail(nil, nil, none))
		cancel()
		synctest.Wait()
		require.Zero(t, w.look().Since)
	})
}

// commits is a ledger whose commits end at once, or with their context.
type commits struct {
	Transactional
	stuck bool
}

func (c *commits) Commit(ctx context.Context, _ publisher.Position) error {
	if c.stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

const patience = 5 * time.Second
