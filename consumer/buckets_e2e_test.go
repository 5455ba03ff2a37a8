//go:build e2e

package consumer_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/consumer/webhook"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/record"
)

const aDay = 24 * time.Hour

// group starts a group's processor, and returns what it logs.
func (e *env) group(name string, classes ...consumer.Class) (*consumer.Processor, *bytes.Buffer, error) {
	log := new(bytes.Buffer)
	p, err := consumer.New(e.t.Context(), consumer.Config{Group: name, DB: e.db, Classes: classes, Logger: slog.New(slog.NewTextHandler(log, nil))})
	return p, log, err
}

// once applies the event, and nothing of a copy.
func (e *env) once(p *consumer.Processor, ev consumer.Event) {
	e.t.Helper()
	for i, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate, consumer.Duplicate} {
		got, err := consumer.Do(e.t.Context(), p, ev, func(context.Context, pgx.Tx) (int, error) { return i, nil })
		require.NoError(e.t, err)
		require.Equal(e.t, want, got.Outcome)
	}
}

func newWebhook(t *testing.T) consumer.Event {
	t.Helper()
	return consumer.Event{Event: record.Event{Key: must(record.TimelessKey("github", uuid.NewString())), Type: "push"}}
}

// aged is an event of some days ago, at an offset that nobody has finished.
func aged(t *testing.T, days int) consumer.Event {
	t.Helper()
	ev := newEvent(t)
	ev.Key = keyAt(t, time.Now().AddDate(0, 0, -days))
	ev.Source = consumer.Source{Topic: windowTopic, Offset: int64(days)}
	return ev
}

// TestArrivalOnAFreshDatabase (B1): the longest class by arrival, and late events
// of the longest class by event time, are claimed at once.
func TestArrivalOnAFreshDatabase(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p, log, err := e.group("hooks", consumer.Class{Pattern: "push", Window: 31 * aDay, Keyed: consumer.ByArrival}, consumer.Class{Pattern: "Paid", Window: 3660 * aDay})
	require.NoError(t, err)
	require.Empty(t, log.String())
	e.once(p, newWebhook(t))
	ev := aged(t, 40)
	r := consumer.NewRouter(p)
	r.Tx("Paid", effect("hooks"))
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
	ev.Source.Offset++
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Duplicate))
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.dedup_windows WHERE class = 'push' AND bucket = interval '31 days' AND old_bucket IS NULL"))
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.dedup_windows WHERE class = 'Paid' AND bucket = interval '7 days'"))
}

// TestNewGroupFindsPartitions (B1): on a database whose only group has a window of
// 15 minutes, so that retention keeps nothing of yesterday.
func TestNewGroupFindsPartitions(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	_, _, err := e.group("mail", consumer.Class{Pattern: "*", Window: 15 * time.Minute})
	require.NoError(t, err)
	e.maintain()
	oldest := must(partition.List(t.Context(), e.db, claims.Table))
	require.Equal(t, partition.OfDay("processed_events", time.Now().Add(-15*time.Minute)).Name, oldest[0].Name)

	p, _, err := e.group("hooks", webhook.GitHubClass("*"))
	require.NoError(t, err)
	e.once(p, newWebhook(t))
	r := e.router("reports", effect("reports"))
	for days := range 10 {
		ev := aged(t, days)
		require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed), days)
		ev.Source.Offset = 100 + int64(days)
		require.NoError(t, deliver(t.Context(), r, ev, consumer.Duplicate), days)
	}

	// The claims ahead stay, and the past of the new groups goes, as it did.
	before := e.claims()
	e.maintain()
	require.Equal(t, before, e.claims())
}

// maintain runs retention until it has nothing more to do.
func (e *env) maintain() {
	e.t.Helper()
	conn, err := e.db.Acquire(e.t.Context())
	require.NoError(e.t, err)
	defer conn.Release()
	for range 3 {
		cfg := retention.Config{}.With(func(at time.Time) time.Time { return at }, func(string) {})
		_, err := retention.Maintain(e.t.Context(), conn.Conn(), cfg)
		require.NoError(e.t, err)
	}
}

// TestBucketChangeMeetsCopies (W4): copies on both sides of a change meet, also of
// claims that a release before the buckets made, and of late events.
func TestBucketChangeMeetsCopies(t *testing.T) {
	t.Parallel()
	lengths := [][2]time.Duration{{time.Hour, 61 * time.Minute}, {aDay, 3 * aDay}, {3 * aDay, 4 * aDay}, {7 * aDay, 8 * aDay}, {31 * aDay, time.Minute}}
	e := newEnv(t, nil)
	for i, l := range lengths {
		name := "group" + string(rune('a'+i))
		class := consumer.Class{Pattern: "*", Window: l[0], Keyed: consumer.ByArrival}
		p, _, err := e.group(name, class)
		require.NoError(t, err)
		evs := []consumer.Event{newWebhook(t), newWebhook(t), newWebhook(t)}
		for _, ev := range evs {
			e.once(p, ev)
		}
		n, err := consumerdb.New(e.db).SetWindow(t.Context(), consumerdb.SetWindowParams{ConsumerGroup: name, Class: "*", NewWindow: micros(l[1]), NewBucket: micros(l[1])})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		class.Window = l[1]
		another, log, err := e.group(name, class)
		require.NoError(t, err)
		require.Empty(t, log.String())
		e.duplicate(p, evs[0])
		e.duplicate(another, evs[1])
		n, err = consumerdb.New(e.db).SetWindow(t.Context(), consumerdb.SetWindowParams{ConsumerGroup: name, Class: "*", NewBucket: micros(time.Hour + time.Second)})
		require.NoError(t, err)
		require.Zero(t, n, "not again before that is over")

		ev := newWebhook(t)
		e.once(another, ev) // claimed in both
		exec(t, e.db, "UPDATE onceward.dedup_windows SET old_until = now() WHERE consumer_group = $1", name)
		e.duplicate(p, ev)
	}
}

func micros(d time.Duration) (i pgtype.Interval) {
	i.Microseconds, i.Valid = d.Microseconds(), true
	return i
}

func (e *env) duplicate(p *consumer.Processor, ev consumer.Event) {
	e.t.Helper()
	got, err := consumer.Do(e.t.Context(), p, ev, func(context.Context, pgx.Tx) (int, error) { return 1, nil })
	require.NoError(e.t, err)
	require.Equal(e.t, consumer.Duplicate, got.Outcome)
}

// TestClaimsOfTheReleaseBefore: those under the starts of buckets of one window
// are met, and claims of today are met by programs of that release.
func TestClaimsOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	exec(t, e.db, `INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor, keyed) VALUES ('hooks', '*', '2 days', now() - interval '2 days', 'arrival')`)
	starts := func(ev consumer.Event, at time.Time) []uuid.UUID { // as that release had them
		pair := claims.IDs(ev.Key.UUID(), 2*aDay, at.Add(-2*aDay))
		return pair[:]
	}
	claim := func(ev consumer.Event, at time.Time) error {
		for _, id := range starts(ev, at) {
			f := ev.Fingerprint()
			if _, err := e.db.Exec(t.Context(), `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome)
				VALUES ($1, 'hooks', 'push', 'github', $2, 'p')`, id, f[:]); err != nil {
				return err
			}
		}
		return nil
	}
	before, now := newWebhook(t), newWebhook(t)
	require.NoError(t, claim(before, time.Now().Add(-2*aDay+time.Second)))
	require.NoError(t, claim(now, time.Now()))
	p, _, err := e.group("hooks", consumer.Class{Pattern: "*", Window: 2 * aDay, Keyed: consumer.ByArrival})
	require.NoError(t, err)
	e.duplicate(p, before)
	e.duplicate(p, now)
	ev := newWebhook(t)
	e.once(p, ev)
	require.ErrorContains(t, claim(ev, time.Now()), "duplicate key", "a member of that release meets it")
	e.maintain()
	e.duplicate(p, before)
	require.Equal(t, 1, count(t, e.db, `SELECT count(*) FROM onceward.dedup_windows
		WHERE bucket = interval '2 days' AND old_bucket = interval '2 days' AND old_until BETWEEN now() + interval '119 hours' AND now() + interval '120 hours'`))
	_, _, err = e.group("hooks", consumer.Class{Pattern: "*", Window: 2 * aDay, Keyed: consumer.ByArrival})
	require.NoError(t, err)
	require.Equal(t, 1, count(t, e.db, `SELECT count(*) FROM onceward.dedup_windows WHERE old_until < now() + interval '120 hours'`), "a start begins it once")
}

// TestWindowShrinksOnlyByCommand (F7): of two versions beside one another the
// longer window counts, for both; policies and buckets stay as they are.
func TestWindowShrinksOnlyByCommand(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	long := consumer.Class{Pattern: "*", Window: 7 * aDay}
	short := consumer.Class{Pattern: "*", Window: aDay, Late: consumer.LateDeadLetter}
	stored := func(want string) {
		t.Helper()
		var got string
		require.NoError(t, e.db.QueryRow(t.Context(), "SELECT concat_ws(' ', EXTRACT(epoch FROM time_window)::int / 3600, late, EXTRACT(epoch FROM bucket)::int / 3600) FROM onceward.dedup_windows").Scan(&got))
		require.Equal(t, want, got)
	}
	for range 2 {
		_, log, err := e.group("billing", long)
		require.NoError(t, err)
		require.Empty(t, log.String())
		stored("168 process 168")
		_, log, err = e.group("billing", short)
		require.NoError(t, err)
		require.Contains(t, log.String(), `command="outboxctl windows set --window 24h0m0s --late dead-letter --reason '…' billing '*'"`)
		stored("168 process 168")
	}
	p, _, err := e.group("billing", short)
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.Tx("Paid", effect("billing"))
	require.NoError(t, deliver(t.Context(), r, aged(t, 40), consumer.Processed), "by what is registered, late events are applied")

	late := string(consumer.LateDeadLetter)
	_, err = consumerdb.New(e.db).SetWindow(t.Context(), consumerdb.SetWindowParams{ConsumerGroup: "billing", Class: "*", NewWindow: micros(aDay), NewBucket: micros(aDay), NewLate: &late})
	require.NoError(t, err)
	consumer.AgeFloors(p, 11*time.Second)
	require.NoError(t, deliver(t.Context(), r, aged(t, 41), consumer.DeadLettered), "a member that runs goes by the command")
	_, log, err := e.group("billing", short)
	require.NoError(t, err)
	require.Empty(t, log.String())
	stored("24 dead-letter 24")

	_, log, err = e.group("billing", long)
	require.NoError(t, err)
	stored("168 dead-letter 24")
	require.Contains(t, log.String(), `--late process`)

	hook := consumer.Class{Pattern: "hook.*", Window: 8 * aDay, Keyed: consumer.ByArrival}
	_, _, err = e.group("hooks", hook)
	require.NoError(t, err)
	hook.Window = 9 * aDay
	_, log, err = e.group("hooks", hook)
	require.NoError(t, err)
	require.Contains(t, log.String(), `outboxctl windows set --window 216h0m0s --reason '…' hooks 'hook.*'`, "by arrival, it does not even grow: its buckets would have to")
}

// TestClassOfAnotherKeying (A8): a more special class that claims otherwise would
// apply again what is redelivered across the deploy.
func TestClassOfAnotherKeying(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p, _, err := e.group("billing", consumer.Class{Pattern: "*", Window: aDay})
	require.NoError(t, err)
	e.once(p, newEvent(t))
	_, _, err = e.group("billing", consumer.Class{Pattern: "*", Window: aDay}, consumer.Class{Pattern: "Paid", Window: aDay, Keyed: consumer.ByArrival})
	require.ErrorContains(t, err, `register the windows of group "billing": events of type "Paid" are keyed by event-time in the database and by arrival in the configuration (by the classes "*" and "Paid")`)
	require.ErrorContains(t, err, "let another group handle them")
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.dedup_windows"), "nothing of it is registered")
	_, _, err = e.group("another", consumer.Class{Pattern: "*", Window: aDay}, consumer.Class{Pattern: "Paid", Window: aDay, Keyed: consumer.ByArrival})
	require.NoError(t, err)
}

// TestQuietHTTPGroup (C13): what a group once received from no topic does not hold
// its floors for ever, as long as it reads topics.
func TestQuietHTTPGroup(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	_, _, err := e.group("billing", consumer.Class{Pattern: "*", Window: 2 * aDay})
	require.NoError(t, err)
	exec(t, e.db, "UPDATE onceward.dedup_windows SET floor = floor - interval '2 days'")
	mark := `INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time, updated_at) VALUES ('billing', $1, 0, 0, 0, $2, $3)`
	quiet := time.Now().Add(-4 * aDay)
	exec(t, e.db, mark, "", quiet, time.Now().Add(-2*aDay+time.Hour))
	exec(t, e.db, mark, windowTopic, time.Now(), time.Now())
	floor := func() (days int) {
		t.Helper()
		e.maintain()
		return count(t, e.db, "SELECT EXTRACT(epoch FROM date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - floor)::int / 86400 FROM onceward.dedup_windows")
	}
	held := floor()
	require.GreaterOrEqual(t, held, 4, "its senders may repeat what is within the window")
	exec(t, e.db, "UPDATE onceward.progress SET updated_at = now() - interval '49 hours' WHERE topic = ''")
	exec(t, e.db, "UPDATE onceward.progress SET retired_at = now() WHERE topic <> ''")
	require.Equal(t, held, floor(), "a group without topics keeps what it needs")
	exec(t, e.db, "UPDATE onceward.progress SET retired_at = NULL")
	require.Equal(t, 2, floor())

	exec(t, e.db, "UPDATE onceward.dedup_windows SET time_window = '15 minutes'")
	for ago, want := range map[string]string{"23 hours": "", "25 hours": windowTopic} {
		exec(t, e.db, "UPDATE onceward.progress SET updated_at = now() - $1::interval WHERE topic = ''", ago)
		require.Equal(t, want, must(consumerdb.New(e.db).SlowestMarks(t.Context()))[0].Topic, "for a day at least")
	}
}

// TestLongTransactionJudgesByTheClock (C9): not by the time at which it began,
// which does not move what the process knows of the database's clock either.
func TestLongTransactionJudgesByTheClock(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, Skew: 500 * time.Millisecond})
	require.NoError(t, err)
	consumer.AgeFloors(p, 11*time.Second)
	require.NoError(t, pgx.BeginFunc(t.Context(), e.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT pg_sleep(1.5)")
		require.NoError(t, err)
		ev := newEvent(t)
		got, err := p.Claim(t.Context(), tx, ev)
		require.NoError(t, err)
		require.Equal(t, consumer.Processed, got.Outcome)
		return p.Complete(t.Context(), tx, ev, []byte("1"))
	}))
	require.WithinDuration(t, time.Now(), consumer.DatabaseNow(p), time.Second)
}

// TestArrivalMeetsOtherClasses: a class that a newer version of a program has for some
// types, beside the one that took them before, does not make copies new that came
// before it was there, or that a member of the older version applies.
func TestArrivalMeetsOtherClasses(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	whole := consumer.Class{Pattern: "*", Window: 5*aDay + time.Hour, Keyed: consumer.ByArrival}
	special := consumer.Class{Pattern: "push", Window: 13*aDay + 7*time.Hour, Keyed: consumer.ByArrival}
	older, _, err := e.group("hooks", whole)
	require.NoError(t, err)
	before, beside := newWebhook(t), newWebhook(t)
	e.once(older, before)
	newer, _, err := e.group("hooks", whole, special)
	require.NoError(t, err)
	copied := func(p *consumer.Processor, ev consumer.Event) {
		got, err := consumer.Do(t.Context(), p, ev, func(context.Context, pgx.Tx) (int, error) { return 0, nil })
		require.NoError(t, err)
		require.Equal(t, consumer.Duplicate, got.Outcome)
	}
	copied(newer, before)
	e.once(newer, beside)
	copied(older, beside)
	exec(t, e.db, `UPDATE onceward.dedup_windows w SET old_bucket = o.bucket, old_until = now() - interval '1 hour'
		FROM onceward.dedup_windows o WHERE o.consumer_group = w.consumer_group AND o.class <> w.class`) // changes of long ago
	beside = newWebhook(t)
	e.once(newer, beside)
	copied(older, beside)

	// The same for late events whose own day is gone.
	whole.Keyed, special.Keyed, whole.Window, special.Window = "", "", 2*aDay+time.Hour, 5*aDay+3*time.Hour
	whole.Pattern, special.Pattern = "P*", "Paid"
	first, _, err := e.group("late", whole)
	require.NoError(t, err)
	ev := aged(t, 40)
	one := consumer.NewRouter(first)
	one.Tx("Paid", effect("late"))
	require.NoError(t, deliver(t.Context(), one, ev, consumer.Processed))
	second, _, err := e.group("late", whole, special)
	require.NoError(t, err)
	two := consumer.NewRouter(second)
	two.Tx("Paid", effect("late"))
	ev.Source.Offset++
	require.NoError(t, deliver(t.Context(), two, ev, consumer.Duplicate))
}
