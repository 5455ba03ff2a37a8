package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer/saramagroup/internal/flight"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/indoubt"
)

// The pauses between tries of a transaction's requests. The first retry is mostly because
// the brokers still write the end of the transaction before, which takes milliseconds.
const (
	txnRetryMin     = 2 * time.Millisecond
	produceRetryMin = 20 * time.Millisecond
	txnRetryMax     = time.Second
)

// txn is the open transaction of one input partition, and the producer that has it. One
// goroutine calls its methods.
//
// The invariant: a producer has one transaction. What belongs to an earlier one may still be under
// way: a request that sarama has sent twice, or the marker of its end, which brokers may send twice
// too. Brokers cannot tell the transactions of one epoch apart: it would end the next one, or move its
// offsets. So each has an epoch of its own, as Kafka gives it to clients that speak EndTxn v5.
type txn struct {
	at    place
	group *sarama.ConsumerGroupMetadata // of the session: a commit of an earlier generation is refused
	owner *transformer
	log   *slog.Logger

	config   *sarama.Config
	current  atomic.Pointer[sarama.AsyncProducer] // producer, for its status only
	producer sarama.AsyncProducer
	drained  chan struct{} // closed when the producer has ended
	flight   *flight.Flight
	begun    bool
	ending   chan struct{} // closed when the commit has ended; nil before it is asked for
	lost     bool          // that was left behind under way
}

// newTxn returns one without a producer; see open.
func newTxn(t *transformer, at place, group *sarama.ConsumerGroupMetadata) *txn {
	p := &txn{at: at, group: group, owner: t, log: t.log.With("topic", at.topic, "partition", at.partition)}
	config := *t.client.Config()
	config.Producer.Transaction.ID = transactionalID(t.group, at)
	config.Producer.Transaction.Retry.BackoffFunc = func(retries, _ int) time.Duration {
		p.pause(backoff.After(retries+1, txnRetryMin, txnRetryMax))
		return 0
	}
	config.Producer.Retry.BackoffFunc = func(retries, _ int) time.Duration {
		p.pause(backoff.After(retries+1, produceRetryMin, txnRetryMax))
		return 0
	}
	p.config = &config
	return p
}

// pause waits before a retry, but for one of a transaction that sarama will refuse to
// commit: that has no sense any more, and its messages are given up soon.
func (p *txn) pause(d time.Duration) {
	if producer := p.current.Load(); producer != nil && (*producer).TxnStatus()&sarama.ProducerTxnFlagInError != 0 {
		return
	}
	p.owner.wire.Pause(d)
}

// transactionalID is of an input partition: who is given the partition ends what the one
// before has left open. A topic has no colon, so that no two of them are equal.
func transactionalID(group string, at place) string {
	return fmt.Sprintf("%s:%s:%d", group, at.topic, at.partition)
}

// as is a client whose producers have a configuration of their own.
type as struct {
	sarama.Client
	config *sarama.Config
}

// Config implements sarama.Client.
func (c as) Config() *sarama.Config { return c.config }

// take opens a producer where it is not known how the transaction before has ended.
func (p *txn) take(ctx context.Context) error {
	client, id := p.owner.client, p.config.Producer.Transaction.ID
	coordinator := func(again bool) (string, error) {
		if again {
			_ = client.RefreshTransactionCoordinator(id) // what is wrong with it, the next line says
		}
		broker, err := client.TransactionCoordinator(id)
		if err != nil {
			return "", err
		}
		return broker.Addr(), nil
	}
	if err := p.owner.do(ctx, func() error {
		if p.owner.cfg.faults.halves {
			return nil
		}
		return indoubt.Finish(p.config, id, coordinator, p.owner.wire.Pause, p.log)
	}); err != nil {
		return fmt.Errorf("see how the last transaction of %q has ended: %w", id, err)
	}
	return p.open(ctx)
}

// open gets the producer an id and an epoch, which aborts what an earlier one has left
// open, and fences it.
func (p *txn) open(ctx context.Context) error {
	opened := make(chan sarama.AsyncProducer, 1)
	err := p.owner.do(ctx, func() error {
		defer close(opened)
		producer, err := sarama.NewAsyncProducerFromClient(as{p.owner.client, p.config})
		if err == nil {
			opened <- producer
		}
		return err
	})
	if err != nil {
		p.owner.tasks.Go(func() {
			for late := range opened {
				late.AsyncClose()
				flight.New().Drain(late)
			}
		})
		return fmt.Errorf("get a producer id for %q: %w", p.config.Producer.Transaction.ID, err)
	}
	p.producer, p.flight, p.drained = <-opened, flight.New(), make(chan struct{})
	current, producer, drained := p.flight, p.producer, p.drained
	p.current.Store(&producer)
	p.owner.tasks.Go(func() {
		defer close(drained)
		current.Drain(producer)
	})
	return nil
}

// send hands messages over, and begins a transaction when none is open. They are part of
// it, or it cannot be committed.
func (p *txn) send(ctx context.Context, messages []*sarama.ProducerMessage) error {
	if err := p.begin(); err != nil {
		return err
	}
	for _, m := range messages {
		p.flight.Add()
		select {
		case p.producer.Input() <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (p *txn) begin() error {
	if p.begun {
		return nil
	}
	if err := p.producer.BeginTxn(); err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	p.begun, p.ending = true, nil
	return nil
}

// commit commits what was sent together with the offset behind the last message, takes a new
// producer, and looks whether the group has the offset: coordinators have confirmed what they then
// lost (KAFKA-20634). It commits such an offset again. When it returns nil all of it is known, and
// nothing can be repeated or undone by what may still be under way. After an error there may be no
// producer any more, and whether it was committed is for the group's offset to say.
func (p *txn) commit(ctx context.Context, last *sarama.ConsumerMessage) error {
	if err := p.flight.Wait(ctx); err != nil {
		return err
	}
	for {
		if err := p.commitOnce(ctx, last); err != nil || p.owner.cfg.faults.keepProducer || p.owner.cfg.faults.outside {
			return err
		}
		p.close(ctx)
		if err := p.open(ctx); err != nil {
			return err
		}
		has, err := p.owner.has(ctx, p.at, last.Offset+1)
		if has || err != nil {
			return err
		}
		p.log.Warn("the group's coordinator has confirmed an offset and lost it; committing it again", "offset", last.Offset+1)
		if err := p.begin(); err != nil {
			return err
		}
	}
}

func (p *txn) commitOnce(ctx context.Context, last *sarama.ConsumerMessage) error {
	producer, group, faults := p.producer, p.group, p.owner.cfg.faults // they may outlive this call
	if faults.plain {
		group = sarama.NewConsumerGroupMetadata(group.GroupID)
	}
	err := p.end(ctx, func() error {
		if !faults.outside {
			if err := producer.AddMessageToTxnWithGroupMetadata(last, group, nil); err != nil {
				return err
			}
		}
		return producer.CommitTxn()
	})
	if err != nil {
		return fmt.Errorf("commit a transaction of %q: %w", p.config.Producer.Transaction.ID, err)
	}
	p.begun = false
	p.owner.confirmed.set(p.at, last.Offset+1)
	return nil
}

// end runs an end of the transaction, which is left behind when ctx ends first.
func (p *txn) end(ctx context.Context, end func() error) error {
	ending := make(chan struct{})
	p.ending = ending
	err := p.owner.do(ctx, func() error {
		defer close(ending)
		return end()
	})
	p.lost = p.lost || err != nil && ctx.Err() != nil
	return err
}

// leave ends what is open after a session that has ended with err, so that readers of the
// outputs wait for nothing, and closes the producer. A new one aborts, with an epoch of its own (see
// indoubt). What it does not reach is for the next one of the partition, or for the timeout.
func (p *txn) leave(ctx context.Context, err error) {
	if p.producer == nil {
		return
	}
	p.close(ctx)
	if !p.begun || p.lost || replaced(err) || p.owner.cfg.faults.keepOpen {
		return
	}
	open := p.open // which aborts
	if p.ending != nil {
		open = p.take
	}
	if err := open(ctx); err != nil {
		p.log.Debug("abort a transaction", "error", err)
		return
	}
	p.close(ctx)
}

// replaced reports whether an error says that another member has the partition.
func replaced(err error) bool {
	return slices.ContainsFunc([]error{
		sarama.ErrIllegalGeneration, sarama.ErrUnknownMemberId, sarama.ErrFencedInstancedId,
		sarama.ErrProducerFenced, sarama.ErrInvalidProducerEpoch,
	}, func(is error) bool { return errors.Is(err, is) })
}

// close ends the producer. One that has not ended before ctx does so after the session's
// cut.
func (p *txn) close(ctx context.Context) {
	producer, ending := p.producer, p.ending
	p.producer = nil
	p.current.Store(nil)
	p.owner.tasks.Go(func() {
		if ending != nil {
			<-ending
		}
		producer.AsyncClose()
	})
	select {
	case <-p.drained:
	case <-ctx.Done():
	}
}
