//go:build e2e

package consumer_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/internal/claimstest"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestRelationLocks (W7): in none of pgx's modes does a statement that finds claims
// by their ids lock every partition, however many there are and however often it
// has run.
func TestRelationLocks(t *testing.T) {
	e := newEnv(t, nil)
	for i := range 40 { // and 72 that are there
		at := time.Now().AddDate(0, 0, 100+i)
		exec(t, e.db, fmt.Sprintf(`CREATE TABLE onceward.far_%d PARTITION OF onceward.processed_events FOR VALUES FROM ('%s') TO ('%s')`, i, outbox.FirstID(partition.Day(at)), outbox.FirstID(partition.Day(at.AddDate(0, 0, 1)))))
	}
	require.GreaterOrEqual(t, len(must(partition.List(t.Context(), e.db, claims.Table))), 100)
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			cfg := e.db.Config()
			cfg.ConnConfig.DefaultQueryExecMode, cfg.MaxConns = mode, 1
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			defer pool.Close()
			p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool, Classes: []consumer.Class{
				{Pattern: "Paid", Window: claimstest.Week}, {Pattern: "push", Window: claimstest.Week, Keyed: consumer.ByArrival},
			}})
			require.NoError(t, err)
			for _, ev := range []consumer.Event{newEvent(t), newWebhook(t)} {
				for range 12 {
					lockLittle(t, pool, func(tx pgx.Tx) error { return claimAndComplete(t.Context(), p, tx, ev) })
				}
			}
			for name, statement := range consumer.StatementsByID(p) {
				for range 12 {
					lockLittle(t, pool, func(tx pgx.Tx) error {
						if err := statement(t.Context(), tx, []string{uuid.NewString(), newEvent(t).Key.UUID().String()}); err != nil {
							return fmt.Errorf("%s: %w", name, err)
						}
						return nil
					})
				}
			}
		})
	}
}

func claimAndComplete(ctx context.Context, p *consumer.Processor, tx pgx.Tx, ev consumer.Event) error {
	got, err := p.Claim(ctx, tx, ev)
	if err == nil && got.Outcome == consumer.Processed {
		err = p.Complete(ctx, tx, ev, []byte(`1`))
	}
	return err
}

// lockLittle runs a transaction and counts the partitions of claims of which it has
// locked something, the table or an index: those of two days at most. A relation takes
// one place of the server's memory in whatever modes. What belongs to no partition does
// not grow with them: the parent, and from PostgreSQL 16 on its indexes, which the planner reads.
func lockLittle(t *testing.T, pool *pgxpool.Pool, work func(tx pgx.Tx) error) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if err := work(tx); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), `SELECT DISTINCT p.inhrelid::regclass::text FROM pg_locks l LEFT JOIN pg_index i ON i.indexrelid = l.relation JOIN pg_inherits p ON p.inhrelid = COALESCE(i.indrelid, l.relation)
			WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND p.inhparent = 'onceward.processed_events'::regclass`)
		if err != nil {
			return err
		}
		locked, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err == nil && len(locked) > 2 {
			err = fmt.Errorf("%d partitions are locked: %v", len(locked), locked)
		}
		return err
	}))
}

// TestLockedTable: a claim waits no longer for somebody who has locked the whole table
// than for another claim, over a connection that is new as over one that is not.
func TestLockedTable(t *testing.T) {
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, nil)
			cfg := e.db.Config().Copy()
			cfg.ConnConfig.DefaultQueryExecMode, cfg.MaxConns = mode, 1
			pool := must(pgxpool.NewWithConfig(t.Context(), cfg))
			t.Cleanup(pool.Close)
			p := must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool, LockTimeout: 100 * time.Millisecond}))
			r := consumer.NewRouter(p)
			r.Tx("Paid", effect("billing"))
			r.Batch("Moved", consumer.BatchOptions{}, effect("billing"))
			locked := func(handle func(ctx context.Context) (consumer.Outcome, error)) {
				t.Helper()
				tx := must(e.db.Begin(t.Context()))
				defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
				must(tx.Exec(t.Context(), "LOCK TABLE onceward.processed_events IN ACCESS EXCLUSIVE MODE"))
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				got, err := handle(ctx)
				require.NoError(t, err)
				require.Equal(t, consumer.InProgress, got)
			}
			for range 3 {
				for _, eventType := range []string{"Paid", "Moved"} {
					ev := newEvent(t)
					ev.Type = eventType
					locked(func(ctx context.Context) (consumer.Outcome, error) { return r.Handle(ctx, ev) })
					require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
				}
				locked(func(ctx context.Context) (consumer.Outcome, error) {
					tx := must(pool.Begin(ctx))
					defer func() { require.NoError(t, tx.Rollback(ctx)) }()
					c, err := p.Claim(ctx, tx, newEvent(t))
					return c.Outcome, err
				})
			}
		})
	}
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// refusedBehindPooler are the modes that use a statement in more round trips than one.
var refusedBehindPooler = map[pgx.QueryExecMode]bool{pgx.QueryExecModeCacheStatement: true, pgx.QueryExecModeDescribeExec: true}

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
	if l.processor, err = consumer.New(l.t.Context(), consumer.Config{Group: "billing", DB: l.db, Retry: consumer.Retry{MaxAttempts: 1, OnLetter: consumer.LetterPark}}); err != nil {
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

// TestNoDescriptions: nor does a pool that keeps no descriptions of statements.
func TestNoDescriptions(t *testing.T) {
	t.Parallel()
	l := newTill(t, 1)
	require.NoError(t, l.in(l.db.Config().ConnString()+"&description_cache_capacity=0", pgx.QueryExecModeCacheStatement))
	l.promises()
}

// TestResultsAsText: a mode in which no claim could be read again is refused, and the cure that it names is one.
func TestResultsAsText(t *testing.T) {
	for _, setting := range []string{"bytea_output = escape", "DateStyle = German"} {
		for _, mode := range execModes {
			t.Run(setting+" "+mode.String(), func(t *testing.T) {
				t.Parallel()
				l := newTill(t, 1)
				exec(t, l.db, "DO $$ BEGIN EXECUTE 'ALTER DATABASE '||current_database()||' SET "+setting+"'; END $$")
				err := l.in(l.db.Config().ConnString(), mode)
				if mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol {
					exec(t, l.db, cureIn(t, err))
					err = l.in(l.db.Config().ConnString(), mode)
				}
				require.NoError(t, err)
				l.promises()
			})
		}
	}
}

// cureIn returns the statement that an error names.
func cureIn(t *testing.T, err error) string {
	t.Helper()
	_, cure, _ := strings.Cut(fmt.Sprint(err), "`")
	cure, _, cut := strings.Cut(cure, "`")
	require.True(t, cut, "%v", err)
	return cure
}

// TestAnotherEncoding: text that would be stored as another is refused, and the cure that is named is one.
func TestAnotherEncoding(t *testing.T) {
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			l := newTill(t, 1)
			dsn := l.db.Config().ConnString()
			exec(t, l.db, "DO $$ BEGIN EXECUTE 'ALTER DATABASE '||current_database()||' SET client_encoding = "+encoding+"'; END $$")
			err := l.in(dsn, pgx.QueryExecModeCacheStatement)
			require.ErrorContains(t, err, "client_encoding = "+encoding)
			exec(t, l.db, cureIn(t, err))
			require.EqualError(t, l.in(dsn+"&client_encoding="+encoding, pgx.QueryExecModeCacheStatement),
				"config: DB's DSN has client_encoding="+encoding+", and pgx writes UTF8: text would become another: put client_encoding=UTF8 there")
			require.NoError(t, l.in(dsn, pgx.QueryExecModeCacheStatement))
			l.promises()
		})
	}
}

// TestTheEncodingChangesMeanwhile: a database that is given another encoding while the program runs applies nothing
// over the connections that have it. It waits, and goes on by itself when that is mended.
func TestTheEncodingChangesMeanwhile(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	alter := func(what string) {
		exec(t, e.db, "DO $$ BEGIN EXECUTE 'ALTER DATABASE '||current_database()||' "+what+"'; END $$")
		e.db.Reset()
	}
	r, ev := e.router("zürich", effect("zürich")), newEvent(t)
	alter("SET client_encoding = LATIN1")
	require.ErrorContains(t, deliver(t.Context(), r, ev, consumer.Processed), "client_encoding = LATIN1")
	require.ErrorContains(t, pgx.BeginFunc(t.Context(), e.db, func(tx pgx.Tx) error {
		_, err := r.Processor().Claim(t.Context(), tx, ev)
		return err
	}), "client_encoding = LATIN1")
	require.NoError(t, e.expect(0, 0))
	alter("RESET client_encoding")
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Duplicate))
	require.NoError(t, e.expect(1, 1))
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
			if refusedBehindPooler[mode] {
				require.ErrorIs(t, err, consumer.ErrPooler)
				require.ErrorContains(t, err, "set default_query_exec_mode=cache_describe, exec or simple_protocol in")
				return
			}
			require.NoError(t, err)
			l.promises()
			conn, err := l.db.Acquire(t.Context())
			require.NoError(t, err)
			defer conn.Release()
			_, err = retention.Maintain(t.Context(), conn.Conn(), retention.Config{})
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
	require.NoError(t, l.router.BeginProgress(t.Context(), must(l.router.Progress(t.Context())).History, []consumer.Mark{{Topic: "stock", TopicID: uuid.New(), High: 3}}))
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
	exec(t, l.db, "UPDATE onceward.consumer_dead_letters SET state = 'open', reason = 'handler' WHERE claim_id IS NOT NULL") // without a claim
	report, err := audit.Check(t.Context(), l.db, audit.Config{Group: l.processor.Group()})
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(report.Findings), "letter")
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

	behind := moved
	behind.Key, behind.Source.Offset = keyAt(t, time.Now()), 4
	behind.RecordHeaders = []consumer.Header{{Name: outbox.HeaderKey, Value: []byte(behind.Key.String())}, {Name: record.HeaderEventType, Value: []byte("Moved")}}
	require.NoError(t, deliver(t.Context(), l.router, behind, consumer.DeadLettered))
	exec(t, l.db, "UPDATE onceward.consumer_dead_letters SET state = 'discarded' WHERE state = 'open'")
	n, err := l.router.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, deliver(t.Context(), l.router, behind, consumer.Duplicate))
	require.Zero(t, count(t, l.db, "SELECT count(*) FROM onceward.parked"))
}
