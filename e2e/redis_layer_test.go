//go:build e2e

package e2e

import (
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/redisfast"
	"github.com/onceward/onceward/internal/redisserver"
)

// remember puts Redis before the claims of a consumer process, and says at the end what it did.
func (c *consumerProgram) remember(log *slog.Logger, conf *consumer.Config) (end func(), err error) {
	fast, err := redisfast.New(redisfast.Config{Redis: redis.UniversalOptions{Addrs: []string{c.Redis}}, Timeout: time.Second, Logger: log})
	if err != nil {
		return nil, err
	}
	conf.Completed = fast
	return func() {
		s := fast.Stats()
		log.Info("Redis", "hits", s.Hits, "stale", s.Stale, "errors", s.Errors+s.Unasked, "kept", s.Remembered)
		_ = fast.Close()
	}, nil
}

// TestRedisLayerFailover: the consumers' PostgreSQL fails over to a standby that lacks effects which
// Redis knows, while every event comes three times, handlers fail, a consumer is killed, and Redis
// is flushed, stands still, dies, and comes back with an old dump. What was lost is made again,
// and every effect is there once.
func TestRedisLayerFailover(t *testing.T) {
	t.Parallel()
	events := 500
	if full() {
		events = 5000
	}
	onAVersion(t, func(t *testing.T, version string) {
		server := redisserver.Start(t)
		client := redis.NewClient(&redis.Options{Addr: server.Address()})
		defer client.Close()
		f := newFailover(t, version)
		f.redis = server.Address()
		f.produceTimes(events, 3)
		f.start(2, 5)
		f.untilHalf()
		require.NoError(t, client.FlushAll(t.Context()).Err())
		f.produceTimes(events, 3)
		f.untilHalf()
		require.NoError(t, client.Save(t.Context()).Err())
		dump := server.Dump()

		f.awaitStandby(f.w)
		f.hold()
		f.produceTimes(events, 3)
		f.untilAhead(events)
		server.Freeze()
		f.consumers[0].kill()
		server.Thaw()
		f.failover()
		known, err := client.DBSize(t.Context()).Result()
		require.NoError(t, err)
		require.Positive(t, known, "Redis knows effects of before")
		f.consumers[0].start()
		f.produceTimes(events/2, 3)
		f.finish()

		server.Kill()
		f.produceTimes(events/2, 3)
		f.finish()
		server.SetDump(dump)
		server.Up()
		f.produceTimes(events/2, 3)
		consumers := f.consumers
		f.verify()
		var hits, stale int
		for _, c := range consumers {
			hits, stale = hits+c.redisSays("hits"), stale+c.redisSays("stale")
		}
		t.Logf("Redis: %d hits, %d stale", hits, stale)
		require.Positive(t, hits)
		require.Positive(t, stale, "entries of before the failover were met, and not believed")
	})
}

// produceTimes writes n events, all of them as often as told.
func (g *consumerGroup) produceTimes(n, times int) {
	g.t.Helper()
	client, err := sarama.NewClient(g.w.brokers, kafkaConfig())
	require.NoError(g.t, err)
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	require.NoError(g.t, err)
	defer producer.Close()
	events := make([]*sarama.ProducerMessage, n)
	for i := range events {
		events[i] = g.message(g.next())
	}
	for range times {
		copies := make([]*sarama.ProducerMessage, n)
		for i, m := range events {
			again := *m
			copies[i] = &again
		}
		require.NoError(g.t, producer.SendMessages(copies))
	}
}

// redisSays returns a figure of what a consumer that has ended said of Redis; 0: it was killed.
func (c *consumerProcess) redisSays(what string) (sum int) {
	c.t.Helper()
	log, err := os.ReadFile(c.log)
	require.NoError(c.t, err)
	for _, found := range regexp.MustCompile(`msg=Redis .*\b`+what+`=(\d+)`).FindAllSubmatch(log, -1) {
		n, err := strconv.Atoi(string(found[1]))
		require.NoError(c.t, err)
		sum += n
	}
	return sum
}
