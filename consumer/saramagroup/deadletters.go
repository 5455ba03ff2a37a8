package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/wire"
)

// Headers of the records in Config.DeadLetterTopic, behind the headers that the
// message came with. Values are text. Of a header that is there twice, from an
// earlier life of the record, the last one counts.
const (
	HeaderDeadReason   = "onceward-dead-reason"   // malformed, mismatch, handler, late, replay, from-future or unreadable
	HeaderDeadError    = "onceward-dead-error"    // what happened, at most 4096 bytes of it
	HeaderDeadGroup    = "onceward-dead-group"    // the consumer group
	HeaderDeadSource   = "onceward-dead-source"   // where the message was read: topic/partition@offset
	HeaderDeadAttempts = "onceward-dead-attempts" // of the handler, a decimal number
	HeaderDeadTime     = "onceward-dead-time"     // when it became a dead letter: RFC 3339, UTC, microseconds
)

const (
	maxErrorHeader = 4096
	deadTimeLayout = "2006-01-02T15:04:05.000000Z"
	// sendTimeout bounds the wait for Kafka with some letters in hand; the group's
	// lock on its letters, an idle transaction, lasts about as long.
	sendTimeout = 10 * time.Second
)

// sendLetters copies the dead letters that were not copied yet. The producer
// lives for one run: letters are rare, and one that has failed has no memory.
func (r *runner) sendLetters(ctx context.Context) (sent int, err error) {
	if r.cfg.DeadLetterTopic == "" {
		return 0, nil
	}
	var m mailer
	defer func() { err = errors.Join(err, m.close()) }()
	return r.handler.SendLetters(ctx, func(ctx context.Context, letters []consumer.Letter) ([]consumer.Letter, error) {
		if err := m.open(ctx, r.brokers, r.cfg); err != nil {
			return nil, err
		}
		return r.send(ctx, &m, letters)
	})
}

// send produces one letter after the other: a refused one fails the others of its
// batch. One that the topic does not take, as it is, is passed over.
func (r *runner) send(ctx context.Context, m *mailer, letters []consumer.Letter) (sent []consumer.Letter, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	var refused []error
	for _, l := range letters {
		err = m.produce(ctx, deadRecord(r.cfg.DeadLetterTopic, r.handler.Group(), l))
		if errors.Is(err, sarama.ErrMessageSizeTooLarge) || errors.Is(err, sarama.ErrInvalidRecord) ||
			errors.Is(err, sarama.ErrPolicyViolation) {
			refused, err = append(refused, fmt.Errorf("%s: %w", l.Record.Source, err)), nil
			continue
		}
		if err != nil {
			err = fmt.Errorf("produce to %s: %w", r.cfg.DeadLetterTopic, err)
			break
		}
		sent = append(sent, l)
	}
	if len(refused) > 0 {
		r.log.Warn("dead letters are refused by their topic; look at its max.message.bytes, and that its cleanup.policy is delete: compact takes none without a key",
			"topic", r.cfg.DeadLetterTopic, "error", errors.Join(refused...))
	}
	return sent, err
}

// deadRecord is the message as it came, and why it is here.
func deadRecord(topic, group string, l consumer.Letter) *sarama.ProducerMessage {
	msg := &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(l.Record.Value)} // nil is a null value
	if l.Record.Key != nil {
		msg.Key = sarama.ByteEncoder(l.Record.Key) // without a key, any partition
	}
	why := []consumer.Header{
		{Name: HeaderDeadReason, Value: []byte(l.Reason)},
		{Name: HeaderDeadError, Value: []byte(shortened(l.Error))},
		{Name: HeaderDeadGroup, Value: []byte(group)},
		{Name: HeaderDeadSource, Value: []byte(l.Record.Source.String())},
		{Name: HeaderDeadAttempts, Value: strconv.AppendInt(nil, int64(l.Attempts), 10)},
		{Name: HeaderDeadTime, Value: l.At.UTC().AppendFormat(nil, deadTimeLayout)},
	}
	for _, h := range slices.Concat(l.Record.Headers, why) {
		msg.Headers = append(msg.Headers, sarama.RecordHeader{Key: []byte(h.Name), Value: h.Value})
	}
	return msg
}

// shortened keeps the beginning of a long text, in whole characters.
func shortened(text string) string {
	if len(text) <= maxErrorHeader {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorHeader], "")
}

// mailer is an idempotent producer that waits for all replicas. The zero mailer
// is closed.
type mailer struct {
	client   sarama.Client
	producer sarama.AsyncProducer
	release  func()
}

// open connects, unless that was done. The connections are cut some time after ctx has ended.
func (m *mailer) open(ctx context.Context, brokers []string, cfg Config) error {
	if m.producer != nil {
		return nil
	}
	sc, err := cfg.mailerConfig()
	if err != nil {
		return err
	}
	release := wire.Into(sc).Outlive(ctx, cfg.endsWithin())
	client, err := sarama.NewClient(brokers, sc)
	if err != nil {
		release()
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	producer, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		defer release()
		return errors.Join(fmt.Errorf("start a producer: %w", err), client.Close())
	}
	m.client, m.producer, m.release = client, producer, release
	return nil
}

// produce returns when the record is in all in-sync replicas, or the error.
func (m *mailer) produce(ctx context.Context, msg *sarama.ProducerMessage) error {
	m.producer.Input() <- msg // its buffer is empty: one at a time
	select {
	case <-m.producer.Successes():
		return nil
	case failure := <-m.producer.Errors():
		return failure.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close waits for what is under way, which sendTimeout bounds.
func (m *mailer) close() error {
	if m.producer == nil {
		return nil
	}
	defer m.release()
	_ = m.producer.Close() // which takes what nobody waits for any more, successes and errors
	return m.client.Close()
}

// mailerConfig is the configuration of the producer of dead letters. It gives up
// soon, because the next run tries again.
func (c Config) mailerConfig() (*sarama.Config, error) {
	s, err := c.SaramaConfig()
	if err != nil {
		return nil, err
	}
	s.Net.DialTimeout, s.Net.ReadTimeout, s.Net.WriteTimeout = sendTimeout/2, sendTimeout/2, sendTimeout/2
	s.Net.MaxOpenRequests = 1 // what idempotence wants
	s.Metadata.Retry.Max = 1
	p := &s.Producer
	p.Idempotent = true
	p.RequiredAcks = sarama.WaitForAll
	p.Timeout = sendTimeout / 2
	p.Retry.Max = 1
	p.Return.Successes, p.Return.Errors = true, true
	p.MaxMessageBytes = int(sarama.MaxRequestSize) - 1 // the topic decides
	return s, s.Validate()
}
