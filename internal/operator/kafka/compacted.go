package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/IBM/sarama"
)

const cleanupPolicy = "cleanup.policy"

// Cluster says how to reach a cluster.
type Cluster struct {
	Brokers []string
	Secure  func(*sarama.Config) error // TLS and SASL; nil: none
}

// making says how to make a topic, where err is that it does not exist.
func (at Cluster) making(topic string, err error) string {
	if !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		return ""
	}
	return fmt.Sprintf("; make it with `outboxctl topics create --config FILE` where a route leads to it, or with `kafka-topics.sh --bootstrap-server %s --create --topic %s`",
		strings.Join(at.Brokers, ","), topic)
}

// Compacted returns, sorted, those of the topics that keep only the last
// record of each key. A topic that does not exist is an error.
func Compacted(ctx context.Context, at Cluster, topics []string) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg, err := clientConfig(ctx, at.Secure)
	if err != nil {
		return nil, err
	}
	client, err := sarama.NewClient(at.Brokers, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka at %v: %w", at.Brokers, err)
	}
	defer client.Close() //nolint:errcheck // only reads were made
	request := &sarama.DescribeConfigsRequest{Version: 4}
	for _, topic := range topics {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := client.Partitions(topic); err != nil {
			return nil, fmt.Errorf("look up topic %s at %v: %w%s", topic, at.Brokers, err, at.making(topic, err))
		}
		request.Resources = append(request.Resources,
			&sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{cleanupPolicy}})
	}
	response, err := client.LeastLoadedBroker().DescribeConfigs(request)
	if err != nil {
		return nil, fmt.Errorf("read the settings of topics %v: %w", topics, err)
	}
	var compacted []string
	for _, r := range response.Resources {
		if r.ErrorCode != 0 {
			return nil, fmt.Errorf("read the settings of topic %s: %w; allow DescribeConfigs on it, or give --unchecked if it is not compacted", r.Name, sarama.KError(r.ErrorCode))
		}
		for _, e := range r.Configs {
			if e.Name == cleanupPolicy && strings.Contains(e.Value, "compact") {
				compacted = append(compacted, r.Name)
			}
		}
	}
	slices.Sort(compacted)
	return compacted, nil
}
