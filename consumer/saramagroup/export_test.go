package saramagroup

import (
	"time"

	"github.com/IBM/sarama"
)

// What tests compare with.
const (
	DefaultDrainTimeout         = defaultDrainTimeout
	DefaultHousekeepingInterval = defaultHousekeepingInterval
	DefaultMaxHeld              = defaultMaxHeld
	DefaultMaxHeldBytes         = defaultMaxHeldBytes
)

// Hooks builds what only tests want into a configuration.
func (c Config) Hooks(config func(*sarama.Config), member func(sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler) Config {
	c.hooks.config, c.hooks.member = config, member
	return c
}

// Idle sets after how long without messages a partition is looked at, and how
// often then.
func (c Config) Idle(d time.Duration) Config {
	c.hooks.idle = d
	return c
}

// FindEnd is findEnd.
func FindEnd(client sarama.Client, topic string, partition int32, from int64) (end int64, ok bool, err error) {
	return findEnd(client, place{topic, partition}, from)
}

// Hopeless is hopeless.
var Hopeless = hopeless

// MailerConfig is the configuration of the producer of dead letters.
func MailerConfig(c Config) (*sarama.Config, error) { return c.mailerConfig() }
