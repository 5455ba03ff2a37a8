//go:build e2e

package redisfast_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
)

// Of the workload: how many events, how often each comes in all, and in how many lanes.
const (
	loadEvents = 4000
	loadTimes  = 6
	loadLanes  = 4
	loadBatch  = 100
)

// TestRedisLayerSavesTransactions: of five redeliveries of each event at least nine in ten do not
// reach PostgreSQL, while handlers fail and lanes work beside one another; effects are there once.
// Events a second beside no Redis, and beside SET NX before the work, are logged.
func TestRedisLayerSavesTransactions(t *testing.T) {
	for _, c := range []struct {
		name, eventType string
		events, batch   int
	}{{"Batches", "Counted", loadEvents, loadBatch}, {"Single", "Paid", loadEvents / 8, 1}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			cache := w.cache()
			clock := &timed{Completed: cache}
			m := w.member("billing", clock)
			recs := w.events(c.events, c.eventType)
			first := w.deliver(m, recs, c.batch)
			clock.log(t, loadLanes*float64(c.events)/first)
			claimed := w.asked.claims.Load()
			copies := w.redelivered(recs, loadTimes-1)
			again := w.deliver(m, copies, c.batch)
			reached := w.asked.claims.Load() - claimed
			w.once("billing", c.events)
			require.LessOrEqual(t, reached*10, int64(len(copies)), "redeliveries that reach PostgreSQL, of %d", len(copies))

			plain := newWorld(t)
			without := plain.member("billing", nil)
			firstWithout := plain.deliver(without, recs, c.batch)
			againWithout := plain.deliver(without, copies, c.batch)
			plain.once("billing", c.events)
			require.GreaterOrEqual(t, plain.asked.claims.Load(), int64(len(copies)), "they are counted")

			s := cache.Stats()
			t.Logf("%d of %d redeliveries reached PostgreSQL; events a second: new %.0f, redelivered %.0f; without Redis: new %.0f, redelivered %.0f; %+v",
				reached, len(copies), first, again, firstWithout, againWithout, s)
		})
	}
}

// timed says how long questions take, for the arithmetic of ADR 29.
type timed struct {
	consumer.Completed
	questions, took atomic.Int64
}

func (c *timed) Known(ctx context.Context, entries []consumer.CompletedEntry) []bool {
	defer func(began time.Time) {
		c.questions.Add(1)
		c.took.Add(int64(time.Since(began)))
	}(time.Now())
	return c.Completed.Known(ctx, entries)
}

// log says what share of the lanes' time in seconds went into questions.
func (c *timed) log(t *testing.T, lanes float64) {
	t.Helper()
	took := time.Duration(c.took.Load())
	each := took / time.Duration(c.questions.Load())
	t.Logf("new events: %d questions, %s each, of %.3f ms for a delivery: %.1f %%", c.questions.Load(), each,
		1000*lanes/float64(c.questions.Load()), 100*took.Seconds()/lanes)
}

// TestSetNXBeforeTheWork is the control: what is often shown, SET NX and then the handler, loses
// every event whose handler fails once, or whose process dies.
func TestSetNXBeforeTheWork(t *testing.T) {
	w := newWorld(t)
	n := naive{w: w, client: w.client()}
	recs := w.events(loadEvents/8, "Paid")
	began := time.Now()
	for _, rec := range append(slices.Clone(recs), w.redelivered(recs, loadTimes-1)...) {
		n.handle(rec)
	}
	rate := float64(loadTimes*len(recs)) / time.Since(began).Seconds()
	done := w.count("SELECT count(*) FROM effects")
	require.Less(t, done, len(recs), "it loses some")
	require.Positive(t, n.failed)
	require.Equal(t, len(recs)-n.failed, done, "those whose handler has failed, for good")
	t.Logf("naive SET NX: %d of %d events lost, %.0f deliveries a second", len(recs)-done, len(recs), rate)
}

// redelivered are copies of the records, in a random order.
func (w *world) redelivered(recs []consumer.Record, times int) []consumer.Record {
	var copies []consumer.Record
	for range times {
		for _, rec := range recs {
			copies = append(copies, w.again(rec))
		}
	}
	seed := rand.Uint64()
	w.t.Logf("seed %d", seed)
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(copies), func(i, j int) { copies[i], copies[j] = copies[j], copies[i] })
	return copies
}

// deliver delivers all records in lanes, while of every tenth event the first attempt fails, and
// returns how many it were a second.
func (w *world) deliver(m *member, recs []consumer.Record, batch int) float64 {
	w.t.Helper()
	w.load.Store(true)
	defer w.load.Store(false)
	began := time.Now()
	lanes, ctx := errgroup.WithContext(w.t.Context())
	size := (len(recs) + loadLanes - 1) / loadLanes
	for lane := range slices.Chunk(recs, size) {
		lanes.Go(func() error {
			if batch > 1 {
				return m.batches(ctx, lane, batch)
			}
			for _, rec := range lane {
				for {
					outcome, err := m.HandleRecord(ctx, rec)
					if err == nil && outcome.Acknowledges() {
						break
					}
					if err != nil && !errors.Is(err, errFlaky) {
						return err
					}
				}
			}
			return nil
		})
	}
	require.NoError(w.t, lanes.Wait())
	return float64(len(recs)) / time.Since(began).Seconds()
}

// naive is the control.
type naive struct {
	w      *world
	client *redis.Client
	flaky  flaky
	failed int
}

func (n *naive) handle(rec consumer.Record) {
	ctx, key := n.w.t.Context(), string(rec.Headers[0].Value)
	err := n.client.SetArgs(ctx, key, "1", redis.SetArgs{Mode: "NX", TTL: window}).Err()
	if errors.Is(err, redis.Nil) {
		return // "a duplicate"
	}
	require.NoError(n.w.t, err)
	k, err := outbox.ParseKey(key)
	require.NoError(n.w.t, err)
	err = pgx.BeginFunc(ctx, n.w.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ('naive', $1, 1)", key); err != nil {
			return err
		}
		if n.flaky.fails(k.UUID()) {
			return errFlaky
		}
		return nil
	})
	if errors.Is(err, errFlaky) {
		n.failed++
		return // it is delivered again
	}
	require.NoError(n.w.t, err)
}
