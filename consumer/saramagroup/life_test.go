package saramagroup_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

func TestRestartGoesOnWhereItStopped(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		db := newHandler(nil).db
		for round := range int64(3) {
			k.produce(5)
			h := newHandler(nil)
			h.db = db
			stop, _ := k.run(h, defect{})
			recs, err := h.await(10)
			require.NoError(t, err)
			require.NoError(t, stop())
			require.Empty(t, h.finished)
			require.Equal(t, []int64{5 * round, 5*round + 1, 5*round + 2, 5*round + 3, 5*round + 4}, offsets(recs, 0))
		}
	})
}

// A second member joins while the first has a message in hand; then the first
// leaves. Nothing is delivered twice, because each rebalance drains and commits.
func TestRebalance(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(20)
		slow := func(context.Context, consumer.Record, int) (consumer.Outcome, error) {
			<-time.After(time.Second)
			return consumer.Processed, nil
		}
		first, second := newHandler(slow), newHandler(slow)
		second.db = first.db
		stopFirst, _ := k.run(first, defect{})
		early, err := first.await(4)
		require.NoError(t, err)
		stopSecond, _ := k.run(second, defect{})
		shared, err := second.await(3)
		require.NoError(t, err)
		require.NoError(t, stopFirst())
		for len(first.finished) > 0 {
			early = append(early, <-first.finished)
		}
		rest, err := second.await(40 - len(early) - len(shared))
		require.NoError(t, err)
		require.NoError(t, stopSecond())

		all := slices.Concat(early, shared, rest)
		for p := range int32(2) {
			got := offsets(all, p)
			slices.Sort(got)
			require.Len(t, slices.Compact(slices.Clone(got)), 20, "partition %d", p)
			require.Len(t, got, 20, "partition %d: something was delivered twice", p)
		}
		require.NotEmpty(t, shared)
		require.Equal(t, [2]int64{20, 20}, k.committed())
	})
}

// Kafka is away at the start, comes, goes in the middle, and comes again.
func TestOutagesOfKafkaAreRiddenThrough(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		k.cut(true)
		var log bytes.Buffer
		h := newHandler(nil)
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		<-time.After(5 * time.Minute)
		k.cut(false)
		require.NoError(t, h.awaitEach(5))

		k.cut(true)
		<-time.After(5 * time.Minute)
		k.cut(false)
		k.produce(5)
		require.NoError(t, h.awaitEach(10))
		require.NoError(t, stop())
		require.Equal(t, [2]int64{10, 10}, k.committed())
		require.Contains(t, log.String(), "no session with Kafka")
	})
}

func TestEndDuringAnOutage(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.cut(true)
		stop, _ := k.run(newHandler(nil), defect{})
		<-time.After(time.Minute)
		require.NoError(t, stop())
	})
}

func TestMissingTopicIsWaitedFor(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		require.NoError(t, k.cluster.DeleteTopic(topic))
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		<-time.After(time.Minute)
		require.NoError(t, k.cluster.CreateTopic(topic, 2, nil))
		for p := range int32(2) {
			require.NoError(t, k.cluster.MoveTopicPartition(topic, p, 1-k.cluster.CoordinatorFor("billing")))
		}
		k.produce(1)
		_, err := h.await(2)
		require.NoError(t, err)
		require.NoError(t, stop())
	})
}

func TestRecordsArriveWhole(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		key := sarama.StringEncoder("o-1")
		k.send(
			&sarama.ProducerMessage{Topic: topic, Key: key, Headers: []sarama.RecordHeader{
				{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a"), Value: []byte{0, 255}}, {Key: []byte("null")},
			}},
			&sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder{}},
		)
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		recs, err := h.await(2)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Equal(t, consumer.Record{
			Source: consumer.Source{Topic: topic, TopicID: k.topicID()}, Key: []byte("o-1"),
			Headers: []consumer.Header{{Name: "a", Value: []byte("1")}, {Name: "a", Value: []byte{0, 255}}, {Name: "null"}},
		}, recs[0], "a tombstone")
		require.NotNil(t, recs[1].Value, "an empty value is no tombstone")
		require.Nil(t, recs[1].Key)
	})
}

// An operator must see that, and why, a partition stands still.
func TestFailuresAreLogged(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(1)
		var log bytes.Buffer
		h := newHandler(func(_ context.Context, rec consumer.Record, attempt int) (consumer.Outcome, error) {
			switch {
			case rec.Source.Partition == 1 || attempt == 3:
				return consumer.Processed, nil
			case attempt == 2:
				return consumer.InProgress, nil
			}
			return 0, &consumer.HandlerError{Err: errors.New("broken"), Attempts: 17} // of sessions before
		})
		stop, _ := k.run(h, defect{}, func(c *saramagroup.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		_, err := h.await(2)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Regexp(t, `level=ERROR msg="message failed; its aggregate waits" group=billing source=orders/0@0 retry_in=\S+ attempt=17 error=`, log.String())
		require.Contains(t, log.String(), `level=WARN msg="message waits" group=billing source=orders/0@0 retry_in=`)
		require.Contains(t, log.String(), `msg="joined the group"`)
	})
}

func TestLogins(t *testing.T) {
	for _, m := range []saramagroup.Mechanism{saramagroup.Plain, saramagroup.ScramSHA256, saramagroup.ScramSHA512} {
		t.Run(string(m), func(t *testing.T) {
			ctx, err := login(t, m, func(*kfake.Cluster) {})
			require.NoError(t, err)
			require.ErrorIs(t, ctx.Err(), context.Canceled, "never joined the group")
		})
	}
}

func TestRefusedLoginEndsRun(t *testing.T) {
	_, err := login(t, saramagroup.Plain, func(c *kfake.Cluster) {
		c.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
			resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
			return resp, nil, true
		})
	})
	require.ErrorIs(t, err, sarama.ErrSASLAuthenticationFailed)
}

// login runs a member until it has joined the group.
func login(t *testing.T, m saramagroup.Mechanism, adjust func(*kfake.Cluster)) (context.Context, error) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic), kfake.EnableSASL(), kfake.Superuser(string(m), "billing", "secret"))
	require.NoError(t, err)
	defer c.Close()
	adjust(c)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	joined := func(h sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler { return onSetup{h, cancel} }
	cfg := saramagroup.Config{
		Topics: []string{topic}, Insecure: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		SASL: &saramagroup.SASL{Mechanism: m, User: "billing", Password: "secret"},
	}.Hooks(nil, joined)
	err = saramagroup.Run(ctx, c.ListenAddrs(), newHandler(nil), cfg)
	return ctx, err
}

// onSetup ends the test when the group has been joined.
type onSetup struct {
	sarama.ConsumerGroupHandler
	end context.CancelFunc
}

func (o onSetup) Setup(s sarama.ConsumerGroupSession) error {
	o.end()
	return o.ConsumerGroupHandler.Setup(s)
}

// TestShortSessions: a session that a rebalance ends at once is logged with its cause.
func TestShortSessions(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		var log bytes.Buffer
		stop, _ := k.run(newHandler(nil), defect{}, withLog(&log), func(c *saramagroup.Config) { c.SessionTimeout = 8 * time.Second }) // a heartbeat in 2s
		<-time.After(time.Second)
		other, _ := k.run(newHandler(nil), defect{})
		<-time.After(20 * time.Second)
		require.NoError(t, other())
		require.NoError(t, stop())
		require.Contains(t, log.String(), `msg="no session with Kafka" group=billing error="the last one ended soon and without an error, as in a rebalance of the group"`)
	})
}
