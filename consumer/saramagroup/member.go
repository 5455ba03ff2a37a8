package saramagroup

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
)

// member is one session of the group membership: sarama's
// ConsumerGroupHandler. The invariant of the package is in ConsumeClaim: a
// message is marked only after finish said that it is finished, and the next
// one is taken only after that.
type member struct {
	handler  Handler
	cfg      Config
	stop     func(error) // ends Run with the error
	log      *slog.Logger
	commits  sync.WaitGroup
	finished atomic.Int64 // messages of this session
}

// Setup starts the goroutine that commits offsets; Cleanup waits for it.
func (m *member) Setup(s sarama.ConsumerGroupSession) error {
	m.log.Info("joined the group", "generation", s.GenerationID(), "member", s.MemberID(), "partitions", s.Claims())
	m.commits.Go(func() {
		tick := time.NewTicker(m.cfg.CommitInterval)
		defer tick.Stop()
		for {
			select {
			case <-s.Context().Done():
				return
			case <-tick.C:
				s.Commit()
			}
		}
	})
	return nil
}

// Cleanup commits what the workers have finished. sarama calls it when all of
// them have returned, while the partitions are still this member's. With
// auto-commit off nothing else would commit, and sarama forgets the marks.
func (m *member) Cleanup(s sarama.ConsumerGroupSession) error {
	m.commits.Wait()
	s.Commit()
	m.log.Info("left the session", "generation", s.GenerationID(), "cause", context.Cause(s.Context()), "finished", m.finished.Load())
	return nil
}

// ConsumeClaim is the worker of one partition.
func (m *member) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	session := s.Context()
	ctx, cancel := drained(session, m.cfg.DrainTimeout)
	defer cancel()
	for {
		select {
		case <-session.Done():
			return nil
		case msg, open := <-claim.Messages():
			// With both ready select chooses at random: no new message then.
			if !open || session.Err() != nil || !m.finish(ctx, session, msg) {
				return nil
			}
			s.MarkMessage(msg, "")
			m.finished.Add(1)
		}
	}
}

// drained returns a context that ends the given time after session does, so
// that the message in hand may finish.
func drained(session context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(session))
	unhook := context.AfterFunc(session, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(ctx, func() { timer.Stop() })
	})
	return ctx, func() {
		unhook()
		cancel()
	}
}

// finish delivers a message until it is finished. It returns false when the
// session or Run ended before: the message is not finished, and the next owner
// of the partition gets it again.
func (m *member) finish(ctx, session context.Context, msg *sarama.ConsumerMessage) bool {
	rec := record(msg)
	pause := backoff{min: m.cfg.RetryMin, max: m.cfg.RetryMax}
	for attempt := 1; ; attempt++ {
		outcome, err := m.handler.HandleRecord(ctx, rec)
		if err == nil && outcome.Acknowledges() {
			return true
		}
		if consumer.Permanent(err) {
			m.stop(fmt.Errorf("consume %s: %w", rec.Source, err))
			return false
		}
		if session.Err() != nil {
			return false
		}
		delay := pause.step()
		m.report(rec.Source, outcome, err, attempt, delay)
		if !sleep(session, delay) {
			return false
		}
	}
}

// report logs one failed delivery; an operator must see from it that, and why,
// a partition stands still.
func (m *member) report(src consumer.Source, outcome consumer.Outcome, err error, attempt int, delay time.Duration) {
	log := m.log.With("source", src.String(), "attempt", attempt, "retry_in", delay)
	switch {
	case err == nil:
		log.Warn("message waits", "outcome", outcome.String())
	case consumer.IsInfrastructure(err):
		log.Warn("message waits for the database", "error", err)
	default:
		log.Error("message failed; its partition waits", "error", err)
	}
}

// record copies a message into the consumer's own type.
func record(msg *sarama.ConsumerMessage) consumer.Record {
	rec := consumer.Record{
		Source: consumer.Source{Topic: msg.Topic, Partition: msg.Partition, Offset: msg.Offset},
		Key:    msg.Key,
		Value:  msg.Value,
	}
	for _, h := range msg.Headers {
		if h != nil {
			rec.Headers = append(rec.Headers, consumer.Header{Name: string(h.Key), Value: h.Value})
		}
	}
	return rec
}
