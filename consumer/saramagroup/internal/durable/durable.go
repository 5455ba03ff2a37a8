// Package durable says whether a topic keeps what it has confirmed.
package durable

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

const (
	minInSync = "min.insync.replicas"
	unclean   = "unclean.leader.election.enable"
)

// Weakness returns what makes a topic lose what it has confirmed, and what to do about it;
// nothing where it keeps it. It asks one broker, on a connection of its own: one of the client's
// may have been idle for so long that the broker has closed it. It may be called by several
// goroutines. The right to describe the topic and its configuration is needed.
func Weakness(client sarama.Client, topic string) (why, cure string, err error) {
	err = sarama.ErrOutOfBrokers
	for _, b := range client.Brokers() {
		conn := sarama.NewBroker(b.Addr())
		if err = conn.Open(client.Config()); err == nil {
			why, cure, err = weakness(conn, client.Config().Version, topic)
			_ = conn.Close()
		}
		if refusal := sarama.ErrNoError; err == nil || errors.As(err, &refusal) {
			break
		}
	}
	return why, cure, err
}

func weakness(conn *sarama.Broker, version sarama.KafkaVersion, topic string) (why, cure string, err error) {
	about, err := conn.GetMetadata(sarama.NewMetadataRequest(version, []string{topic}))
	if err == nil && len(about.Topics) != 1 {
		err = sarama.ErrIncompleteResponse
	}
	if err == nil && about.Topics[0].Err != sarama.ErrNoError {
		err = about.Topics[0].Err
	}
	if err != nil {
		return "", "", fmt.Errorf("describe topic %q: %w", topic, err)
	}
	found, err := conn.DescribeConfigs(&sarama.DescribeConfigsRequest{Version: 1, Resources: []*sarama.ConfigResource{
		{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{minInSync, unclean}},
	}})
	if err == nil && len(found.Resources) != 1 {
		err = sarama.ErrIncompleteResponse
	}
	if err == nil && found.Resources[0].ErrorCode != 0 {
		err = sarama.KError(found.Resources[0].ErrorCode)
	}
	if err != nil {
		return "", "", fmt.Errorf("describe the configuration of topic %q: %w", topic, err)
	}
	config := make(map[string]string)
	for _, entry := range found.Resources[0].Configs {
		config[entry.Name] = entry.Value
	}
	why, cure = judge(about.Topics[0].Partitions, config)
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
