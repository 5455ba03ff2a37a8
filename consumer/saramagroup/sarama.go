package saramagroup

import (
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer/saramagroup/internal/unpacked"
	"github.com/onceward/onceward/internal/kafkaconf"
)

// rebalanceTimeout is how long a rebalance waits for a member to give up what it
// has in hand.
const rebalanceTimeout = 60 * time.Second

// metadataRefresh is how often a member asks for the partitions of its topics, and how
// often it looks at the answer: one that a topic got is read after twice that. sarama's own
// is ten minutes.
const metadataRefresh = time.Minute

// SaramaConfig returns the configuration with which [Run] consumes, or the
// first thing that is wrong with c. It asks SASL.PasswordFunc for the password.
// Five of sarama's defaults can each lose an
// event or show one that was aborted; they are replaced:
//
//   - a group without offsets starts at the oldest message, not at the newest;
//   - an offset that Kafka no longer has is an error, not a jump to the end;
//   - offsets are committed by Run, for finished messages only;
//   - records of aborted transactions are not seen;
//   - a topic that is missing is not created by being asked for.
//
// Messages are asked for in small answers, by sarama.MaxDecompressedBatchSize,
// and not buffered: see the package comment.
func (c Config) SaramaConfig() (*sarama.Config, error) {
	c = c.withDefaults()
	if err := c.validate(drains); err != nil {
		return nil, err
	}
	s := kafkaconf.New(c.ClientID, c.Version)
	s.Metadata.RefreshFrequency = metadataRefresh
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	s.Consumer.Offsets.AutoCommit.Enable = false
	s.Consumer.IsolationLevel = sarama.ReadCommitted
	s.Consumer.Return.Errors = true
	s.Consumer.Group.ResetInvalidOffsets = false
	s.Consumer.Fetch.Default = unpacked.Fetch()
	s.ChannelBufferSize = 0 // whole batches would wait in it, unpacked
	s.Consumer.Group.Session.Timeout = c.SessionTimeout
	s.Consumer.Group.Heartbeat.Interval = min(3*time.Second, c.SessionTimeout/4)
	s.Consumer.Group.Rebalance.Timeout = rebalanceTimeout
	// A member that pauses for longer than its session when a rebalance overtakes
	// its own is thrown out meanwhile, which starts the next rebalance.
	s.Consumer.Group.Rebalance.Retry.Backoff = min(2*time.Second, c.SessionTimeout/10)
	// Sticky in the eager protocol: a rebalance ends every claim, and so no
	// claim outlives the generation in which its offsets may be committed.
	s.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategySticky()}

	if err := c.secure(s); err != nil {
		return nil, err
	}
	if c.hooks.config != nil {
		c.hooks.config(s)
	}
	return s, s.Validate()
}

func (c Config) secure(s *sarama.Config) error {
	if c.SASL == nil {
		kafkaconf.Secure(s, c.TLS, kafkaconf.Login{})
		return nil
	}
	password, err := c.SASL.password()
	if err != nil {
		return err
	}
	kafkaconf.Secure(s, c.TLS, kafkaconf.Login{Mechanism: string(c.SASL.Mechanism), User: c.SASL.User,
		Password: password, Ask: c.SASL.password})
	return nil
}
