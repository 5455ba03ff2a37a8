//go:build e2e

package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// ways are all ways to enqueue one event through pgx.
var ways = map[string]func(context.Context, pgx.Tx, outbox.Event) (outbox.Result, error){
	"Enqueue": func(ctx context.Context, tx pgx.Tx, ev outbox.Event) (outbox.Result, error) {
		return outbox.Enqueue(ctx, tx, ev)
	},
	"EnqueueMany": func(ctx context.Context, tx pgx.Tx, ev outbox.Event) (outbox.Result, error) {
		rs, err := outbox.EnqueueMany(ctx, tx, []outbox.Event{ev})
		if err != nil {
			return 0, err
		}
		return rs[0], nil
	},
	"QueueEnqueue": func(ctx context.Context, tx pgx.Tx, ev outbox.Event) (result outbox.Result, err error) {
		var batch pgx.Batch
		if err := outbox.QueueEnqueue(&batch, ev, func(r outbox.Result, _ error) { result = r }); err != nil {
			return 0, err
		}
		err = tx.SendBatch(ctx, &batch).Close()
		return result, err
	},
}

// waitsForALock waits until a session of the database waits for another's lock.
func waitsForALock(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.Eventually(t, func() bool {
		var n int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		return err == nil && n == 1
	}, 20*time.Second, 5*time.Millisecond)
}

// Two transactions enqueue one key at the same time: the second waits for the
// first and then tells the truth, although the first one's row was not there yet
// when the second one's statement began.
func TestTheSecondOfTwoAtOnceWaitsAndTellsTheTruth(t *testing.T) {
	pool := installed(t)
	for name, way := range ways {
		for _, tc := range []struct {
			name   string
			same   bool
			commit bool
		}{{"same", true, true}, {"other content", false, true}, {"rolled back", true, false}} {
			t.Run(name+"/"+tc.name, func(t *testing.T) {
				ev := newEvent(t)
				first, err := pool.Begin(t.Context())
				require.NoError(t, err)
				defer first.Rollback(context.Background())
				_, err = outbox.Enqueue(t.Context(), first, ev)
				require.NoError(t, err)
				if !tc.same {
					ev.Payload = []byte("other")
				}
				type answer struct {
					r   outbox.Result
					err error
				}
				second := make(chan answer, 1)
				go func() {
					var a answer
					a.err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
						a.r, err = way(t.Context(), tx, ev)
						return err
					})
					second <- a
				}()
				waitsForALock(t, pool)
				if tc.commit {
					require.NoError(t, first.Commit(t.Context()))
				} else {
					require.NoError(t, first.Rollback(t.Context()))
				}
				a := <-second
				switch {
				case !tc.same:
					require.ErrorIs(t, a.err, outbox.ErrKeyReused)
				case tc.commit:
					require.NoError(t, a.err)
					require.Equal(t, outbox.Duplicate, a.r)
				default:
					require.NoError(t, a.err)
					require.Equal(t, outbox.Enqueued, a.r)
				}
			})
		}
	}
}

// Every way compares every part of the content, and none of them the trace.
func TestEveryWayComparesEveryPart(t *testing.T) {
	pool := installed(t)
	for name, way := range ways {
		ev := newEvent(t)
		_, err := enqueue(t, pool, ev)
		require.NoError(t, err)
		for field, change := range map[string]func(*outbox.Event){
			"payload":        func(e *outbox.Event) { e.Payload = []byte("other") },
			"tombstone":      func(e *outbox.Event) { e.Payload = nil },
			"type":           func(e *outbox.Event) { e.Type = "Other" },
			"aggregate id":   func(e *outbox.Event) { e.AggregateID = "other" },
			"aggregate type": func(e *outbox.Event) { e.AggregateType = "other" },
			"headers":        func(e *outbox.Event) { e.Headers = map[string]string{"a": "1"} },
			"no headers":     func(e *outbox.Event) { e.Headers = nil },
			"content type":   func(e *outbox.Event) { e.ContentType = "text/plain" },
			"namespace": func(e *outbox.Event) {
				k, err := outbox.KeyFrom("other", e.Key.UUID(), time.Now(), outbox.DefaultKeySkew)
				require.NoError(t, err)
				e.Key = k
			},
		} {
			other := ev
			change(&other)
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := way(t.Context(), tx, other)
				return err
			})
			require.ErrorIs(t, err, outbox.ErrKeyReused, "%s: %s", name, field)
		}
	}
}

// In REPEATABLE READ the other's row is never visible: PostgreSQL says so, and
// no way makes an answer up.
func TestRepeatableReadAsksForAnotherTry(t *testing.T) {
	pool := installed(t)
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			ev := newEvent(t)
			tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			require.NoError(t, err)
			defer tx.Rollback(context.Background())
			_, err = tx.Exec(t.Context(), "SELECT 1") // takes the snapshot
			require.NoError(t, err)
			_, err = enqueue(t, pool, ev)
			require.NoError(t, err)
			_, err = way(t.Context(), tx, ev)
			var pg *pgconn.PgError
			require.ErrorAs(t, err, &pg)
			require.Equal(t, "40001", pg.Code)
		})
	}
}

// Each of pgx's query modes, among them those for PgBouncer in transaction mode.
func TestEveryQueryMode(t *testing.T) {
	pool := installed(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			cfg := pool.Config().Copy()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			in, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(in.Close)
			full, bare := newEvent(t), newEvent(t)
			full.Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
			full.Payload, full.Headers = []byte("\x00\xff'\\"), map[string]string{"q": `'"\{}`}
			bare.Payload, bare.Headers = nil, nil
			for name, way := range ways {
				full.Key, bare.Key = newEvent(t).Key, newEvent(t).Key
				for _, ev := range []outbox.Event{full, bare} {
					for _, want := range []outbox.Result{outbox.Enqueued, outbox.Duplicate} {
						require.NoError(t, pgx.BeginFunc(t.Context(), in, func(tx pgx.Tx) error {
							r, err := way(t.Context(), tx, ev)
							require.NoError(t, err, name)
							require.Equal(t, want, r, name)
							return err
						}))
					}
					r, err := enqueue(t, pool, ev)
					require.NoError(t, err)
					require.Equal(t, outbox.Duplicate, r, "%s wrote another event in this mode", name)
				}
			}
		})
	}
}

// The writer's rights of the contract are enough for every way, and no more.
func TestTheWriterNeedsOnlyItsColumns(t *testing.T) {
	pool := installed(t)
	writer := asWriter(t, pool)
	for name, way := range ways {
		ev := newEvent(t)
		for _, want := range []outbox.Result{outbox.Enqueued, outbox.Duplicate} {
			require.NoError(t, pgx.BeginFunc(t.Context(), writer, func(tx pgx.Tx) error {
				r, err := way(t.Context(), tx, ev)
				require.NoError(t, err, name)
				require.Equal(t, want, r, name)
				return err
			}))
		}
		ev.Payload = nil
		err := pgx.BeginFunc(t.Context(), writer, func(tx pgx.Tx) error {
			_, err := way(t.Context(), tx, ev)
			return err
		})
		require.ErrorIs(t, err, outbox.ErrKeyReused, name)
	}
	for _, forbidden := range []string{
		`UPDATE onceward.outbox SET payload = NULL`, `DELETE FROM onceward.outbox`, `SELECT tx_id FROM onceward.outbox`,
		`INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, tx_id) VALUES (gen_random_uuid(), 'a', 'a', 'a', 'a', '3')`,
	} {
		_, err := writer.Exec(t.Context(), forbidden)
		require.ErrorContains(t, err, "42501", forbidden)
	}
	_, err := pool.Exec(t.Context(), `REVOKE SELECT, INSERT ON onceward.outbox FROM `+writerRole(t, pool))
	require.NoError(t, err)
	err = pgx.BeginFunc(t.Context(), writer, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(t.Context(), tx, newEvent(t))
		return err
	})
	for _, wayOut := range []string{"docs/producing.md", "`outboxctl migrate roles --producer NAME --namespace ", "`outboxctl migrate roles --side outbox --apply`"} {
		require.ErrorContains(t, err, wayOut)
	}
}

// writerRole names the role of the test's database; roles are the server's.
func writerRole(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return "writer_" + pool.Config().ConnConfig.Database
}

// asWriter returns a pool of a role that has the rights of docs/producing.md.
func asWriter(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	role := writerRole(t, pool)
	_, err := pool.Exec(t.Context(), `CREATE ROLE `+role+`;`+strings.ReplaceAll(documented(t, "grants"), " TO app", " TO "+role))
	require.NoError(t, err)
	cfg := pool.Config().Copy()
	cfg.ConnConfig.RuntimeParams["role"] = role
	writer, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		writer.Close()
		_, err := pool.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		require.NoError(t, err)
	})
	return writer
}
