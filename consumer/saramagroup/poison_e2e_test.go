//go:build e2e

package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestOneFailingAggregate: with default settings and 1,000 events a second in one
// partition, an aggregate whose handler always fails takes nothing from the others,
// for as long as the attempts of one event last. E2E_FULL=1 runs it for 5 minutes.
func TestOneFailingAggregate(t *testing.T) {
	const perSecond = 1000
	lasts := 15 * time.Second
	if os.Getenv("E2E_FULL") == "1" {
		lasts = 5 * time.Minute
	}
	_, pool := startDatabase(t, nil)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic))
	require.NoError(t, err)
	defer cluster.Close()
	var others atomic.Int64
	var seen peaks
	stop := runFailing(t, cluster, pool, &others, &seen)

	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ProducerLinger(10*time.Millisecond))
	require.NoError(t, err)
	defer client.Close()
	const each = 50 // events at a tick; every 500th is of the aggregate that fails
	produced, poisoned := 0, 0
	tick := time.NewTicker(each * time.Second / perSecond)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < lasts; <-tick.C {
		for range each {
			aggregate := fmt.Sprint("o-", produced%200)
			if produced%500 == 10 {
				aggregate = "poison"
				poisoned++
			}
			client.Produce(t.Context(), event(t, aggregate), nil)
			produced++
		}
	}
	done := others.Load()
	require.NoError(t, client.Flush(t.Context()))
	t.Logf("%d of %d events of other aggregates are finished, %d of the failing one are held; held at most %d messages, %d bytes",
		done, produced-poisoned, poisoned, seen.messages.Load(), seen.bytes.Load())
	require.GreaterOrEqual(t, float64(done), 0.9*float64(produced-poisoned))
	require.Eventually(t, func() bool { return others.Load() == int64(produced-poisoned) }, time.Minute, 20*time.Millisecond, "all of them, soon")
	require.LessOrEqual(t, seen.messages.Load(), int64(saramagroup.DefaultMaxHeld))
	require.LessOrEqual(t, seen.bytes.Load(), int64(saramagroup.DefaultMaxHeldBytes))
	require.NoError(t, stop())

	var effects, distinct int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT event) FROM effects").Scan(&effects, &distinct))
	require.Equal(t, []int{produced - poisoned, produced - poisoned}, []int{effects, distinct})
}

// peaks are the most that a partition has held.
type peaks struct{ messages, bytes atomic.Int64 }

func (p *peaks) observe(s saramagroup.Snapshot) {
	for _, partition := range s.Partitions {
		p.messages.Store(max(p.messages.Load(), partition.Held))
		p.bytes.Store(max(p.bytes.Load(), partition.HeldBytes))
	}
}

// runFailing runs a member that counts what it has done for other aggregates than
// the failing one.
func runFailing(t *testing.T, cluster *kfake.Cluster, pool *pgxpool.Pool, others *atomic.Int64, seen *peaks) (stop func() error) {
	t.Helper()
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.Batch("Paid", consumer.BatchOptions{Max: 100, Linger: 10 * time.Millisecond}, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if ev.AggregateID == "poison" {
			return errors.New("broken")
		}
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", ev.Key.String())
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- saramagroup.Run(ctx, cluster.ListenAddrs(), counting{r, others}, saramagroup.Config{
			Topics: []string{topic}, Insecure: true, Observe: seen.observe,
		})
	}()
	return sync.OnceValue(func() error { cancel(); return <-ended })
}

// counting counts what is finished of other aggregates than the failing one,
// whose events are given up in the end.
type counting struct {
	*consumer.Router
	done *atomic.Int64
}

func (c counting) HandleRecords(ctx context.Context, recs []consumer.Record) []consumer.Delivery {
	deliveries := c.Router.HandleRecords(ctx, recs)
	for i, d := range deliveries {
		if d.Finished() && string(recs[i].Key) != "poison" {
			c.done.Add(1)
		}
	}
	return deliveries
}

// event is an event of an aggregate.
func event(t *testing.T, aggregate string) *kgo.Record {
	t.Helper()
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	return &kgo.Record{Topic: topic, Key: []byte(aggregate), Value: []byte("{}"), Headers: []kgo.RecordHeader{
		{Key: outbox.HeaderKey, Value: []byte(key.String())}, {Key: record.HeaderEventType, Value: []byte("Paid")},
	}}
}
