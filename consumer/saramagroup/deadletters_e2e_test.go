//go:build e2e

package saramagroup_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// The life of dead letters with a real Kafka: copied to their topic once each,
// those that the topic refuses when it takes them, one too large and one without a key; redriven when an operator asks
// for it, also while Kafka is away.
func TestDeadLettersOfARealKafka(t *testing.T) {
	_, pool := startDatabase(t, durable)
	cluster, err := kafkaserver.Start(t.Context(), kafkaserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Stop(context.Background())) })
	require.NoError(t, cluster.CreateTopic(t.Context(), topic, 1, nil))
	require.NoError(t, cluster.CreateTopic(t.Context(), graveyard, 1, map[string]string{"max.message.bytes": "2000", "cleanup.policy": "compact"}))
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addrs()...), kgo.ConsumeTopics(graveyard), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer client.Close()
	produceFour(t, client)

	var mended atomic.Bool
	stop := runMember(t, cluster, pool, &mended)
	got := readDead(t, client, 1)
	require.Equal(t, "handler", headerOf(got[0], saramagroup.HeaderDeadReason))
	require.Equal(t, "handler: broken", headerOf(got[0], saramagroup.HeaderDeadError))
	require.Equal(t, "o-1", string(got[0].Key))
	require.Equal(t, "bad", string(got[0].Value))
	require.Equal(t, "Paid", headerOf(got[0], record.HeaderEventType))
	require.Eventually(t, func() bool { return lettersWhere(t, pool, "sent_at IS NULL") == 2 }, time.Minute, 20*time.Millisecond, "it is marked, those that are refused wait")

	alterGraveyard(t, client, "cleanup.policy", "delete")
	got = readDead(t, client, 1)
	require.Equal(t, "malformed", headerOf(got[0], saramagroup.HeaderDeadReason))
	require.Equal(t, "orders/0@0", headerOf(got[0], saramagroup.HeaderDeadSource))
	alterGraveyard(t, client, "max.message.bytes", "10000")
	got = readDead(t, client, 1)
	require.Len(t, got[0].Value, 5000)
	require.Eventually(t, func() bool { return lettersWhere(t, pool, "sent_at IS NULL") == 0 }, time.Minute, 20*time.Millisecond)

	mended.Store(true)
	redriven := func(offset int64) func() bool {
		_, err := pool.Exec(t.Context(), `UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE kafka_offset = $1`, offset)
		require.NoError(t, err)
		return func() bool { return lettersWhere(t, pool, "state = 'redriven' AND kafka_offset = $1", offset) == 1 }
	}
	require.Eventually(t, redriven(1), time.Minute, 20*time.Millisecond)
	require.NoError(t, cluster.StopBroker(t.Context(), 0))
	require.Eventually(t, redriven(2), time.Minute, 20*time.Millisecond, "it needs no Kafka")
	require.NoError(t, stop())

	var effects, distinct int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT event) FROM effects").Scan(&effects, &distinct))
	require.Equal(t, []int{3, 3}, []int{effects, distinct})
	require.Equal(t, 3, lettersWhere(t, pool, "true"))
}

// produceFour writes a record without headers, two events whose handler fails,
// the second of them large, and one that is fine.
func produceFour(t *testing.T, client *kgo.Client) {
	t.Helper()
	recs := []*kgo.Record{{Topic: topic, Value: []byte("no headers")}}
	for _, value := range []string{"bad", strings.Repeat("bad, ", 1000), "good"} {
		key, err := outbox.NewKey("shop")
		require.NoError(t, err)
		recs = append(recs, &kgo.Record{Topic: topic, Key: []byte("o-1"), Value: []byte(value), Headers: []kgo.RecordHeader{
			{Key: outbox.HeaderKey, Value: []byte(key.String())}, {Key: record.HeaderEventType, Value: []byte("Paid")},
		}})
	}
	require.NoError(t, client.ProduceSync(t.Context(), recs...).FirstErr())
}

// runMember runs one whose handler refuses bad events until it is mended.
func runMember(t *testing.T, cluster *kafkaserver.Cluster, pool *pgxpool.Pool, mended *atomic.Bool) (stop func() error) {
	t.Helper()
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.Tx("Paid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if !mended.Load() && strings.HasPrefix(string(ev.Payload), "bad") {
			return consumer.DeadLetter(errors.New("broken"))
		}
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", ev.Key.String())
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- saramagroup.Run(ctx, cluster.Addrs(), r, saramagroup.Config{
			Topics: []string{topic}, Insecure: true, DeadLetterTopic: graveyard, HousekeepingInterval: 100 * time.Millisecond,
			RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond, Version: sarama.V3_6_0_0,
		})
	}()
	return func() error { cancel(); return <-ended }
}

func readDead(t *testing.T, client *kgo.Client, n int) (recs []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(recs) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "%d of %d dead letters", len(recs), n)
		recs = append(recs, fetches.Records()...)
	}
	require.Len(t, recs, n)
	return recs
}

func headerOf(rec *kgo.Record, name string) string {
	i := slices.IndexFunc(rec.Headers, func(h kgo.RecordHeader) bool { return h.Key == name })
	if i < 0 {
		return ""
	}
	return string(rec.Headers[i].Value)
}

func lettersWhere(t *testing.T, pool *pgxpool.Pool, condition string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM onceward.consumer_dead_letters WHERE "+condition, args...).Scan(&n))
	return n
}

// alterGraveyard changes a setting of the topic of dead letters.
func alterGraveyard(t *testing.T, client *kgo.Client, name, value string) {
	t.Helper()
	setting := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	setting.Name, setting.Value = name, &value
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, graveyard
	resource.Configs = append(resource.Configs, setting)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	answer, err := request.RequestWith(t.Context(), client)
	require.NoError(t, err)
	require.Zero(t, answer.Resources[0].ErrorCode)
}
