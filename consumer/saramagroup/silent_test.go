package saramagroup_test

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/consumer/saramagroup"
	"github.com/onceward/onceward/internal/kafkaproxy"
)

// silence is a Kafka behind a network that holds what it is told to, and a member there.
type silence struct {
	t       *testing.T
	network *kafkaproxy.Network
	link    *kafkaproxy.Link
	dialed  chan struct{}
	handler *handler
	ended   chan error
	cancel  context.CancelFunc
}

// Dial connects to the link, whatever broker is asked for.
func (s *silence) Dial(network, _ string) (net.Conn, error) {
	conn, err := net.Dial(network, s.link.Addr())
	select {
	case s.dialed <- struct{}{}:
	default:
	}
	return conn, err
}

func (s *silence) start(adjust ...func(*saramagroup.Config)) {
	ctx, cancel := context.WithCancel(s.t.Context())
	s.cancel = cancel
	s.t.Cleanup(cancel)
	cfg := saramagroup.Config{
		Topics: []string{topic}, Insecure: true, DrainTimeout: 100 * time.Millisecond, CommitInterval: time.Hour, Logger: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	}.Hooks(func(c *sarama.Config) {
		c.Consumer.MaxWaitTime, c.Metadata.Retry.Backoff = 50*time.Millisecond, 10*time.Millisecond
		c.Net.ReadTimeout = time.Hour // an answer is waited for as good as for ever
		c.Net.Proxy.Enable, c.Net.Proxy.Dialer = true, s
	}, nil).Close(400 * time.Millisecond)
	for _, f := range adjust {
		f(&cfg)
	}
	go func() { s.ended <- saramagroup.Run(ctx, []string{"kafka:9092"}, s.handler, cfg) }()
}

func (s *silence) hold(key kafkaproxy.Key) *kafkaproxy.Injected {
	return s.network.Inject(kafkaproxy.Fault{Key: key})
}

// met waits until the fault holds a request, and lets nothing pass from then on.
func (s *silence) met(fault *kafkaproxy.Injected) {
	s.t.Helper()
	require.NoError(s.t, fault.Wait(s.t.Context(), 1))
	s.fallSilent()
}

func (s *silence) fallSilent() {
	for _, direction := range []kafkaproxy.Direction{kafkaproxy.Up, kafkaproxy.Down} {
		s.link.Shape(direction, kafkaproxy.Traffic{Stalled: true})
	}
}

// TestRunEndsWhileKafkaIsSilent: whatever Kafka was asked for, Run ends when its context has,
// and does not wait for the answer.
func TestRunEndsWhileKafkaIsSilent(t *testing.T) {
	for name, until := range map[string]func(s *silence){
		"at the start": func(s *silence) {
			s.fallSilent()
			s.start()
			<-s.dialed
		},
		"while it joins": func(s *silence) {
			joins := s.hold(kafkaproxy.JoinGroup)
			s.start()
			s.met(joins)
		},
		"while it begins": func(s *silence) {
			asks := s.hold(kafkaproxy.OffsetFetch)
			s.start()
			s.met(asks)
		},
		"while it fetches": func(s *silence) {
			s.start()
			<-s.handler.finished
			s.met(s.hold(kafkaproxy.Fetch))
		},
		"at a commit": func(s *silence) {
			commits := s.hold(kafkaproxy.OffsetCommit)
			s.start(func(c *saramagroup.Config) { c.CommitInterval = time.Millisecond })
			s.met(commits)
		},
		"at the last commit": func(s *silence) {
			s.hold(kafkaproxy.OffsetCommit)
			s.start()
			<-s.handler.finished
		},
		"while it copies a letter": func(s *silence) {
			s.handler.house.letters = letters(3)
			puts := s.hold(kafkaproxy.Produce)
			s.start(toGraveyard, func(c *saramagroup.Config) { c.HousekeepingInterval = time.Millisecond })
			s.met(puts)
		},
		"when it leaves": func(s *silence) {
			s.hold(kafkaproxy.LeaveGroup)
			s.start()
			<-s.handler.finished
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic, graveyard))
			require.NoError(t, err)
			t.Cleanup(cluster.Close)
			produceTo(t, cluster)
			s := &silence{t: t, network: kafkaproxy.New(), dialed: make(chan struct{}, 1), handler: newHandler(nil), ended: make(chan error, 1)}
			t.Cleanup(func() { require.NoError(t, s.network.Close()) })
			s.link, err = s.network.Add(t.Context(), cluster.ListenAddrs()[0])
			require.NoError(t, err)
			until(s)
			began := time.Now()
			s.cancel()
			require.NoError(t, <-s.ended)
			t.Logf("ended within %s", time.Since(began))
		})
	}
}

// produceTo writes one message.
func produceTo(t *testing.T, cluster *kfake.Cluster) {
	t.Helper()
	s := sarama.NewConfig()
	s.Producer.Return.Successes = true
	p, err := sarama.NewSyncProducer(cluster.ListenAddrs(), s)
	require.NoError(t, err)
	defer closing(t, p)
	_, _, err = p.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("{}")})
	require.NoError(t, err)
}
