package saramagroup

import (
	"log/slog"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
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

// Close sets for how long Kafka is waited for at the end, beyond DrainTimeout.
func (c Config) Close(d time.Duration) Config {
	c.hooks.close = d
	return c
}

// FindEnd is findEnd.
func FindEnd(client sarama.Client, topic string, partition int32, from int64) (end int64, ok bool, err error) {
	return findEnd(client, place{topic, partition}, from)
}

// Metadata is metadata.
var Metadata = metadata

// Hopeless is hopeless.
var Hopeless = hopeless

// MailerConfig is the configuration of the producer of dead letters.
func MailerConfig(c Config) (*sarama.Config, error) { return c.mailerConfig() }

// LateReport has Run judge that an offset is out of range when the next session has begun,
// but does not know its topics yet; the one before knew them by ids. It returns what Run
// ends with; nil: it goes on.
func LateReport(client sarama.Client, handler Handler, ids map[string]uuid.UUID) (ended error) {
	r := &runner{handler: handler, joiner: joiner{log: slog.New(slog.DiscardHandler), stop: func(err error) { ended = err }}}
	before, now := unbegun(r, client), unbegun(r, client)
	before.ids.Store(&ids)
	r.before.Store(before)
	r.member.Store(now)
	r.outOfRange(sarama.ErrOffsetOutOfRange)
	return ended
}

func unbegun(r *runner, client sarama.Client) *member {
	return &member{handler: r.handler, client: client, log: r.log, over: make(chan struct{})}
}
