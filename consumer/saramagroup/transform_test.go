package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

func TestTransformCopiesOnce(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 3)
	for partition := range int32(3) {
		p.produce(partition, int(partition)*100+1, int(partition)*100+50)
	}
	for range 3 { // each goes on where the one before was
		stop, _ := p.start(shout, p.config())
		for partition := range int32(3) {
			p.reaches(partition, 50)
		}
		require.NoError(t, stop())
	}
	seen := p.seen(kgo.ReadCommitted())
	slices.SortFunc(seen, func(a, b string) int { x, _ := strconv.Atoi(a); y, _ := strconv.Atoi(b); return x - y })
	require.Equal(t, slices.Concat(numbers(1, 50), numbers(101, 150), numbers(201, 250)), seen)
	require.Len(t, p.seen(kgo.ReadUncommitted()), 150, "nothing was made twice")
}

// The offsets are in the transaction, and nothing else commits any: here nothing else can.
func TestTransformCommitsOffsetsInside(t *testing.T) {
	t.Parallel()
	lives := func(t *testing.T, defect func(saramagroup.TransformConfig) saramagroup.TransformConfig) (*plant, int64) {
		p := newPlant(t, 1)
		p.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
			p.KeepControl()
			return nil, errors.New("broken"), true
		})
		p.produce(0, 1, 20)
		for range 2 {
			stop, _ := p.start(shout, defect(p.config()))
			before := len(p.seen(kgo.ReadCommitted()))
			require.Eventually(t, func() bool { return p.offset(0) == 20 || len(p.seen(kgo.ReadCommitted())) >= before+20 }, patience, 10*time.Millisecond)
			require.NoError(t, stop())
		}
		return p, p.offset(0)
	}
	t.Run("ours", func(t *testing.T) {
		t.Parallel()
		p, offset := lives(t, func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c })
		require.EqualValues(t, 20, offset)
		require.Equal(t, numbers(1, 20), p.seen(kgo.ReadCommitted()))
	})
	t.Run("defect: offsets outside", func(t *testing.T) {
		t.Parallel()
		p, offset := lives(t, saramagroup.TransformConfig.Outside)
		require.EqualValues(t, -1, offset)
		require.Equal(t, slices.Concat(numbers(1, 20), numbers(1, 20)), p.seen(kgo.ReadCommitted()), "outputs whose offset was lost")
	})
}

// A record that fails, by an error, a panic, the end of its goroutine, or an output that cannot
// be written, holds its partition; what came before it is committed, and other partitions go on.
func TestTransformWaitsForARecord(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]func(rec consumer.Record) ([]saramagroup.Output, error){
		"error": func(consumer.Record) ([]saramagroup.Output, error) { return nil, errors.New("no") },
		"panic": func(consumer.Record) ([]saramagroup.Output, error) { panic("no") },
		"end of the goroutine": func(consumer.Record) ([]saramagroup.Output, error) {
			runtime.Goexit() // as t.FailNow does
			return nil, nil
		},
		"unknown topic": func(consumer.Record) ([]saramagroup.Output, error) {
			return []saramagroup.Output{{Topic: "nowhere"}}, nil
		},
		"no topic":    func(consumer.Record) ([]saramagroup.Output, error) { return []saramagroup.Output{{}}, nil },
		"input topic": func(consumer.Record) ([]saramagroup.Output, error) { return []saramagroup.Output{{Topic: topic}}, nil },
		"too large": func(consumer.Record) ([]saramagroup.Output, error) {
			return []saramagroup.Output{{Topic: upper, Value: make([]byte, 2000)}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mended atomic.Bool
			p := newPlant(t, 2)
			p.produce(0, 1, 5)
			p.produce(1, 11, 15)
			cfg := p.config()
			cfg.CommitInterval, cfg.MaxMessageBytes = 10*time.Second, 1000
			cfg.MaxRecords = 5
			var tries atomic.Int64
			stop, ended := p.start(func(ctx context.Context, rec consumer.Record) ([]saramagroup.Output, error) {
				if string(rec.Value) == "3" && !mended.Load() {
					tries.Add(1)
					return broken(rec)
				}
				return shout(ctx, rec)
			}, cfg)
			require.Eventually(t, func() bool { return tries.Load() >= 3 }, patience, 10*time.Millisecond)
			p.reaches(0, 2)
			p.reaches(1, 5)
			require.EqualValues(t, 2, p.offset(0))
			require.Empty(t, ended)
			mended.Store(true)
			p.produce(0, 6, 7)
			p.reaches(0, 7)
			require.NoError(t, stop())
			seen := p.seen(kgo.ReadCommitted())
			slices.Sort(seen)
			require.Equal(t, []string{"1", "11", "12", "13", "14", "15", "2", "3", "4", "5", "6", "7"}, seen)
			require.Len(t, p.seen(kgo.ReadUncommitted()), 12, "no transaction was made again")
		})
	}
}

// Records without outputs move the offset, and those with several have all of theirs.
func TestTransformFiltersAndSpreads(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.produce(0, 1, 30)
	stop, _ := p.start(func(ctx context.Context, rec consumer.Record) ([]saramagroup.Output, error) {
		n, _ := strconv.Atoi(string(rec.Value))
		if n <= 20 {
			return nil, nil
		}
		one, err := shout(ctx, rec)
		return append(one, one...), err
	}, p.config())
	p.reaches(0, 30)
	require.NoError(t, stop())
	var want []string
	for _, n := range numbers(21, 30) {
		want = append(want, n, n)
	}
	require.Equal(t, want, p.seen(kgo.ReadCommitted()))
}

// The outcome of a commit is not known: the next session begins where it tells.
func TestTransformUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, took := range map[string]bool{"committed": true, "lost": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlant(t, 1)
			var deaf, mine atomic.Bool
			deaf.Store(true)
			var ends atomic.Int64
			p.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
				if ends.Load() > 0 { // of the next session, or of what it frees
					deaf.Store(false)
				}
				return nil, nil, false
			})
			p.ControlKey(int16(kmsg.EndTxn), func(r kmsg.Request) (kmsg.Response, error, bool) {
				p.KeepControl()
				if !deaf.Load() || mine.CompareAndSwap(true, false) {
					return nil, nil, false
				}
				if ends.Add(1) == 1 && took { // the first one arrives by another way, and its answer is lost
					end := *r.(*kmsg.EndTxnRequest)
					p.SleepControl(func() {
						client, err := kgo.NewClient(kgo.SeedBrokers(p.ListenAddrs()...), kgo.MaxVersions(kversion.V2_8_0()))
						if err == nil {
							mine.Store(true)
							_, _ = end.RequestWith(t.Context(), client)
							client.Close()
						}
					})
				}
				return nil, errors.New("no answer"), true
			})
			cfg := p.config()
			cfg.TransactionTimeout, cfg.DrainTimeout = 2*time.Second, time.Second
			p.produce(0, 1, 10)
			stop, _ := p.start(shout, cfg)
			require.Eventually(t, func() bool { return !deaf.Load() }, patience, 10*time.Millisecond)
			require.Greater(t, ends.Load(), int64(2), "they were tried again")
			p.produce(0, 11, 20)
			p.reaches(0, 20)
			require.NoError(t, stop())
			require.Equal(t, numbers(1, 20), p.seen(kgo.ReadCommitted()))
		})
	}
}

// A member died between the offsets of its transaction and the end. Who comes next does
// not wait for the timeout.
func TestTransformFreesOffsets(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.produce(0, 1, 10)
	p.dies()
	stop, _ := p.start(shout, p.config())
	p.reaches(0, 10)
	require.NoError(t, stop())
	require.Equal(t, numbers(1, 10), p.seen(kgo.ReadCommitted()))
}

// The end does not wait for a Kafka that is away, nor for a function that has its context.
func TestTransformEndsWithoutKafka(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	cfg := p.config()
	cfg.CommitInterval, cfg.DrainTimeout = 10*time.Second, 100*time.Millisecond
	p.produce(0, 1, 5)
	waits := make(chan struct{})
	stop, _ := p.start(func(ctx context.Context, rec consumer.Record) ([]saramagroup.Output, error) {
		if string(rec.Value) == "5" {
			close(waits)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return shout(ctx, rec)
	}, cfg)
	<-waits
	p.Close()
	require.NoError(t, stop())
}

func TestTransformStops(t *testing.T) {
	t.Parallel()
	t.Run("offset gone", func(t *testing.T) {
		t.Parallel()
		p := newPlant(t, 1)
		p.produce(0, 1, 5)
		stop, _ := p.start(shout, p.config())
		p.reaches(0, 5)
		require.NoError(t, stop())
		p.produce(0, 6, 10)
		require.NoError(t, p.DeleteRecords(topic, 0, 8))
		_, ended := p.start(shout, p.config())
		err := <-ended
		require.ErrorIs(t, err, sarama.ErrOffsetOutOfRange)
		require.ErrorContains(t, err, `of group "shouting" are gone from Kafka`)
	})
	t.Run("a batch unpacks to too much", func(t *testing.T) {
		t.Parallel()
		err := saramagroup.TransformRefuses(sarama.ErrDecompressedBatchTooLarge)
		require.ErrorIs(t, err, sarama.ErrDecompressedBatchTooLarge)
		require.ErrorContains(t, err, "raise sarama.MaxDecompressedBatchSize")
	})
	t.Run("no right", func(t *testing.T) {
		t.Parallel()
		p := newPlant(t, 1)
		p.ControlKey(int16(kmsg.InitProducerID), func(r kmsg.Request) (kmsg.Response, error, bool) {
			p.KeepControl()
			answer := r.ResponseKind().(*kmsg.InitProducerIDResponse)
			answer.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
			return answer, nil, true
		})
		_, ended := p.start(shout, p.config())
		require.ErrorIs(t, <-ended, sarama.ErrTransactionalIDAuthorizationFailed)
	})
}

func TestTransformConfig(t *testing.T) {
	t.Parallel()
	fine := saramagroup.TransformConfig{Topics: []string{topic}, Insecure: true}
	for want, change := range map[string]func(*saramagroup.TransformConfig){
		"Topics is empty":        func(c *saramagroup.TransformConfig) { c.Topics = nil },
		"TLS is nil":             func(c *saramagroup.TransformConfig) { c.Insecure = false },
		"TransactionTimeout 1ms": func(c *saramagroup.TransformConfig) { c.TransactionTimeout = time.Millisecond },
		"TransactionTimeout 1h":  func(c *saramagroup.TransformConfig) { c.TransactionTimeout = time.Hour },
		"CommitInterval 1m0s":    func(c *saramagroup.TransformConfig) { c.CommitInterval = time.Minute },
		"DrainTimeout 30s":       func(c *saramagroup.TransformConfig) { c.DrainTimeout = 30 * time.Second },
		"MaxRecords -1":          func(c *saramagroup.TransformConfig) { c.MaxRecords = -1 },
	} {
		cfg := fine
		change(&cfg)
		require.ErrorContains(t, saramagroup.Transform(t.Context(), []string{"localhost:1"}, "g", shout, cfg), want)
	}
	long := fine
	long.DrainTimeout, long.MaxRecords = 25*time.Second, -1
	require.ErrorContains(t, saramagroup.Transform(t.Context(), []string{"localhost:1"}, "g", shout, long), "MaxRecords -1", "which is longer than Run's")
	require.ErrorContains(t, saramagroup.Transform(t.Context(), nil, "g", shout, fine), "no brokers")
	require.ErrorContains(t, saramagroup.Transform(t.Context(), []string{"localhost:1"}, "", shout, fine), "the group is empty")
	require.ErrorContains(t, saramagroup.Transform(t.Context(), []string{"localhost:1"}, "g", nil, fine), "no function")
}

// A topic has no colon, a group may have: no two partitions share a transactional id.
func TestTransactionalIDsDiffer(t *testing.T) {
	t.Parallel()
	ids := make(map[string]string)
	for _, group := range []string{"a", "a:b", "a:b:1", "a:b:1:c", "a-b", "a.b"} {
		for _, of := range []string{"b", "c", "b-1", "b.1", "b_1", "1"} {
			for partition := range int32(12) {
				id, what := saramagroup.TransactionalID(group, of, partition), fmt.Sprint(group, " ", of, " ", partition)
				require.NotContains(t, ids, id, what)
				ids[id] = what
			}
		}
	}
}

// A coordinator that does not answer holds up neither the end, nor the rebalance before
// which the end comes.
func TestTransformEndsBesideASilentCoordinator(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	silent, asked := make(chan struct{}), make(chan struct{})
	p.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		p.SleepControl(func() { <-silent })
		return nil, errors.New("too late"), true
	})
	cfg := p.config()
	cfg.DrainTimeout = 100 * time.Millisecond
	p.produce(0, 1, 5)
	stop, _ := p.start(shout, cfg)
	<-asked
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Error("it waits for an answer")
	}
	close(silent)
}

// said gets what is logged.
type said chan string

func (s said) Write(line []byte) (int, error) {
	s <- string(line)
	return len(line), nil
}

// Topics that can lose what they have confirmed are named, with what to do.
func TestTransformWarnsOfWeakTopics(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.produce(0, 1, 3)
	all := make(said, 1000)
	cfg := p.config()
	cfg.Logger = slog.New(slog.NewTextHandler(all, nil))
	stop, _ := p.start(shout, cfg)
	for line := range all {
		if !strings.Contains(line, "a topic can lose what it has confirmed") || !strings.Contains(line, "topic=upper") {
			continue
		}
		require.Contains(t, line, `because="partition 0 has 1 replicas, want 3" cure="raise the replication factor"`)
		break
	}
	p.reaches(0, 3)
	require.NoError(t, stop())
}
