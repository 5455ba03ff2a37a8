//go:build e2e

package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

func TestHandlerMayUseSavepoints(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	r := e.router("billing", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		err := pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error {
			_, err := sp.Exec(ctx, "SELECT 1/0")
			return err
		})
		require.Error(t, err)
		return pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error { return effect("billing")(ctx, sp, ev) })
	})
	require.NoError(t, deliver(t.Context(), r, newEvent(t), consumer.Processed))
	require.NoError(t, e.expect(1, 1))
}

// What a handler can leave behind, and what becomes of it. The connection is
// terminated from inside, as by an administrator or a failover.
func TestHandlerFailures(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		sql            string
		query          bool // leave the rows open
		handlerErr     error
		infrastructure bool
		unknown        bool
	}{
		"open rows":            {sql: "SELECT generate_series(1, 3)", query: true, handlerErr: consumer.ErrOpenQuery},
		"rollback by SQL":      {sql: "ROLLBACK", handlerErr: consumer.ErrTxEnded},
		"connection lost":      {sql: "SELECT pg_terminate_backend(pg_backend_pid())", infrastructure: true},
		"deferred constraint":  {sql: "INSERT INTO strict VALUES (1), (1)"},
		"connection in commit": {sql: "INSERT INTO deadly VALUES (1)", infrastructure: true, unknown: true},
		"deadlock":             {sql: "DO $$ BEGIN RAISE EXCEPTION 'victim' USING ERRCODE = '40P01'; END $$", infrastructure: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, nil)
			exec(t, e.db, `CREATE TABLE strict (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
			exec(t, e.db, `CREATE TABLE deadly (n int);
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER die AFTER INSERT ON deadly DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`)
			calls := 0
			r := e.router("billing", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
				if err := effect("billing")(ctx, tx, ev); err != nil {
					return err
				}
				if calls++; calls > 1 {
					return nil
				}
				if c.query {
					_, err := tx.Query(ctx, c.sql) //nolint:gocritic,sqlclosecheck // rows left open are what is tested
					return err
				}
				_, err := tx.Exec(ctx, c.sql)
				return err
			})
			ev := newEvent(t)
			_, err := r.Handle(t.Context(), ev)
			require.Error(t, err)
			require.Equal(t, c.infrastructure, consumer.IsInfrastructure(err), "%v", err)
			require.Equal(t, c.unknown, errors.Is(err, consumer.ErrCommitUnknown), "%v", err)
			if c.handlerErr != nil {
				require.ErrorIs(t, err, c.handlerErr)
			}
			require.NoError(t, e.expect(0, 0))
			require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
			require.NoError(t, e.expect(1, 1))
		})
	}
}

func TestHandlersOwnDeadlineIsItsFailure(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	r := e.router("billing", func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		_, err := tx.Exec(short, "SELECT pg_sleep(10)")
		return err
	})
	_, err := r.Handle(t.Context(), newEvent(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, consumer.IsInfrastructure(err), "%v", err)
}

func TestOutage(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	r := e.router("billing", effect("billing"))
	e.db.Close()
	_, err := r.Handle(t.Context(), newEvent(t))
	require.True(t, consumer.IsInfrastructure(err), "%v", err)
	_, err = r.HandleRecord(t.Context(), consumer.Record{Source: consumer.Source{Topic: "orders"}})
	require.True(t, consumer.IsInfrastructure(err), "%v", err)
}

func TestMalformedRecordIsKept(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	var log bytes.Buffer
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	rec := consumer.Record{
		Source:  consumer.Source{Topic: "orders", Partition: 1, Offset: 42},
		Key:     []byte("o-1\x00\xff"),
		Headers: []consumer.Header{{Name: "event-type", Value: []byte("Paid\x00")}, {Name: "odd\x00\xff", Value: []byte{0, 255}}, {Name: "null"}},
	}
	for range 2 {
		outcome, err := r.HandleRecord(t.Context(), rec)
		require.NoError(t, err)
		require.Equal(t, consumer.DeadLettered, outcome)
	}
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("message dead-lettered")))
	require.Contains(t, log.String(), "orders/1@42")

	var reason, text, headers string
	var key, value []byte
	require.NoError(t, e.db.QueryRow(t.Context(), `SELECT reason, error, record_headers::text, record_key, record_value
		FROM onceward.consumer_dead_letters WHERE topic = 'orders' AND kafka_partition = 1 AND kafka_offset = 42 AND event_id IS NULL`).
		Scan(&reason, &text, &headers, &key, &value))
	require.Equal(t, "malformed", reason)
	require.Contains(t, text, outbox.HeaderKey)
	require.Equal(t, rec.Key, key)
	require.Nil(t, value, "a tombstone is kept as one")
	require.JSONEq(t, `[["event-type","UGFpZAA="],["\"odd\\x00\\xff\"","AP8="],["null",null]]`, headers)

	// The topic is created again, and another record gets the same offset: it is kept aside, once.
	rec.Value, rec.Source.TopicID = []byte("another"), uuid.New()
	for range 2 {
		outcome, err := r.HandleRecord(t.Context(), rec)
		require.NoError(t, err)
		require.Equal(t, consumer.DeadLettered, outcome)
	}
	require.Equal(t, 2, e.letters())
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic = 'orders~2' AND topic_id = $1", rec.Source.TopicID))
	rec.Value, rec.Source.TopicID = []byte("a third"), uuid.New()
	require.NoError(t, deliverRecord(t.Context(), r, rec, consumer.DeadLettered))
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic = 'orders~3'"))

	// A letter that is decided and knows no event gives its place up.
	exec(t, e.db, "UPDATE onceward.consumer_dead_letters SET state = 'discarded' WHERE topic = 'orders'")
	rec.Value, rec.Source.TopicID = []byte("a fourth"), uuid.New()
	require.NoError(t, deliverRecord(t.Context(), r, rec, consumer.DeadLettered))
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic = 'orders' AND state = 'open' AND record_value = 'a fourth' AND generation = 1 AND topic_id = $1", rec.Source.TopicID))
	require.NoError(t, e.expect(0, 0))
}

func deliverRecord(ctx context.Context, r *consumer.Router, rec consumer.Record, want consumer.Outcome) error {
	got, err := r.HandleRecord(ctx, rec)
	if err == nil && got != want {
		err = fmt.Errorf("outcome %s, want %s", got, want)
	}
	return err
}

// An event that was forgotten and given up again has an open letter again.
func TestGivenUpAgain(t *testing.T) {
	for _, decided := range []string{"redriven", "discarded"} {
		d := newLetterGroup(t)
		rec := d.dead(1)[0]
		exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET expires_at = clock_timestamp() + interval '30 days', state = '"+decided+"'")
		require.NoError(t, deliverRecord(t.Context(), d.router, rec, consumer.DeadLettered))
		require.Equal(t, decided, d.letter(rec).State, "nothing new")
		exec(t, d.db, "DELETE FROM onceward.processed_events") // processed forget
		exec(t, d.db, "DELETE FROM onceward.attempts")
		d.handle(func(context.Context, pgx.Tx, consumer.Event) error { return consumer.DeadLetter(errBroken) })
		require.NoError(t, deliverRecord(t.Context(), d.router, rec, consumer.DeadLettered))
		require.Equal(t, "open", d.letter(rec).State)
	}
}

// What could not be read as a whole is kept beside a letter that waits at its first
// place, and the first message of it beside that.
func TestUnreadableBesideALetter(t *testing.T) {
	d := newLetterGroup(t)
	rec := d.dead(1)[0]
	broken := consumer.Unreadable{From: rec.Source, Until: rec.Source.Offset + 5, Why: errBroken}
	for range 2 {
		require.NoError(t, d.router.KeepUnreadable(t.Context(), broken))
	}
	require.Equal(t, 2, d.letters())

	other := newLetterGroup(t)
	rec = other.record(newEvent(t))
	require.NoError(t, other.router.KeepUnreadable(t.Context(), consumer.Unreadable{From: rec.Source, Until: rec.Source.Offset + 5, Why: errBroken}))
	other.handle(func(context.Context, pgx.Tx, consumer.Event) error { return consumer.DeadLetter(errBroken) })
	require.NoError(t, deliverRecord(t.Context(), other.router, rec, consumer.DeadLettered))
	require.Equal(t, 2, other.letters())
}

func TestRecordToEffect(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	r := e.router("billing", effect("billing"))
	r.Ignore("Shipped")
	key := newEvent(t).Key.String()
	record := func(eventType string) consumer.Record {
		return consumer.Record{
			Source:  consumer.Source{Topic: "orders", Offset: 1},
			Headers: []consumer.Header{{Name: outbox.HeaderKey, Value: []byte(key)}, {Name: record.HeaderEventType, Value: []byte(eventType)}},
		}
	}
	outcome, err := r.HandleRecord(t.Context(), record("Shipped"))
	require.NoError(t, err)
	require.Equal(t, consumer.Ignored, outcome)
	require.NoError(t, e.expect(0, 0))

	_, err = r.HandleRecord(t.Context(), record("Refunded"))
	require.ErrorIs(t, err, consumer.ErrNoHandler)
	require.True(t, consumer.Permanent(err))
	require.ErrorContains(t, err, `"Refunded" of group "billing"`)

	for _, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate} {
		outcome, err = r.HandleRecord(t.Context(), record("Paid"))
		require.NoError(t, err)
		require.Equal(t, want, outcome)
	}
	require.NoError(t, e.expect(1, 1))
}

func TestClaimInTheCallersTransaction(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "hooks", DB: e.db, LockTimeout: 50 * time.Millisecond})
	require.NoError(t, err)
	ev := newEvent(t)
	claim := func(ev consumer.Event) (c consumer.Claim) {
		require.NoError(t, pgx.BeginFunc(t.Context(), e.db, func(tx pgx.Tx) (err error) {
			c, err = p.Claim(t.Context(), tx, ev)
			return err
		}))
		return c
	}
	require.Equal(t, consumer.Processed, claim(ev).Outcome)
	again := claim(ev)
	require.Equal(t, consumer.Duplicate, again.Outcome)
	require.WithinDuration(t, time.Now(), again.AppliedAt, time.Minute)

	altered := ev
	altered.Payload = nil
	mismatch := claim(altered)
	require.Equal(t, consumer.Mismatch, mismatch.Outcome)
	require.Equal(t, ev.Fingerprint(), mismatch.Mismatch.Stored)
	require.Equal(t, altered.Fingerprint(), mismatch.Mismatch.Given)

	// Without a place in Kafka there is no dead letter: the caller decides.
	r := e.router("hooks", effect("hooks"))
	outcome, err := r.Handle(t.Context(), altered)
	require.Equal(t, consumer.Mismatch, outcome)
	var me *consumer.MismatchError
	require.ErrorAs(t, err, &me)
	require.Zero(t, e.letters())
}

func TestClaimUnderRepeatableRead(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "hooks", DB: e.db})
	require.NoError(t, err)
	ev := newEvent(t)
	tx, err := e.db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	var one int
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT 1 FROM pg_class LIMIT 1").Scan(&one)) // takes the snapshot
	require.NoError(t, deliver(t.Context(), e.router("hooks", effect("hooks")), ev, consumer.Processed))
	_, err = p.Claim(t.Context(), tx, ev)
	require.True(t, consumer.IsInfrastructure(err), "%v", err)
}

// TestFloorsOfAnOldSnapshot: what a transaction of the caller sees of the floors is as old as that, and no other
// delivery believes it: retention may have raised them since, and be about to drop a day.
func TestFloorsOfAnOldSnapshot(t *testing.T) {
	t.Parallel()
	b := newBelow(t, nil, consumer.Class{}, 2)
	exec(t, b.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() - interval '5 days'")
	b.router = b.member()
	tx, err := b.db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), "SELECT pg_sleep($1)", (claims.FloorsKept + time.Second).Seconds())
	require.NoError(t, err)
	exec(t, b.db, "UPDATE onceward.dedup_windows SET floor = clock_timestamp() - interval '1 day'")
	claimed := func(tx pgx.Tx) consumer.Outcome {
		ev := b.event(0)
		ev.Source = consumer.Source{} // by that it would be known for one of before
		claim, err := b.router.Processor().Claim(t.Context(), tx, ev)
		require.NoError(t, err)
		return claim.Outcome
	}
	require.Equal(t, consumer.Processed, claimed(tx))
	require.NoError(t, pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		require.Equal(t, consumer.Replay, claimed(tx), "its day may be dropped any moment")
		return nil
	}))
}

func TestNewWantsItsTables(t *testing.T) {
	t.Parallel()
	empty := testdb.New(t, version())
	_, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: empty})
	require.ErrorIs(t, err, consumer.ErrNotInstalled)
	require.ErrorContains(t, err, "not installed in database "+empty.Config().ConnConfig.Database+"; connect to the one that has them")
	require.ErrorContains(t, err, "outboxctl migrate up --side consumer")

	older := newDatabase(t)
	exec(t, older, "ALTER TABLE onceward.consumer_dead_letters DROP COLUMN topic_id")
	_, err = consumer.New(t.Context(), consumer.Config{Group: "billing", DB: older})
	require.ErrorIs(t, err, consumer.ErrNotInstalled)
	require.ErrorContains(t, err, "of an older release")
}
