//go:build e2e

package publisher_test

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/publisher"
)

// The group's coordinator stands still, another is elected and takes commits,
// and the old one wakes: as long as it has not learned what has happened, it
// answers from what it remembers. Requests that came while it stood still are
// the first that it answers.
func TestDeposedCoordinatorIsNotBelieved(t *testing.T) {
	c, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Brokers: 3, Settings: map[string]string{"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "200"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
	require.NoError(t, c.CreateTopic(t.Context(), "shop.order", 1, nil))
	require.NoError(t, c.CreateTopic(t.Context(), publisher.DefaultCheckpointTopic, 2, map[string]string{"cleanup.policy": "compact"}))
	slot := oneSlot()
	slot.Timeout = 8 * time.Second // 2 for an answer
	commit := func(brokers []string, pos publisher.Position) {
		var p *publisher.Transactional
		require.Eventually(t, func() bool { // another coordinator is elected
			p, err = publisher.NewTransactional(within(t), publisher.Config{Brokers: brokers, Routes: []publisher.Route{{Topic: "shop.order"}}}, slot)
			return err == nil
		}, 4*patience, 100*time.Millisecond)
		require.NoError(t, p.Commit(within(t), pos))
		require.NoError(t, p.Close())
	}
	next := uint64(1)
	// overtaken is what a reader is told by a coordinator that was deposed while
	// its request waited, and the positions before and after.
	overtaken := func(tx publisher.TransactionConfig) (told answer, before, after publisher.Position) {
		before, after = at(next), at(next+1)
		next += 2
		commit(c.Addrs(), before)
		tx.Topic = publisher.DefaultCheckpointTopic
		group, err := publisher.NewGroup(c.Addrs(), tx)
		require.NoError(t, err)
		defer group.Forget()
		read := func() answer {
			pos, _, err := group.Checkpoint(tx)
			return answer{pos, err}
		}
		require.Eventually(t, func() bool { // the marker of the commit has come
			told := read()
			if told.err != nil { // a broker that has just woken may have named the one before
				group.Forget()
			}
			return told == answer{before, nil}
		}, patience, 10*time.Millisecond)
		asked, err := group.Find()
		require.NoError(t, err)
		old := slices.Index(c.Addrs(), asked)
		require.NoError(t, syscall.Kill(c.PID(old), syscall.SIGSTOP))
		answers := make(chan answer, 1)
		go func() { answers <- read() }()
		commit(slices.Delete(slices.Clone(c.Addrs()), old, old+1), after)
		require.NoError(t, syscall.Kill(c.PID(old), syscall.SIGCONT))
		return <-answers, before, after
	}
	stale := false
	for tries := 0; !stale; tries++ {
		require.Less(t, tries, 5, "a deposed coordinator shows an old position")
		told, before, _ := overtaken(publisher.Unprobed(slot))
		t.Logf("without a write before: %+v, %v", told.pos, told.err)
		stale = told == answer{before, nil}
	}
	told, _, after := overtaken(slot)
	t.Logf("with a write before: %+v, %v", told.pos, told.err)
	var refusal sarama.KError
	require.True(t, errors.As(told.err, &refusal) || told == answer{after, nil}, "a deposed coordinator refuses, or knows: %+v", told)
}

// answer is what a reader of the checkpoint was told.
type answer struct {
	pos publisher.Position
	err error
}
