//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/outbox"
)

// TestClaimLocks (W7): no statement of a delivery locks every partition, however
// many there are and however often it has run.
func TestClaimLocks(t *testing.T) {
	e := newEnv(t, nil)
	for i := range 100 {
		at := time.Now().AddDate(0, 0, 100+i)
		exec(t, e.db, fmt.Sprintf(`CREATE TABLE onceward.far_%d PARTITION OF onceward.processed_events FOR VALUES FROM ('%s') TO ('%s')`, i, outbox.FirstID(partition.Day(at)), outbox.FirstID(partition.Day(at.AddDate(0, 0, 1)))))
	}
	conn, err := e.db.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db})
	require.NoError(t, err)
	ev := newEvent(t)
	for i := range 12 {
		require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			got, err := p.Claim(t.Context(), tx, ev)
			if err == nil && got.Outcome == consumer.Processed {
				err = p.Complete(t.Context(), tx, ev, []byte(`1`))
			}
			var locks int
			err = errors.Join(err, tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation::regclass::text LIKE '%onceward%'`).Scan(&locks))
			if locks > 8 {
				err = errors.Join(err, fmt.Errorf("%d relations are locked, time %d, outcome %s", locks, i, got.Outcome))
			}
			return err
		}))
	}
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// poolIn opens a pool of this mode, by this way.
func poolIn(t *testing.T, dsn string, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	cfg.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// in is the till's group with a pool of this mode, by this way.
func (l *till) in(dsn string, mode pgx.QueryExecMode) (err error) {
	l.db = poolIn(l.t, dsn, mode)
	if l.processor, err = consumer.New(l.t.Context(), consumer.Config{Group: "billing", DB: l.db, Retry: consumer.Retry{MaxAttempts: 1}}); err != nil {
		return err
	}
	l.router = consumer.NewRouter(l.processor)
	l.router.Func("Paid", l.handle)
	l.router.Batch("Moved", consumer.BatchOptions{}, effect("billing"))
	return nil
}

// TestExecModes (B5): none of pgx's modes changes a promise.
func TestExecModes(t *testing.T) {
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			l := newTill(t, 1)
			require.NoError(t, l.in(l.db.Config().ConnString(), mode))
			l.promises()
		})
	}
}

// TestPoolers (P3): behind PgBouncer in transaction mode the same holds, and every
// promise of the table; what cannot hold is refused by name. The short form has the
// table in two of the modes, E2E_FULL=1 in all.
func TestPoolers(t *testing.T) {
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			l := newTill(t, 1)
			dsn := testdb.PgBouncer(t, l.db)
			err := l.in(dsn, mode)
			if mode == pgx.QueryExecModeCacheStatement {
				require.ErrorIs(t, err, consumer.ErrPooler)
				require.ErrorContains(t, err, "default_query_exec_mode=cache_describe")
				return
			}
			require.NoError(t, err)
			l.promises()
			conn, err := l.db.Acquire(t.Context())
			require.NoError(t, err)
			defer conn.Release()
			_, err = consumer.Maintain(t.Context(), conn.Conn(), consumer.MaintainConfig{})
			require.ErrorIs(t, err, consumer.ErrPooler)
			if os.Getenv("E2E_FULL") != "1" && mode != pgx.QueryExecModeCacheDescribe && mode != pgx.QueryExecModeSimpleProtocol {
				return
			}
			for name, p := range promises {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					e := newEnv(t, nil)
					e.db = poolIn(t, testdb.PgBouncer(t, e.db), mode)
					require.NoError(t, p.check(e))
				})
			}
		})
	}
}

// promises goes once through everything that a delivery may do.
func (l *till) promises() {
	t := l.t
	l.fails["mail"] = errProvider
	require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
	delete(l.fails, "mail")
	exec(t, l.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested'")
	n, err := l.router.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	l.once()
	exec(t, l.db, "DELETE FROM onceward.processed_events")

	l.batches()
	out, err := l.router.HandleRecord(t.Context(), consumer.Record{Source: consumer.Source{Topic: "stock", Offset: 2}, Value: []byte("odd")})
	require.NoError(t, err)
	require.Equal(t, consumer.DeadLettered, out)
	require.NoError(t, l.router.SaveProgress(t.Context(), must(l.router.Progress(t.Context())).History, []consumer.Mark{{Topic: "stock", High: 3}}))
	alone := newEvent(t)
	alone.Type = "Quoted"
	for range 2 {
		got, err := consumer.Do(t.Context(), l.processor, alone, func(context.Context, pgx.Tx) (string, error) { return "q", nil })
		require.NoError(t, err)
		require.Equal(t, "q", got.Result)
	}
	l.event.Key, l.event.Source = keyAt(t, time.Now()), consumer.Source{}
	l.died(true)
	l.longAgo()
	require.NoError(t, l.recover(l.router, 1))
}

// batches delivers events that share a transaction, twice, and one with a known
// key and other content.
func (l *till) batches() {
	t := l.t
	moved := newEvent(t)
	moved.Type, moved.Source = "Moved", consumer.Source{Topic: "stock", Offset: 1}
	other := moved
	other.Key = keyAt(t, time.Now())
	for _, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate} {
		for _, d := range l.router.HandleBatch(t.Context(), []consumer.Event{moved, other}) {
			require.NoError(t, d.Err)
			require.Equal(t, want, d.Outcome)
		}
	}
	changed := moved
	changed.Payload = []byte("changed")
	changed.Source.Offset = 3
	require.NoError(t, deliver(t.Context(), l.router, changed, consumer.DeadLettered))
}
