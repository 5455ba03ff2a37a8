package indoubt_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onceward/onceward/internal/indoubt"
	"github.com/onceward/onceward/internal/kafkaconf"
)

const (
	id    = "slot"
	pid   = 7
	epoch = 3
)

// scripted is a broker that says of the transaction what a test wants.
type scripted struct {
	*kfake.Cluster
	mu     sync.Mutex
	states []string // of the transaction, the last one for ever
	parts  map[string][]kmsg.DescribeProducersResponseTopicPartition
	ended  []kmsg.EndTxnRequest
}

func script(t *testing.T, opts ...kfake.Opt) *scripted {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1), kfake.SeedTopics(1, "events", "more"))...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	s := &scripted{Cluster: c, parts: make(map[string][]kmsg.DescribeProducersResponseTopicPartition)}
	c.ControlKey(int16(kmsg.DescribeTransactions), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		s.mu.Lock()
		defer s.mu.Unlock()
		state := kmsg.NewDescribeTransactionsResponseTransactionState()
		state.TransactionalID, state.ProducerID, state.ProducerEpoch, state.State = id, pid, epoch, s.states[0]
		if state.State == "" {
			state.ErrorCode = kerr.TransactionalIDNotFound.Code
		}
		if len(s.states) > 1 {
			s.states = s.states[1:]
		}
		for _, name := range []string{"events", "more"} {
			topic := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
			topic.Topic, topic.Partitions = name, []int32{0}
			state.Topics = append(state.Topics, topic)
		}
		answer := r.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		answer.TransactionStates = append(answer.TransactionStates, state)
		return answer, nil, true
	})
	c.ControlKey(int16(kmsg.DescribeProducers), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		s.mu.Lock()
		defer s.mu.Unlock()
		answer := r.ResponseKind().(*kmsg.DescribeProducersResponse)
		for _, asked := range r.(*kmsg.DescribeProducersRequest).Topics {
			topic, says := kmsg.NewDescribeProducersResponseTopic(), s.parts[asked.Topic]
			topic.Topic, topic.Partitions = asked.Topic, says[:1]
			if len(says) > 1 {
				s.parts[asked.Topic] = says[1:]
			}
			answer.Topics = append(answer.Topics, topic)
		}
		return answer, nil, true
	})
	c.ControlKey(int16(kmsg.EndTxn), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = append(s.ended, *r.(*kmsg.EndTxnRequest))
		return r.ResponseKind(), nil, true
	})
	return s
}

// finish is Finish, with what was logged and how often it paused.
func (s *scripted) finish(t *testing.T) (log string, pauses int, err error) {
	t.Helper()
	var logged strings.Builder
	coordinator := func(bool) (string, error) { return s.ListenAddrs()[0], nil }
	err = indoubt.Finish(kafkaconf.New("test", sarama.V2_8_0_0), id, coordinator, func(time.Duration) bool { pauses++; return true }, slog.New(slog.NewTextHandler(&logged, nil)))
	return logged.String(), pauses, err
}

// What a partition says of producers.
func says(producers ...kmsg.DescribeProducersResponseTopicPartitionActiveProducer) kmsg.DescribeProducersResponseTopicPartition {
	p := kmsg.NewDescribeProducersResponseTopicPartition()
	p.ActiveProducers = producers
	return p
}

func refuses(err *kerr.Error) kmsg.DescribeProducersResponseTopicPartition {
	p := kmsg.NewDescribeProducersResponseTopicPartition()
	p.ErrorCode = err.Code
	return p
}

func producer(id int64, epoch int32, open int64) kmsg.DescribeProducersResponseTopicPartitionActiveProducer {
	p := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
	p.ProducerID, p.ProducerEpoch, p.CurrentTxnStartOffset, p.LastSequence = id, epoch, open, 0
	return p
}

func TestFinish(t *testing.T) {
	t.Parallel()
	type partition = kmsg.DescribeProducersResponseTopicPartition
	open, ended, unknown := says(producer(pid, epoch, 5)), says(producer(pid, epoch, -1)), says()
	earlier, aborted, another := says(producer(pid, epoch-1, -1)), says(producer(pid, epoch+1, -1)), says(producer(pid+1, epoch, -1))
	bare := says(producer(pid, epoch, -1))
	bare.ActiveProducers[0].LastSequence = -1
	for name, tc := range map[string]struct {
		states       []string
		events, more []partition
		commits      bool
		pauses       int
		logs, fails  string
	}{
		"never used":                      {states: []string{""}},
		"nothing is open":                 {states: []string{"CompleteCommit"}},
		"all of it is open":               {states: []string{"Ongoing"}, events: []partition{open}, more: []partition{open}},
		"a partition has nothing of it":   {states: []string{"Ongoing"}, events: []partition{open}, more: []partition{unknown}},
		"only the transaction before":     {states: []string{"Ongoing"}, events: []partition{open}, more: []partition{earlier}},
		"one has an abort":                {states: []string{"Ongoing"}, events: []partition{open}, more: []partition{aborted}},
		"another producer":                {states: []string{"Ongoing"}, events: []partition{another}, more: []partition{open}},
		"the first has ended":             {states: []string{"Ongoing"}, events: []partition{ended}, more: []partition{open}, commits: true},
		"the last has ended":              {states: []string{"Ongoing"}, events: []partition{open}, more: []partition{ended}, commits: true},
		"one may not be read":             {states: []string{"Ongoing"}, events: []partition{refuses(kerr.TopicAuthorizationFailed)}, more: []partition{ended}, commits: true},
		"none may be read":                {states: []string{"Ongoing"}, events: []partition{open}, more: []partition{refuses(kerr.TopicAuthorizationFailed)}, logs: "grant READ"},
		"the decision is made":            {states: []string{"PrepareCommit", "PrepareAbort", "Ongoing"}, events: []partition{ended}, more: []partition{open}, commits: true, pauses: 2},
		"the leader moves":                {states: []string{"Ongoing"}, events: []partition{refuses(kerr.NotLeaderForPartition), ended}, more: []partition{open}, commits: true, pauses: 1},
		"the leader is away":              {states: []string{"Ongoing"}, events: []partition{refuses(kerr.NotLeaderForPartition)}, more: []partition{open}, pauses: 69, fails: "events/0"},
		"one is away, and one is refused": {states: []string{"Ongoing"}, events: []partition{refuses(kerr.TopicAuthorizationFailed)}, more: []partition{refuses(kerr.NotLeaderForPartition)}, pauses: 69, fails: "more/0"},
		"one is refused, and one is away": {states: []string{"Ongoing"}, events: []partition{refuses(kerr.NotLeaderForPartition)}, more: []partition{refuses(kerr.TopicAuthorizationFailed)}, pauses: 69, fails: "events/0"},
		"an abort has its epoch":          {states: []string{"Ongoing"}, events: []partition{bare}, more: []partition{open}},
		"it is under way for ever":        {states: []string{"PrepareCommit"}, pauses: 69, fails: "under way"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := script(t)
			s.states, s.parts["events"], s.parts["more"] = tc.states, tc.events, tc.more
			log, pauses, err := s.finish(t)
			if tc.fails == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.fails)
			}
			require.Equal(t, tc.pauses, pauses)
			require.Contains(t, log, tc.logs)
			if !tc.commits {
				require.Empty(t, s.ended)
				return
			}
			require.Contains(t, log, "committed what was left")
			require.Len(t, s.ended, 1)
			end := s.ended[0]
			require.Equal(t, []any{id, int64(pid), int16(epoch), true}, []any{end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit})
		})
	}
}

// A topic that is gone says nothing, and is waited for by nobody.
func TestFinishWithoutATopic(t *testing.T) {
	t.Parallel()
	s := script(t)
	require.NoError(t, s.DeleteTopic("events"))
	s.states, s.parts["more"] = []string{"Ongoing"}, []kmsg.DescribeProducersResponseTopicPartition{says(producer(pid, epoch, -1))}
	_, pauses, err := s.finish(t)
	require.NoError(t, err)
	require.Zero(t, pauses)
	require.Len(t, s.ended, 1)
}

// Brokers that do not know the questions are no obstacle.
func TestFinishWithBrokersBefore30(t *testing.T) {
	t.Parallel()
	s := script(t, kfake.MaxVersions(kversion.V2_8_0()))
	s.states = []string{"Ongoing"}
	_, pauses, err := s.finish(t)
	require.NoError(t, err)
	require.Zero(t, pauses)
	require.Empty(t, s.ended)
}
