package saramagroup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// house is what the handler has besides messages.
type house struct {
	mu       sync.Mutex
	redrive  func(ctx context.Context) error
	recover  func(ctx context.Context) error
	redrives []time.Time
	recovers []time.Time
	letters  []consumer.Letter // that wait
	forget   bool              // the next letters that were sent
}

func (h *handler) Redrive(ctx context.Context, _ int) (int, error) {
	h.house.mu.Lock()
	h.house.redrives = append(h.house.redrives, time.Now())
	do := h.house.redrive
	h.house.mu.Unlock()
	if do == nil {
		return 0, nil
	}
	return 0, do(ctx)
}

func (h *handler) RecoverFences(ctx context.Context, _ int) (int, error) {
	h.house.mu.Lock()
	h.house.recovers = append(h.house.recovers, time.Now())
	do := h.house.recover
	h.house.mu.Unlock()
	if do == nil {
		return 0, nil
	}
	return 0, do(ctx)
}

func (h *handler) SendLetters(ctx context.Context, send func(context.Context, []consumer.Letter) ([]consumer.Letter, error)) (int, error) {
	h.house.mu.Lock()
	waiting := slices.Clone(h.house.letters)
	h.house.mu.Unlock()
	if len(waiting) == 0 {
		return 0, nil
	}
	sent, err := send(ctx, waiting)
	h.house.mu.Lock()
	defer h.house.mu.Unlock()
	if h.house.forget {
		h.house.forget = false
		return 0, errors.New("the process died here")
	}
	h.house.letters = slices.DeleteFunc(h.house.letters, func(l consumer.Letter) bool {
		return slices.ContainsFunc(sent, func(s consumer.Letter) bool { return s.Record.Source == l.Record.Source })
	})
	return len(sent), err
}

func (h *house) runs() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.redrives)
}

func (h *house) waiting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.letters)
}

func withLog(log *bytes.Buffer) func(*saramagroup.Config) {
	return func(c *saramagroup.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) }
}

// The work that needs only the database is done while Kafka is away, from the
// start on, and at the pace of the interval.
func TestHousekeepingNeedsNoKafka(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.cut(true)
		h := newHandler(nil)
		started := time.Now()
		stop, _ := k.run(h, defect{})
		<-time.After(35 * time.Second)
		require.NoError(t, stop())
		require.Len(t, h.house.redrives, 3)
		require.Equal(t, saramagroup.DefaultHousekeepingInterval, h.house.redrives[0].Sub(started))
		require.Len(t, h.house.recovers, 3)
	})
}

// A part that fails is logged, tried again, and keeps no other from its turn.
func TestHousekeepingGoesOnAfterFailures(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		var log bytes.Buffer
		h := newHandler(nil)
		h.house.redrive = func(context.Context) error { return errors.New("the database is away") }
		k.produce(1)
		stop, _ := k.run(h, defect{}, withLog(&log), func(c *saramagroup.Config) { c.HousekeepingInterval = time.Second })
		require.NoError(t, h.awaitEach(1))
		<-time.After(3500 * time.Millisecond)
		require.NoError(t, stop())
		require.GreaterOrEqual(t, len(h.house.redrives), 3)
		require.InDelta(t, len(h.house.redrives), len(h.house.recovers), 1)
		require.Contains(t, log.String(), `level=WARN msg="housekeeping failed; it will be tried again" group=billing part="redrive dead letters" done=0 error="the database is away" retry_in=1s`)
	})
}

// A chore that waits, for a provider that does not answer, holds up no other.
func TestASlowChoreHoldsUpNoOther(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.graveyard()
		h := newHandler(nil)
		h.house.letters = letters(2)
		h.house.recover = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		stop, _ := k.run(h, defect{}, toGraveyard)
		k.dead(2)
		<-time.After(time.Minute)
		require.NoError(t, stop())
		require.Zero(t, h.house.waiting())
		require.GreaterOrEqual(t, h.house.runs(), 6)
		require.Len(t, h.house.recovers, 1)
	})
}

// Run ends what is in hand, waits for it, and does not log that as a failure.
func TestRunWaitsForItsHousekeeping(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		var log bytes.Buffer
		h := newHandler(nil)
		inside, over := make(chan struct{}), false
		h.house.redrive = func(ctx context.Context) error {
			close(inside)
			<-ctx.Done()
			<-time.After(time.Second)
			over = true
			return ctx.Err()
		}
		stop, _ := k.run(h, defect{}, withLog(&log))
		<-inside
		require.NoError(t, stop())
		require.True(t, over)
		require.NotContains(t, log.String(), "housekeeping failed")
	})
}

const graveyard = "orders.dead"

// letters makes some, of a record as odd as they come.
func letters(n int) []consumer.Letter {
	var all []consumer.Letter
	for i := range n {
		all = append(all, consumer.Letter{
			Record: consumer.Record{
				Source: consumer.Source{Topic: topic, Partition: 1, Offset: int64(i)}, Key: []byte{0, 255, byte(i)}, Value: []byte("{}"),
				Headers: []consumer.Header{{Name: "odd\x00\xff", Value: []byte{0, 255}}, {Name: "null"}, {Name: "odd\x00\xff", Value: []byte{}}},
			},
			Reason: "handler", Error: "broken", Attempts: 20, At: time.Date(2026, 11, 21, 8, 30, 0, 1000, time.UTC),
		})
	}
	return all
}

// dead reads n records of the topic of dead letters.
func (k *kafka) dead(n int) []*kgo.Record {
	k.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(k.cluster.ListenAddrs()...), kgo.Dialer(k.network.DialContext),
		kgo.ConsumeTopics(graveyard), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(k.t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(k.t.Context(), 2*time.Minute)
	defer cancel()
	var recs []*kgo.Record
	for len(recs) < n {
		fetches := c.PollFetches(ctx)
		require.NoError(k.t, ctx.Err(), "%d of %d dead letters in Kafka", len(recs), n)
		recs = append(recs, fetches.Records()...)
	}
	return recs
}

func (k *kafka) graveyard() {
	require.NoError(k.t, k.cluster.CreateTopic(graveyard, 1, nil))
}

func toGraveyard(c *saramagroup.Config) { c.DeadLetterTopic = graveyard }

func TestDeadLettersAreCopied(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.graveyard()
		h := newHandler(nil)
		h.house.letters = letters(3)
		h.house.letters[1].Record.Key, h.house.letters[1].Record.Value = nil, nil
		h.house.letters[2].Record.Key, h.house.letters[2].Record.Value = []byte{}, []byte{}
		h.house.letters[2].Error = strings.Repeat("ü", 5000)
		want := slices.Clone(h.house.letters)
		stop, _ := k.run(h, defect{}, toGraveyard)
		got := k.dead(3)
		require.Eventually(t, func() bool { return h.house.waiting() == 0 }, time.Minute, time.Second)
		<-time.After(time.Minute)
		require.NoError(t, stop())
		for i, msg := range got {
			require.Equal(t, want[i].Record.Key, msg.Key)
			require.Equal(t, want[i].Record.Value, msg.Value)
			var headers []string
			for _, header := range msg.Headers {
				headers = append(headers, fmt.Sprintf("%s=%.27s", header.Key, string(header.Value)))
			}
			require.Equal(t, []string{
				"odd\x00\xff=\x00\xff", "null=", "odd\x00\xff=",
				"onceward-dead-reason=handler", fmt.Sprintf("onceward-dead-error=%.27s", want[i].Error), "onceward-dead-group=billing",
				fmt.Sprintf("onceward-dead-source=orders/1@%d", i), "onceward-dead-attempts=20", "onceward-dead-time=2026-11-21T08:30:00.000001Z",
			}, headers)
			require.Nil(t, msg.Headers[1].Value)
			require.LessOrEqual(t, len(msg.Headers[4].Value), 4096)
		}
		require.EqualValues(t, 3, k.end(graveyard), "each once")
	})
}

// end is the offset behind the last record of a topic's first partition.
func (k *kafka) end(topic string) int64 {
	k.t.Helper()
	c := k.client(nil)
	defer closing(k.t, c)
	offset, err := c.GetOffset(topic, 0, sarama.OffsetNewest)
	require.NoError(k.t, err)
	return offset
}

// A process that dies before it remembers what it has sent sends it again.
func TestDeadLettersAreCopiedAtLeastOnce(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.graveyard()
		h := newHandler(nil)
		h.house.letters, h.house.forget = letters(2), true
		stop, _ := k.run(h, defect{}, toGraveyard)
		got := k.dead(4)
		require.Eventually(t, func() bool { return h.house.waiting() == 0 }, time.Minute, time.Second)
		require.NoError(t, stop())
		require.Equal(t, got[0].Key, got[2].Key)
		require.Equal(t, got[1].Key, got[3].Key)
	})
}

// Without the topic, or without Kafka, letters wait, and nothing waits for them.
func TestDeadLettersWaitForTheirTopic(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		var log bytes.Buffer
		h := newHandler(nil)
		h.house.letters = letters(2)
		k.produce(5)
		stop, _ := k.run(h, defect{}, toGraveyard, withLog(&log))
		require.NoError(t, h.awaitEach(5))
		<-time.After(time.Minute)
		require.Equal(t, [2]int64{5, 5}, k.committed())
		require.Equal(t, 2, h.house.waiting())
		require.GreaterOrEqual(t, h.house.runs(), 2, "the other work goes on")
		k.cut(true)
		<-time.After(2 * time.Minute)
		k.cut(false)
		k.graveyard()
		k.dead(2)
		require.Eventually(t, func() bool { return h.house.waiting() == 0 }, 2*time.Minute, time.Second)
		require.NoError(t, stop())
		require.EqualValues(t, 2, k.end(graveyard))
		require.Contains(t, log.String(), `part="copy dead letters to their topic"`)
	})
}

func TestNoTopicNoCopies(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.graveyard()
		var log bytes.Buffer
		h := newHandler(nil)
		h.house.letters = letters(2)
		stop, _ := k.run(h, defect{}, withLog(&log))
		<-time.After(time.Minute)
		require.NoError(t, stop())
		require.NotContains(t, log.String(), "housekeeping failed")
		require.Equal(t, 2, h.house.waiting())
		require.Zero(t, k.end(graveyard))
	})
}
