package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
)

// watcher reads the topic beside the consumer, as an auditor: it knows which
// keys were published, and captures one record to deliver it again.
type watcher struct {
	client sarama.Client
	parts  []sarama.PartitionConsumer
	done   sync.WaitGroup

	mu       sync.Mutex
	keys     map[string]int // copies by key
	captured *sarama.ConsumerMessage
}

func watch(brokers []string) (*watcher, error) {
	client, err := sarama.NewClient(brokers, auditConfig())
	if err != nil {
		return nil, fmt.Errorf("connect the auditor: %w", err)
	}
	w := &watcher{client: client, keys: make(map[string]int)}
	reader, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	for p := range int32(partitions) {
		part, err := reader.ConsumePartition(topic, p, sarama.OffsetOldest)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read partition %d: %w", p, err), w.close())
		}
		w.parts = append(w.parts, part)
		w.done.Go(func() {
			for m := range part.Messages() {
				w.saw(m)
			}
		})
	}
	return w, nil
}

func (w *watcher) saw(m *sarama.ConsumerMessage) {
	key := ""
	for _, h := range m.Headers {
		if string(h.Key) == outbox.HeaderKey {
			key = string(h.Value)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys[key]++
	if w.captured == nil {
		w.captured = m
	}
}

// distinct returns how many different keys were published.
func (w *watcher) distinct() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.keys)
}

func (w *watcher) published(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keys[key] > 0
}

// deliverAgain sends the captured record n times more, byte for byte.
func (w *watcher) deliverAgain(n int) (string, error) {
	producer, err := sarama.NewSyncProducerFromClient(w.client)
	if err != nil {
		return "", fmt.Errorf("connect to deliver again: %w", err)
	}
	defer producer.Close() //nolint:errcheck // every message was acknowledged
	w.mu.Lock()
	m := w.captured
	w.mu.Unlock()
	again := &sarama.ProducerMessage{Topic: m.Topic, Partition: m.Partition, Key: sarama.ByteEncoder(m.Key),
		Value: sarama.ByteEncoder(m.Value)}
	key := ""
	for _, h := range m.Headers {
		again.Headers = append(again.Headers, *h)
		if string(h.Key) == outbox.HeaderKey {
			key = string(h.Value)
		}
	}
	for range n {
		if _, _, err := producer.SendMessage(again); err != nil {
			return "", fmt.Errorf("deliver %s again: %w", key, err)
		}
	}
	return key, nil
}

func (w *watcher) close() error {
	for _, part := range w.parts {
		part.AsyncClose()
	}
	w.done.Wait()
	return w.client.Close()
}

// outcomes stands between the consumer group and the router, and counts what the
// consumer said of each delivery.
type outcomes struct {
	*consumer.Router
	duplicates atomic.Int64
}

// HandleRecord is the router's, counted.
func (o *outcomes) HandleRecord(ctx context.Context, r consumer.Record) (consumer.Outcome, error) {
	outcome, err := o.Router.HandleRecord(ctx, r)
	if err == nil && outcome == consumer.Duplicate {
		o.duplicates.Add(1)
	}
	return outcome, err
}
