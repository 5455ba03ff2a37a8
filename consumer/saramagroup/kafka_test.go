package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/rcrowley/go-metrics"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

func TestMain(m *testing.M) {
	metrics.UseNilMetrics = true // else a goroutine of its own, for ever
	for variable, run := range map[string]func(brokers string) error{
		"ONCEWARD_BOMB_BROKERS":    alone,
		"ONCEWARD_COUNTED_BROKERS": counted,
		"ONCEWARD_KILLED_BROKERS":  func(brokers string) error { return killed(brokers, os.Getenv("ONCEWARD_KILLED_DSN")) },
		"ONCEWARD_SHOUT_BROKERS":   func(brokers string) error { return shouting(brokers, os.Getenv("ONCEWARD_SHOUT_DEFECT")) },
	} {
		brokers := os.Getenv(variable)
		if brokers == "" {
			continue
		}
		if err := run(brokers); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// sarama's producers count errors of a topic for ten seconds, which nothing ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/eapache/go-resiliency/breaker.(*Breaker).timer"))
}

const (
	topic     = "orders"
	clusterID = "cluster"
)

// kafka is an in-process cluster on a virtual network, in fake time.
type kafka struct {
	t       *testing.T
	cluster *kfake.Cluster
	network kfake.VirtualNetwork

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

// inFakeTime runs the test in a bubble with a cluster and a topic.
func inFakeTime(t *testing.T, test func(k *kafka)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &kafka{t: t, conns: make(map[net.Conn]bool)}
		var err error
		k.cluster, err = kfake.NewCluster(kfake.NumBrokers(2), kfake.Ports(9092, 9093), kfake.ListenFn(k.network.Listen), kfake.SeedTopics(2, topic), kfake.ClusterID(clusterID))
		require.NoError(t, err)
		// sarama holds a mutex of the broker during a request, and fake time
		// stands still while anybody waits for a mutex: the fetches, which
		// last, go to another broker than the commits.
		for p := range int32(2) {
			require.NoError(t, k.cluster.MoveTopicPartition(topic, p, 1-k.cluster.CoordinatorFor("billing")))
		}
		// Goroutines of sarama that sleep end in time, which stands still when
		// the test function has returned.
		defer func() { <-time.After(time.Minute) }()
		defer k.cluster.Close()
		test(k)
	})
}

// Dial connects to the broker unless the network is down.
func (k *kafka) Dial(_, addr string) (net.Conn, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down {
		return nil, errors.New("network is down")
	}
	conn, err := k.network.DialContext(context.Background(), "tcp", addr)
	if err == nil {
		k.conns[conn] = true
	}
	return conn, err
}

// cut closes all connections and refuses new ones, until it is called again.
func (k *kafka) cut(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = down
	for conn := range k.conns {
		_ = conn.Close()
		delete(k.conns, conn)
	}
}

// dialer connects a client to the bubble's network. It looks for new partitions less often
// than the tests last: a look waits for the mutex of a broker.
func (k *kafka) dialer(s *sarama.Config) {
	s.Metadata.RefreshFrequency = time.Hour
	s.Net.Proxy.Enable = true
	s.Net.Proxy.Dialer = k
}

// client returns a client for the test's own use.
func (k *kafka) client(adjust func(*sarama.Config)) sarama.Client {
	k.t.Helper()
	s := sarama.NewConfig()
	s.Version = sarama.V2_8_0_0
	s.Producer.RequiredAcks = sarama.WaitForAll
	s.Producer.Return.Successes = true
	s.Producer.Partitioner = sarama.NewManualPartitioner
	k.dialer(s)
	if adjust != nil {
		adjust(s)
	}
	c, err := sarama.NewClient(k.cluster.ListenAddrs(), s)
	require.NoError(k.t, err)
	return c
}

// produce writes n messages to each of the two partitions.
func (k *kafka) produce(n int) {
	k.t.Helper()
	var msgs []*sarama.ProducerMessage
	for i := range 2 * n {
		msgs = append(msgs, &sarama.ProducerMessage{Topic: topic, Partition: int32(i % 2), Value: sarama.StringEncoder(fmt.Sprint(i))})
	}
	k.send(msgs...)
}

func (k *kafka) send(msgs ...*sarama.ProducerMessage) {
	k.t.Helper()
	k.producer(nil, func(p sarama.AsyncProducer) { k.sendWith(p, msgs...) })
}

// producer makes an asynchronous one: the synchronous keeps channels in a pool
// of the process, which bubbles must not share.
func (k *kafka) producer(adjust func(*sarama.Config), do func(sarama.AsyncProducer)) {
	k.t.Helper()
	c := k.client(adjust)
	defer closing(k.t, c)
	p, err := sarama.NewAsyncProducerFromClient(c)
	require.NoError(k.t, err)
	defer closing(k.t, p)
	do(p)
}

func (k *kafka) sendWith(p sarama.AsyncProducer, msgs ...*sarama.ProducerMessage) {
	k.t.Helper()
	for _, msg := range msgs {
		p.Input() <- msg
		select {
		case <-p.Successes():
		case err := <-p.Errors():
			require.NoError(k.t, err)
		}
	}
}

// topicID is the id that the topic has now.
func (k *kafka) topicID() uuid.UUID { return k.cluster.TopicInfo(topic).TopicID }

// remake deletes the topic and makes it anew.
func (k *kafka) remake() {
	k.t.Helper()
	require.NoError(k.t, k.cluster.DeleteTopic(topic))
	require.NoError(k.t, k.cluster.CreateTopic(topic, 2, nil))
	for p := range int32(2) {
		require.NoError(k.t, k.cluster.MoveTopicPartition(topic, p, 1-k.cluster.CoordinatorFor("billing")))
	}
}

// commits sets the group's offset of a partition, with metadata.
func (k *kafka) commits(partition int32, offset int64, metadata string) {
	k.t.Helper()
	c := k.client(nil)
	defer closing(k.t, c)
	coordinator, err := c.Coordinator("billing")
	require.NoError(k.t, err)
	request := &sarama.OffsetCommitRequest{Version: 2, ConsumerGroup: "billing", ConsumerGroupGeneration: sarama.GroupGenerationUndefined, RetentionTime: -1}
	request.AddBlock(topic, partition, offset, 0, metadata)
	answer, err := coordinator.CommitOffset(request)
	require.NoError(k.t, err)
	require.Equal(k.t, sarama.ErrNoError, answer.Errors[topic][partition])
}

// committed returns the group's committed offsets of both partitions, -1 for
// none.
func (k *kafka) committed() [2]int64 {
	return [2]int64{k.offset(0), k.offset(1)}
}

func (k *kafka) offset(partition int32) int64 {
	info := k.cluster.GroupInfo("billing")
	if info == nil {
		return -1
	}
	commit, ok := info.Commits[topic][partition]
	if !ok {
		return -1
	}
	return commit.Offset
}

// metadata is committed with the group's offset of a partition.
func (k *kafka) metadata(partition int32) string {
	return k.cluster.GroupInfo("billing").Commits[topic][partition].Metadata
}

func closing(t *testing.T, c io.Closer) {
	t.Helper()
	require.NoError(t, c.Close())
}

// defect is a mistake that a test builds in; the zero defect is none.
type defect struct {
	config  func(*sarama.Config)
	member  func(sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler
	handler func(saramagroup.Handler) saramagroup.Handler
}

// run starts a member of the group. The returned function ends it and returns
// what Run returned.
func (k *kafka) run(h saramagroup.Handler, d defect, adjust ...func(*saramagroup.Config)) (stop func() error, ended <-chan error) {
	cfg := saramagroup.Config{Topics: []string{topic}, Insecure: true}.Hooks(func(s *sarama.Config) {
		k.dialer(s)
		if d.config != nil {
			d.config(s)
		}
	}, d.member)
	for _, f := range adjust {
		f(&cfg)
	}
	if d.handler != nil {
		h = d.handler(h)
	}
	ctx, cancel := context.WithCancel(k.t.Context())
	done := make(chan error, 1)
	go func() { done <- saramagroup.Run(ctx, k.cluster.ListenAddrs(), h, cfg) }()
	return func() error { cancel(); return <-done }, done
}

// handler records what it is given. react decides about each delivery, the
// first attempt being 1; nil processes everything.
type handler struct {
	react    func(ctx context.Context, rec consumer.Record, attempt int) (consumer.Outcome, error)
	finished chan consumer.Record // one for each acknowledged delivery

	batch *consumer.BatchOptions // of every record
	db    *database
	house house

	mu       sync.Mutex
	attempts map[consumer.Source]int
	batches  []int

	cautiously []consumer.Source

	unreadable []consumer.Unreadable
}

func newHandler(react func(ctx context.Context, rec consumer.Record, attempt int) (consumer.Outcome, error)) *handler {
	return &handler{react: react, finished: make(chan consumer.Record, 1000), attempts: make(map[consumer.Source]int), db: newDatabase()}
}

func (*handler) Group() string { return "billing" }
func (*handler) Err() error    { return nil }

func (*handler) Attend() (leave func(), err error) { return func() {}, nil }

func (h *handler) Peek(consumer.Record) consumer.Peek { return consumer.Peek{Batch: h.batch} }

func (h *handler) HandleRecords(ctx context.Context, recs []consumer.Record) []consumer.Delivery {
	h.mu.Lock()
	h.batches = append(h.batches, len(recs))
	h.mu.Unlock()
	deliveries := make([]consumer.Delivery, len(recs))
	for i, rec := range recs {
		deliveries[i].Outcome, deliveries[i].Err = h.HandleRecord(ctx, rec)
	}
	return deliveries
}

func (h *handler) KeepUnreadable(_ context.Context, u consumer.Unreadable) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unreadable = append(h.unreadable, u)
	return nil
}

func (h *handler) SaveProgress(_ context.Context, history string, marks []consumer.Mark) error {
	return h.db.save(history, marks)
}

func (h *handler) BeginProgress(_ context.Context, history string, marks []consumer.Mark) error {
	return h.db.begin(history, marks)
}

func (h *handler) EndProgress(_ context.Context, marks []consumer.Mark) error {
	h.db.set(func(d *database) {
		d.closed += len(marks)
		for _, m := range marks {
			d.doubts[m.Partition] = m.Crashed
		}
	})
	return nil
}

func (h *handler) HandleCautiously(ctx context.Context, rec consumer.Record) (consumer.Outcome, error) {
	h.mu.Lock()
	h.cautiously = append(h.cautiously, rec.Source)
	h.mu.Unlock()
	return h.HandleRecord(ctx, rec)
}

func (h *handler) Progress(context.Context) (consumer.Progress, error) { return h.db.progress() }

// database is the part of one that the members of a group share.
type database struct {
	mu      sync.Mutex
	marks   map[int32]consumer.Mark
	closed  int             // partitions of sessions that have ended
	doubts  map[int32]bool  // Mark.Crashed at the end of the last one
	earlier []consumer.Mark // of other topics of the name
	ends    map[int32]int   // how often each partition was said to be read to its end
	history string
	away    error
	asked   func() // after progress was read
}

func newDatabase() *database {
	return &database{marks: make(map[int32]consumer.Mark), ends: make(map[int32]int), doubts: make(map[int32]bool)}
}

// set changes the database as something else than the group would.
func (d *database) set(change func(*database)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// mark returns a partition's mark, whatever was read, and how often it was read to its
// end.
func (d *database) mark(partition int32) (m consumer.Mark, ends int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m = d.marks[partition]
	m.Read = 0
	return m, d.ends[partition]
}

func (d *database) save(history string, marks []consumer.Mark) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.away != nil:
		return d.away
	case d.history != history:
		return consumer.ErrHistory
	}
	for _, m := range marks {
		if had, ok := d.marks[m.Partition]; ok {
			m.Low, m.High = min(m.Low, had.Low), max(m.High, had.High)
		}
		if m.AtEnd {
			d.ends[m.Partition]++
		}
		d.marks[m.Partition] = m
	}
	return nil
}

// begin saves marks of a topic that may be another one than before.
func (d *database) begin(history string, marks []consumer.Mark) error {
	d.set(func(d *database) {
		for _, m := range marks {
			had, ok := d.marks[m.Partition]
			switch {
			case !ok || d.away != nil || d.history != history || had.TopicID == m.TopicID:
			case had.TopicID == uuid.Nil:
				had.TopicID = m.TopicID
				d.marks[m.Partition] = had
			default:
				had.Retired = true
				d.earlier = append(d.earlier, had)
				delete(d.marks, m.Partition)
			}
		}
	})
	return d.save(history, marks)
}

func (d *database) progress() (consumer.Progress, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away != nil {
		return consumer.Progress{}, d.away
	}
	if d.asked != nil {
		defer d.asked()
	}
	return consumer.Progress{History: d.history, Database: "shop", Marks: slices.AppendSeq(slices.Clone(d.earlier), maps.Values(d.marks))}, nil
}

func (h *handler) HandleRecord(ctx context.Context, rec consumer.Record) (consumer.Outcome, error) {
	h.mu.Lock()
	h.attempts[rec.Source]++
	attempt := h.attempts[rec.Source]
	h.mu.Unlock()
	outcome, err := consumer.Processed, error(nil)
	if h.react != nil {
		outcome, err = h.react(ctx, rec, attempt)
	}
	if err == nil && outcome.Acknowledges() {
		h.finished <- rec
	}
	return outcome, err
}

// await returns the next n finished records, or an error after a minute of
// fake time.
func (h *handler) await(n int) ([]consumer.Record, error) {
	limit := time.After(time.Minute)
	var recs []consumer.Record
	for len(recs) < n {
		select {
		case rec := <-h.finished:
			recs = append(recs, rec)
		case <-limit:
			return recs, fmt.Errorf("%d of %d messages finished", len(recs), n)
		}
	}
	return recs, nil
}

// awaitEach waits until offset n-1 of both partitions is finished, however
// often others are delivered again.
func (h *handler) awaitEach(n int64) error {
	var reached [2]bool
	for reached != [2]bool{true, true} {
		recs, err := h.await(1)
		if err != nil {
			return err
		}
		if src := recs[0].Source; src.Offset == n-1 {
			reached[src.Partition] = true
		}
	}
	return nil
}

// offsets returns the offsets of one partition's records in their order.
func offsets(recs []consumer.Record, partition int32) []int64 {
	var got []int64
	for _, r := range recs {
		if r.Source.Partition == partition {
			got = append(got, r.Source.Offset)
		}
	}
	return got
}
