//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// behind is a client that reaches the brokers past the faults of the network.
func (g *ground) behind(t *testing.T) *kgo.Client {
	t.Helper()
	servers := map[string]string{}
	for _, l := range g.network.Links() {
		servers[l.Addr()] = l.Server()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(g.cluster.Addrs()...), kgo.RequestRetries(2),
		kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, servers[address])
		}))
	require.NoError(t, err)
	return client
}

// kafkaCheckpoint reads the checkpoint of an exactly-once relay as it is in
// Kafka now; ok is false when there is none. A commit that was decided and whose
// marker has not come to the group's coordinator yet is waited for, as a relay
// waits for it: without RequireStable, the position before would be read.
func kafkaCheckpoint(ctx context.Context, client *kgo.Client, group string) (at pglogrepl.LSN, ok bool, err error) {
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = group
	topic := kmsg.NewOffsetFetchRequestTopic()
	topic.Topic, topic.Partitions = checkpointTopic, []int32{0}
	request.Topics = append(request.Topics, topic)
	request.RequireStable = true
	for {
		answer, err := client.Request(ctx, request)
		if err != nil {
			return 0, false, err
		}
		fetched, isIt := answer.(*kmsg.OffsetFetchResponse)
		if !isIt || len(fetched.Topics) != 1 || len(fetched.Topics[0].Partitions) != 1 {
			return 0, false, fmt.Errorf("fetch the checkpoint: %+v", answer)
		}
		found := fetched.Topics[0].Partitions[0]
		switch err := kerr.ErrorForCode(found.ErrorCode); {
		case err == nil:
			return pglogrepl.LSN(found.Offset), found.Offset >= 0, nil
		case !errors.Is(err, kerr.UnstableOffsetCommit):
			return 0, false, err
		case wait(ctx, 5*time.Millisecond) != nil:
			return 0, false, ctx.Err()
		}
	}
}

// id is the transactional id of the arena's relay, and the name of its group.
func (a *arena) id() string {
	a.t.Helper()
	return "onceward-" + scalar[string](a.environment, `SELECT system_identifier::text FROM pg_control_system()`) + "-" + a.slot()
}

// transactionState asks the coordinator for the state of the relay's transaction,
// such as Ongoing or CompleteAbort.
func (a *arena) transactionState(client *kgo.Client) string {
	a.t.Helper()
	request := kmsg.NewPtrDescribeTransactionsRequest()
	request.TransactionalIDs = []string{a.id()}
	ctx, cancel := context.WithTimeout(a.t.Context(), 10*time.Second)
	defer cancel()
	answer, err := client.Request(ctx, request)
	require.NoError(a.t, err)
	described, ok := answer.(*kmsg.DescribeTransactionsResponse)
	require.True(a.t, ok && len(described.TransactionStates) == 1, "%+v", answer)
	return described.TransactionStates[0].State
}

// checkpoints samples the slot and Kafka while an exactly-once relay is at work:
// the slot is never ahead of the checkpoint in Kafka, which never goes back.
type checkpoints struct {
	a       *arena
	id      string
	client  *kgo.Client
	end     context.CancelFunc
	done    chan struct{}
	samples int
	last    pglogrepl.LSN
	found   []violation
}

// watchCheckpoints samples until stop is called.
func (a *arena) watchCheckpoints() *checkpoints {
	ctx, cancel := context.WithCancel(a.t.Context())
	c := &checkpoints{a: a, id: a.id(), client: a.ground.behind(a.t), end: cancel, done: make(chan struct{})}
	go c.run(ctx)
	a.t.Cleanup(func() { c.stop() })
	return c
}

// stop ends the sampling; safe to call twice.
func (c *checkpoints) stop() *checkpoints {
	c.end()
	<-c.done
	return c
}

func (c *checkpoints) run(ctx context.Context) {
	defer close(c.done)
	defer c.client.Close()
	for wait(ctx, 30*time.Millisecond) == nil {
		c.look(ctx)
	}
}

// look reads the slot first, and Kafka after it. Either may be down.
func (c *checkpoints) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var text string
	err := c.a.pool.QueryRow(ctx, `SELECT coalesce(confirmed_flush_lsn::text, '') FROM pg_replication_slots WHERE slot_name = $1`, c.a.slot()).Scan(&text)
	if err != nil || text == "" {
		return
	}
	flushed, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return
	}
	at, ok, err := kafkaCheckpoint(ctx, c.client, c.id)
	if err != nil || !ok {
		return
	}
	c.samples++
	if flushed > at {
		c.found = append(c.found, violation{confirmAfterDurable, fmt.Sprintf("the slot stands at %s, the checkpoint in Kafka read after it at %s", flushed, at)})
	}
	if at < c.last {
		c.found = append(c.found, violation{checkpointMonotone, fmt.Sprintf("in Kafka: %s, then %s", c.last, at)})
	}
	c.last = at
}
