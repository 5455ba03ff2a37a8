//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// letterGroup is a group with dead letters, and what its handler does now.
type letterGroup struct {
	*env
	router *consumer.Router
	now    atomic.Pointer[consumer.TxHandler]
	offset int64
}

func newLetterGroup(t *testing.T) *letterGroup {
	t.Helper()
	d := &letterGroup{env: newEnv(t, nil)}
	d.handle(effect("billing"))
	d.router = d.member()
	return d
}

// member is one more process of the group.
func (d *letterGroup) member() *consumer.Router {
	return d.env.router("billing", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error { return (*d.now.Load())(ctx, tx, ev) })
}

func (d *letterGroup) handle(h consumer.TxHandler) { d.now.Store(&h) }

// record is one of a new event, as the relay writes it.
func (d *letterGroup) record(ev consumer.Event) consumer.Record {
	d.offset++
	return consumer.Record{
		Source: consumer.Source{Topic: "orders", Offset: d.offset}, Key: []byte(ev.AggregateID), Value: ev.Payload,
		Headers: []consumer.Header{
			{Name: outbox.HeaderKey, Value: []byte(ev.Key.String())}, {Name: record.HeaderEventType, Value: []byte(ev.Type)},
			{Name: "null"}, {Name: "empty", Value: []byte{}}, {Name: "odd\x00\xff", Value: []byte{0, 255}},
		},
	}
}

func (d *letterGroup) deliver(rec consumer.Record, want consumer.Outcome) {
	d.t.Helper()
	got, err := d.router.HandleRecord(d.t.Context(), rec)
	require.NoError(d.t, err)
	require.Equal(d.t, want, got)
}

// dead makes dead letters of new events, whose handler is broken, and mends it.
func (d *letterGroup) dead(n int) []consumer.Record {
	d.t.Helper()
	good := d.now.Load()
	d.handle(func(context.Context, pgx.Tx, consumer.Event) error { return consumer.DeadLetter(errBroken) })
	var recs []consumer.Record
	for range n {
		rec := d.record(newEvent(d.t))
		d.deliver(rec, consumer.DeadLettered)
		recs = append(recs, rec)
	}
	d.now.Store(good)
	return recs
}

// request is what `outboxctl dead redrive` does.
func (d *letterGroup) request() {
	d.t.Helper()
	exec(d.t, d.db, `UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1, decided_at = clock_timestamp() WHERE state = 'open'`)
}

func (d *letterGroup) redrive(decided int) {
	d.t.Helper()
	n, err := d.router.Redrive(d.t.Context(), 100)
	require.NoError(d.t, err)
	require.Equal(d.t, decided, n)
}

// letter is how one stands.
type letterNow struct {
	State, Reason, Error string
	Attempts             int
}

func (d *letterGroup) letter(rec consumer.Record) (l letterNow) {
	d.t.Helper()
	require.NoError(d.t, d.db.QueryRow(d.t.Context(), `SELECT state, reason, error, attempts FROM onceward.consumer_dead_letters
		WHERE topic = $1 AND kafka_partition = $2 AND kafka_offset = $3`, rec.Source.Topic, rec.Source.Partition, rec.Source.Offset).
		Scan(&l.State, &l.Reason, &l.Error, &l.Attempts))
	return l
}

// applied wants so many effects, each once, as many claims that say so, no dead
// one, and letters that are all redriven and will be removed.
func (d *letterGroup) applied(n int) {
	d.t.Helper()
	require.Equal(d.t, n, d.effects())
	require.Equal(d.t, n, count(d.t, d.db, "SELECT count(DISTINCT event) FROM effects"))
	require.Equal(d.t, n, count(d.t, d.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'p'"))
	require.Zero(d.t, count(d.t, d.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd'"))
	require.Equal(d.t, n, count(d.t, d.db, `SELECT count(*) FROM onceward.consumer_dead_letters
		WHERE state = 'redriven' AND expires_at > clock_timestamp() + interval '29 days'`))
	require.Equal(d.t, n, d.letters())
}

func TestRedrive(t *testing.T) {
	for name, scenario := range map[string]func(t *testing.T, d *letterGroup){
		"once by four members":                  redriveByFour,
		"nothing that was not asked for":        redriveUnasked,
		"the record comes back whole":           redriveWhole,
		"raced by a redelivery":                 redriveRaced,
		"raced by a redelivery, and failing":    redriveRacedFailing,
		"the connection dies before the commit": redriveKilled,
		"the connection dies in the commit":     redriveKilledInCommit,
		"the handler fails":                     redriveFailing,
		"the handler commits by itself":         redriveEnded,
		"the handler swallows an error":         redriveSwallowed,
		"redelivered afterwards":                redriveRedelivered,
		"applied meanwhile":                     redriveApplied,
		"the claim is held elsewhere":           redriveHeld,
		"a mismatch is refused":                 redriveMismatch,
		"a malformed record":                    redriveMalformed,
		"types that have no handler":            redriveUnhandled,
		"an operator is faster":                 redriveOvertaken,
		"members do not wait for one another":   redriveSideBySide,
		"no more than the limit":                redriveLimit,
		"a batch handler":                       redriveBatch,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, newLetterGroup(t))
		})
	}
}

func redriveByFour(t *testing.T, d *letterGroup) {
	const letters = 60
	d.dead(letters)
	d.request()
	var group sync.WaitGroup
	var decided atomic.Int64
	for range 4 {
		member := d.member()
		group.Go(func() {
			for range 3 {
				n, err := member.Redrive(t.Context(), letters)
				decided.Add(int64(n))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, letters, decided.Load(), "each letter is decided about by one member")
	d.applied(letters)
}

func redriveUnasked(t *testing.T, d *letterGroup) {
	d.dead(1)
	d.redrive(0)
	exec(t, d.db, `UPDATE onceward.consumer_dead_letters SET consumer_group = 'other', state = 'requested'`)
	d.redrive(0)
	require.NoError(t, d.expect(0, 1))
}

func redriveWhole(t *testing.T, d *letterGroup) {
	var first, second consumer.Event
	keep := func(into *consumer.Event, err error) {
		d.handle(func(_ context.Context, _ pgx.Tx, ev consumer.Event) error { *into = ev; return err })
	}
	for _, value := range [][]byte{nil, {}, []byte("{}")} {
		ev := newEvent(t)
		ev.Payload = value
		keep(&first, consumer.DeadLetter(errBroken))
		rec := d.record(ev)
		d.deliver(rec, consumer.DeadLettered)
		keep(&second, nil)
		d.request()
		d.redrive(1)
		require.Equal(t, rec.Source, second.Source)
		require.Equal(t, first.RecordHeaders, second.RecordHeaders)
		require.Equal(t, first.Fingerprint(), second.Fingerprint())
		require.Equal(t, first.Payload, second.Payload)
		d.deliver(rec, consumer.Duplicate)
	}
}

// redriveAgain redrives until the server has freed what a dead session held.
func (d *letterGroup) redriveAgain() {
	d.t.Helper()
	require.Eventually(d.t, func() bool {
		n, err := d.router.Redrive(d.t.Context(), 100)
		return err == nil && n == 1
	}, time.Minute, 10*time.Millisecond)
}

// during runs other in the middle of a redrive, as soon as its handler has made
// the effect, and goes on when other waits for it.
func (d *letterGroup) during(other func(), after error) {
	inside, done := make(chan struct{}), make(chan struct{})
	d.handle(func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		err := effect("billing")(ctx, tx, ev)
		close(inside)
		d.waitBlocked(ctx, done)
		return errors.Join(err, after)
	})
	go func() {
		defer close(done)
		<-inside
		d.handle(effect("billing"))
		other()
	}()
	d.redrive(1)
	<-done
}

func redriveRaced(_ *testing.T, d *letterGroup) {
	rec := d.dead(1)[0]
	d.request()
	d.during(func() { d.deliver(rec, consumer.Duplicate) }, nil)
	d.applied(1)
}

func redriveRacedFailing(t *testing.T, d *letterGroup) {
	rec := d.dead(1)[0]
	d.request()
	d.during(func() { d.deliver(rec, consumer.DeadLettered) }, errBroken)
	require.Equal(t, "open", d.letter(rec).State)
	require.NoError(t, d.expect(0, 1))
	require.Equal(t, 1, d.letters(), "no second letter")
	d.request()
	d.redrive(1)
	d.applied(1)
}

func redriveKilled(t *testing.T, d *letterGroup) {
	rec := d.dead(1)[0]
	d.request()
	d.handle(func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if err := effect("billing")(ctx, tx, ev); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return err
	})
	n, err := d.router.Redrive(t.Context(), 100)
	require.True(t, consumer.IsInfrastructure(err), "%v", err)
	require.Zero(t, n)
	require.Equal(t, "requested", d.letter(rec).State, "it is asked for still")
	require.NoError(t, d.expect(0, 1))
	d.handle(effect("billing"))
	d.redriveAgain()
	d.applied(1)
}

// redriveKilledInCommit: whether the commit was done, nobody knows; the next
// call finds out.
func redriveKilledInCommit(t *testing.T, d *letterGroup) {
	exec(t, d.db, `CREATE TABLE deadly (n int);
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER die AFTER INSERT ON deadly DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`)
	rec := d.dead(1)[0]
	d.request()
	d.handle(func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO deadly VALUES (1)")
		return errors.Join(err, effect("billing")(ctx, tx, ev))
	})
	_, err := d.router.Redrive(t.Context(), 100)
	require.ErrorIs(t, err, consumer.ErrCommitUnknown)
	require.Equal(t, "requested", d.letter(rec).State)
	d.handle(effect("billing"))
	d.redriveAgain()
	d.applied(1)
}

func redriveFailing(t *testing.T, d *letterGroup) {
	recs := d.dead(2)
	d.request()
	cause := errors.New("broken in another way\x00")
	d.handle(func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if err := effect("billing")(ctx, tx, ev); err != nil || ev.Source == recs[1].Source {
			return err
		}
		return cause
	})
	d.redrive(2)
	require.Equal(t, letterNow{"open", "handler", "handler: broken in another way\uFFFD", 2}, d.letter(recs[0]))
	require.Equal(t, "redriven", d.letter(recs[1]).State, "one that fails takes no other with it")
	require.NoError(t, d.expect(1, 2))
	d.deliver(recs[0], consumer.DeadLettered)
	require.Equal(t, 2, d.letters())
	d.redrive(0) // nobody has asked again
	d.handle(effect("billing"))
	d.request()
	d.redrive(1)
	d.applied(2)
}

func redriveEnded(t *testing.T, d *letterGroup) {
	rec := d.dead(1)[0]
	d.request()
	d.handle(func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		err := effect("billing")(ctx, tx, ev)
		_, commit := tx.Exec(ctx, "COMMIT")
		return errors.Join(err, commit)
	})
	d.redrive(1)
	require.Equal(t, "open", d.letter(rec).State)
	require.Contains(t, d.letter(rec).Error, consumer.ErrTxEnded.Error())
	d.request()
	d.redrive(1) // it finds the claim that was committed
	d.applied(1)
}

func redriveSwallowed(t *testing.T, d *letterGroup) {
	rec := d.dead(1)[0]
	d.request()
	d.handle(func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
		_, _ = tx.Exec(ctx, "SELECT 1/0")
		return nil
	})
	d.redrive(1)
	require.Equal(t, "open", d.letter(rec).State)
	require.Contains(t, d.letter(rec).Error, consumer.ErrSwallowed.Error())
	require.NoError(t, d.expect(0, 1))
}

func redriveRedelivered(_ *testing.T, d *letterGroup) {
	rec := d.dead(1)[0]
	d.request()
	d.redrive(1)
	for range 3 {
		d.deliver(rec, consumer.Duplicate)
	}
	d.redrive(0)
	d.applied(1)
}

// redriveApplied: another copy of the event was applied while its letter waited.
func redriveApplied(t *testing.T, d *letterGroup) {
	ev := newEvent(t)
	broken := d.record(ev)
	broken.Headers[1].Name = "type"
	d.deliver(broken, consumer.DeadLettered)
	d.deliver(d.record(ev), consumer.Processed)
	exec(t, d.db, `UPDATE onceward.consumer_dead_letters SET record_headers = replace(record_headers::text, '"type"', '"event-type"')::jsonb`) // as if the program were mended
	d.request()
	d.redrive(1)
	d.applied(1)
}

func redriveHeld(t *testing.T, d *letterGroup) {
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: d.db, LockTimeout: 50 * time.Millisecond})
	require.NoError(t, err)
	d.router = consumer.NewRouter(p)
	d.router.Tx("Paid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error { return (*d.now.Load())(ctx, tx, ev) })
	recs := d.dead(2)
	d.request()
	tx, err := d.db.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM onceward.processed_events WHERE event_id = (SELECT event_id FROM onceward.consumer_dead_letters WHERE kafka_offset = $1) FOR UPDATE`, recs[0].Source.Offset)
	require.NoError(t, err)
	n, err := d.router.Redrive(t.Context(), 100)
	require.True(t, err == nil || consumer.IsInfrastructure(err), "%v", err)
	require.Equal(t, 1, n, "the other letter is not held up")
	require.Equal(t, "requested", d.letter(recs[0]).State)
	require.NoError(t, tx.Rollback(t.Context()))
	d.redrive(1)
	d.applied(2)
}

func redriveMismatch(t *testing.T, d *letterGroup) {
	ev := newEvent(t)
	d.deliver(d.record(ev), consumer.Processed)
	ev.Payload = []byte("other")
	rec := d.record(ev)
	d.deliver(rec, consumer.DeadLettered)
	d.request()
	d.redrive(1)
	got := d.letter(rec)
	require.Equal(t, "open", got.State)
	require.Equal(t, "mismatch", got.Reason)
	require.Contains(t, got.Error, "publish it under a new key")
	require.Zero(t, got.Attempts, "its handler was not called")
	require.NoError(t, d.expect(1, 1))
}

func redriveMalformed(t *testing.T, d *letterGroup) {
	rec := d.record(newEvent(t))
	rec.Headers[1].Name = "type"
	d.deliver(rec, consumer.DeadLettered)
	exec(t, d.db, `UPDATE onceward.consumer_dead_letters SET error = 'an old text'`)
	d.request()
	d.redrive(1)
	require.Equal(t, letterNow{"open", "malformed", "malformed record: header event-type: missing", 0}, d.letter(rec))

	// The program is mended, and reads what it could not read before.
	exec(t, d.db, `UPDATE onceward.consumer_dead_letters SET record_headers = replace(record_headers::text, '"type"', '"event-type"')::jsonb`)
	d.request()
	d.redrive(1)
	d.applied(1)
}

func redriveUnhandled(t *testing.T, d *letterGroup) {
	d.router.Ignore("Shipped")
	recs := d.dead(2)
	for i, eventType := range []string{"Shipped", "Refunded"} {
		exec(t, d.db, `UPDATE onceward.consumer_dead_letters SET record_headers = jsonb_set(record_headers, '{1,1}', to_jsonb(encode($1, 'base64'))) WHERE kafka_offset = $2`,
			[]byte(eventType), recs[i].Source.Offset)
	}
	d.request()
	d.redrive(2)
	require.Contains(t, d.letter(recs[0]).Error, `"Shipped" is ignored`)
	require.Contains(t, d.letter(recs[1]).Error, `"Refunded" of group "billing"`)
	for _, rec := range recs {
		require.Equal(t, "open", d.letter(rec).State)
	}
}

// redriveOvertaken: an operator gives the letter up while its handler runs, and
// waits for it; what the redrive has decided stands.
func redriveOvertaken(t *testing.T, d *letterGroup) {
	d.dead(1)
	d.request()
	d.during(func() {
		tag, err := d.db.Exec(t.Context(), `UPDATE onceward.consumer_dead_letters SET state = 'discarded' WHERE state = 'requested'`)
		if err != nil || tag.RowsAffected() != 0 {
			t.Errorf("discarded %d, %v", tag.RowsAffected(), err)
		}
	}, nil)
	d.applied(1)
}

func redriveSideBySide(t *testing.T, d *letterGroup) {
	recs := d.dead(2)
	d.request()
	d.during(func() {
		n, err := d.member().Redrive(t.Context(), 100)
		if n != 1 || err != nil || d.letter(recs[0]).State != "requested" || d.letter(recs[1]).State != "redriven" {
			t.Errorf("decided %d, %v; letters %v, %v", n, err, d.letter(recs[0]), d.letter(recs[1]))
		}
	}, nil)
	d.applied(2)
}

func redriveLimit(t *testing.T, d *letterGroup) {
	d.dead(5)
	d.request()
	for _, want := range []int{2, 2, 1, 0} {
		n, err := d.router.Redrive(t.Context(), 2)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	d.applied(5)
}

func redriveBatch(t *testing.T, d *letterGroup) {
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: d.db})
	require.NoError(t, err)
	d.router = consumer.NewRouter(p)
	var sizes []int
	d.router.BatchSet("Paid", consumer.BatchOptions{}, func(ctx context.Context, tx pgx.Tx, evs []consumer.Event) error {
		sizes = append(sizes, len(evs))
		return (*d.now.Load())(ctx, tx, evs[0])
	})
	d.dead(3)
	sizes = nil
	d.request()
	d.redrive(3)
	require.Equal(t, []int{1, 1, 1}, sizes)
	d.applied(3)
}
