package kafkaconf

import (
	"time"

	"github.com/IBM/sarama"
)

// DialTimeout bounds one connect.
const DialTimeout = 10 * time.Second

// New returns the configuration of a client that asks for what it is told, and no more.
func New(clientID string, version sarama.KafkaVersion) *sarama.Config {
	c := sarama.NewConfig()
	c.ClientID = clientID
	c.Version = version
	c.Metadata.AllowAutoTopicCreation = false // default true: a typo would make a topic
	c.Metadata.Full = false                   // only the topics in use, not all of the cluster
	c.Net.DialTimeout = DialTimeout
	return c
}
