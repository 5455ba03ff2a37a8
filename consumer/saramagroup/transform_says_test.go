package saramagroup_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// noted keeps what is logged. It is safe for concurrent use.
type noted struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *noted) Write(line []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(line)
}

// count returns how many lines have all the words.
func (n *noted) count(words ...string) (lines int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for line := range strings.Lines(n.text.String()) {
		has := 0
		for _, word := range words {
			if strings.Contains(line, word) {
				has++
			}
		}
		if has == len(words) {
			lines++
		}
	}
	return lines
}

// noting is the plant's configuration, with what is logged.
func (p *plant) noting() (saramagroup.TransformConfig, *noted) {
	cfg, all := p.config(), new(noted)
	cfg.Logger = slog.New(slog.NewTextHandler(all, nil))
	return cfg, all
}

// looks says of the group's offsets what answer says, instead of the coordinator, when a
// look is made for offsets that are held back: sarama asks for one partition after the other.
func (p *plant) looks(answer func(look int64, r *kmsg.OffsetFetchRequest) (*kmsg.OffsetFetchResponse, error, bool)) {
	var look atomic.Int64
	p.ControlKey(int16(kmsg.OffsetFetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		p.KeepControl()
		request := r.(*kmsg.OffsetFetchRequest)
		if len(request.Topics) == 0 {
			return nil, nil, false
		}
		if len(request.Topics[0].Partitions) == 2 {
			look.Add(1)
		}
		return answer(look.Load(), request)
	})
}

// A coordinator that has moved on, is loading, or has lost the connection is looked for and
// asked again: offsets that are held back are freed by the look that found them.
func TestTransformFreesOffsetsOfACoordinatorThatMoved(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 2)
	p.produce(0, 1, 10)
	p.dies()
	p.looks(func(look int64, r *kmsg.OffsetFetchRequest) (*kmsg.OffsetFetchResponse, error, bool) {
		answer := r.ResponseKind().(*kmsg.OffsetFetchResponse)
		switch look {
		case 1:
			answer.ErrorCode = kerr.NotCoordinator.Code
		case 2:
			return nil, errors.New("cut"), true
		case 3:
			answer.ErrorCode = kerr.CoordinatorLoadInProgress.Code
		default:
			return nil, nil, false
		}
		return answer, nil, true
	})
	cfg, all := p.noting()
	stop, _ := p.start(shout, cfg)
	p.reaches(0, 10)
	require.NoError(t, stop())
	require.Equal(t, 1, all.count("ended a transaction that a member had left in the middle of its commit", "partition=0"))
	require.Zero(t, all.count("what holds offsets back was not ended"))
	require.Equal(t, numbers(1, 10), p.seen(kgo.ReadCommitted()))
}

// The end of a transaction was lost by the group's coordinator (KAFKA-20634): nothing is
// said to be ended that is not.
func TestTransformSaysThatAnOffsetStaysHeldBack(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 2)
	p.produce(0, 1, 10)
	var found atomic.Bool
	p.looks(func(_ int64, r *kmsg.OffsetFetchRequest) (*kmsg.OffsetFetchResponse, error, bool) {
		if found.Load() {
			return nil, nil, false
		}
		held := r.ResponseKind().(*kmsg.OffsetFetchResponse)
		for _, of := range r.Topics {
			topic := kmsg.NewOffsetFetchResponseTopic()
			topic.Topic = of.Topic
			for _, partition := range of.Partitions {
				is := kmsg.NewOffsetFetchResponseTopicPartition()
				is.Partition, is.Offset = partition, -1
				if partition == 0 {
					is.ErrorCode = kerr.UnstableOffsetCommit.Code
				}
				topic.Partitions = append(topic.Partitions, is)
			}
			held.Topics = append(held.Topics, topic)
		}
		return held, nil, true
	})
	cfg, all := p.noting()
	stop, _ := p.start(shout, cfg)
	stuck := []string{"level=ERROR", "the offset is held back though no transaction is open", "KAFKA-20634, in brokers before 4.3.1", "partition=0"}
	require.Eventually(t, func() bool { return all.count(stuck...) > 0 }, patience, 10*time.Millisecond)
	require.Zero(t, all.count("ended a transaction"))
	found.Store(true)
	p.reaches(0, 10)
	require.NoError(t, stop())
	require.Equal(t, numbers(1, 10), p.seen(kgo.ReadCommitted()))
}

// Only who is not of the group's generation any more is said to have lost the partition.
func TestTransformSaysWhoHasThePartition(t *testing.T) {
	t.Parallel()
	for want, errs := range map[string][]error{
		"level=INFO msg=\"the partition is another member's by now":                                                  {sarama.ErrIllegalGeneration, sarama.ErrUnknownMemberId, sarama.ErrFencedInstancedId},
		"level=WARN msg=\"its producer was replaced by another member, or its transaction was open for longer than ": {sarama.ErrProducerFenced, sarama.ErrInvalidProducerEpoch},
		"level=WARN msg=\"a transaction failed":                                                                      {sarama.ErrNotEnoughReplicas},
	} {
		for _, err := range errs {
			all := new(noted)
			saramagroup.TransformSays(slog.New(slog.NewTextHandler(all, nil)), fmt.Errorf("commit: %w", err))
			require.Equal(t, 1, all.count(want), "%v: %s", err, all.text.String())
		}
	}
}

// A group without an offset makes outputs of all that is there, again if the offset has
// expired: it says so, and not where there is nothing.
func TestTransformWarnsOfABeginning(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 2)
	p.produce(0, 1, 5)
	const warning = "the group has no offset of the partition: outputs are made of all that is there"
	cfg, all := p.noting()
	stop, _ := p.start(shout, cfg)
	p.reaches(0, 5)
	p.produce(1, 6, 7)
	p.reaches(1, 2)
	require.NoError(t, stop())
	require.Equal(t, 1, all.count(warning, "partition=0 oldest=0 end=5"))
	require.Equal(t, 1, all.count(warning))
	stop, _ = p.start(shout, cfg)
	p.produce(0, 8, 8)
	p.reaches(0, 6)
	require.NoError(t, stop())
	require.Equal(t, 1, all.count(warning), "there is an offset")
}

// A function may use its buffers again: sarama encodes an output when it likes.
func TestTransformCopiesOutputs(t *testing.T) {
	t.Parallel()
	buffer := []byte("abc")
	out := saramagroup.Output{Topic: upper, Key: buffer[:1], Value: buffer[1:2], Headers: []consumer.Header{{Name: "h", Value: buffer[2:]}}}
	m := out.Message()
	copy(buffer, "xyz")
	key, err := m.Key.Encode()
	require.NoError(t, err)
	value, err := m.Value.Encode()
	require.NoError(t, err)
	require.Equal(t, "abc", string(bytes.Join([][]byte{key, value, m.Headers[0].Value}, nil)))
	empty := saramagroup.Output{Topic: upper, Key: []byte{}}.Message()
	require.NotNil(t, empty.Key, "an empty key is one")
	require.Nil(t, empty.Value, "a tombstone")
}

// A topic of which Kafka could not say how it is set is asked about again in the next
// session, and no right is blamed for it.
func TestTransformAsksAgainOfATopic(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.produce(0, 1, 3)
	var refused atomic.Bool
	p.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		p.KeepControl()
		name := r.(*kmsg.DescribeConfigsRequest).Resources[0].ResourceName
		if name != upper || refused.Swap(true) {
			return nil, nil, false
		}
		resource := kmsg.NewDescribeConfigsResponseResource()
		resource.ResourceType, resource.ResourceName, resource.ErrorCode = kmsg.ConfigResourceTypeTopic, name, kerr.RequestTimedOut.Code
		answer := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		answer.Resources = append(answer.Resources, resource)
		return answer, nil, true
	})
	cfg, all := p.noting()
	stop, _ := p.start(shout, cfg)
	p.reaches(0, 3)
	require.Eventually(t, refused.Load, patience, 10*time.Millisecond)
	p.rebalances()
	require.Eventually(t, func() bool { return all.count("left the session") == 1 }, patience, 10*time.Millisecond)
	p.produce(0, 4, 4)
	require.Eventually(t, func() bool { return all.count("a topic can lose what it has confirmed", "topic=upper") == 1 }, patience, 10*time.Millisecond)
	require.NoError(t, stop())
	require.Zero(t, all.count("Grant DESCRIBE", "topic=upper"))
}
