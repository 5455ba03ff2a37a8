package kafka

import (
	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/kafkaconf"
)

// clientConfig is that of a client that only asks; secure puts TLS and SASL into
// it, nil none.
func clientConfig(secure func(*sarama.Config) error) (*sarama.Config, error) {
	cfg := kafkaconf.New("outboxctl", sarama.V2_8_0_0)
	cfg.Metadata.Retry.Max = 1
	if secure == nil {
		return cfg, nil
	}
	return cfg, secure(cfg)
}
