//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/testdb"
)

// trips counts round trips: what is sent after something was read waits for an answer.
type trips struct{ n atomic.Int64 }

type tripConn struct {
	net.Conn
	trips *trips
	sent  atomic.Bool // and nothing read since
}

func (c *tripConn) Write(b []byte) (int, error) {
	if !c.sent.Swap(true) {
		c.trips.n.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *tripConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.sent.Store(false)
	return n, err
}

// counted is a pool of one connection, in a mode, whose round trips are counted.
func (n *trips) counted(t *testing.T, dsn string, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	cfg.MaxConns, cfg.HealthCheckPeriod, cfg.ConnConfig.DefaultQueryExecMode = 1, time.Hour, mode
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &tripConn{Conn: conn, trips: n}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// TestRoundTrips: BEGIN, what bounds a transaction and its first statement are one round trip, in
// each of pgx's modes, directly and behind a pooler; but where pgx describes a statement each time.
// The short form has the two that are most used, E2E_FULL=1 all.
func TestRoundTrips(t *testing.T) {
	const (
		begin  = 1 // with the claim, or with whatever is first
		update = 1
		commit = 1
	)
	for _, mode := range execModes {
		for _, through := range []string{"directly", "pooler"} {
			if through == "pooler" && refusedBehindPooler[mode] {
				continue
			}
			usual := through == "directly" && mode == pgx.QueryExecModeCacheStatement || through == "pooler" && mode == pgx.QueryExecModeCacheDescribe
			if os.Getenv("E2E_FULL") != "1" && !usual {
				continue
			}
			t.Run(mode.String()+"/"+through, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, nil)
				dsn := e.db.Config().ConnString()
				if through == "pooler" {
					dsn = testdb.PgBouncer(t, e.db)
				}
				made := &trips{}
				e.db = made.counted(t, dsn, mode)
				r, p := e.router("billing", effect("billing")), (*consumer.Processor)(nil)
				r.Batch("Moved", consumer.BatchOptions{}, effect("billing"))
				var err error
				p, err = consumer.New(t.Context(), consumer.Config{Group: "parking", DB: e.db, Retry: consumer.Retry{OnLetter: consumer.LetterPark}})
				require.NoError(t, err)
				parking := consumer.NewRouter(p)
				parking.Tx("Paid", effect("parking"))
				parking.Func("Called", func(ctx context.Context, ev consumer.Event) error {
					_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "call", Do: func(context.Context, consumer.Call) (int, error) { return 1, nil }})
					return err
				})
				offset := int64(0)
				next := func(eventType string) consumer.Event {
					offset++
					ev := newEvent(t)
					ev.Type, ev.Source = eventType, consumer.Source{Topic: "orders", Offset: offset}
					return ev
				}
				for _, c := range []struct {
					name string
					want int
					call func() error
				}{
					{"Tx", begin + update + commit, func() error { return deliver(t.Context(), r, next("Paid"), consumer.Processed) }},
					{"Batch", begin + 3*update + commit, func() error {
						var errs []error
						for _, d := range r.HandleBatch(t.Context(), []consumer.Event{next("Moved"), next("Moved"), next("Moved")}) {
							errs = append(errs, d.Err)
						}
						return errors.Join(errs...)
					}},
					{"Do", begin + update + 1 + commit, func() error { // 1: its result
						_, err := consumer.Do(t.Context(), p, next("Paid"), func(ctx context.Context, tx pgx.Tx) (int, error) {
							return 1, effect("billing")(ctx, tx, newEvent(t))
						})
						return err
					}},
					{"LetterPark", begin + 1 + update + commit, func() error { // 1: the claim
						return deliver(t.Context(), parking, next("Paid"), consumer.Processed)
					}},
					{"Fence", 4*(begin+commit) + 3, func() error {
						return deliver(t.Context(), parking, next("Called"), consumer.Processed)
					}},
				} {
					for range 3 { // what is new to the connection
						require.NoError(t, c.call(), c.name)
					}
					before := made.n.Load()
					require.NoError(t, c.call(), c.name)
					if mode == pgx.QueryExecModeDescribeExec {
						continue
					}
					require.Equal(t, c.want, int(made.n.Load()-before), c.name)
				}
			})
		}
	}
}
