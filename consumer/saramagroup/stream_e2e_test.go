//go:build e2e

package saramagroup_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// stream is a topic of three partitions on real servers, with one producer for
// each, whose transactions are its own.
type stream struct {
	t         *testing.T
	cluster   *kafkaserver.Cluster
	pool      *pgxpool.Pool
	admin     sarama.ClusterAdmin
	producers [3]*kgo.Client
}

func newStream(t *testing.T) *stream {
	t.Helper()
	s := &stream{t: t}
	_, s.pool = startDatabase(t, durable)
	var err error
	s.cluster, err = kafkaserver.Start(t.Context(), kafkaserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.cluster.Stop(context.Background())) })
	require.NoError(t, s.cluster.CreateTopic(t.Context(), topic, 3, nil))
	for i := range s.producers {
		s.producers[i], err = kgo.NewClient(kgo.SeedBrokers(s.cluster.Addrs()...), kgo.TransactionalID("relay-"+string(rune('0'+i))), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		require.NoError(t, err)
		t.Cleanup(s.producers[i].Close)
	}
	_, s.admin = administer(t, s.cluster)
	return s
}

// startKafka starts brokers with a topic of one partition, and one for dead letters.
func startKafka(t *testing.T, brokers int) *kafkaserver.Cluster {
	t.Helper()
	cluster, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Brokers: brokers})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Stop(context.Background())) })
	require.NoError(t, cluster.CreateTopic(t.Context(), topic, 1, nil))
	require.NoError(t, cluster.CreateTopic(t.Context(), graveyard, 1, nil))
	return cluster
}

// administer connects until the test's end.
func administer(t *testing.T, cluster *kafkaserver.Cluster) (sarama.Client, sarama.ClusterAdmin) {
	t.Helper()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	client, err := sarama.NewClient(cluster.Addrs(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { closing(t, client) })
	admin, err := sarama.NewClusterAdminFromClient(client)
	require.NoError(t, err)
	return client, admin
}

// begin writes n events to a partition in a transaction that stays open, and
// returns the latest event time.
func (s *stream) begin(partition int32, n int) (latest time.Time) {
	s.t.Helper()
	p := s.producers[partition]
	require.NoError(s.t, p.BeginTransaction())
	for range n {
		key, err := outbox.NewKey("shop")
		require.NoError(s.t, err)
		latest = key.Time()
		require.NoError(s.t, p.ProduceSync(s.t.Context(), &kgo.Record{
			Topic: topic, Partition: partition, Key: []byte("o-1"), Value: []byte("{}"),
			Headers: []kgo.RecordHeader{{Key: outbox.HeaderKey, Value: []byte(key.String())}, {Key: record.HeaderEventType, Value: []byte("Paid")}},
		}).FirstErr())
	}
	return latest
}

func (s *stream) end(partition int32, how kgo.TransactionEndTry) {
	s.t.Helper()
	require.NoError(s.t, s.producers[partition].EndTransaction(s.t.Context(), how))
}

func (s *stream) run(group string, observe func(saramagroup.Snapshot)) (stop func()) {
	s.t.Helper()
	p, err := consumer.New(s.t.Context(), consumer.Config{Group: group, DB: s.pool})
	require.NoError(s.t, err)
	r := consumer.NewRouter(p)
	r.Tx("Paid", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", ev.Key.String())
		return err
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	cfg := saramagroup.Config{
		Topics: []string{topic}, Insecure: true, CommitInterval: 50 * time.Millisecond, Observe: observe,
		Logger: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	}.Idle(200 * time.Millisecond)
	go func() { ended <- saramagroup.Run(ctx, s.cluster.Addrs(), r, cfg) }()
	return func() {
		cancel()
		require.NoError(s.t, <-ended)
	}
}

// row is a row of onceward.progress.
type row struct {
	Low, High int64
	Finished  *time.Time
	Updated   time.Time
}

func (s *stream) row(group string, partition int32) (r row) {
	s.t.Helper()
	err := s.pool.QueryRow(s.t.Context(), `SELECT low_offset, high_offset, finished_time, updated_at FROM onceward.progress
		WHERE consumer_group = $1 AND topic = $2 AND kafka_partition = $3`, group, topic, partition).Scan(&r.Low, &r.High, &r.Finished, &r.Updated)
	if err != nil {
		require.ErrorIs(s.t, err, pgx.ErrNoRows)
		r.Low, r.High = -9, -9
	}
	return r
}

// reaches waits until a partition's mark is at an offset, with a finished time.
func (s *stream) reaches(group string, partition int32, high int64, finished time.Time) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		r := s.row(group, partition)
		return r.High == high && r.Finished != nil && r.Finished.Equal(finished)
	}, time.Minute, 20*time.Millisecond, "partition %d to %d, finished %s", partition, high, finished)
}

func (s *stream) committed(group string, partition int32) int64 {
	s.t.Helper()
	answer, err := s.admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {partition}})
	require.NoError(s.t, err)
	return answer.GetBlock(topic, partition).Offset
}

// TestStreamTimeOnRealServers: markers and aborted messages at the end, a
// partition in which nothing ever was, and one with an open transaction.
func TestStreamTimeOnRealServers(t *testing.T) {
	s := newStream(t)
	first := s.begin(0, 5)
	s.end(0, kgo.TryCommit) // offsets 0 to 4, and 5
	s.begin(0, 3)
	s.end(0, kgo.TryAbort) // 6 to 8, and 9
	late := s.begin(2, 1)

	snapshots := make(chan saramagroup.Snapshot, 1)
	stop := s.run("billing", func(shot saramagroup.Snapshot) {
		select {
		case <-snapshots:
		default:
		}
		snapshots <- shot
	})
	s.reaches("billing", 0, 9, first)
	s.reaches("billing", 1, -1, first)
	require.Zero(t, s.row("billing", 1).Low)
	for range 5 { // five more rounds of questions
		before := s.row("billing", 1).Updated
		require.Eventually(t, func() bool { return s.row("billing", 1).Updated.After(before) }, time.Minute, 20*time.Millisecond)
	}
	open := s.row("billing", 2)
	require.Equal(t, row{Low: 0, High: -1, Updated: open.Updated}, open, "stream time waits for the open transaction")

	s.end(2, kgo.TryCommit)
	s.reaches("billing", 2, 1, late)
	s.reaches("billing", 1, -1, late)
	s.reaches("billing", 0, 9, late)
	require.Eventually(t, func() bool {
		return s.committed("billing", 0) == 10 && s.committed("billing", 1) == 0 && s.committed("billing", 2) == 2
	}, time.Minute, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		for _, p := range (<-snapshots).Partitions {
			if p.Lag() != 0 || p.Held != 0 {
				return false
			}
		}
		return true
	}, time.Minute, 20*time.Millisecond)
	stop()

	// Retention takes all that is left, the markers last. Nobody lost anything.
	require.NoError(t, s.admin.DeleteRecords(topic, map[int32]int64{0: 10, 1: 0, 2: 2}))
	stop = s.run("billing", nil)
	newest := s.begin(0, 1)
	s.end(0, kgo.TryCommit)
	s.reaches("billing", 0, 11, newest)
	stop()
	stop = s.run("ledger", nil)
	s.reaches("ledger", 0, 11, newest)
	require.EqualValues(t, 10, s.row("ledger", 0).Low, "the first that a new group can read")
	require.EqualValues(t, 2, s.row("ledger", 2).Low)
	stop()

	var all, distinct int
	require.NoError(t, s.pool.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT event) FROM effects").Scan(&all, &distinct))
	require.Equal(t, []int{8, 7}, []int{all, distinct}, "the last one in both groups")
}

// TestRetiredTopicIsNotAppliedAgain (A6): a group that reads a topic again that an
// operator has retired goes on where it was, with every claim of before gone.
func TestRetiredTopicIsNotAppliedAgain(t *testing.T) {
	s := newStream(t)
	last := s.begin(0, 25)
	s.end(0, kgo.TryCommit)
	stop := s.run("billing", nil)
	s.reaches("billing", 0, 25, last)
	require.Eventually(t, func() bool { return s.committed("billing", 0) == 26 }, time.Minute, 20*time.Millisecond)
	stop()
	for _, statement := range []string{
		"UPDATE onceward.progress SET retired_at = now()", // outboxctl windows retire --topic
		"DELETE FROM onceward.processed_events", "UPDATE onceward.dedup_windows SET floor = now(), raised_at = now() - interval '1 hour'",
	} {
		_, err := s.pool.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	stop = s.run("billing", nil)
	last = s.begin(0, 1)
	s.end(0, kgo.TryCommit)
	s.reaches("billing", 0, 27, last)
	stop()
	var effects, letters, retired int
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM onceward.consumer_dead_letters),
		(SELECT count(*) FROM onceward.progress WHERE retired_at IS NOT NULL)`).Scan(&effects, &letters, &retired))
	require.Equal(t, []int{26, 0, 0}, []int{effects, letters, retired})
}
