package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

const (
	upper    = "upper" // the topic of outputs
	patience = time.Minute
)

// plant is a cluster in memory with an input and an output topic, in real time.
type plant struct {
	*kfake.Cluster
	t      *testing.T
	client *kgo.Client
}

func newPlant(t *testing.T, partitions int32) *plant {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic, upper),
		kfake.BrokerConfigs(map[string]string{"group.min.session.timeout.ms": "1000"}))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return &plant{Cluster: c, t: t, client: client}
}

// produce writes the numbers first to last to a partition of the input.
func (p *plant) produce(partition int32, first, last int) {
	p.t.Helper()
	for i := first; i <= last; i++ {
		require.NoError(p.t, p.client.ProduceSync(p.t.Context(), &kgo.Record{
			Topic: topic, Partition: partition, Key: fmt.Append(nil, "key-", partition), Value: fmt.Append(nil, i),
		}).FirstErr())
	}
}

func (p *plant) config() saramagroup.TransformConfig {
	return saramagroup.TransformConfig{
		Topics: []string{topic}, Insecure: true, CommitInterval: 20 * time.Millisecond, SessionTimeout: 2 * time.Second,
		RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(p.t.Output(), nil)),
	}
}

// start runs a Transform. stop ends it, and returns what it returned.
func (p *plant) start(fn saramagroup.TransformFunc, cfg saramagroup.TransformConfig) (stop func() error, ended <-chan error) {
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- saramagroup.Transform(ctx, p.ListenAddrs(), "shouting", fn, cfg)
		close(done)
	}()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() { cancel(); err = <-done })
		return err
	}
	p.t.Cleanup(func() { _ = stop() })
	return stop, done
}

// shout copies a record to the output.
func shout(_ context.Context, rec consumer.Record) ([]saramagroup.Output, error) {
	return []saramagroup.Output{{Topic: upper, Key: rec.Key, Value: rec.Value, Headers: rec.Headers}}, nil
}

// seen returns the values that a reader of committed messages sees in the output, in the
// order of each partition, and where an open transaction holds it up.
func (p *plant) seen(isolation kgo.IsolationLevel) []string {
	p.t.Helper()
	return readAll(p.t, p.ListenAddrs(), upper, isolation)
}

// readAll reads a topic to its end, or to where the isolation ends it.
func readAll(t *testing.T, brokers []string, name string, isolation kgo.IsolationLevel) (values []string) {
	t.Helper()
	all := readByPartition(t, brokers, name, isolation)
	for _, partition := range slices.Sorted(maps.Keys(all)) {
		values = append(values, all[partition]...)
	}
	return values
}

// readByPartition is readAll for each partition.
func readByPartition(t *testing.T, brokers []string, name string, isolation kgo.IsolationLevel) map[int32][]string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(name), kgo.FetchIsolationLevel(isolation),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	require.NoError(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	ends, err := admin.ListCommittedOffsets(t.Context(), name)
	if isolation == kgo.ReadUncommitted() {
		ends, err = admin.ListEndOffsets(t.Context(), name)
	}
	require.NoError(t, err)
	left := make(map[int32]int64)
	ends.Each(func(o kadm.ListedOffset) {
		require.NoError(t, o.Err)
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	values := make(map[int32][]string)
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "%v left of %s", left, name)
		fetches.EachRecord(func(r *kgo.Record) {
			if end, ok := left[r.Partition]; ok && r.Offset < end && !r.Attrs.IsControl() {
				values[r.Partition] = append(values[r.Partition], string(r.Value))
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return values
}

func numbers(first, last int) []string {
	var all []string
	for i := first; i <= last; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// reaches waits until the group's committed offset of a partition is at least this.
func (p *plant) reaches(partition int32, offset int64) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.offset(partition) >= offset }, patience, 10*time.Millisecond)
}

func (p *plant) offset(partition int32) int64 {
	if info := p.GroupInfo("shouting"); info != nil {
		if commit, ok := info.Commits[topic][partition]; ok {
			return commit.Offset
		}
	}
	return -1
}

func TestTransformCopiesOnce(t *testing.T) {
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
		p, offset := lives(t, func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c })
		require.EqualValues(t, 20, offset)
		require.Equal(t, numbers(1, 20), p.seen(kgo.ReadCommitted()))
	})
	t.Run("defect: offsets outside", func(t *testing.T) {
		p, offset := lives(t, saramagroup.TransformConfig.Outside)
		require.EqualValues(t, -1, offset)
		require.Equal(t, slices.Concat(numbers(1, 20), numbers(1, 20)), p.seen(kgo.ReadCommitted()), "outputs whose offset was lost")
	})
}

// What is open at the end of a session is aborted before its end: no reader of the output
// waits for a timeout, also when nobody takes the partition over.
func TestTransformAbortsAtTheEnd(t *testing.T) {
	opens := func(t *testing.T, defect func(saramagroup.TransformConfig) saramagroup.TransformConfig) (stable, end int64) {
		p := newPlant(t, 1)
		cfg := p.config()
		cfg.CommitInterval = 10 * time.Second
		p.produce(0, 1, 5)
		stop, _ := p.start(shout, defect(cfg))
		require.Eventually(t, func() bool { return len(p.seen(kgo.ReadUncommitted())) == 5 }, patience, 10*time.Millisecond)
		require.Empty(t, p.seen(kgo.ReadCommitted()))
		require.NoError(t, stop())
		require.Empty(t, p.seen(kgo.ReadCommitted()))
		require.EqualValues(t, -1, p.offset(0))
		info := p.PartitionInfo(upper, 0)
		return info.LastStableOffset, info.HighWatermark
	}
	t.Run("ours", func(t *testing.T) {
		stable, end := opens(t, func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c })
		require.Equal(t, end, stable)
	})
	t.Run("defect: it stays open", func(t *testing.T) {
		stable, end := opens(t, saramagroup.TransformConfig.KeepOpen)
		require.Less(t, stable, end, "readers wait for the transaction's timeout")
	})
}

// The first EndTxn is so long on its way that the client sends another, has its commit,
// and is in the middle of the next transaction when the first one arrives.
func TestTransformLateEndTxn(t *testing.T) {
	late := func(t *testing.T, defect func(saramagroup.TransformConfig) saramagroup.TransformConfig) (*plant, func() error) {
		p := newPlant(t, 1)
		held := make(chan *kmsg.EndTxnRequest, 1)
		p.ControlKey(int16(kmsg.EndTxn), func(r kmsg.Request) (kmsg.Response, error, bool) {
			end := *r.(*kmsg.EndTxnRequest) //nolint:errcheck // that is its key
			held <- &end
			return nil, errors.New("lost on its way"), true
		})
		cfg := p.config()
		cfg.CommitInterval, cfg.MaxRecords = 10*time.Second, 2
		p.produce(0, 1, 2)
		stop, _ := p.start(shout, defect(cfg))
		p.reaches(0, 2)
		p.produce(0, 3, 3)
		require.Eventually(t, func() bool { return len(p.seen(kgo.ReadUncommitted())) == 3 }, patience, 10*time.Millisecond)
		require.Equal(t, numbers(1, 2), p.seen(kgo.ReadCommitted()))
		late := <-held
		client, err := kgo.NewClient(kgo.SeedBrokers(p.ListenAddrs()...), kgo.MaxVersions(kversion.V2_8_0()))
		require.NoError(t, err)
		defer client.Close()
		_, err = late.RequestWith(t.Context(), client)
		require.NoError(t, err)
		return p, stop
	}
	t.Run("ours", func(t *testing.T) {
		p, stop := late(t, func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c })
		require.Equal(t, numbers(1, 2), p.seen(kgo.ReadCommitted()))
		require.NoError(t, stop())
		again, _ := p.start(shout, p.config())
		p.reaches(0, 3)
		require.NoError(t, again())
		require.Equal(t, numbers(1, 3), p.seen(kgo.ReadCommitted()))
	})
	t.Run("defect: no rotation", func(t *testing.T) {
		p, stop := late(t, saramagroup.TransformConfig.KeepProducer)
		require.Equal(t, numbers(1, 3), p.seen(kgo.ReadCommitted()), "an output of a transaction that was never committed")
		require.NoError(t, stop())
		again, _ := p.start(shout, p.config())
		p.reaches(0, 3)
		require.NoError(t, again())
		require.Equal(t, append(numbers(1, 3), "3"), p.seen(kgo.ReadCommitted()))
	})
}

// A member is taken for dead while it waits for a new epoch, gets it when another one has
// the partition and has gone on, and fences that one. It still may not commit: its
// generation is over.
func TestTransformZombieWithTheNewestEpoch(t *testing.T) {
	zombie := func(t *testing.T, defect func(saramagroup.TransformConfig) saramagroup.TransformConfig) []string {
		p := newPlant(t, 1)
		release, noticed := make(chan struct{}), make(chan struct{})
		var lost, asked, again, over atomic.Bool
		p.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
			p.KeepControl()
			if lost.CompareAndSwap(false, true) {
				return nil, errors.New("lost on its way"), true
			}
			if again.Load() {
				over.Store(true)
			}
			return nil, nil, false
		})
		p.ControlKey(int16(kmsg.TxnOffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
			select {
			case <-release: // there is nobody else's to come
				again.Store(true)
			default:
			}
			return nil, nil, false
		})
		p.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
			p.KeepControl()
			if lost.Load() && asked.CompareAndSwap(false, true) {
				p.SleepControl(func() { <-release })
			}
			return nil, nil, false
		})
		p.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
			p.KeepControl()
			if beat := r.(*kmsg.HeartbeatRequest); strings.HasPrefix(beat.MemberID, "zombie") && asked.Load() { //nolint:errcheck // that is its key
				p.SleepControl(func() { <-noticed })
			}
			return nil, nil, false
		})
		p.produce(0, 1, 3)
		cfg := defect(p.config())
		cfg.ClientID, cfg.MaxRecords = "zombie", 1
		stopZombie, _ := p.start(shout, cfg)
		require.Eventually(t, asked.Load, patience, 10*time.Millisecond)
		cfg.ClientID = "heir"
		stopHeir, _ := p.start(shout, cfg)
		p.reaches(0, 3)
		require.Equal(t, numbers(1, 3), p.seen(kgo.ReadCommitted()))
		close(release)
		require.Eventually(t, over.Load, patience, 10*time.Millisecond)
		close(noticed)
		p.produce(0, 4, 4)
		p.reaches(0, 4)
		require.NoError(t, stopZombie())
		require.NoError(t, stopHeir())
		return p.seen(kgo.ReadCommitted())
	}
	t.Run("ours", func(t *testing.T) {
		require.Equal(t, numbers(1, 4), zombie(t, func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c }))
	})
	t.Run("defect: plain offsets", func(t *testing.T) {
		require.Greater(t, len(zombie(t, saramagroup.TransformConfig.Plain)), 4, "the zombie has committed what was done")
	})
}

// A record that fails, by an error, a panic, or an output that cannot be written, holds
// its partition; what came before it is committed, and other partitions go on.
func TestTransformWaitsForARecord(t *testing.T) {
	var mended atomic.Bool
	for name, broken := range map[string]func(rec consumer.Record) ([]saramagroup.Output, error){
		"error": func(consumer.Record) ([]saramagroup.Output, error) { return nil, errors.New("no") },
		"panic": func(consumer.Record) ([]saramagroup.Output, error) { panic("no") },
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
			mended.Store(false)
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
			require.Len(t, ended, 0)
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
	for name, took := range map[string]bool{"committed": true, "lost": false} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t, 1)
			var deaf, mine atomic.Bool
			deaf.Store(true)
			var ends, epochs atomic.Int64
			p.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
				if epochs.Add(1) > 1 { // of the next session, or of what it frees
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
					end := *r.(*kmsg.EndTxnRequest) //nolint:errcheck // that is its key
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
	p := newPlant(t, 1)
	p.produce(0, 1, 10)
	dead, err := kgo.NewClient(kgo.SeedBrokers(p.ListenAddrs()...), kgo.TransactionalID("shouting:"+topic+":0"), kgo.TransactionTimeout(15*time.Minute), kgo.MaxVersions(kversion.V2_8_0()))
	require.NoError(t, err)
	defer dead.Close()
	require.NoError(t, dead.BeginTransaction())
	require.NoError(t, dead.ProduceSync(t.Context(), &kgo.Record{Topic: upper, Value: []byte("ghost")}).FirstErr())
	id, epoch, err := dead.ProducerID(t.Context())
	require.NoError(t, err)
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = "shouting:"+topic+":0", id, epoch, "shouting"
	added, err := add.RequestWith(t.Context(), dead)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(added.ErrorCode))
	offset := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	offset.Offset = 5
	of := kmsg.NewTxnOffsetCommitRequestTopic()
	of.Topic, of.Partitions = topic, append(of.Partitions, offset)
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch, commit.Group = add.TransactionalID, id, epoch, "shouting"
	commit.Topics = append(commit.Topics, of)
	committed, err := commit.RequestWith(t.Context(), dead)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(committed.Topics[0].Partitions[0].ErrorCode))

	stop, _ := p.start(shout, p.config())
	p.reaches(0, 10)
	require.NoError(t, stop())
	require.Equal(t, numbers(1, 10), p.seen(kgo.ReadCommitted()))
}

// The end does not wait for a Kafka that is away, nor for a function that has its context.
func TestTransformEndsWithoutKafka(t *testing.T) {
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
	t.Run("offset gone", func(t *testing.T) {
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
		err := saramagroup.TransformRefuses(sarama.ErrDecompressedBatchTooLarge)
		require.ErrorIs(t, err, sarama.ErrDecompressedBatchTooLarge)
		require.ErrorContains(t, err, "raise sarama.MaxDecompressedBatchSize")
	})
	t.Run("no right", func(t *testing.T) {
		p := newPlant(t, 1)
		p.ControlKey(int16(kmsg.InitProducerID), func(r kmsg.Request) (kmsg.Response, error, bool) {
			p.KeepControl()
			answer := r.ResponseKind().(*kmsg.InitProducerIDResponse) //nolint:errcheck // that is its key
			answer.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
			return answer, nil, true
		})
		_, ended := p.start(shout, p.config())
		require.ErrorIs(t, <-ended, sarama.ErrTransactionalIDAuthorizationFailed)
	})
}

func TestTransformConfig(t *testing.T) {
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
	require.ErrorContains(t, saramagroup.Transform(t.Context(), nil, "g", shout, fine), "no brokers")
	require.ErrorContains(t, saramagroup.Transform(t.Context(), []string{"localhost:1"}, "", shout, fine), "the group is empty")
	require.ErrorContains(t, saramagroup.Transform(t.Context(), []string{"localhost:1"}, "g", nil, fine), "no function")
}

// A topic has no colon, a group may have: no two partitions share a transactional id.
func TestTransactionalIDsDiffer(t *testing.T) {
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
