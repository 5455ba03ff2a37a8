package saramagroup_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onceward/onceward/consumer/saramagroup"
)

// What is open at the end of a session is aborted before its end: no reader of the output
// waits for a timeout, also when nobody takes the partition over.
func TestTransformAbortsAtTheEnd(t *testing.T) {
	t.Parallel()
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
		t.Parallel()
		stable, end := opens(t, func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c })
		require.Equal(t, end, stable)
	})
	t.Run("defect: it stays open", func(t *testing.T) {
		t.Parallel()
		stable, end := opens(t, saramagroup.TransformConfig.KeepOpen)
		require.Less(t, stable, end, "readers wait for the transaction's timeout")
	})
}

// The first EndTxn is so long on its way that the client sends another, has its commit,
// and is in the middle of the next transaction when the first one arrives.
func TestTransformLateEndTxn(t *testing.T) {
	t.Parallel()
	late := func(t *testing.T, defect func(saramagroup.TransformConfig) saramagroup.TransformConfig) (*plant, func() error) {
		p := newPlant(t, 1)
		held := make(chan *kmsg.EndTxnRequest, 1)
		p.ControlKey(int16(kmsg.EndTxn), func(r kmsg.Request) (kmsg.Response, error, bool) {
			end := *r.(*kmsg.EndTxnRequest)
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
		t.Parallel()
		p, stop := late(t, func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c })
		require.Equal(t, numbers(1, 2), p.seen(kgo.ReadCommitted()))
		require.NoError(t, stop())
		again, _ := p.start(shout, p.config())
		p.reaches(0, 3)
		require.NoError(t, again())
		require.Equal(t, numbers(1, 3), p.seen(kgo.ReadCommitted()))
	})
	t.Run("defect: no rotation", func(t *testing.T) {
		t.Parallel()
		p, stop := late(t, saramagroup.TransformConfig.KeepProducer)
		require.Equal(t, numbers(1, 3), p.seen(kgo.ReadCommitted()), "an output of a transaction that was never committed")
		require.NoError(t, stop())
		again, _ := p.start(shout, p.config())
		p.reaches(0, 3)
		require.NoError(t, again())
		require.Equal(t, append(numbers(1, 3), "3"), p.seen(kgo.ReadCommitted()))
	})
}

// Each transaction has an epoch of its own: brokers cannot tell apart what is late of two
// that have the same one (TestTransformLateMarker).
func TestTransformEpochs(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	var mu sync.Mutex
	var epochs []int16
	p.ControlKey(int16(kmsg.EndTxn), func(r kmsg.Request) (kmsg.Response, error, bool) {
		p.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		epochs = append(epochs, r.(*kmsg.EndTxnRequest).ProducerEpoch)
		return nil, nil, false
	})
	cfg := p.config()
	cfg.MaxRecords = 1
	p.produce(0, 1, 5)
	stop, _ := p.start(shout, cfg)
	p.reaches(0, 5)
	require.NoError(t, stop())
	require.Len(t, epochs, 5)
	require.True(t, slices.IsSorted(epochs), epochs)
	require.Len(t, slices.Compact(epochs), 5, "an epoch of two transactions")
}

// A member is taken for dead while it waits for a new epoch, gets it when another one has
// the partition and has gone on, and fences that one. It still may not commit: its
// generation is over.
func TestTransformZombieWithTheNewestEpoch(t *testing.T) {
	t.Parallel()
	// The zombie goes on until it has asked for its offset, or until it has ended its transaction.
	zombie := func(t *testing.T, defect func(saramagroup.TransformConfig) saramagroup.TransformConfig, ends bool) []string {
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
			if beat := r.(*kmsg.HeartbeatRequest); strings.HasPrefix(beat.MemberID, "zombie") && asked.Load() {
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
		require.Eventually(t, func() bool { return again.Load() && (over.Load() || !ends) }, patience, 10*time.Millisecond)
		close(noticed)
		p.produce(0, 4, 4)
		p.reaches(0, 4)
		require.NoError(t, stopZombie())
		if err := stopHeir(); err != nil { // it was asked to begin where the zombie has put the offset back
			require.True(t, ends)
			require.ErrorContains(t, err, "Kafka had confirmed 3 to this process")
		}
		return p.seen(kgo.ReadCommitted())
	}
	t.Run("ours", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, numbers(1, 4), zombie(t, func(c saramagroup.TransformConfig) saramagroup.TransformConfig { return c }, false))
	})
	t.Run("defect: plain offsets", func(t *testing.T) {
		t.Parallel()
		require.Greater(t, len(zombie(t, saramagroup.TransformConfig.Plain, true)), 4, "the zombie has committed what was done")
	})
}

// The coordinator that sarama asks where to begin was deposed, and does not know what was
// committed since. The partition is not begun there.
func TestTransformStaleCoordinator(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.produce(0, 1, 5)
	stop, _ := p.start(shout, p.config())
	p.reaches(0, 5)
	require.NoError(t, stop())
	p.ControlKey(int16(kmsg.OffsetFetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		partition := kmsg.NewOffsetFetchResponseTopicPartition()
		partition.Offset = 2
		of := kmsg.NewOffsetFetchResponseTopic()
		of.Topic, of.Partitions = topic, append(of.Partitions, partition)
		stale := r.ResponseKind().(*kmsg.OffsetFetchResponse)
		stale.Topics = append(stale.Topics, of)
		return stale, nil, true
	})
	p.produce(0, 6, 6)
	stop, _ = p.start(shout, p.config())
	p.reaches(0, 6)
	require.NoError(t, stop())
	require.Equal(t, numbers(1, 6), p.seen(kgo.ReadCommitted()))
}

// The new producer after a commit is refused: the commit is known all the same.
func TestTransformRotationFails(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	var lost atomic.Bool
	p.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		lost.Store(true)
		return nil, errors.New("lost on its way"), true
	})
	p.ControlKey(int16(kmsg.InitProducerID), func(r kmsg.Request) (kmsg.Response, error, bool) {
		if !lost.Load() {
			return nil, nil, false
		}
		refusal := r.ResponseKind().(*kmsg.InitProducerIDResponse)
		refusal.ErrorCode = kerr.ProducerFenced.Code
		return refusal, nil, true
	})
	p.produce(0, 1, 10)
	cfg := p.config()
	cfg.MaxRecords = 3
	stop, _ := p.start(shout, cfg)
	p.reaches(0, 10)
	require.NoError(t, stop())
	require.Equal(t, numbers(1, 10), p.seen(kgo.ReadCommitted()))
}
