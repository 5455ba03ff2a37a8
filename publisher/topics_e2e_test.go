//go:build e2e

package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/publisher"
)

// ask sends one administrative request to a real broker.
func ask[R kmsg.Response](t *testing.T, address string, request interface {
	RequestWith(context.Context, kmsg.Requestor) (R, error)
}) R {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	require.NoError(t, err)
	defer client.Close()
	response, err := request.RequestWith(within(t), client)
	require.NoError(t, err)
	return response
}

// setLimit changes max.message.bytes of the scene's topic.
func (s *scene) setLimit(limit int) {
	s.t.Helper()
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, s.topic
	setting := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	setting.Name, setting.Value = "max.message.bytes", new(fmt.Sprint(limit))
	resource.Configs = append(resource.Configs, setting)
	request.Resources = append(request.Resources, resource)
	require.NoError(s.t, kerr.ErrorForCode(ask(s.t, s.link.Addr(), request).Resources[0].ErrorCode))
}

func (s *scene) deleteTopic(name string) {
	s.t.Helper()
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.TimeoutMillis = 10_000
	request.TopicNames = []string{name}
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = &name
	request.Topics = append(request.Topics, topic)
	require.NoError(s.t, kerr.ErrorForCode(ask(s.t, s.link.Addr(), request).Topics[0].ErrorCode))
}

// values returns the values of the topic's records in their order, partition
// after partition, as committed ones are read; idempotent records all are.
func (s *scene) values() []string { return s.committed() }

// numbered publishes first..last of one aggregate with padding, until an error.
func numbered(ctx context.Context, p *publisher.Publisher, first, last int) error {
	for i := first; i <= last; i++ {
		if err := p.Publish(ctx, event(uint64(i), "a", fmt.Sprint(i))); err != nil {
			return err
		}
	}
	return p.Flush(ctx)
}

// K14: 300 small records to a topic whose limit was lowered below the
// producer's batch while it was running all arrive, in their order: the first
// producer learns it from a refused batch, the next one sends one by one.
func TestLimitLoweredLive(t *testing.T) {
	s := newScene(t)
	cfg := s.config()
	cfg.Compression = "none" // 300 records that are alike would become one small batch
	p, acks := start(t, cfg)
	require.NoError(t, numbered(within(t), p, 0, 9))
	s.setLimit(5000)
	held := s.inject(kafkaproxy.Produce, kafkaproxy.Hold)
	send := func(p *publisher.Publisher, first int) error {
		for i := first; i < 310; i++ {
			ev := event(uint64(i), "a", fmt.Sprint(i))
			ev.Row.Headers = fmt.Appendf(nil, `{"padding": "%x"}`, noise(100))
			if err := p.Publish(within(t), ev); err != nil {
				return err
			}
		}
		return p.Flush(within(t))
	}
	failed := make(chan error, 1)
	go func() { failed <- send(p, 10) }()
	s.hit(held, 1) // the batches behind it grow meanwhile
	require.Eventually(t, func() bool { events, _ := p.InFlight(); return events == 300 }, patience, time.Millisecond)
	held.Release()
	err := <-failed
	var narrow *publisher.NarrowError
	require.ErrorAs(t, err, &narrow)
	require.Equal(t, s.topic, narrow.Topic)
	require.NoError(t, p.Close())

	cfg.Narrow = []string{narrow.Topic}
	next, more := start(t, cfg)
	require.NoError(t, send(next, len(acks.all())))
	require.NoError(t, next.Close())
	require.Len(t, more.all(), 310-len(acks.all()))
	require.Equal(t, numbers(0, 309), firsts(s.values()))
	require.Len(t, s.values(), 310, "none twice: what was refused was in no log")
}

// K12: a topic deleted with records in flight fails the producer with its name;
// the next one holds that route and serves the others, and goes on when the
// topic is back.
func TestTopicDeletedInFlight(t *testing.T) {
	s := newScene(t)
	other := s.topic + "-other"
	require.NoError(t, s.CreateTopic(t.Context(), other, 1, nil))
	cfg := s.config()
	cfg.Routes = []publisher.Route{{Match: publisher.Match{AggregateType: "other"}, Topic: other}, {Topic: s.topic}}
	elsewhere := publisher.Event{Row: row("a", "x")}
	elsewhere.Row.AggregateType = "other"
	p, _ := start(t, cfg)
	require.NoError(t, numbered(within(t), p, 0, 9))
	require.NoError(t, p.Publish(within(t), elsewhere))
	require.NoError(t, p.Flush(within(t)))
	s.deleteTopic(s.topic)
	for i := 10; i < 20; i++ {
		if p.Publish(within(t), event(uint64(i), "a", fmt.Sprint(i))) != nil {
			break
		}
	}
	waitFor(t, p.Failed())
	var lost *publisher.LostRouteError
	require.ErrorAs(t, p.Err(), &lost)
	require.Equal(t, s.topic, lost.Route)
	require.NoError(t, p.Close())

	next, _ := start(t, cfg)
	require.ErrorIs(t, next.Publish(within(t), event(10, "a", "10")), publisher.ErrRoute)
	require.NoError(t, next.Publish(within(t), elsewhere))
	require.NoError(t, next.Flush(within(t)))
	require.NoError(t, s.CreateTopic(t.Context(), s.topic, 1, nil))
	require.Eventually(t, func() bool { return next.Publish(within(t), event(10, "a", "10")) == nil }, patience, 50*time.Millisecond)
	require.NoError(t, numbered(within(t), next, 11, 19))
	require.Equal(t, numbers(10, 19), s.values())
}

// K13: a topic made anew under the producer, whose sequence numbers the new one
// has never seen.
func TestTopicMadeAnew(t *testing.T) {
	s := newScene(t)
	p, _ := start(t, s.config())
	require.NoError(t, numbered(within(t), p, 0, 9))
	s.deleteTopic(s.topic)
	require.Eventually(t, func() bool { return s.CreateTopic(t.Context(), s.topic, 1, nil) == nil }, patience, 50*time.Millisecond)
	err := numbered(within(t), p, 10, 59)
	if err != nil { // either is right; what counts is that the next one goes on
		require.ErrorIs(t, err, publisher.ErrFailed)
		require.NoError(t, p.Close())
		p, _ = start(t, s.config())
		require.NoError(t, numbered(within(t), p, 10, 59))
	}
	require.Equal(t, numbers(10, 59), firsts(s.values()))
}

// K11: partitions are added to a topic in use.
func TestPartitionsAdded(t *testing.T) {
	s := newScene(t)
	cfg := s.config()
	cfg.TopicRefresh = time.Second
	halting := cfg
	halting.PartitionChange = publisher.PartitionsHalt
	goesOn, acks := start(t, cfg)
	halts, _ := start(t, halting)
	require.NoError(t, numbered(within(t), goesOn, 0, 9))
	require.NoError(t, halts.Publish(within(t), event(0, "b", "0")))
	request := kmsg.NewPtrCreatePartitionsRequest()
	grow := kmsg.NewCreatePartitionsRequestTopic()
	grow.Topic, grow.Count = s.topic, 7
	request.TimeoutMillis = 10_000
	request.Topics = append(request.Topics, grow)
	require.NoError(t, kerr.ErrorForCode(ask(t, s.link.Addr(), request).Topics[0].ErrorCode))
	tag := uint64(10)
	require.Eventually(t, func() bool {
		require.NoError(t, goesOn.Publish(within(t), event(tag, "a", "x")))
		tag++
		err := halts.Publish(within(t), event(1, "b", "1"))
		require.True(t, err == nil || errors.Is(err, publisher.ErrPartitions), "%v", err)
		require.NoError(t, goesOn.Flush(within(t)))
		return err != nil && s.records(publisher.Partition([]byte("a"), 7)) > 0
	}, patience, 50*time.Millisecond)
	require.Len(t, acks.all(), int(tag))
	require.ErrorIs(t, halts.Publish(within(t), event(1, "b", "1")), publisher.ErrPartitions)
}

// records returns how many records a partition of the topic holds.
func (s *scene) records(partition int32) int64 {
	s.t.Helper()
	request := kmsg.NewPtrListOffsetsRequest()
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = s.topic
	one := kmsg.NewListOffsetsRequestTopicPartition()
	one.Partition, one.Timestamp = partition, -1
	topic.Partitions = append(topic.Partitions, one)
	request.Topics = append(request.Topics, topic)
	found := ask(s.t, s.link.Addr(), request).Topics[0].Partitions[0]
	if found.ErrorCode != 0 {
		return 0 // not there yet
	}
	return found.Offset
}

// A missing topic is made as configured, on a real cluster too, and a factor
// that it cannot have is named.
func TestTopicsAreCreatedOnARealBroker(t *testing.T) {
	s := newScene(t)
	cfg := s.config()
	cfg.Routes = []publisher.Route{{Topic: s.topic + "-{aggregate_type}"}}
	cfg.Topics = publisher.Topics{Create: true, Partitions: 4, ReplicationFactor: 3}
	p, _ := start(t, cfg)
	require.ErrorContains(t, settled(t, p, event(0, "a", "x")), "set topics.replication_factor of the relay's configuration, which is 3, to 1")
	require.NoError(t, p.Close())
	cfg.Topics.ReplicationFactor = 1
	p, _ = start(t, cfg)
	once(t, p, event(0, "a", "0"))
	require.NoError(t, numbered(within(t), p, 1, 9))
	reports, err := publisher.Inspect(t.Context(), cfg, []string{s.topic + "-order"})
	require.NoError(t, err)
	require.Equal(t, 4, reports[0].Partitions)
}

// K3: the answer to a produce request is lost after the broker has done its
// work; what is sent again is dropped there.
func TestLostProduceReply(t *testing.T) {
	s := newScene(t)
	p, acks := start(t, s.config())
	lost := s.inject(kafkaproxy.Produce, kafkaproxy.DropReply)
	require.NoError(t, numbered(within(t), p, 0, 99))
	require.Equal(t, 1, lost.Hits())
	require.Len(t, acks.all(), 100)
	require.Equal(t, numbers(0, 99), s.values())
}

// K9: without transactions nothing fences a dead relay: a request of its that
// arrives late writes its records once more, behind those of the next relay,
// which breaks no order of first occurrences.
func TestLateProduceOfADeadRelay(t *testing.T) {
	s := newScene(t)
	p, acks := start(t, s.config())
	require.NoError(t, numbered(within(t), p, 0, 4))
	late := s.inject(kafkaproxy.Produce, kafkaproxy.Hold)
	require.NoError(t, p.Publish(within(t), event(5, "a", "5")))
	s.hit(late, 1)
	require.NoError(t, p.Close()) // which cuts its connections: the relay is dead
	require.Len(t, acks.all(), 5)
	next, _ := start(t, s.config())
	require.NoError(t, numbered(within(t), next, 5, 9))
	require.NoError(t, late.Deliver(within(t)))
	require.Equal(t, append(numbers(0, 9), "5"), s.values())
}
