//go:build e2e

package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/publisher"
)

// broker is one real broker that the tests share, behind a network with faults.
type broker struct {
	*kafkaserver.Cluster
	network *kafkaproxy.Network
	link    *kafkaproxy.Link
}

var shared = sync.OnceValues(func() (*broker, error) {
	b := &broker{network: kafkaproxy.New()}
	ctx := context.Background()
	var err error
	b.Cluster, err = kafkaserver.Start(ctx, kafkaserver.Options{
		Settings: map[string]string{
			"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
			"inter.broker.listener.name":                                  "CLIENT", // what it asks itself for has faults, too
		},
		Advertise: func(_ int, address string) string {
			if b.link, err = b.network.Add(ctx, address); err != nil {
				return address
			}
			return b.link.Addr()
		},
	})
	stopShared = func() {
		for _, err := range []error{b.network.Close(), b.Stop(ctx)} {
			if err != nil {
				fmt.Fprintln(os.Stderr, "stop the shared broker:", err)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return b, b.CreateTopic(ctx, publisher.DefaultCheckpointTopic, 2, map[string]string{"cleanup.policy": "compact"})
})

// scene is a test's own topic, transactional id and group on the broker.
type scene struct {
	*broker
	t     *testing.T
	topic string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	b, err := shared()
	require.NoError(t, err)
	s := &scene{broker: b, t: t, topic: fmt.Sprintf("t%d", time.Now().UnixNano())}
	t.Cleanup(b.network.Heal)
	require.NoError(t, b.CreateTopic(t.Context(), s.topic, 1, nil))
	return s
}

func (s *scene) config() publisher.Config {
	return publisher.Config{
		Brokers: []string{s.link.Addr()}, ClientID: s.topic,
		Routes: []publisher.Route{{Topic: s.topic}},
	}
}

// slot names the transactions of the scene. Their timeout makes a client wait 2
// seconds for an answer.
func (s *scene) slot() publisher.TransactionConfig {
	return publisher.TransactionConfig{ID: s.topic, Group: s.topic, Timeout: 8 * time.Second}
}

// settle waits for the markers of an end of the scene's transaction that is
// decided: EndTxn is answered before they are written, and until then a reader
// sees the transaction as open.
func (s *scene) settle() {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.link.Addr()))
	require.NoError(s.t, err)
	defer client.Close()
	request := kmsg.NewPtrDescribeTransactionsRequest()
	request.TransactionalIDs = []string{s.slot().ID}
	require.Eventually(s.t, func() bool {
		response, err := request.RequestWith(within(s.t), client)
		if err != nil || len(response.TransactionStates) != 1 {
			return false
		}
		found := response.TransactionStates[0]
		switch err := kerr.ErrorForCode(found.ErrorCode); {
		case errors.Is(err, kerr.TransactionalIDNotFound):
			return true
		case err != nil:
			return false
		}
		return !strings.HasPrefix(found.State, "Prepare")
	}, patience, 5*time.Millisecond, "the transaction's markers are written")
}

func (s *scene) committed() []string {
	s.t.Helper()
	s.settle()
	return readCommitted(s.t, s.topic, kgo.SeedBrokers(s.link.Addr()))
}

// checkpoint returns the position that the next Transactional would begin at,
// without making one.
func (s *scene) checkpoint() publisher.Position {
	s.t.Helper()
	p := startTransactional(s.t, s.config(), s.slot())
	pos, found := p.Checkpoint()
	require.True(s.t, found)
	require.NoError(s.t, p.Close())
	return pos
}

// offsets returns the end of the topic for a reader with read_committed and for
// any other: they differ while a transaction is open.
func (s *scene) offsets() (stable, end int64) {
	s.t.Helper()
	s.settle()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.link.Addr()))
	require.NoError(s.t, err)
	defer client.Close()
	ctx := within(s.t)
	return endOffset(ctx, s.t, client, s.topic, 1), endOffset(ctx, s.t, client, s.topic, 0)
}

// waitForRecords waits until the topic holds n more records or markers than it
// held at offset from.
func (s *scene) waitForRecords(from, n int64) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		_, end := s.offsets()
		return end >= from+n
	}, patience, 20*time.Millisecond)
}

// hit waits until a fault has met n requests.
func (s *scene) hit(fault *kafkaproxy.Injected, n int) {
	s.t.Helper()
	require.NoError(s.t, fault.Wait(within(s.t), n))
}

func (s *scene) inject(key kafkaproxy.Key, action kafkaproxy.Action) *kafkaproxy.Injected {
	return s.network.Inject(kafkaproxy.Fault{Key: key, Action: action, Times: 1, Client: s.topic})
}
