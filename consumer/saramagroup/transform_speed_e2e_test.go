//go:build e2e

package saramagroup_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/consumer/saramagroup"
)

// TestTransformThroughput logs how many records a second a Transform copies, beside a
// plain loop that consumes, produces, and commits the offsets of what is acknowledged,
// which after a crash copies some of them again. Long form.
func TestTransformThroughput(t *testing.T) {
	if os.Getenv("E2E_FULL") != "1" {
		t.Skip("long form: E2E_FULL=1")
	}
	const records = 200_000
	th := newTheatre(t, 1, "")
	for n := range records {
		th.client.Produce(t.Context(), &kgo.Record{Topic: topic, Key: fmt.Append(nil, "key-", n%1000), Value: fmt.Appendf(nil, "%0200d", n)}, nil)
	}
	require.NoError(t, th.client.Flush(t.Context()))
	for _, interval := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond} {
		for _, most := range []int{1000, 10_000} {
			speed := th.copied(func(ctx context.Context, name string) error {
				return saramagroup.Transform(ctx, th.cluster.Addrs(), name, shout, saramagroup.TransformConfig{
					Topics: []string{topic}, Insecure: true, CommitInterval: interval, MaxRecords: most,
					Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
				})
			}, fmt.Sprint("shouting-", interval, "-", most), records)
			t.Logf("Transform, CommitInterval %s, MaxRecords %d: %d records/s", interval, most, speed)
		}
	}
	t.Logf("plain loop: %d records/s", th.copied(th.plainly, "plain", records))
}

// copied returns how many records a second a group copies of a full topic.
func (th *theatre) copied(run func(ctx context.Context, group string) error, group string, records int) (perSecond int) {
	th.t.Helper()
	ctx, stop := context.WithCancel(th.t.Context())
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, group) }()
	th.reads(group, 20*time.Millisecond)
	perSecond = int(float64(records) / time.Since(began).Seconds())
	stop()
	require.NoError(th.t, <-ended)
	return perSecond
}

// plainly is what one writes without transactions: at least once.
func (th *theatre) plainly(ctx context.Context, group string) error {
	config, err := saramagroup.Config{Topics: []string{topic}, Insecure: true}.SaramaConfig()
	if err != nil {
		return err
	}
	config.Consumer.Offsets.AutoCommit.Enable, config.Consumer.Offsets.AutoCommit.Interval = true, 100*time.Millisecond
	config.ChannelBufferSize = 256
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent, config.Producer.RequiredAcks = true, sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewMurmur2Partitioner
	config.Producer.Return.Successes = true
	producer, err := sarama.NewAsyncProducer(th.cluster.Addrs(), config)
	if err != nil {
		return err
	}
	g, err := sarama.NewConsumerGroup(th.cluster.Addrs(), group, config)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := g.Consume(ctx, []string{topic}, &plainLoop{producer: producer}); err != nil {
			return err
		}
	}
	return g.Close()
}

type plainLoop struct {
	producer sarama.AsyncProducer
	acks     sync.WaitGroup
}

func (p *plainLoop) Setup(s sarama.ConsumerGroupSession) error {
	p.acks.Go(func() {
		for msg := range p.producer.Successes() {
			s.MarkMessage(msg.Metadata.(*sarama.ConsumerMessage), "")
		}
	})
	return nil
}

func (p *plainLoop) Cleanup(sarama.ConsumerGroupSession) error {
	err := p.producer.Close()
	p.acks.Wait()
	return err
}

func (p *plainLoop) ConsumeClaim(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for msg := range claim.Messages() {
		p.producer.Input() <- &sarama.ProducerMessage{Topic: upper, Key: sarama.ByteEncoder(msg.Key), Value: sarama.ByteEncoder(msg.Value), Metadata: msg}
	}
	return nil
}
