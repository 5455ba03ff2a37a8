package publisher_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

// sarama's circuit breakers leave a timer behind, for 10 s after their errors.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(run{m}, goleak.IgnoreAnyFunction("github.com/eapache/go-resiliency/breaker.(*Breaker).timer"))
}

// run stops what the tests share before leaks are looked for.
type run struct{ tests *testing.M }

func (r run) Run() int {
	defer func() { stopShared() }()
	return r.tests.Run()
}

// stopShared ends the servers that tests with build tag e2e share.
var stopShared = func() {}

// patience bounds every wait of a test; it is reached only by a failure.
const patience = 30 * time.Second

// cluster is a fake Kafka cluster and what a test needs of it.
type cluster struct {
	*kfake.Cluster
	t    testing.TB
	dial func(ctx context.Context, network, address string) (net.Conn, error) // nil for TCP
}

func newCluster(t testing.TB, opts ...kfake.Opt) *cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return &cluster{Cluster: c, t: t}
}

func (c *cluster) config() publisher.Config {
	return publisher.Config{
		Brokers: c.ListenAddrs(),
		Routes:  []publisher.Route{{Topic: "{namespace}.{aggregate_type}"}},
	}
}

// read returns all records of a topic, by partition, as another client than the
// one under test sees them.
func (c *cluster) read(topic string) map[int32][]*kgo.Record {
	c.t.Helper()
	var want int64
	for _, info := range c.PartitionInfos(topic) {
		want += info.HighWatermark
	}
	records := make(map[int32][]*kgo.Record)
	if want == 0 {
		return records
	}
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
	if c.dial != nil {
		opts = append(opts, kgo.Dialer(c.dial))
	}
	client, err := kgo.NewClient(opts...)
	require.NoError(c.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for got := int64(0); got < want; {
		fetches := client.PollFetches(ctx)
		require.NoError(c.t, fetches.Err0())
		fetches.EachRecord(func(r *kgo.Record) {
			records[r.Partition] = append(records[r.Partition], r)
			got++
		})
	}
	return records
}

// values returns the values of a topic's records, partition after partition.
func (c *cluster) values(topic string) []string {
	var values []string
	records := c.read(topic)
	for p := range int32(len(c.PartitionInfos(topic))) {
		for _, r := range records[p] {
			values = append(values, string(r.Value))
		}
	}
	return values
}

// acks collects acknowledged tags.
type acks struct {
	mu   sync.Mutex
	tags []uint64
}

func (a *acks) add(tags []uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tags = append(a.tags, tags...)
}

func (a *acks) all() []uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]uint64(nil), a.tags...)
}

func start(t testing.TB, cfg publisher.Config) (*publisher.Publisher, *acks) {
	t.Helper()
	got := &acks{}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := publisher.New(ctx, cfg, got.add)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p, got
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// row returns a row of aggregate type "order" in namespace "shop".
func row(aggregate, payload string) *outbox.Row {
	return &outbox.Row{
		ID:            uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"),
		Namespace:     "shop",
		AggregateType: "order",
		AggregateID:   []byte(aggregate),
		Type:          "OrderPaid",
		Payload:       []byte(payload),
		ContentType:   "application/json",
		CreatedAt:     time.Date(2026, 10, 1, 12, 30, 0, 123456000, time.UTC),
		TxID:          4711,
		Seq:           1,
	}
}

func event(tag uint64, aggregate, payload string) publisher.Event {
	return publisher.Event{Row: row(aggregate, payload), Tag: tag, Position: "0/16B3748"}
}

// publishNumbered publishes the events first..last of one aggregate, whose
// payload is their number.
func publishNumbered(t testing.TB, p *publisher.Publisher, aggregate string, first, last int) {
	t.Helper()
	ctx := within(t)
	for i := first; i <= last; i++ {
		require.NoError(t, p.Publish(ctx, event(uint64(i), aggregate, fmt.Sprint(i))))
	}
}

// numbers returns first..last as text.
func numbers(first, last int) []string {
	var texts []string
	for i := first; i <= last; i++ {
		texts = append(texts, fmt.Sprint(i))
	}
	return texts
}

// logLines collects what is logged.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// admin sends one administrative request.
func admin[R kmsg.Response](c *cluster, request interface {
	RequestWith(context.Context, kmsg.Requestor) (R, error)
}) R {
	c.t.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}
	if c.dial != nil {
		opts = append(opts, kgo.Dialer(c.dial))
	}
	client, err := kgo.NewClient(opts...)
	require.NoError(c.t, err)
	defer client.Close()
	response, err := request.RequestWith(context.Background(), client)
	require.NoError(c.t, err)
	return response
}

// addPartitions grows a topic.
func (c *cluster) addPartitions(topic string, count int32) {
	c.t.Helper()
	request := kmsg.NewPtrCreatePartitionsRequest()
	grow := kmsg.NewCreatePartitionsRequestTopic()
	grow.Topic, grow.Count = topic, count
	request.Topics = append(request.Topics, grow)
	require.NoError(c.t, kerr.ErrorForCode(admin(c, request).Topics[0].ErrorCode))
}

// setLimit changes a topic's max.message.bytes.
func (c *cluster) setLimit(topic string, limit int) {
	c.t.Helper()
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	setting := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	setting.Name, setting.Value = "max.message.bytes", new(fmt.Sprint(limit))
	resource.Configs = append(resource.Configs, setting)
	request.Resources = append(request.Resources, resource)
	require.NoError(c.t, kerr.ErrorForCode(admin(c, request).Resources[0].ErrorCode))
}
