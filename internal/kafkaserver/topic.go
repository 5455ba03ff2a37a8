package kafkaserver

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topicTimeout is how long the broker waits for a new topic to be there.
const topicTimeout = 10 * time.Second

// CreateTopic creates a topic, replicated as wide as the cluster, and returns
// when the first broker knows it; others learn of it a moment later. Settings are
// the topic's, such as "cleanup.policy"; nil is none. A topic that exists is
// an error that matches [kerr.TopicAlreadyExists].
func (c *Cluster) CreateTopic(ctx context.Context, name string, partitions int32, settings map[string]string) error {
	client, err := c.brokers[0].connect()
	if err != nil {
		return err
	}
	defer client.Close()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic = name
	topic.NumPartitions = partitions
	topic.ReplicationFactor = -1 // the broker's default
	for key, value := range settings {
		setting := kmsg.NewCreateTopicsRequestTopicConfig()
		setting.Name, setting.Value = key, &value
		topic.Configs = append(topic.Configs, setting)
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	request.TimeoutMillis = int32(topicTimeout.Milliseconds())
	answer, err := client.SeedBrokers()[0].Request(ctx, request)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	created, ok := answer.(*kmsg.CreateTopicsResponse)
	if !ok || len(created.Topics) != 1 {
		return fmt.Errorf("create topic %s: the answer is not about one topic: %v", name, answer)
	}
	if err := kerr.ErrorForCode(created.Topics[0].ErrorCode); err != nil {
		detail := ""
		if message := created.Topics[0].ErrorMessage; message != nil {
			detail = ": " + *message
		}
		return fmt.Errorf("create topic %s: %w%s", name, err, detail)
	}
	return known(ctx, client.SeedBrokers()[0], name)
}

// known waits until a broker knows a topic that the controller has made.
func known(ctx context.Context, broker *kgo.Broker, name string) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	request := kmsg.NewPtrMetadataRequest()
	request.AllowAutoTopicCreation = false
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &name
	request.Topics = append(request.Topics, topic)
	for {
		answer, err := broker.Request(ctx, request)
		if err != nil {
			return fmt.Errorf("look for the new topic %s: %w", name, err)
		}
		if found, ok := answer.(*kmsg.MetadataResponse); ok && len(found.Topics) == 1 &&
			found.Topics[0].ErrorCode == 0 {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("topic %s was made, and the broker does not know it: %w", name, ctx.Err())
		}
	}
}
