//go:build e2e

package consumertest_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumertest"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// version is the PostgreSQL of the tests: 15, or what ONCEWARD_TEST_POSTGRES says.
func version() string { return cmp.Or(os.Getenv("ONCEWARD_TEST_POSTGRES"), "15") }

// full asks for the long form.
var full = os.Getenv("E2E_FULL") == "1"

// shop is a service whose handlers are right, or wrong in one way.
type shop struct {
	group   func() string
	classes []consumer.Class
	handle  func(p *process, r *consumer.Router)
}

// process is what is in memory of one.
type process struct {
	db        *pgxpool.Pool
	processor *consumer.Processor
	mu        sync.Mutex
	seen      map[string]bool
	bank      *bank
}

// first reports whether this process sees something for the first time.
func (p *process) first(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.seen[what] = true }()
	return !p.seen[what]
}

func (p *process) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[rand.Text()] = true
	return len(p.seen)
}

// bank makes one charge of each key.
type bank struct {
	mu      sync.Mutex
	charges map[string]string
}

func (b *bank) charge(key, order string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.charges[key] == "" {
		b.charges[key] = order
	}
	return "ch_" + order
}

const table = `CREATE TABLE shipments (order_id text, note text); CREATE TABLE seen (what text PRIMARY KEY); CREATE TABLE total (n int); INSERT INTO total VALUES (0)`

func (s shop) service(t *testing.T) consumertest.Service {
	t.Helper()
	outside := &bank{}
	rows := consumertest.Rows("SELECT order_id, note FROM shipments UNION ALL SELECT 'total', n::text FROM total WHERE n > 0")
	return consumertest.Service{
		DSN: testdb.DSN(t, version()),
		Prepare: func(ctx context.Context, db *pgxpool.Pool) error {
			_, err := db.Exec(ctx, table)
			return err
		},
		Start: func(ctx context.Context, db *pgxpool.Pool) (*consumer.Router, error) {
			group := "shipping"
			if s.group != nil {
				group = s.group()
			}
			p, err := consumer.New(ctx, consumer.Config{Group: group, DB: db, Classes: s.classes, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				return nil, err
			}
			r := consumer.NewRouter(p)
			s.handle(&process{db: db, processor: p, seen: map[string]bool{}, bank: outside}, r)
			return r, nil
		},
		Event: func(n int) outbox.Event {
			id := fmt.Sprintf("o-%d", n)
			return outbox.Event{AggregateType: "order", AggregateID: id, Type: "Placed", Payload: []byte(`{"total":10}`), Headers: map[string]string{"tenant": "acme"}}
		},
		Effects: func(ctx context.Context, db *pgxpool.Pool) ([]string, error) {
			lines, err := rows(ctx, db)
			outside.mu.Lock()
			defer outside.mu.Unlock()
			for _, order := range outside.charges {
				lines = append(lines, "charge for "+order)
			}
			return lines, err
		},
		Reset: func() { outside.charges = map[string]string{} },
	}
}

const insert = "INSERT INTO shipments VALUES ($1, $2)"

// ship is the effect, by whatever executes it.
func ship(ctx context.Context, tx outbox.Tx, ev consumer.Event, note string) error {
	_, err := tx.Exec(ctx, insert, ev.AggregateID, note)
	return err
}

func tx(h func(ctx context.Context, p *process, tx pgx.Tx, ev consumer.Event) error) func(*process, *consumer.Router) {
	return func(p *process, r *consumer.Router) {
		r.Tx("Placed", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error { return h(ctx, p, tx, ev) })
	}
}

func fn(h func(ctx context.Context, p *process, ev consumer.Event) error) func(*process, *consumer.Router) {
	return func(p *process, r *consumer.Router) {
		r.Func("Placed", func(ctx context.Context, ev consumer.Event) error { return h(ctx, p, ev) })
	}
}

// charge is an effect outside.
func charge(p *process, ev consumer.Event, key func(consumer.Call) string) consumer.Effect[string] {
	return consumer.Effect[string]{Name: "charge", Do: func(_ context.Context, c consumer.Call) (string, error) {
		return p.bank.charge(key(c), ev.AggregateID), nil
	}}
}

func callKey(c consumer.Call) string { return c.Key }

// TestExercisePasses: handlers that are right keep all promises, of each kind.
func TestExercisePasses(t *testing.T) {
	for name, handle := range map[string]func(*process, *consumer.Router){
		"Tx, with all that a transaction takes along": tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
			for _, sql := range []string{
				"SET LOCAL statement_timeout = '50s'", "SET LOCAL app.tenant = 'acme'", "SELECT set_config('app.clerk', 'ann', true)",
				"CREATE TEMP TABLE work (id text) ON COMMIT DROP", "SELECT pg_advisory_xact_lock(7)", "DECLARE c CURSOR FOR SELECT 1",
			} {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return ship(context.WithoutCancel(ctx), tx, ev, "sent")
		}),
		"Tx, with a savepoint for what may fail": tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
			err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
				_, err := inner.Exec(ctx, "INSERT INTO seen VALUES ('the first')")
				return err
			})
			if coded := (*pgconn.PgError)(nil); err != nil && !errors.As(err, &coded) {
				return err
			}
			return ship(ctx, tx, ev, "sent")
		}),
		"Tx, with the event's key for the provider": tx(func(ctx context.Context, p *process, tx pgx.Tx, ev consumer.Event) error {
			return ship(ctx, tx, ev, p.bank.charge(ev.Key.String(), ev.AggregateID))
		}),
		"Tx, in the hope that nobody else writes": tx(func(ctx context.Context, _ *process, tx pgx.Tx, _ consumer.Event) error {
			var n int
			if err := tx.QueryRow(ctx, "SELECT n FROM total").Scan(&n); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, "UPDATE total SET n = $1 WHERE n = $2", n+1, n)
			if err == nil && tag.RowsAffected() == 0 {
				err = errors.New("somebody does")
			}
			return err
		}),
		"Batch": func(_ *process, r *consumer.Router) {
			r.Batch("Placed", consumer.BatchOptions{}, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error { return ship(ctx, tx, ev, "sent") })
		},
		"BatchSet": func(_ *process, r *consumer.Router) {
			r.BatchSet("Placed", consumer.BatchOptions{}, func(ctx context.Context, tx pgx.Tx, evs []consumer.Event) error {
				batch := &pgx.Batch{}
				for _, ev := range evs {
					batch.Queue(insert, ev.AggregateID, "sent")
				}
				return tx.SendBatch(ctx, batch).Close()
			})
		},
		"Fence": fn(func(ctx context.Context, p *process, ev consumer.Event) error {
			e := charge(p, ev, callKey)
			e.Commit = func(ctx context.Context, tx pgx.Tx, id string) error { return ship(ctx, tx, ev, id) }
			_, err := consumer.Fence(ctx, p.processor, ev, e)
			return err
		}),
		"several effects": fn(func(ctx context.Context, p *process, ev consumer.Event) error {
			receipt, err := consumer.Fence(ctx, p.processor, ev, charge(p, ev, callKey))
			if err != nil {
				return err
			}
			_, err = consumer.DoNamed(ctx, p.processor, ev, "ship", func(ctx context.Context, tx pgx.Tx) (string, error) {
				return "", ship(ctx, tx, ev, receipt.Result)
			})
			return err
		}),
	} {
		t.Run(name, func(t *testing.T) {
			if (name == "Batch" || name == "Fence") && !full {
				t.Skip("E2E_FULL=1 runs it; BatchSet, several effects, and the examples are like it")
			}
			t.Parallel()
			consumertest.Exercise(t, shop{handle: handle}.service(t))
		})
	}
}

// TestRetryDelay: a retry queue that keeps messages for longer than their window.
func TestRetryDelay(t *testing.T) {
	s := shop{
		classes: []consumer.Class{{Pattern: "*", Window: time.Hour}},
		handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
			return ship(ctx, tx, ev, "sent")
		}),
	}.service(t)
	s.RetryDelay = 2 * time.Hour
	report, err := consumertest.Check(t.Context(), s)
	require.NoError(t, err)
	require.Len(t, report.Broken, 1)
	require.Equal(t, consumertest.RetryQueue, report.Broken[0].Promise)
	require.Contains(t, report.Broken[0].Delivery, `2h0m0s later; class "*" has a window of 1h0m0s`)
	for _, at := range []string{"BEGIN", "the claim", "`INSERT INTO shipments VALUES ($1, $2)`", "COMMIT"} {
		require.Contains(t, strings.Join(report.Statements, "; "), at)
	}
}

// TestExecModes: a service behind a pooler has pgx speak otherwise, and is cut off at the
// same places.
func TestExecModes(t *testing.T) {
	for _, mode := range []string{"cache_describe", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			if mode != "simple_protocol" && !full {
				t.Skip("E2E_FULL=1 runs it; TestStatementsOnTheWire has its messages")
			}
			t.Parallel()
			s := shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
				return ship(ctx, tx, ev, "sent")
			})}.service(t)
			cfg, err := pgx.ParseConfig(s.DSN)
			require.NoError(t, err)
			s.DSN = fmt.Sprintf("host=%s port=%d user=%s password=%s dbname=%s default_query_exec_mode=%s", cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database, mode)
			report, err := consumertest.Check(t.Context(), s)
			require.NoError(t, err)
			require.Empty(t, report.Broken)
			require.Len(t, report.Statements, 4, "%v", report.Statements)
			require.Contains(t, report.Statements[2], "INSERT INTO shipments")
		})
	}
}

// teller is a test that tells another one what was reported.
type teller struct {
	*testing.T
	errors []string
}

func (r *teller) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// TestReport: what a developer reads.
func TestReport(t *testing.T) {
	r := &teller{T: t}
	consumertest.Exercise(r, shop{handle: tx(func(ctx context.Context, p *process, _ pgx.Tx, ev consumer.Event) error {
		return ship(ctx, p.db, ev, "sent")
	})}.service(t))
	require.Len(t, r.errors, 2)
	require.Regexp(t, `^consumertest: broken promise: a process may die at any point
  event:    6, Placed of order "o-6", key consumertest:[0-9a-f-]{36}
  delivery: the process died after .INSERT INTO shipments VALUES \(\$1, \$2\). \(statement 2\), whose answer was lost; it was started again, and the message came again
  found:    beside one undisturbed delivery \(\+ too much, - missing\):
            \+ o-6 sent
  do:       an effect was made again\. `, r.errors[0])
}

// TestAbsolute: an event that sets a state is no other one under another key; one that adds
// something is, whatever Absolute says. That events are not absolute is what all other tests say.
func TestAbsolute(t *testing.T) {
	for name, tc := range map[string]struct {
		sql  string
		note string // of what is broken
	}{
		"a state":      {`INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING`, ""},
		"a difference": {`INSERT INTO shipments VALUES ($1)`, "in place of a difference"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
				_, err := tx.Exec(ctx, tc.sql, ev.AggregateID)
				return err
			})}.service(t)
			s.Effects = consumertest.Rows("SELECT order_id FROM shipments UNION ALL SELECT what FROM seen")
			s.Absolute = true
			report, err := consumertest.Check(t.Context(), s)
			require.NoError(t, err)
			if tc.note == "" {
				require.Empty(t, report.Broken)
				return
			}
			require.Len(t, report.Broken, 1)
			require.Equal(t, consumertest.NewKey, report.Broken[0].Promise)
			require.Contains(t, report.Broken[0].Do, tc.note)
		})
	}
}

// TestOrdinaryLogin: a login that may make databases is enough, and nothing is left behind.
func TestOrdinaryLogin(t *testing.T) {
	admin := testdb.New(t, version())
	_, err := admin.Exec(t.Context(), "CREATE ROLE tester LOGIN CREATEDB PASSWORD 'secret'")
	require.NoError(t, err)
	s := shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
		return ship(ctx, tx, ev, "sent")
	})}.service(t)
	cfg := admin.Config().ConnConfig
	s.DSN = fmt.Sprintf("host=%s port=%d user=tester password=secret dbname=%s", cfg.Host, cfg.Port, cfg.Database)
	consumertest.Exercise(t, s)
	var left int
	require.NoError(t, admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE r.rolname = 'tester'`).Scan(&left))
	require.Zero(t, left)
}

// TestWhatIsNoPromise: what the service's own functions fail with says nothing of handlers.
func TestWhatIsNoPromise(t *testing.T) {
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		change func(*consumertest.Service)
		want   string
	}{
		"no server": {func(s *consumertest.Service) { s.DSN = "host=/nowhere" }, "reach the server for tests"},
		"Prepare":   {func(s *consumertest.Service) { s.Prepare = func(context.Context, *pgxpool.Pool) error { return boom } }, "prepare a database: boom"},
		"Start": {func(s *consumertest.Service) {
			s.Start = func(context.Context, *pgxpool.Pool) (*consumer.Router, error) { return nil, boom }
		}, "start the service: boom"},
		"no Router": {func(s *consumertest.Service) {
			s.Start = func(context.Context, *pgxpool.Pool) (*consumer.Router, error) { return nil, nil }
		}, "it returned no Router"},
		"no Effects": {func(s *consumertest.Service) { s.Effects = nil }, "Start, Event and Effects are required"},
		"Effects":    {func(s *consumertest.Service) { s.Effects = consumertest.Rows("SELECT 1 FROM nowhere") }, "read the effects"},
		"no Type": {func(s *consumertest.Service) {
			s.Event = func(int) outbox.Event { return outbox.Event{AggregateID: "o", AggregateType: "order"} }
		}, "event 0: invalid event: Type"},
		"one aggregate": {func(s *consumertest.Service) {
			s.Event = func(int) outbox.Event { return outbox.Event{AggregateID: "o", AggregateType: "order", Type: "Placed"} }
		}, `events 0 and 1 are both of aggregate "o"`},
		"another pool": {func(s *consumertest.Service) {
			start, own := s.Start, testdb.New(t, version())
			m, err := migrations.New(migrations.Config{Pool: own, Side: migrations.Consumer})
			require.NoError(t, err)
			_, err = m.Up(t.Context())
			require.NoError(t, err)
			_, err = own.Exec(t.Context(), table)
			require.NoError(t, err)
			s.Start = func(ctx context.Context, _ *pgxpool.Pool) (*consumer.Router, error) { return start(ctx, own) }
			s.Effects = func(context.Context, *pgxpool.Pool) ([]string, error) { return []string{rand.Text()}, nil }
		}, "has not used the pool"},
		"no claim, and no pool": {func(s *consumertest.Service) {
			var pings []string
			s.Start = func(ctx context.Context, db *pgxpool.Pool) (*consumer.Router, error) {
				return unclaimed(ctx, db, func(_ context.Context, ev consumer.Event) error {
					pings = append(pings, ev.AggregateID)
					return nil
				})
			}
			s.Effects = func(context.Context, *pgxpool.Pool) ([]string, error) { return pings, nil }
		}, "A handler of Router.AtLeastOnce that uses no pool"},
	} {
		t.Run(name, func(t *testing.T) {
			s := shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
				return ship(ctx, tx, ev, "sent")
			})}.service(t)
			tc.change(&s)
			report, err := consumertest.Check(t.Context(), s)
			require.ErrorContains(t, err, tc.want)
			require.Empty(t, report.Broken)
		})
	}
}

// unclaimed is a service whose events leave no claim.
func unclaimed(ctx context.Context, db *pgxpool.Pool, h consumer.FuncHandler) (*consumer.Router, error) {
	p, err := consumer.New(ctx, consumer.Config{Group: "shipping", DB: db, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	r := consumer.NewRouter(p)
	r.AtLeastOnce("Placed", h)
	return r, nil
}

// TestExerciseWithoutAClaim: an effect that changes nothing the second time keeps all promises, and one that adds
// keeps them not.
func TestExerciseWithoutAClaim(t *testing.T) {
	t.Parallel()
	for write, kept := range map[string]bool{"INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING": true, "INSERT INTO shipments VALUES ($1, 'sent')": false} {
		s := shop{}.service(t)
		s.Start = func(ctx context.Context, db *pgxpool.Pool) (*consumer.Router, error) {
			return unclaimed(ctx, db, func(ctx context.Context, ev consumer.Event) error {
				_, err := db.Exec(ctx, write, ev.AggregateID)
				return err
			})
		}
		s.Effects = consumertest.Rows("SELECT what FROM seen UNION ALL SELECT order_id FROM shipments")
		s.Absolute = kept
		report, err := consumertest.Check(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, kept, len(report.Broken) == 0, "%v", report.Broken)
	}
}
