package kafka

import (
	"time"

	"github.com/IBM/sarama"
)

// clientConfig is that of a client that only asks; secure puts TLS and SASL into
// it, nil none.
func clientConfig(secure func(*sarama.Config) error) (*sarama.Config, error) {
	cfg := sarama.NewConfig()
	cfg.ClientID = "outboxctl"
	cfg.Version = sarama.V2_8_0_0
	cfg.Metadata.AllowAutoTopicCreation = false // asking must not make a topic
	cfg.Metadata.Full = false
	cfg.Metadata.Retry.Max = 1
	cfg.Net.DialTimeout = 10 * time.Second
	if secure == nil {
		return cfg, nil
	}
	return cfg, secure(cfg)
}
