package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// album keeps what Config.Observe is given.
type album struct {
	mu      sync.Mutex
	shots   []saramagroup.Snapshot
	looking bool
	overlap bool
	slow    time.Duration
}

func (a *album) observe(s saramagroup.Snapshot) {
	a.mu.Lock()
	a.overlap = a.overlap || a.looking
	a.looking = true
	a.mu.Unlock()
	if a.slow > 0 {
		<-time.After(a.slow)
	}
	a.mu.Lock()
	a.looking = false
	a.shots = append(a.shots, s)
	a.mu.Unlock()
}

func (a *album) last() saramagroup.Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shots[len(a.shots)-1]
}

func (a *album) config(c *saramagroup.Config) { c.Observe = a.observe }

// TestSnapshots: what a member says of its work is what a test knows of it.
func TestSnapshots(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.send(
			&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("a"), Value: sarama.StringEncoder("1234")},
			&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("b"), Value: sarama.StringEncoder("1234")},
			&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("a"), Value: sarama.StringEncoder("1234")},
			&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("c"), Value: sarama.StringEncoder("1234")},
			&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("d"), Value: sarama.StringEncoder("1234")},
		)
		release := make(chan struct{})
		h := newHandler(func(_ context.Context, rec consumer.Record, attempt int) (consumer.Outcome, error) {
			switch {
			case rec.Source.Offset == 0:
				return consumer.Duplicate, nil
			case rec.Source.Offset == 4:
				<-release
			case rec.Source.Offset == 1 && attempt == 1:
				return 0, fmt.Errorf("query: %w", &pgconn.PgError{Code: "57P01"})
			case rec.Source.Offset == 1 && attempt == 2:
				return consumer.InProgress, nil
			case rec.Source.Offset == 1 && attempt == 3:
				return 0, fmt.Errorf("handle: %w", consumer.ErrNoPartition)
			case rec.Source.Offset == 1 && attempt < 7:
				return 0, fmt.Errorf("handle: %w", &consumer.HandlerError{Err: errors.New("broken")})
			case rec.Source.Offset == 3:
				return consumer.DeadLettered, nil
			}
			return consumer.Processed, nil
		})
		started := time.Now()
		var a album
		stop, _ := k.run(h, defect{}, a.config, func(c *saramagroup.Config) { c.Concurrency, c.RetryMin, c.RetryMax = 3, 10*time.Second, 10*time.Second })
		<-time.After(4 * time.Second)
		s := a.last()
		require.Equal(t, "billing", s.Group)
		require.EqualValues(t, 1, s.Generation)
		require.Len(t, s.Partitions, 2)
		p := s.Partitions[0]
		require.WithinRange(t, p.WaitingSince, started, started.Add(3500*time.Millisecond))
		p.WaitingSince = time.Time{}
		require.Equal(t, saramagroup.PartitionStats{Topic: topic, Next: 1, HighWater: 5, Held: 2, HeldBytes: 2 * 5, InFlight: 1}, p)
		require.EqualValues(t, 4, p.Lag())
		require.Equal(t, saramagroup.PartitionStats{Topic: topic, Partition: 1}, s.Partitions[1])
		require.EqualValues(t, 1, s.Failed[saramagroup.FailureInfrastructure])
		require.WithinRange(t, s.ProgressSaved, started, time.Now())

		close(release)
		_, err := h.await(5)
		require.NoError(t, err)
		<-time.After(2 * time.Second)
		s = a.last()
		require.Equal(t, saramagroup.PartitionStats{Topic: topic, Next: 5, HighWater: 5}, s.Partitions[0])
		require.Equal(t, map[saramagroup.FailureKind]int64{
			saramagroup.FailureHandler: 3, saramagroup.FailureInfrastructure: 2, saramagroup.FailureInProgress: 1,
		}, s.Failed)
		for outcome, want := range map[consumer.Outcome]int64{
			consumer.Processed: 3, consumer.Duplicate: 1, consumer.DeadLettered: 1, consumer.Ignored: 0, consumer.Mismatch: 0,
		} {
			got, ok := s.Finished[outcome]
			require.True(t, ok, "%s is not there", outcome)
			require.Equal(t, want, got, outcome.String())
		}
		require.NotContains(t, s.Finished, consumer.InProgress)

		require.NoError(t, stop())
		s = a.last()
		require.Empty(t, s.Partitions, "the member has left")
		require.Zero(t, s.Generation)
		require.EqualValues(t, 3, s.Finished[consumer.Processed])
		require.False(t, a.overlap)
	})
}

// Markers and aborted messages at the end are no lag for ever.
func TestLagOfATransactionalTopic(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.write("commit", "abort")
		var a album
		stop, _ := k.run(newHandler(nil), defect{}, a.config)
		<-time.After(5 * time.Second)
		require.Equal(t, saramagroup.PartitionStats{Topic: topic, Next: 1, HighWater: 4}, a.last().Partitions[0])
		<-time.After(10 * time.Second)
		require.Equal(t, saramagroup.PartitionStats{Topic: topic, Next: 4, HighWater: 4}, a.last().Partitions[0])
		require.NoError(t, stop())
	})
}

// TestRewindsAreCounted, and a slow observer gets one call after the other.
func TestRewindsAreCounted(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(5)
		h, a := newHandler(nil), &album{slow: 3 * time.Second}
		stop, _ := k.run(h, defect{}, a.config)
		_, err := h.await(10)
		require.NoError(t, err)
		<-time.After(5 * time.Second)
		require.Zero(t, a.last().Rewinds)
		h.db.set(func(d *database) {
			d.history = "promoted"
			d.marks[0] = consumer.Mark{Topic: topic, High: 3}
		})
		k.produce(1)
		_, err = h.await(3 + 1)
		require.NoError(t, err)
		<-time.After(5 * time.Second)
		require.NoError(t, stop())
		require.EqualValues(t, 1, a.last().Rewinds)
		require.False(t, a.overlap)
	})
}
