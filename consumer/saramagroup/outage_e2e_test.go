//go:build e2e

package saramagroup_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// PostgreSQL dies in the middle of the work, as in a crash, and comes back.
// Each event has one effect, and what no handler could read is kept.
func TestOutageOfPostgreSQLIsRiddenThrough(t *testing.T) {
	const events = 200
	server, pool := startDatabase(t, durable)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, topic))
	require.NoError(t, err)
	defer cluster.Close()
	produceEvents(t, cluster, events)

	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool})
	require.NoError(t, err)
	reached := make(chan struct{})
	var once sync.Once
	r := consumer.NewRouter(p)
	r.Tx("Paid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if ev.Source.Offset == events/4 {
			once.Do(func() { close(reached) })
		}
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", ev.Key.String())
		return err
	})

	waits := &lineWatch{text: "waits for the database", seen: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- saramagroup.Run(ctx, cluster.ListenAddrs(), r, saramagroup.Config{
			Topics: []string{topic}, Insecure: true, RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond,
			Logger: slog.New(slog.NewTextHandler(waits, nil)),
		})
	}()
	<-reached
	require.NoError(t, server.Halt(t.Context(), pgserver.Immediate))
	<-waits.seen
	require.NoError(t, server.Resume(t.Context()))

	// A started server is another history: the members look at the marks once more before an offset goes on.
	require.Eventually(t, func() bool {
		commits := cluster.GroupInfo("billing").Commits[topic]
		return commits[0].Offset == events/2+1 && commits[1].Offset == events/2
	}, time.Minute, 20*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)

	var all, claims, letters int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM onceward.processed_events),
		(SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'malformed')`).Scan(&all, &claims, &letters))
	require.Equal(t, []int{events, events, 1}, []int{all, claims, letters})
}

// durable are the settings of a server that crashes, unlike other test servers.
var durable = map[string]string{"fsync": "on"}

// startDatabase starts a server with the consumer's tables and a table of effects.
func startDatabase(t *testing.T, settings map[string]string) (*pgserver.Server, *pgxpool.Pool) {
	t.Helper()
	server, pool := testdb.Own(t, pgserver.Options{Version: "15", Settings: settings})
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), "CREATE TABLE effects (event text NOT NULL)")
	require.NoError(t, err)
	return server, pool
}

// produceEvents writes n events over two partitions, and one record without a
// key at the beginning of the first.
func produceEvents(t *testing.T, cluster *kfake.Cluster, n int) {
	t.Helper()
	s := sarama.NewConfig()
	s.Producer.Return.Successes = true
	s.Producer.Partitioner = sarama.NewManualPartitioner
	p, err := sarama.NewSyncProducer(cluster.ListenAddrs(), s)
	require.NoError(t, err)
	defer closing(t, p)
	msgs := []*sarama.ProducerMessage{{Topic: topic, Value: sarama.StringEncoder("no headers")}}
	for i := range n {
		key, err := outbox.NewKey("shop")
		require.NoError(t, err)
		msgs = append(msgs, &sarama.ProducerMessage{
			Topic: topic, Partition: int32(i % 2), Key: sarama.StringEncoder(fmt.Sprint("o-", i%7)), Value: sarama.StringEncoder("{}"),
			Headers: []sarama.RecordHeader{
				{Key: []byte(outbox.HeaderKey), Value: []byte(key.String())},
				{Key: []byte(record.HeaderEventType), Value: []byte("Paid")},
			},
		})
	}
	require.NoError(t, p.SendMessages(msgs))
}

// lineWatch closes seen when a line of the log holds the text.
type lineWatch struct {
	text string
	seen chan struct{}
	once sync.Once
}

func (w *lineWatch) Write(line []byte) (int, error) {
	if strings.Contains(string(line), w.text) {
		w.once.Do(func() { close(w.seen) })
	}
	return io.Discard.Write(line)
}
