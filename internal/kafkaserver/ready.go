package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/process"
)

// readyPoll is how often a starting broker is tried.
const readyPoll = 50 * time.Millisecond

// ready waits until the broker answers a metadata request that names at least
// want brokers, its process ends, or ctx does. A broker opens its listeners
// only when the controller has let it in, so an answer is never early.
func (b broker) ready(ctx context.Context, proc *process.Process, want int) error {
	client, err := b.connect()
	if err != nil {
		return err
	}
	defer client.Close()
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		last := names(ctx, client, want)
		if last == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-proc.Done():
			return fmt.Errorf("broker %d ended while it started: %w%s", b.node, errors.Join(proc.Err(), last), process.Tail(b.log()))
		case <-ctx.Done():
			return fmt.Errorf("broker %d is not ready: %w (last: %w)%s", b.node, ctx.Err(), last, process.Tail(b.log()))
		}
	}
}

// connect makes a client that is used for requests to this one broker, at its
// real address whatever it advertises.
func (b broker) connect() (*kgo.Client, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.address()))
	if err != nil {
		return nil, fmt.Errorf("make a client for broker %d: %w", b.node, err)
	}
	return client, nil
}

// names asks for metadata once.
func names(ctx context.Context, client *kgo.Client, want int) error {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	answer, err := client.SeedBrokers()[0].Request(ctx, request)
	if err != nil {
		return fmt.Errorf("ask for metadata: %w", err)
	}
	metadata, ok := answer.(*kmsg.MetadataResponse)
	if !ok {
		return fmt.Errorf("ask for metadata: the answer is a %T", answer)
	}
	if have := len(metadata.Brokers); have < want {
		return fmt.Errorf("%d of %d brokers are up", have, want)
	}
	return nil
}
