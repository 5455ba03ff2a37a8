package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// promise is one thing that the package promises. check returns how it was
// broken; each of the defects must make it return something.
type promise struct {
	check   func(k *kafka, d defect) error
	defects map[string]defect
}

var promises = map[string]promise{
	"all messages, in order, committed at the end": {inOrder, map[string]defect{
		"newest first":   {config: func(s *sarama.Config) { s.Consumer.Offsets.Initial = sarama.OffsetNewest }},
		"no last commit": {member: func(m sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler { return forgetful{m} }},
	}},
	"offsets never pass a failing message": {failingMessage, map[string]defect{
		"mark at once":  {member: func(m sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler { return hasty{m} }},
		"skip failures": {handler: func(h saramagroup.Handler) saramagroup.Handler { return careless{h} }},
	}},
	"a message in progress elsewhere is not finished": {inProgress, map[string]defect{
		"mark at once": {member: func(m sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler { return hasty{m} }},
	}},
	"a missing handler stops the group": {noHandler, map[string]defect{
		"skip failures": {handler: func(h saramagroup.Handler) saramagroup.Handler { return careless{h} }},
	}},
	"aborted records are not seen": {readCommitted, map[string]defect{
		"read uncommitted": {config: func(s *sarama.Config) { s.Consumer.IsolationLevel = sarama.ReadUncommitted }},
	}},
	"lost messages are noticed": {outOfRange, map[string]defect{
		"reset offsets": {config: func(s *sarama.Config) {
			s.Consumer.Group.ResetInvalidOffsets = true
			s.Consumer.Offsets.Initial = sarama.OffsetNewest
		}},
	}},
	"the message in hand may finish, for a while": {drains, map[string]defect{
		"mark at once": {member: func(m sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler { return hasty{m} }},
	}},
}

func TestPromises(t *testing.T) {
	for name, p := range promises {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(k *kafka) { require.NoError(t, p.check(k, defect{})) })
		})
	}
}

func TestDefectsAreCaught(t *testing.T) {
	for name, p := range promises {
		for what, d := range p.defects {
			t.Run(name+"/"+what, func(t *testing.T) {
				inFakeTime(t, func(k *kafka) {
					err := p.check(k, d)
					require.Error(t, err, "the check does not notice this defect")
					t.Log("caught:", err)
				})
			})
		}
	}
}

// forgetful does not commit at the end of a session.
type forgetful struct{ sarama.ConsumerGroupHandler }

func (forgetful) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// hasty marks messages when they are read.
type hasty struct{ sarama.ConsumerGroupHandler }

func (h hasty) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	marked := make(chan *sarama.ConsumerMessage)
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer close(marked)
		for msg := range c.Messages() {
			s.MarkMessage(msg, "")
			select {
			case marked <- msg:
			case <-done:
				return
			}
		}
	}()
	return h.ConsumerGroupHandler.ConsumeClaim(s, hastyClaim{c, marked})
}

type hastyClaim struct {
	sarama.ConsumerGroupClaim
	messages <-chan *sarama.ConsumerMessage
}

func (c hastyClaim) Messages() <-chan *sarama.ConsumerMessage { return c.messages }

// careless takes failures for successes.
type careless struct{ saramagroup.Handler }

func (c careless) HandleRecord(ctx context.Context, rec consumer.Record) (consumer.Outcome, error) {
	_, _ = c.Handler.HandleRecord(ctx, rec)
	return consumer.Processed, nil
}

func inOrder(k *kafka, d defect) error {
	k.produce(50)
	slow := func(c *saramagroup.Config) { c.CommitInterval = time.Hour }
	h := newHandler(nil)
	stop, _ := k.run(h, d, slow)
	recs, err := h.await(100)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	for p := range int32(2) {
		got := offsets(recs, p)
		if len(got) != 50 || !slices.IsSorted(got) {
			return fmt.Errorf("partition %d: offsets %v", p, got)
		}
	}
	if got := k.committed(); got != [2]int64{50, 50} {
		return fmt.Errorf("committed %v", got)
	}
	return nil
}

// blocked produces five messages to each partition, has offset 2 of partition
// 0 fail until it was tried seven times, and checks the offsets meanwhile.
func blocked(k *kafka, d defect, outcome consumer.Outcome, failure error) error {
	k.produce(5)
	sixth := make(chan struct{})
	h := newHandler(func(_ context.Context, rec consumer.Record, attempt int) (consumer.Outcome, error) {
		if rec.Source.Partition != 0 || rec.Source.Offset != 2 || attempt == 7 {
			return consumer.Processed, nil
		}
		if attempt == 6 {
			close(sixth)
		}
		return outcome, failure
	})
	stop, _ := k.run(h, d, func(c *saramagroup.Config) { c.RetryMin = 2 * time.Second }) // several commit intervals
	_, err := h.await(7)
	select {
	case <-sixth:
	case <-time.After(5 * time.Minute):
		err = errors.Join(err, errors.New("the message was not tried again"))
	}
	if got := k.committed(); got != [2]int64{2, 5} {
		err = errors.Join(err, fmt.Errorf("committed %v while offset 2 of partition 0 fails", got))
	}
	rest, late := h.await(3)
	if err := errors.Join(err, late, stop()); err != nil {
		return err
	}
	if got := offsets(rest, 0); !slices.Equal(got, []int64{2, 3, 4}) {
		return fmt.Errorf("then finished %v", got)
	}
	if got := k.committed(); got != [2]int64{5, 5} {
		return fmt.Errorf("committed %v at the end", got)
	}
	return nil
}

func failingMessage(k *kafka, d defect) error { return blocked(k, d, 0, errors.New("broken")) }
func inProgress(k *kafka, d defect) error     { return blocked(k, d, consumer.InProgress, nil) }

func noHandler(k *kafka, d defect) error {
	k.produce(5)
	h := newHandler(func(_ context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
		if rec.Source.Partition == 0 && rec.Source.Offset == 3 {
			return 0, fmt.Errorf("type %q: %w", "Refunded", consumer.ErrNoHandler)
		}
		return consumer.Processed, nil
	})
	stop, ended := k.run(h, d)
	select {
	case err := <-ended:
		if !errors.Is(err, consumer.ErrNoHandler) || err.Error() != `consume orders/0@3: type "Refunded": no handler for the event type` {
			return fmt.Errorf("error %w", err)
		}
	case <-time.After(time.Minute):
		return errors.Join(errors.New("the group goes on"), stop())
	}
	if got := k.offset(0); got != 3 {
		return fmt.Errorf("committed %d", got)
	}
	return nil
}

func readCommitted(k *kafka, d defect) error {
	transactional := func(s *sarama.Config) {
		s.Producer.Idempotent = true
		s.Producer.Transaction.ID = "relay"
		s.Net.MaxOpenRequests = 1
	}
	k.producer(transactional, func(p sarama.AsyncProducer) {
		for _, commit := range []bool{false, true} {
			require.NoError(k.t, p.BeginTxn())
			k.sendWith(p, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(commit))})
			if commit {
				require.NoError(k.t, p.CommitTxn())
			} else {
				require.NoError(k.t, p.AbortTxn())
			}
		}
	})
	h := newHandler(nil)
	stop, _ := k.run(h, d)
	recs, err := h.await(1)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	if string(recs[0].Value) != "true" {
		return errors.New("a record of an aborted transaction was delivered")
	}
	return nil
}

func outOfRange(k *kafka, d defect) error {
	k.produce(10)
	h := newHandler(func(_ context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
		if rec.Source.Offset >= 3 {
			return 0, errors.New("broken")
		}
		return consumer.Processed, nil
	})
	stop, _ := k.run(h, defect{})
	_, err := h.await(6)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	require.NoError(k.t, k.cluster.DeleteRecords(topic, 0, 8))
	stop, ended := k.run(newHandler(nil), d)
	select {
	case err := <-ended:
		if !errors.Is(err, sarama.ErrOffsetOutOfRange) {
			return fmt.Errorf("error %w", err)
		}
		return nil
	case <-time.After(time.Minute):
		return errors.Join(errors.New("the group goes on after the gap"), stop())
	}
}

// drains ends Run while two messages are in hand: one finishes within the
// drain timeout, the other waits for its context.
func drains(k *kafka, d defect) error {
	k.produce(2)
	var taken [2]chan struct{}
	for p := range taken {
		taken[p] = make(chan struct{})
	}
	waited := make(chan time.Duration, 1)
	h := newHandler(func(ctx context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
		start := time.Now()
		close(taken[rec.Source.Partition])
		if rec.Source.Partition == 0 {
			select {
			case <-time.After(3 * time.Second):
				return consumer.Processed, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		<-ctx.Done()
		waited <- time.Since(start)
		return 0, ctx.Err()
	})
	stop, _ := k.run(h, d)
	<-taken[0]
	<-taken[1]
	if err := stop(); err != nil {
		return err
	}
	if got := <-waited; got < saramagroup.DefaultDrainTimeout || got > saramagroup.DefaultDrainTimeout+time.Second {
		return fmt.Errorf("the message in hand had %s", got)
	}
	if got := k.committed(); got != [2]int64{1, -1} {
		return fmt.Errorf("committed %v", got)
	}
	return nil
}
