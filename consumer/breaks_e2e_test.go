//go:build e2e

package consumer_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/testdb"
)

// breaker is a group whose handler of a payload "kills" makes the server end its
// session.
func breaker(t *testing.T, db *pgxpool.Pool, kill consumer.TxHandler) *consumer.Router {
	t.Helper()
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: db, Retry: consumer.Retry{MaxAttempts: 2}})
	require.NoError(t, err)
	work := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		switch string(ev.Payload) {
		case "kills":
			return kill(ctx, tx, ev)
		case "fails":
			return errProvider
		}
		return effect("billing")(ctx, tx, ev)
	}
	r := consumer.NewRouter(p)
	r.Tx("Paid", work)
	r.Batch("Moved", consumer.BatchOptions{}, work)
	r.Func("Called", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Do(ctx, p, ev, func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, work(ctx, tx, ev) })
		return err
	})
	return r
}

const exits = "within a statement, and exits"

// kills are ways in which a handler breaks its transaction each time.
var kills = map[string]consumer.TxHandler{
	"within a statement": func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
		_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return err
	},
	"within a statement, and nil": func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
		_, _ = tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return nil
	},
	exits: func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
		_, _ = tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		runtime.Goexit()
		return nil
	},
	"at the commit": atCommit("PERFORM pg_terminate_backend(pg_backend_pid())"),
}

// atCommit is a handler that has a statement run as its transaction is committed.
func atCommit(statement string) consumer.TxHandler {
	return func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
		_, err := tx.Exec(ctx, `CREATE TABLE k (i int); CREATE FUNCTION k() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN `+statement+`; RETURN NULL; END$$;
			CREATE CONSTRAINT TRIGGER k AFTER INSERT ON k DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION k(); INSERT INTO k VALUES (1)`)
		return err
	}
}

// conflicts raise the code of a transaction that gives way to another one.
func conflicts(code string) map[string]consumer.TxHandler {
	raise := fmt.Sprintf("RAISE EXCEPTION 'conflict' USING ERRCODE = '%s'", code)
	return map[string]consumer.TxHandler{
		"within a statement": func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
			_, err := tx.Exec(ctx, "DO $$ BEGIN "+raise+"; END $$")
			return err
		},
		"at the commit": atCommit(raise),
	}
}

func killing(t *testing.T, eventType string, offset int64) consumer.Event {
	t.Helper()
	ev := at(newEvent(t), offset)
	ev.Type, ev.Payload, ev.AggregateID = eventType, []byte("kills"), "k"
	return ev
}

// TestTransactionsThatBreak (P1): an event whose handler breaks its transaction each
// time, while others are applied, becomes a letter that says so; its neighbours go on,
// also those of its batch. Its redrive opens the letter again.
func TestTransactionsThatBreak(t *testing.T) {
	for _, eventType := range []string{"Paid", "Moved", "Called"} {
		for name, kill := range kills {
			t.Run(eventType+" "+name, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, nil)
				r := breaker(t, e.db, kill)
				ev, rounds := killing(t, eventType, 7), 0
				for out := consumer.Outcome(0); out != consumer.DeadLettered; rounds++ {
					require.Less(t, rounds, 20)
					var err error
					out, err = r.Handle(t.Context(), ev)
					if err != nil {
						require.Equal(t, rounds < 5, consumer.IsInfrastructure(err), "%d: %v", rounds, err)
					}
					require.NoError(t, deliver(t.Context(), r, at(newEvent(t), int64(100+rounds)), consumer.Processed))
				}
				require.Equal(t, 8, rounds, "six breaks in a row are the first failure, of two")
				require.Equal(t, 1, count(t, e.db, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'handler' AND attempts = 2 AND kafka_offset = 7
					AND error LIKE '%its transaction broke 7 times in a row%'`))
				require.Equal(t, rounds, e.effects())

				exec(t, e.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested'")
				for n := 0; n == 0; rounds++ { // a letter that the dying session has locked still is passed over
					require.Less(t, rounds, 500)
					n, _ = r.Redrive(t.Context(), 10)
					require.NoError(t, deliver(t.Context(), r, at(newEvent(t), int64(100+rounds)), consumer.Processed))
				}
				require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'open'"))
			})
		}
	}
}

// TestConflictsForEver (P1): deadlocks and failed serializations pass, ten in a row; an
// event that meets one each time, while others are applied, becomes a letter.
func TestConflictsForEver(t *testing.T) {
	for _, code := range []string{"40001", "40P01"} {
		for name, conflict := range conflicts(code) {
			for _, eventType := range []string{"Paid", "Called"} {
				t.Run(code+" "+name+" "+eventType, func(t *testing.T) {
					t.Parallel()
					e := newEnv(t, nil)
					r := breaker(t, e.db, conflict)
					ev, rounds := killing(t, eventType, 7), 0
					for out := consumer.Outcome(0); out != consumer.DeadLettered; rounds++ {
						require.Less(t, rounds, 40)
						var err error
						if out, err = r.Handle(t.Context(), ev); err != nil {
							require.Equal(t, rounds < 10, consumer.IsInfrastructure(err), "%d: %v", rounds, err)
						}
						require.NoError(t, deliver(t.Context(), r, at(newEvent(t), int64(100+rounds)), consumer.Processed))
					}
					require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'handler' AND attempts = 2 AND error LIKE '%conflict each time%'"))
					require.Equal(t, rounds, e.effects())
				})
			}
		}
	}
}

// TestBatchesThatBreak: the neighbours of such an event are applied from its second
// break on, whether or not another one of the batch fails as well.
func TestBatchesThatBreak(t *testing.T) {
	all := maps.Clone(kills)
	all["a deadlock"], all["a deadlock at the commit"] = conflicts("40P01")["within a statement"], conflicts("40P01")["at the commit"]
	for name, kill := range all {
		for _, third := range []string{"works", "fails"} {
			t.Run(name+", the third "+third, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, nil)
				r := breaker(t, e.db, kill)
				ev := killing(t, "Moved", 1)
				for round := range 20 {
					all := []consumer.Event{killing(t, "Moved", int64(10*round+10)), ev, killing(t, "Moved", int64(10*round+12))}
					for i, payload := range []string{"works", "kills", third} {
						all[i].Payload, all[i].AggregateID = []byte(payload), fmt.Sprint(i)
					}
					got := r.HandleBatch(t.Context(), all)
					if round == 0 && name != exits { // which has each handled alone at once
						for _, d := range got {
							require.True(t, consumer.IsInfrastructure(d.Err), "nobody knows yet that it is not an outage: %v", d.Err)
						}
						continue
					}
					require.NoError(t, got[0].Err)
					require.Equal(t, third == "works", got[2].Err == nil, got[2].Err)
					if got[1].Err == nil {
						require.Equal(t, consumer.DeadLettered, got[1].Outcome)
						require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE kafka_offset = 1"))
						return
					}
				}
				require.Fail(t, "it broke for ever")
			})
		}
	}
}

// TestOutagesMakeNoLetters: what breaks while nothing else is applied is an outage,
// however long it takes, and of whatever was in hand.
func TestOutagesMakeNoLetters(t *testing.T) {
	for _, eventType := range []string{"Paid", "Moved", "Called"} {
		t.Run(eventType, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, nil)
			r := breaker(t, e.db, kills["within a statement"])
			evs := []consumer.Event{killing(t, eventType, 1), killing(t, eventType, 2)}
			outage := func() {
				for range 12 {
					for _, ev := range evs {
						_, err := r.Handle(t.Context(), ev)
						require.Error(t, err)
						require.True(t, consumer.IsInfrastructure(err), err)
					}
				}
				require.Zero(t, e.letters())
				require.Zero(t, count(t, e.db, "SELECT count(*) FROM onceward.attempts"))
			}
			for i := range int64(5) { // of one outage after the other each is one break
				outage()
				require.NoError(t, deliver(t.Context(), r, at(newEvent(t), 100+i), consumer.Processed))
			}
		})
	}
}

// TestServerThatCrashes: right after an event has made the server crash nothing can be
// counted. It is before its next attempt.
func TestServerThatCrashes(t *testing.T) {
	_, pool := testdb.Own(t, pgserver.Options{Version: "18", Settings: map[string]string{"restart_after_crash": "on"}})
	install(t, pool)
	r := breaker(t, pool, func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
		backend, err := os.FindProcess(int(tx.Conn().PgConn().PID()))
		if err == nil {
			err = backend.Kill()
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	})
	ev := killing(t, "Paid", 7)
	for round, out := 0, consumer.Outcome(0); out != consumer.DeadLettered; round++ {
		require.Less(t, round, 20)
		out, _ = r.Handle(t.Context(), ev)
		other := at(newEvent(t), int64(100+round))
		require.Eventually(t, func() bool { return deliver(t.Context(), r, other, consumer.Processed) == nil }, 30*time.Second, 20*time.Millisecond)
	}
	require.Equal(t, 1, count(t, pool, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'handler' AND attempts = 2"))
}
