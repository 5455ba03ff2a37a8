//go:build e2e

package redisfast_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/redisfast"
	"github.com/onceward/onceward/outbox"
)

// TestAtLeastOnceModes: events without a claim are handled, each of them, and delivered again after
// a move. In the plain mode all of them are handled again. With a memory those are that it does
// not know after the move, and no others.
func TestAtLeastOnceModes(t *testing.T) {
	t.Parallel()
	const events, evicted = 10, 3
	w := newWorld(t)
	for i, c := range []struct {
		name  string
		again int                                                                            // are handled, of those that were remembered
		move  func(group string, cache consumer.Completed, m *member, keys []string) *member // who gets the deliveries then
	}{
		{"nothing", 0, nil},
		{"another member", 0, func(group string, cache consumer.Completed, _ *member, _ []string) *member {
			return w.member(group, cache)
		}},
		{"another session", 0, func(_ string, _ consumer.Completed, m *member, _ []string) *member { m.begin(); return m }},
		{"some are evicted", evicted, func(_ string, _ consumer.Completed, m *member, keys []string) *member {
			require.NoError(t, w.client().Del(t.Context(), keys[:evicted]...).Err())
			return m
		}},
		{"flushed", events, func(_ string, _ consumer.Completed, m *member, _ []string) *member {
			require.NoError(t, w.client().FlushAll(t.Context()).Err())
			return m
		}},
		{"killed", events, func(_ string, _ consumer.Completed, m *member, _ []string) *member {
			w.redis.Kill()
			w.redis.Up()
			return m
		}},
		{"away", events, func(_ string, _ consumer.Completed, m *member, _ []string) *member { w.redis.Kill(); return m }},
		{"slow", events, func(_ string, _ consumer.Completed, m *member, _ []string) *member { w.redis.Freeze(); return m }},
		{"class registered again", events, func(group string, cache consumer.Completed, _ *member, _ []string) *member {
			w.exec("UPDATE onceward.dedup_windows SET retired_at = clock_timestamp() WHERE consumer_group = $1", group)
			return w.member(group, cache)
		}},
		{"a claim was forgotten", events, func(group string, _ consumer.Completed, m *member, _ []string) *member {
			w.exec("INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason) VALUES ('processed forget', $1, 'one', 'test')", group)
			m.begin()
			return m
		}},
		{"the session has ended", events, func(_ string, _ consumer.Completed, m *member, _ []string) *member {
			require.NoError(t, m.EndProgress(t.Context(), m.marks))
			return m
		}},
		{"another history", events, func(_ string, _ consumer.Completed, m *member, _ []string) *member {
			require.ErrorIs(t, m.SaveProgress(t.Context(), "another", m.marks), consumer.ErrHistory)
			return m
		}},
		{"put back to a dump that lacks some", evicted, func(_ string, _ consumer.Completed, m *member, keys []string) *member {
			require.NoError(t, w.client().Del(t.Context(), keys[:evicted]...).Err())
			require.NoError(t, w.client().Save(t.Context()).Err())
			w.redis.Kill()
			w.redis.Up()
			return m
		}},
	} {
		recs, seen := w.events(events, "Seen"), w.seen.Load()
		group, plain := fmt.Sprint("redis-", i), w.member(fmt.Sprint("none-", i), nil)
		cache := w.cache(func(cfg *redisfast.Config) {
			cfg.Timeout = 5 * time.Second
			if c.name == "slow" { // what it cannot write then is not remembered either
				cfg.Timeout = 20 * time.Millisecond
			}
		})
		m := w.member(group, cache)
		m.handleAll(recs, consumer.Processed)
		plain.handleAll(recs, consumer.Processed)
		require.EqualValues(t, 2*events, w.seen.Load()-seen, c.name)
		keys := make([]string, len(recs))
		for i, rec := range recs {
			keys[i] = group + ":" + must(outbox.ParseKey(string(rec.Headers[0].Value))).UUID().String()
		}
		if c.move != nil {
			m = c.move(group, cache, m, keys)
		}
		seen = w.seen.Load()
		plain.handleAll(recs, consumer.Processed)
		require.EqualValues(t, events, w.seen.Load()-seen, c.name)
		for _, rec := range recs {
			_, err := m.HandleRecord(t.Context(), w.again(rec))
			require.NoError(t, err)
		}
		require.EqualValues(t, events+c.again, w.seen.Load()-seen, c.name)
		switch c.name {
		case "away":
			w.redis.Up()
		case "slow":
			w.redis.Thaw()
		}
	}
	require.Zero(t, w.count("SELECT count(*) FROM onceward.processed_events"))
}

// TestRememberedOnlyWhenHandled: an event whose handler fails is in Redis at no time; its letter's
// redrive is handled, and what is delivered then, too.
func TestRememberedOnlyWhenHandled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.member("billing", w.cache())
	recs := w.events(3, "Seen")
	fail := func(err error, want consumer.Outcome) {
		t.Helper()
		w.fail.Store(&err)
		for _, rec := range recs {
			got, err := m.HandleRecord(t.Context(), w.again(rec))
			require.Equal(t, want == 0, err != nil)
			require.Equal(t, want, got)
		}
		require.Zero(t, w.client().DBSize(t.Context()).Val())
	}
	fail(errors.New("it fails"), 0)
	fail(consumer.DeadLetter(errors.New("for good")), consumer.DeadLettered)
	w.fail.Store(nil)
	w.exec("UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1")
	done, err := m.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, []int{3, 3}, []int{done, int(w.seen.Load())})
	require.Zero(t, w.client().DBSize(t.Context()).Val(), "a redrive neither asks nor tells")
	for want := range 2 { // again, and then no more
		for _, rec := range recs {
			_, err := m.HandleRecord(t.Context(), w.again(rec))
			require.NoError(t, err)
		}
		require.EqualValues(t, 6, w.seen.Load(), want)
	}
	require.EqualValues(t, 3, w.client().DBSize(t.Context()).Val())
}

// forgetful is a member's death between the return of a handler and the writing.
type forgetful struct {
	*redisfast.Cache
	dies bool
}

func (f *forgetful) Remember(ctx context.Context, entries []consumer.CompletedEntry) {
	if !f.dies {
		f.Cache.Remember(ctx, entries)
	}
}

// TestRememberedTooLate: of a handler that has returned, and a process that died before the writing,
// one more call is the price.
func TestRememberedTooLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := &forgetful{w.cache(), true}
	m := w.member("billing", f)
	recs := w.events(5, "Seen")
	m.handleAll(recs, consumer.Processed)
	f.dies = false
	m.handleAll(recs, consumer.Processed)
	m.handleAll(recs, consumer.Duplicate)
	require.EqualValues(t, 10, w.seen.Load())
}

// TestRememberedBehindItsSession: an event whose handler returns when its session has not waited for it is
// not remembered: whoever has the partition by then may be at it, and handles it.
func TestRememberedBehindItsSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.member("billing", w.cache())
	rec := w.event("Seen")
	session, end := context.WithCancel(t.Context())
	slow := consumer.NewRouter(m.processor)
	slow.AtLeastOnce("Seen", func(context.Context, consumer.Event) error {
		end()
		w.seen.Add(1)
		return nil
	}, consumer.Remembered)
	_, err := slow.HandleRecord(session, rec)
	require.ErrorIs(t, err, context.Canceled)
	next := w.member("billing", w.cache())
	next.handle(rec, consumer.Processed)
	next.handle(rec, consumer.Duplicate)
	require.EqualValues(t, 2, w.seen.Load())
}

// TestRememberedIsNotApplied: an event that a handler without a claim has seen has its effect once
// there is one for it, and the other way round. Content and group tell events apart, too.
func TestRememberedIsNotApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cache := w.cache()
	m := w.member("billing", cache)
	seen, paid := w.event("Seen"), w.event("Paid")
	m.handleAll([]consumer.Record{seen, paid}, consumer.Processed)
	other := consumer.NewRouter(m.processor) // the next version of the program
	other.Tx("Seen", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ('billing', $1, 1)", ev.Key.String())
		return err
	})
	other.AtLeastOnce("Paid", func(context.Context, consumer.Event) error { w.seen.Add(1); return nil }, consumer.Remembered)
	next := &member{Router: other, w: w}
	for _, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate} {
		next.handleAll([]consumer.Record{w.again(seen), w.again(paid)}, want)
	}
	w.once("billing", 2)
	require.EqualValues(t, 2, w.seen.Load())

	seen = w.event("Seen")
	m.handle(seen, consumer.Processed)
	elsewhere := w.member("mail", cache)
	elsewhere.handle(w.again(seen), consumer.Processed)
	elsewhere.handle(w.again(seen), consumer.Duplicate)
	seen.Value = []byte(`{"amount":99}`)
	m.handle(w.again(seen), consumer.Processed)
}

// TestRememberedNeedsNoTransaction: an event that is known asks the database nothing, and neither does
// one that is not, but for how the class is registered.
func TestRememberedNeedsNoTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.member("billing", w.cache())
	m.handle(w.event("Seen"), consumer.Processed)
	recs := w.events(20, "Seen")
	w.unasked(func() {
		m.handleAll(recs, consumer.Processed)
		m.handleAll(recs, consumer.Duplicate)
	})
	require.EqualValues(t, 20, m.cache.Stats().Hits)
	for _, key := range must(w.client().Keys(t.Context(), "*").Result()) {
		ttl := must(w.client().PTTL(t.Context(), key).Result())
		require.LessOrEqual(t, ttl, window)
		require.Greater(t, ttl, window-time.Hour)
	}
}
