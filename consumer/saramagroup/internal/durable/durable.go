// Package durable says whether a topic keeps what it has confirmed.
package durable

import (
	"fmt"

	"github.com/IBM/sarama"
)

const (
	minInSync = "min.insync.replicas"
	unclean   = "unclean.leader.election.enable"
)

// Weakness returns what makes a topic lose what it has confirmed, and what to do about it;
// nothing where it keeps it. It asks two brokers one question each, and may be called by
// several goroutines. The right to describe the topic and its configuration is needed.
func Weakness(client sarama.Client, topic string) (why, cure string, err error) {
	admin, err := sarama.NewClusterAdminFromClient(client) // not closed: that would close the client
	if err != nil {
		return "", "", fmt.Errorf("find the controller: %w", err)
	}
	topics, err := admin.DescribeTopics([]string{topic})
	if err == nil && len(topics) != 1 {
		err = sarama.ErrIncompleteResponse
	}
	if err == nil && topics[0].Err != sarama.ErrNoError {
		err = topics[0].Err
	}
	if err != nil {
		return "", "", fmt.Errorf("describe topic %q: %w", topic, err)
	}
	found, err := admin.DescribeConfigs([]*sarama.ConfigResource{
		{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{minInSync, unclean}},
	}, sarama.DescribeConfigsOptions{})
	if err == nil && len(found) != 1 {
		err = sarama.ErrIncompleteResponse
	}
	if err == nil && found[0].ErrorCode != sarama.ErrNoError {
		err = found[0].ErrorCode
	}
	if err != nil {
		return "", "", fmt.Errorf("describe the configuration of topic %q: %w", topic, err)
	}
	config := make(map[string]string)
	for _, entry := range found[0].Configs {
		config[entry.Name] = entry.Value
	}
	why, cure = judge(topics[0].Partitions, config)
	return why, cure, nil
}

// judge is pure. Its words are those of `relay check`.
func judge(partitions []*sarama.PartitionMetadata, config map[string]string) (why, cure string) {
	for _, p := range partitions {
		if n := len(p.Replicas); n < 3 {
			return fmt.Sprintf("partition %d has %d replicas, want 3", p.ID, n), "raise the replication factor"
		}
	}
	switch {
	case config[unclean] == "true":
		return unclean + " is true", "set " + unclean + "=false on the topic"
	case config[minInSync] == "1":
		return minInSync + " is 1", "set " + minInSync + "=2 on the topic"
	}
	return "", ""
}
