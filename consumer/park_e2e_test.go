//go:build e2e

package consumer_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// queue is a group that parks, of each kind of handler, and what it has applied:
// the offsets in the order of their effects.
type queue struct {
	*env
	router *consumer.Router
	mu     sync.Mutex
	fails  map[int64]error // by offset
	locks  time.Duration   // LockTimeout of the next members, if not 200 ms
	recs   []consumer.Record
}

// kinds of handlers, by the type of their events.
var kinds = []string{"Paid", "Moved", "Asked"}

func newQueue(t *testing.T) *queue {
	t.Helper()
	q := &queue{env: newEnv(t, nil), fails: make(map[int64]error)}
	exec(t, q.db, "CREATE TABLE applied (at bigserial, place bigint NOT NULL, event text NOT NULL)")
	q.router = q.member(consumer.LetterPark)
	return q
}

func (q *queue) member(policy consumer.LetterPolicy) *consumer.Router {
	return q.memberWith(policy, q.apply)
}

func (q *queue) memberWith(policy consumer.LetterPolicy, apply consumer.TxHandler) *consumer.Router {
	p, err := consumer.New(q.t.Context(), consumer.Config{
		Group: "billing", DB: q.db, Retry: consumer.Retry{MaxAttempts: 1, OnLetter: policy}, LockTimeout: cmp.Or(q.locks, 200*time.Millisecond),
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	require.NoError(q.t, err)
	r := consumer.NewRouter(p)
	r.Tx("Paid", apply)
	r.Batch("Moved", consumer.BatchOptions{}, apply)
	r.Func("Asked", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.DoNamed(ctx, p, ev, "ask", func(ctx context.Context, tx pgx.Tx) (string, error) { return "", apply(ctx, tx, ev) })
		return err
	})
	return r
}

func (q *queue) apply(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
	q.mu.Lock()
	err := q.fails[ev.Source.Offset]
	q.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "INSERT INTO applied (place, event) VALUES ($1, $2)", ev.Source.Offset, ev.Key.String())
	return err
}

func (q *queue) fail(offset int64, err error) {
	q.mu.Lock()
	q.fails[offset] = err
	q.mu.Unlock()
}

// next makes the next record of a key.
func (q *queue) next(kind, key string) consumer.Record {
	ev := newEvent(q.t)
	rec := consumer.Record{
		Source: consumer.Source{Topic: "orders", Offset: int64(len(q.recs) + 1)}, Key: []byte(key), Value: ev.Payload,
		Headers: []consumer.Header{{Name: outbox.HeaderKey, Value: []byte(ev.Key.String())}, {Name: record.HeaderEventType, Value: []byte(kind)}},
	}
	q.recs = append(q.recs, rec)
	return rec
}

func (q *queue) deliver(rec consumer.Record, want consumer.Outcome) {
	q.t.Helper()
	got, err := q.router.HandleRecord(q.t.Context(), rec)
	require.NoError(q.t, err)
	require.Equal(q.t, want.String(), got.String(), rec.Source)
}

func (q *queue) applied(want ...int64) {
	q.t.Helper()
	got := []int64{}
	rows, err := q.db.Query(q.t.Context(), "SELECT place FROM applied ORDER BY at")
	require.NoError(q.t, err)
	got, err = pgx.AppendRows(got, rows, pgx.RowTo[int64])
	require.NoError(q.t, err)
	require.Equal(q.t, append([]int64{}, want...), got)
}

func (q *queue) states(want ...string) {
	q.t.Helper()
	got := []string{}
	rows, err := q.db.Query(q.t.Context(), "SELECT kafka_offset || ' ' || state || ' ' || reason FROM onceward.consumer_dead_letters ORDER BY kafka_offset")
	require.NoError(q.t, err)
	got, err = pgx.AppendRows(got, rows, pgx.RowTo[string])
	require.NoError(q.t, err)
	require.Equal(q.t, append([]string{}, want...), got)
}

func (q *queue) parkedKeys() int { return count(q.t, q.db, "SELECT count(*) FROM onceward.parked") }

func (q *queue) decide(offset int64, state string) {
	q.t.Helper()
	exec(q.t, q.db, "UPDATE onceward.consumer_dead_letters SET state = $2, generation = generation + 1 WHERE kafka_offset = $1 AND state IN ('open', 'parked')", offset, state)
}

func (q *queue) redrive(decided int) {
	q.t.Helper()
	n, err := q.router.Redrive(q.t.Context(), 100)
	require.NoError(q.t, err)
	require.Equal(q.t, decided, n)
}

// Nothing of a key is applied before what came before it, through failures,
// redeliveries, crashes and an operator's decisions; other keys go on.
func TestParkKeepsOrder(t *testing.T) {
	for _, kind := range kinds {
		for name, scenario := range map[string]func(q *queue, kind string){
			"released in order":             parkReleased,
			"the first failure stops it":    parkFailsAgain,
			"discarded":                     parkDiscarded,
			"redelivered":                   parkRedelivered,
			"a crash during release":        parkCrash,
			"released by four members":      parkByFour,
			"a delivery during the release": parkDuring,
			"refused behind it":             parkRefused,
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				scenario(newQueue(t), kind)
			})
		}
	}
	t.Run("in one batch", func(t *testing.T) { parkInBatch(newQueue(t)) })
	t.Run("one batch of two members", func(t *testing.T) { parkByTwo(newQueue(t)) })
	t.Run("one that is malformed", func(t *testing.T) { parkMalformed(newQueue(t)) })
	t.Run("switched off", func(t *testing.T) { parkOff(newQueue(t)) })
}

// hold parks key A behind offset 1, with offsets 2 and 4; 3 is of key B.
func (q *queue) hold(kind string) {
	q.t.Helper()
	q.fail(1, consumer.DeadLetter(errBroken))
	q.deliver(q.next(kind, "A"), consumer.DeadLettered)
	q.deliver(q.next(kind, "A"), consumer.DeadLettered)
	q.deliver(q.next(kind, "B"), consumer.Processed)
	q.deliver(q.next("Paid", "A"), consumer.DeadLettered)
	q.applied(3)
	q.states("1 open handler", "2 parked parked", "4 parked parked")
	require.Equal(q.t, 1, q.parkedKeys())
	require.Equal(q.t, 2, q.claims(), "of the letter and of B: what is parked has none")
	q.redrive(0)
	q.applied(3)
}

func parkReleased(q *queue, kind string) {
	q.hold(kind)
	q.fail(1, nil)
	q.decide(1, "requested")
	q.redrive(3)
	q.applied(3, 1, 2, 4)
	q.states("1 redriven handler", "2 redriven parked", "4 redriven parked")
	require.Zero(q.t, q.parkedKeys())
	q.deliver(q.next(kind, "A"), consumer.Processed)
	for _, rec := range q.recs {
		q.deliver(rec, consumer.Duplicate)
	}
	q.applied(3, 1, 2, 4, 5)
}

func parkFailsAgain(q *queue, kind string) {
	q.hold(kind)
	q.fail(2, errBroken)
	q.fail(1, nil)
	q.decide(1, "requested")
	q.redrive(2)
	q.applied(3, 1)
	q.states("1 redriven handler", "2 open parked", "4 parked parked")
	q.decide(4, "requested") // not before its turn, whoever says so
	q.redrive(0)
	q.applied(3, 1)
	q.deliver(q.next(kind, "A"), consumer.DeadLettered)
	q.fail(2, nil)
	q.decide(2, "requested")
	q.redrive(3)
	q.applied(3, 1, 2, 4, 5)
	require.Zero(q.t, q.parkedKeys())
}

func parkDiscarded(q *queue, kind string) {
	q.hold(kind)
	q.decide(1, "discarded")
	q.redrive(2)
	q.applied(3, 2, 4)
	require.Zero(q.t, q.parkedKeys())

	q.fail(5, consumer.DeadLetter(errBroken))
	q.deliver(q.next(kind, "A"), consumer.DeadLettered)
	q.deliver(q.next(kind, "A"), consumer.DeadLettered)
	q.decide(5, "discarded")
	q.decide(6, "discarded")
	q.redrive(0)
	require.Zero(q.t, q.parkedKeys(), "no letter of the key waits")
	q.deliver(q.recs[5], consumer.DeadLettered) // after a crash: it was discarded, and left no claim
	q.deliver(q.recs[4], consumer.DeadLettered)
	q.deliver(q.next(kind, "A"), consumer.Processed)
	q.applied(3, 2, 4, 7)
}

func parkRedelivered(q *queue, kind string) {
	q.deliver(q.next("Paid", "A"), consumer.Processed)
	q.fail(2, consumer.DeadLetter(errBroken))
	q.deliver(q.next(kind, "A"), consumer.DeadLettered)
	q.deliver(q.next(kind, "A"), consumer.DeadLettered)
	for range 2 {
		q.deliver(q.recs[0], consumer.Duplicate)
		q.deliver(q.recs[1], consumer.DeadLettered)
		q.deliver(q.recs[2], consumer.DeadLettered)
	}
	again := q.recs[2] // the relay's copy
	again.Source.Offset = 4
	q.recs = append(q.recs, again)
	q.deliver(again, consumer.DeadLettered)
	q.states("2 open handler", "3 parked parked", "4 parked parked")
	q.fail(2, nil)
	q.decide(2, "requested")
	q.redrive(3)
	q.applied(1, 2, 3)
}

func parkCrash(q *queue, kind string) {
	q.hold(kind)
	q.fail(1, nil)
	q.decide(1, "requested")
	crashed := errors.New("crash")
	dying := q.member(consumer.LetterPark)
	dying.BreakAfter(2, crashed) // in the middle of the release
	_, err := dying.Redrive(q.t.Context(), 100)
	require.ErrorIs(q.t, err, crashed)
	q.deliver(q.next(kind, "A"), consumer.DeadLettered)
	_, err = q.router.Redrive(q.t.Context(), 100)
	require.NoError(q.t, err)
	q.applied(3, 1, 2, 4, 5)
	require.Zero(q.t, q.parkedKeys())
}

func parkByFour(q *queue, kind string) {
	q.hold(kind)
	var want []int64
	for range 20 {
		q.deliver(q.next(kind, "A"), consumer.DeadLettered)
		want = append(want, int64(len(q.recs)))
	}
	q.fail(1, nil)
	q.decide(1, "requested")
	var members sync.WaitGroup
	for range 4 {
		r := q.member(consumer.LetterPark)
		members.Go(func() {
			for range 10 {
				_, _ = r.Redrive(q.t.Context(), 100) // one that waits for another is no failure here
			}
		})
	}
	members.Wait()
	_, err := q.router.Redrive(q.t.Context(), 100)
	require.NoError(q.t, err)
	q.applied(append([]int64{3, 1, 2, 4}, want...)...)
	require.Zero(q.t, q.parkedKeys())
}

// While a release has the key in hand a delivery of it waits, and is not taken.
func parkDuring(q *queue, kind string) {
	q.hold(kind)
	q.fail(1, nil)
	q.decide(1, "requested")
	held, err := q.db.Begin(q.t.Context())
	require.NoError(q.t, err)
	defer func() { _ = held.Rollback(q.t.Context()) }()
	_, err = held.Exec(q.t.Context(), "SELECT FROM onceward.parked FOR UPDATE")
	require.NoError(q.t, err)
	q.deliver(q.next(kind, "A"), consumer.InProgress)
	soon, cancel := context.WithTimeout(q.t.Context(), 5*time.Second)
	defer cancel()
	n, err := q.router.Redrive(soon, 100)
	require.NoError(q.t, err)
	require.Zero(q.t, n)
	q.applied(3)
	require.NoError(q.t, held.Rollback(q.t.Context()))
	q.redrive(3)
	q.deliver(q.recs[4], consumer.Processed)
	q.applied(3, 1, 2, 4, 5)
}

// What was refused for a reason of its own waits for somebody in its turn.
func parkRefused(q *queue, kind string) {
	q.hold(kind)
	odd := consumer.Record{Source: consumer.Source{Topic: "orders", Offset: 5}, Key: []byte("A")}
	q.recs = append(q.recs, odd)
	q.deliver(odd, consumer.DeadLettered)
	q.deliver(q.next(kind, "A"), consumer.DeadLettered)
	q.states("1 open handler", "2 parked parked", "4 parked parked", "5 parked malformed", "6 parked parked")
	q.fail(1, nil)
	q.decide(1, "requested")
	q.redrive(4)
	q.states("1 redriven handler", "2 redriven parked", "4 redriven parked", "5 open malformed", "6 parked parked")
	q.decide(5, "discarded")
	q.redrive(1)
	q.applied(3, 1, 2, 4, 6)
}

// parkByTwo: a member that was taken for dead makes a letter, while its heir waits for the claims
// of the same batch and has looked for parked keys already.
func parkByTwo(q *queue) {
	t := q.t
	recs := []consumer.Record{q.next("Moved", "A"), q.next("Moved", "A"), q.next("Moved", "B")}
	holds, calls := make(chan struct{}), 0
	q.locks = time.Minute
	heir := q.member(consumer.LetterPark)
	zombie := q.memberWith(consumer.LetterPark, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if ev.Source.Offset > 1 {
			return q.apply(ctx, tx, ev)
		}
		if calls++; calls == 2 { // with a savepoint: this one is kept
			close(holds)
			q.waitBlocked(ctx, nil)
		}
		return consumer.DeadLetter(errBroken)
	})
	var first []consumer.Delivery
	var group sync.WaitGroup
	group.Go(func() { first = zombie.HandleRecords(t.Context(), recs) })
	<-holds
	second := heir.HandleRecords(t.Context(), recs)
	group.Wait()
	for _, of := range [][]consumer.Delivery{first, second} {
		require.Len(t, of, 3)
		for i, d := range of[:2] {
			require.Equal(t, consumer.DeadLettered, d.Outcome, "%d: %v", i, d.Err)
		}
	}
	q.applied(3)
	q.states("1 open handler", "2 parked parked")
}

func parkInBatch(q *queue) {
	q.fail(2, consumer.DeadLetter(errBroken))
	var recs []consumer.Record
	for i := range 9 {
		recs = append(recs, q.next("Moved", string("AAB"[i%3])))
	}
	for i, d := range q.router.HandleRecords(q.t.Context(), recs) {
		require.NoError(q.t, d.Err)
		want := consumer.Processed
		if i > 0 && i%3 != 2 {
			want = consumer.DeadLettered
		}
		require.Equal(q.t, want.String(), d.Outcome.String(), i+1)
	}
	q.applied(1, 3, 6, 9)
	q.states("2 open handler", "4 parked parked", "5 parked parked", "7 parked parked", "8 parked parked")
	require.Equal(q.t, 5, q.claims())
	q.fail(2, nil)
	q.decide(2, "requested")
	q.redrive(5)
	q.applied(1, 3, 6, 9, 2, 4, 5, 7, 8)

	// One that is refused without any handler holds up those of the same transaction too.
	late := q.next("Moved", "C")
	late.Headers[0].Value = []byte(keyAt(q.t, time.Now().Add(time.Hour)).String())
	batch := []consumer.Record{late, q.next("Moved", "C"), q.next("Moved", "D")}
	for i, d := range q.router.HandleRecords(q.t.Context(), batch) {
		require.NoError(q.t, d.Err, i)
	}
	q.applied(1, 3, 6, 9, 2, 4, 5, 7, 8, 12)
}

func parkMalformed(q *queue) {
	odd := consumer.Record{Source: consumer.Source{Topic: "orders", Offset: 1}, Key: []byte("A")}
	q.recs = append(q.recs, odd)
	q.deliver(odd, consumer.DeadLettered)
	q.deliver(q.next("Paid", "A"), consumer.DeadLettered)
	none := q.next("Paid", "")
	none.Key = nil
	q.fail(3, consumer.DeadLetter(errBroken))
	q.deliver(none, consumer.DeadLettered)
	second := q.next("Paid", "")
	second.Key = nil
	q.deliver(second, consumer.Processed)
	q.applied(4)
	q.decide(1, "discarded")
	q.redrive(1)
	q.applied(4, 2)
}

// A group that does not park any more still releases what it has parked.
func parkOff(q *queue) {
	q.hold("Paid")
	q.router = q.member(consumer.LetterGoOn)
	q.fail(1, nil)
	q.decide(1, "requested")
	q.redrive(3)
	q.applied(3, 1, 2, 4)
	require.Zero(q.t, q.parkedKeys())
}

// Nothing more is parked than the bounds allow: the partition stops instead, and
// nothing is lost or applied out of order.
func TestParkIsBounded(t *testing.T) {
	q := newQueue(t)
	q.router.Bounds(3, 2)
	q.fail(1, consumer.DeadLetter(errBroken))
	for range 4 {
		q.deliver(q.next("Paid", "A"), consumer.DeadLettered)
	}
	fifth := q.next("Paid", "A")
	for range 2 {
		_, err := q.router.HandleRecord(t.Context(), fifth)
		require.ErrorIs(t, err, consumer.ErrParkedFull)
		require.True(t, consumer.IsInfrastructure(err), "nothing is counted")
	}
	require.Equal(t, 4, q.letters())

	for i := int64(6); i <= 8; i++ {
		q.fail(i, consumer.DeadLetter(errBroken))
	}
	q.deliver(q.next("Paid", "B"), consumer.DeadLettered)
	_, err := q.router.HandleRecord(t.Context(), q.next("Paid", "C"))
	require.ErrorIs(t, err, consumer.ErrParkedFull)
	require.Equal(t, 2, q.parkedKeys())
	require.Equal(t, 5, q.letters())
	require.Zero(t, count(t, q.db, "SELECT count(*) FROM onceward.attempts WHERE attempts > 1"))

	q.fail(1, nil)
	q.decide(1, "requested")
	q.redrive(4)
	q.deliver(fifth, consumer.Processed)
	q.deliver(q.recs[6], consumer.DeadLettered)
	q.applied(1, 2, 3, 4, 5)
	require.Equal(t, 2, q.parkedKeys())
}
