//go:build e2e

package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// crashed is a group of a class whose process dies before its marks are saved: a
// new one begins behind what the first has applied.
type crashed struct {
	*env
	class       consumer.Class
	calls       int
	lockTimeout time.Duration
	log         bytes.Buffer
}

func (c *crashed) start() *consumer.Router {
	c.t.Helper()
	p, err := consumer.New(c.t.Context(), consumer.Config{
		Group: "billing", DB: c.db, LockTimeout: c.lockTimeout, Classes: []consumer.Class{c.class}, Retry: consumer.Retry{MaxAttempts: 1},
		Logger: slog.New(slog.NewTextHandler(&c.log, nil)),
	})
	require.NoError(c.t, err)
	r := consumer.NewRouter(p)
	work := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		c.calls++
		return effect("billing")(ctx, tx, ev)
	}
	r.Tx("Paid", work)
	r.Batch("Moved", consumer.BatchOptions{}, work)
	r.Func("Called", func(ctx context.Context, ev consumer.Event) error {
		c.calls++
		_, err := consumer.Do(ctx, p, ev, func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, effect("billing")(ctx, tx, ev) })
		return err
	})
	r.Tx("Poison", func(context.Context, pgx.Tx, consumer.Event) error { return errProvider })
	return r
}

func (c *crashed) event(eventType string, at time.Time, offset int64) consumer.Event {
	ev := newEvent(c.t)
	ev.Key, ev.Type, ev.Source = keyAt(c.t, at), eventType, consumer.Source{Topic: "orders", Offset: offset}
	return ev
}

// outage lets so much time pass that every claim and every floor that a clock or
// stream time can take away is gone.
func (c *crashed) outage() {
	exec(c.t, c.db, "DELETE FROM onceward.processed_events")
	exec(c.t, c.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() - interval '1 second', raised_at = clock_timestamp() - interval '1 hour'")
}

// TestAppliedBeyondTheMark (A7, W5): what was applied beyond the mark is a
// duplicate after a crash, however long the group was away and whatever became of
// its claim; and what was given up there stays so.
func TestAppliedBeyondTheMark(t *testing.T) {
	old, now := time.Now().AddDate(0, 0, -3), time.Now()
	for name, c := range map[string]struct {
		class consumer.Class
		at    time.Time
		types []string
	}{
		"a late event":             {consumer.Class{Pattern: "*", Window: time.Minute}, now.AddDate(0, 0, -30), []string{"Paid", "Moved", "Called"}},
		"behind stream time":       {consumer.Class{Pattern: "*", Window: time.Hour}, old, []string{"Paid", "Moved", "Called"}},
		"by arrival":               {consumer.Class{Pattern: "*", Window: time.Minute, Keyed: consumer.ByArrival}, now, []string{"Paid", "Moved", "Called"}},
		"a late event that failed": {consumer.Class{Pattern: "*", Window: time.Minute}, now.AddDate(0, 0, -30), []string{"Poison"}},
	} {
		for _, eventType := range c.types {
			t.Run(name+"/"+eventType, func(t *testing.T) {
				t.Parallel()
				x := &crashed{env: newEnv(t, nil), class: c.class}
				r := x.start()
				exec(t, x.db, `INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time) VALUES ('billing', 'orders', 0, 0, 9, now())`)
				if name == "behind stream time" {
					exec(t, x.db, "UPDATE onceward.dedup_windows SET floor = now() - interval '5 days'") // it is raised later
					r = x.start()
				}
				_, err := r.Progress(t.Context())
				require.NoError(t, err)
				ev, want := x.event(eventType, c.at, 10), consumer.Processed
				if eventType == "Poison" {
					want = consumer.DeadLettered
				}
				require.NoError(t, deliver(t.Context(), r, ev, want))
				if want == consumer.Processed {
					want = consumer.Duplicate
				}
				calls := x.calls
				x.outage()
				again := x.start()
				if eventType == "Moved" {
					got := again.HandleBatch(t.Context(), []consumer.Event{ev})[0]
					require.NoError(t, got.Err)
					require.Equal(t, want, got.Outcome)
				} else {
					require.NoError(t, deliver(t.Context(), again, ev, want))
				}
				require.Equal(t, calls, x.calls)

				made := x.event("Paid", c.at, 10) // the topic was made anew: another event at the offset
				out, err := again.Handle(t.Context(), made)
				require.NoError(t, err)
				require.Equal(t, consumer.Processed, out)

				progress := must(again.Progress(t.Context()))
				require.NoError(t, again.SaveProgress(t.Context(), progress.History, []consumer.Mark{{Topic: "orders", High: 10, FinishedTime: now}}))
				require.Zero(t, count(t, x.db, "SELECT count(*) FROM onceward.ahead"), "the mark says it now")
			})
		}
	}
}

// TestAppliedOutsideARouter: so is what Do and Fence have applied without a router, by
// the record itself and by a copy that was a duplicate.
func TestAppliedOutsideARouter(t *testing.T) {
	work := func(context.Context, pgx.Tx) (int, error) { return 1, nil }
	kinds := map[string]func(x *crashed, p *consumer.Processor, ev consumer.Event) (consumer.Outcome, error){
		"Do": func(x *crashed, p *consumer.Processor, ev consumer.Event) (consumer.Outcome, error) {
			r, err := consumer.Do(x.t.Context(), p, ev, work)
			return r.Outcome, err
		},
		"Fence": func(x *crashed, p *consumer.Processor, ev consumer.Event) (consumer.Outcome, error) {
			r, err := consumer.Fence(x.t.Context(), p, ev, consumer.Effect[int]{Name: "charge", Do: func(context.Context, consumer.Call) (int, error) { return 1, nil }})
			return r.Outcome, err
		},
		"Handle": func(x *crashed, p *consumer.Processor, ev consumer.Event) (consumer.Outcome, error) {
			return consumer.Handle(x.t.Context(), p, ev, func(ctx context.Context, ev consumer.Event) error {
				_, err := consumer.Do(ctx, p, ev, work)
				return err
			})
		},
		"Claim": func(x *crashed, p *consumer.Processor, ev consumer.Event) (outcome consumer.Outcome, err error) {
			err = pgx.BeginFunc(x.t.Context(), x.db, func(tx pgx.Tx) error {
				c, err := p.Claim(x.t.Context(), tx, ev)
				outcome = c.Outcome
				return err
			})
			return outcome, err
		},
	}
	for of, c := range map[string]struct {
		class consumer.Class
		at    time.Time
	}{
		"late":       {consumer.Class{Pattern: "*", Window: time.Minute}, time.Now().AddDate(0, 0, -30)},
		"by arrival": {consumer.Class{Pattern: "*", Window: time.Minute, Keyed: consumer.ByArrival}, time.Now()},
	} {
		for kind, apply := range kinds {
			t.Run(of+"/"+kind, func(t *testing.T) {
				t.Parallel()
				x := &crashed{env: newEnv(t, nil), class: c.class}
				ev := x.event("Paid", c.at, 10)
				ev.Source.TopicID = uuid.UUID{1}
				second := ev
				second.Source.Offset++
				step := func(ev consumer.Event, want consumer.Outcome) {
					t.Helper()
					got, err := apply(x, x.start().Processor(), ev)
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
				step(ev, consumer.Processed)
				step(second, consumer.Duplicate)
				x.outage()
				exec(t, x.db, "DELETE FROM onceward.fences") // which are kept for a while, too
				step(ev, consumer.Duplicate)
				step(second, consumer.Duplicate)
			})
		}
	}
}

// TestCopyOfAnEventBehindItsWindow: what lies further behind than its window, and not
// yet below the floor, meets its copies too when its day has gone meanwhile.
func TestCopyOfAnEventBehindItsWindow(t *testing.T) {
	c := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Hour}}
	c.start()
	exec(t, c.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() - interval '5 days'")
	r, old := c.start(), time.Now().AddDate(0, 0, -3)
	for i, eventType := range []string{"Paid", "Moved", "Called"} {
		ev := c.event(eventType, old, int64(2*i))
		require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
		progress := must(r.Progress(t.Context()))
		require.NoError(t, r.SaveProgress(t.Context(), progress.History, []consumer.Mark{{Topic: "orders", High: ev.Source.Offset, FinishedTime: time.Now()}}))
		require.Zero(t, count(t, c.db, "SELECT count(*) FROM onceward.ahead"))

		exec(t, c.db, "DELETE FROM onceward.processed_events WHERE event_id = $1", ev.Key.UUID()) // with its day
		exec(t, c.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() - interval '1 day', raised_at = clock_timestamp() - interval '1 hour'")
		again := c.start()
		ev.Source.Offset++
		require.NoError(t, deliver(t.Context(), again, ev, consumer.Duplicate), eventType)
		require.Equal(t, i+1, c.effects())
		exec(t, c.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() - interval '5 days'")
		r = c.start()
	}
}

// What is claimed by its own id above every floor that may come leaves nothing.
func TestOrdinaryEventsLeaveNoTrace(t *testing.T) {
	x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Hour}}
	r := x.start()
	require.NoError(t, deliver(t.Context(), r, x.event("Paid", time.Now(), 1), consumer.Processed))
	require.Zero(t, count(t, x.db, "SELECT count(*) FROM onceward.ahead"))
}

// What is claimed by arrival is a duplicate at an offset that the group's mark proves
// finished, when its claim is long gone.
func TestArrivalBelowTheMark(t *testing.T) {
	c := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute, Keyed: consumer.ByArrival}}
	topic := uuid.New()
	ev := c.event("Paid", time.Now(), 5)
	ev.Source.TopicID = topic
	r := c.start()
	known, err := r.Progress(t.Context())
	require.NoError(t, err)
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
	require.NoError(t, r.SaveProgress(t.Context(), known.History, []consumer.Mark{{Topic: "orders", TopicID: topic, High: 5}}))
	c.outage()
	r = c.start()
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Duplicate))
	require.Equal(t, 1, c.effects())
	ev.Source.TopicID = uuid.New() // the topic was made anew
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
}

// What nobody could read was finished and not applied: when it is read after all, it
// is no duplicate.
func TestUnreadableIsNotProven(t *testing.T) {
	c := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute, Keyed: consumer.ByArrival}}
	r := c.start()
	topic := uuid.New()
	known, err := r.Progress(t.Context())
	require.NoError(t, err)
	from := consumer.Source{Topic: "orders", TopicID: topic, Offset: 5}
	require.NoError(t, r.KeepUnreadable(t.Context(), consumer.Unreadable{From: from, Until: 10, Why: errBroken}))
	require.NoError(t, r.SaveProgress(t.Context(), known.History, []consumer.Mark{{Topic: "orders", TopicID: topic, High: 20}}))
	for offset, want := range map[int64]consumer.Outcome{4: consumer.Duplicate, 5: consumer.Processed, 9: consumer.Processed, 10: consumer.Duplicate} {
		ev := c.event("Paid", time.Now(), offset)
		ev.Source.TopicID = topic
		require.NoError(t, deliver(t.Context(), r, ev, want), offset)
	}
	exec(t, c.db, "UPDATE onceward.consumer_dead_letters SET unreadable_until = 0") // by a program of an earlier release
	ev := c.event("Paid", time.Now(), 11)
	ev.Source.TopicID = topic
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Duplicate), "its text says that the range ends before")
	for range 2 { // from 5 until 10, says the text, and then nothing
		in := c.event("Paid", time.Now(), 8)
		in.Source.TopicID = topic
		require.NoError(t, deliver(t.Context(), r, in, consumer.Processed))
		require.NoError(t, r.SaveProgress(t.Context(), known.History, []consumer.Mark{{Topic: "orders", TopicID: topic, High: 20}}))
		c.outage()
		require.NoError(t, deliver(t.Context(), c.start(), in, consumer.Duplicate), "it is remembered for as long as the mark does not say it")
		exec(t, c.db, "UPDATE onceward.consumer_dead_letters SET error = 'nobody knows how far'")
	}
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed), "it may be in the range")
	require.NoError(t, r.SaveProgress(t.Context(), known.History, []consumer.Mark{{Topic: "orders", TopicID: topic, High: 30}}))
	c.outage()
	require.NoError(t, deliver(t.Context(), c.start(), ev, consumer.Duplicate))
}

// A partition that was read to its end counts the time of others: what comes in it
// later with an older time leaves a trace, because the floor may pass it before the
// mark does.
func TestTraceBehindAnEnd(t *testing.T) {
	c := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Hour}}
	r := c.start()
	exec(t, c.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() - interval '10 days'") // the group was away
	known, err := r.Progress(t.Context())
	require.NoError(t, err)
	now := time.Now()
	require.NoError(t, r.SaveProgress(t.Context(), known.History, []consumer.Mark{{Topic: "live", High: 9, FinishedTime: now}}))
	require.NoError(t, r.SaveProgress(t.Context(), known.History, []consumer.Mark{{Topic: "orders", High: 9, FinishedTime: now.AddDate(0, 0, -9), AtEnd: true}}))
	ev := at(c.event("Paid", now.AddDate(0, 0, -5), 11), 11)
	rec := consumer.Record{Source: ev.Source, Key: []byte(ev.AggregateID), Value: ev.Payload, Headers: ev.RecordHeaders}
	require.Equal(t, ev.Key.Time().UTC(), r.Peek(rec).EventTime.UTC()) // as a member does that reads it
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
	c.outage()
	require.NoError(t, deliver(t.Context(), c.start(), ev, consumer.Duplicate))
	require.Equal(t, 1, c.effects())
}

// inOtherBuckets does something while what is claimed by arrival meets no claim of
// before, as it is when more than a bucket lies between.
func (c *crashed) inOtherBuckets(ctx context.Context, do func()) {
	set := func(bucket string) {
		_, err := c.db.Exec(ctx, "UPDATE onceward.dedup_windows SET bucket = $1::text::interval", bucket)
		require.NoError(c.t, err)
	}
	set("9 hours 13 minutes 7.123 seconds")
	defer set("1 minute")
	do()
}

// lateAt is a late event of another aggregate than any other.
func (c *crashed) lateAt(eventType string, offset int64) consumer.Event {
	ev := c.event(eventType, time.Now().AddDate(0, 0, -30), offset)
	ev.Source.TopicID, ev.AggregateID = uuid.UUID{1}, ev.Key.String()
	return ev
}

// TestOneOffsetInTwoMembers: a member that has lost a partition without knowing, and
// whose handler takes longer than a bucket, does not apply what the new member has
// applied meanwhile, nor gives it up.
func TestOneOffsetInTwoMembers(t *testing.T) {
	for name, tc := range map[string]struct {
		eventType string
		marked    bool
		fails     bool
	}{
		"tx": {eventType: "Paid"}, "tx, and marked": {eventType: "Paid", marked: true}, "batch": {eventType: "Moved"}, "batch, and marked": {eventType: "Moved", marked: true},
		"batch, given up": {eventType: "Moved", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute}}
			young, old, calls := x.start(), consumer.NewRouter(x.start().Processor()), 0
			history := must(young.Progress(t.Context())).History
			ev, next := x.lateAt(tc.eventType, 10), x.lateAt(tc.eventType, 11)
			slow := func(ctx context.Context, tx pgx.Tx, got consumer.Event) (err error) {
				if got.Key == ev.Key {
					calls++
				}
				if got.Key == ev.Key && (calls == 2 || !tc.fails) { // with a savepoint, when it fails
					x.inOtherBuckets(ctx, func() { err = deliver(ctx, young, ev, consumer.Processed) })
					if tc.marked {
						require.NoError(t, young.SaveProgress(ctx, history, []consumer.Mark{{Topic: "orders", TopicID: ev.Source.TopicID, High: 10}}))
					}
				}
				if got.Key == ev.Key && tc.fails {
					return consumer.DeadLetter(errBroken)
				}
				require.NoError(t, err)
				return effect("billing")(ctx, tx, got)
			}
			want := 1
			if tc.eventType == "Paid" {
				old.Tx("Paid", slow)
				_, err := old.Handle(t.Context(), ev)
				require.ErrorContains(t, err, "another member has finished the offset")
				require.True(t, consumer.IsInfrastructure(err))
				require.NoError(t, deliver(t.Context(), old, ev, consumer.Duplicate))
			} else {
				old.Batch("Moved", consumer.BatchOptions{}, slow)
				got := old.HandleBatch(t.Context(), []consumer.Event{ev, next})
				require.Equal(t, []consumer.Delivery{{Outcome: consumer.Duplicate}, {Outcome: consumer.Processed}}, got)
				want++
			}
			require.Equal(t, want, x.effects())
			require.Zero(t, x.letters())
		})
	}
}

// TestOneOffsetOneIDUnknown: so it is when one of the two was not told the topic's id.
func TestOneOffsetOneIDUnknown(t *testing.T) {
	for _, marked := range []bool{false, true} {
		for _, oldKnows := range []bool{false, true} {
			t.Run(fmt.Sprintf("marked %v, the old one knows it %v", marked, oldKnows), func(t *testing.T) {
				t.Parallel()
				x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute}}
				young, old := x.start(), consumer.NewRouter(x.start().Processor())
				history := must(young.Progress(t.Context())).History
				mine := x.lateAt("Paid", 10)
				require.NoError(t, young.SaveProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", TopicID: mine.Source.TopicID, High: 9}}))
				theirs := mine
				if theirs.Source.TopicID = uuid.Nil; !oldKnows {
					mine.Source, theirs.Source = theirs.Source, mine.Source
				}
				old.Tx("Paid", func(ctx context.Context, tx pgx.Tx, got consumer.Event) (err error) {
					x.inOtherBuckets(ctx, func() { err = deliver(ctx, young, theirs, consumer.Processed) })
					require.NoError(t, err)
					if marked {
						require.NoError(t, young.SaveProgress(ctx, history, []consumer.Mark{{Topic: "orders", TopicID: theirs.Source.TopicID, High: 10}}))
					}
					return effect("billing")(ctx, tx, got)
				})
				_, err := old.Handle(t.Context(), mine)
				require.ErrorContains(t, err, "another member has finished the offset")
				got, err := young.Handle(t.Context(), mine)
				require.NoError(t, err)
				require.Equal(t, map[bool]consumer.Outcome{false: consumer.Duplicate, true: consumer.DeadLettered}[marked], got, "a mark of another id proves nothing")
				require.Equal(t, 1, x.effects())
			})
		}
	}
}

// TestOffsetOfATransactionUnderWay: who meets the row of a transaction that is not
// committed waits for it, and is in progress when that takes too long; also when only one
// of the two knows the topic's id, of which the group has a mark.
func TestOffsetOfATransactionUnderWay(t *testing.T) {
	for _, name := range []string{"Paid", "Moved", "Called", "claimed by hand", "Paid/the first knows no id", "Paid/the second knows no id"} {
		eventType, unknown, _ := strings.Cut(name, "/")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := &crashed{env: newEnv(t, nil), class: consumer.Class{Pattern: "*", Window: time.Minute}}
			hasty := &crashed{env: x.env, class: x.class, lockTimeout: 200 * time.Millisecond}
			ev, next := x.lateAt(eventType, 10), x.lateAt(eventType, 11)
			handle := func(x *crashed, r *consumer.Router) (consumer.Outcome, error) {
				switch eventType {
				case "Moved":
					got := r.HandleBatch(t.Context(), []consumer.Event{ev, next})
					return got[0].Outcome, errors.Join(got[0].Err, got[1].Err)
				case "claimed by hand":
					tx, err := x.db.Begin(t.Context())
					require.NoError(t, err)
					defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
					claim, err := r.Processor().Claim(t.Context(), tx, ev)
					return claim.Outcome, err
				}
				return r.Handle(t.Context(), ev)
			}
			r := x.start()
			history := must(r.Progress(t.Context())).History
			require.NoError(t, r.SaveProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", TopicID: ev.Source.TopicID, High: 9}}))
			first := ev
			switch unknown {
			case "the first knows no id":
				first.Source.TopicID = uuid.Nil
			case "the second knows no id":
				ev.Source.TopicID = uuid.Nil
			}
			tx, err := x.db.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			claim, err := r.Processor().Claim(t.Context(), tx, first)
			require.NoError(t, err)
			require.Equal(t, consumer.Processed, claim.Outcome)
			done := make(chan struct{})
			x.inOtherBuckets(t.Context(), func() {
				got, err := handle(hasty, hasty.start())
				require.NoError(t, err)
				require.Equal(t, consumer.InProgress, got)
				go func() {
					defer close(done)
					got, err = handle(x, r)
				}()
				x.waitBlocked(t.Context(), done)
				require.NoError(t, tx.Commit(t.Context()))
				<-done
				if eventType != "Moved" { // which goes on alone
					require.ErrorContains(t, err, "another member has finished the offset")
					require.True(t, consumer.IsInfrastructure(err))
					got, err = handle(x, r)
				}
				require.NoError(t, err)
				require.Equal(t, consumer.Duplicate, got)
			})
			require.Zero(t, x.letters())
		})
	}
}
