package saramagroup_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// Each of these differs from sarama's default, which can lose an event or show
// one that was aborted. A new version of sarama must not change them unseen.
func TestSaramaConfigIsPinned(t *testing.T) {
	s, err := saramagroup.Config{Topics: []string{topic}, Insecure: true}.SaramaConfig()
	require.NoError(t, err)
	std := sarama.NewConfig()
	require.NotEqual(t, std.Consumer.Offsets.Initial, s.Consumer.Offsets.Initial)
	require.Equal(t, sarama.OffsetOldest, s.Consumer.Offsets.Initial)
	require.NotEqual(t, std.Consumer.Group.ResetInvalidOffsets, s.Consumer.Group.ResetInvalidOffsets)
	require.False(t, s.Consumer.Group.ResetInvalidOffsets)
	require.NotEqual(t, std.Consumer.Offsets.AutoCommit.Enable, s.Consumer.Offsets.AutoCommit.Enable)
	require.False(t, s.Consumer.Offsets.AutoCommit.Enable)
	require.NotEqual(t, std.Consumer.IsolationLevel, s.Consumer.IsolationLevel)
	require.Equal(t, sarama.ReadCommitted, s.Consumer.IsolationLevel)
	require.NotEqual(t, std.Metadata.AllowAutoTopicCreation, s.Metadata.AllowAutoTopicCreation)
	require.False(t, s.Metadata.AllowAutoTopicCreation)
	require.True(t, s.Consumer.Return.Errors, "Run watches for lost messages there")
	require.Equal(t, time.Minute, s.Metadata.RefreshFrequency, "partitions that a topic gets are read soon")
	require.Equal(t, sarama.V2_8_0_0, s.Version)
	require.Equal(t, "onceward", s.ClientID)
	require.Equal(t, consumer.DefaultSessionTimeout, s.Consumer.Group.Session.Timeout, "claims and partitions go together")
	require.Equal(t, time.Minute, s.Consumer.Group.Rebalance.Timeout)
	require.Equal(t, 2*time.Second, s.Consumer.Group.Rebalance.Retry.Backoff)
	require.Len(t, s.Consumer.Group.Rebalance.GroupStrategies, 1)
	require.Equal(t, sarama.StickyBalanceStrategyName, s.Consumer.Group.Rebalance.GroupStrategies[0].Name())
	require.False(t, s.Net.TLS.Enable)
	require.False(t, s.Net.SASL.Enable)
}

// A letter that is marked as sent is in all in-sync replicas, once for each time
// that it was given to the producer.
func TestMailerConfigIsPinned(t *testing.T) {
	s, err := saramagroup.MailerConfig(saramagroup.Config{Topics: []string{topic}, Insecure: true})
	require.NoError(t, err)
	require.True(t, s.Producer.Idempotent)
	require.Equal(t, sarama.WaitForAll, s.Producer.RequiredAcks)
	require.False(t, s.Metadata.AllowAutoTopicCreation)
	require.Equal(t, int(sarama.MaxRequestSize)-1, s.Producer.MaxMessageBytes)
}

func TestSecurity(t *testing.T) {
	for _, m := range []saramagroup.Mechanism{saramagroup.Plain, saramagroup.ScramSHA512} {
		s, err := saramagroup.Config{
			Topics: []string{topic}, TLS: &tls.Config{ServerName: "kafka"},
			SASL: &saramagroup.SASL{Mechanism: m, User: "u", Password: "p"},
		}.SaramaConfig()
		require.NoError(t, err)
		require.True(t, s.Net.TLS.Enable)
		require.Equal(t, "kafka", s.Net.TLS.Config.ServerName)
		require.True(t, s.Net.SASL.Enable)
		require.Equal(t, sarama.SASLMechanism(m), s.Net.SASL.Mechanism)
	}
}

func TestConfigErrorsNameFieldAndValue(t *testing.T) {
	ok := []string{topic}
	for name, c := range map[string]struct {
		cfg  saramagroup.Config
		want string
	}{
		"no topics":         {saramagroup.Config{}, "Topics is empty"},
		"empty topic":       {saramagroup.Config{Topics: []string{"a", ""}}, "Topics[1]"},
		"old version":       {saramagroup.Config{Topics: ok, Version: sarama.V2_7_0_0}, "Version 2.7.0: want at least 2.8.0"},
		"retry":             {saramagroup.Config{Topics: ok, RetryMin: time.Minute}, "RetryMin 1m0s, RetryMax 30s"},
		"negative retry":    {saramagroup.Config{Topics: ok, RetryMin: -1}, "RetryMin -1ns"},
		"negative commit":   {saramagroup.Config{Topics: ok, CommitInterval: -1}, "CommitInterval -1ns"},
		"long drain":        {saramagroup.Config{Topics: ok, DrainTimeout: 20 * time.Second}, "DrainTimeout 20s"},
		"housekeeping":      {saramagroup.Config{Topics: ok, HousekeepingInterval: -1}, "HousekeepingInterval -1ns"},
		"letters to itself": {saramagroup.Config{Topics: ok, DeadLetterTopic: topic}, `DeadLetterTopic "orders" is one of Topics`},
		"mechanism":         {saramagroup.Config{Topics: ok, SASL: &saramagroup.SASL{Mechanism: "NTLM"}}, `SASL.Mechanism "NTLM"`},
		"no password":       {saramagroup.Config{Topics: ok, SASL: &saramagroup.SASL{Mechanism: "PLAIN", User: "u"}}, "SASL.Password"},
		"plain text":        {saramagroup.Config{Topics: ok}, "set TLS, or Insecure"},
		"two passwords": {saramagroup.Config{Topics: ok, SASL: &saramagroup.SASL{
			Mechanism: "PLAIN", User: "u", Password: "p", PasswordFunc: func() (string, error) { return "p", nil },
		}}, "one of SASL.Password and SASL.PasswordFunc"},
		"SASL without TLS": {saramagroup.Config{Topics: ok, SASL: &saramagroup.SASL{Mechanism: "PLAIN", User: "u", Password: "p"}}, "SASL without TLS"},
	} {
		_, err := c.cfg.SaramaConfig()
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, saramagroup.Run(t.Context(), []string{"localhost:1"}, newHandler(nil), c.cfg), c.want, name)
	}
}

func TestRunRefusesAtOnce(t *testing.T) {
	cfg := saramagroup.Config{Topics: []string{topic}, Insecure: true}
	require.ErrorContains(t, saramagroup.Run(t.Context(), nil, newHandler(nil), cfg), "no brokers")

	r := consumer.NewRouter(&consumer.Processor{})
	r.Tx("", nil)
	require.ErrorIs(t, saramagroup.Run(t.Context(), []string{"localhost:1"}, r, cfg), consumer.ErrRegistration)
}

// attending is a handler whose member runs with a Processor.
type attending struct {
	*handler
	router *consumer.Router
}

func (a attending) Attend() (leave func(), err error) { return a.router.Attend() }

// A Processor has one member at a time, by whatever Router.
func TestOneRunAtATime(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p := &consumer.Processor{}
	run := func() error {
		return saramagroup.Run(ended, []string{"localhost:1"}, attending{newHandler(nil), consumer.NewRouter(p)}, saramagroup.Config{Topics: []string{topic}, Insecure: true})
	}
	require.NoError(t, run())
	leave, err := consumer.NewRouter(p).Attend()
	require.NoError(t, err)
	require.ErrorIs(t, run(), consumer.ErrAttended)
	leave()
	require.NoError(t, run(), "the one before has left")
	require.NoError(t, run())
}

func TestHopeless(t *testing.T) {
	for _, err := range []error{
		sarama.ConfigurationError("x"), sarama.ErrGroupAuthorizationFailed, sarama.ErrTopicAuthorizationFailed,
		sarama.Wrap(sarama.ErrOutOfBrokers, sarama.ErrSASLAuthenticationFailed),
	} {
		require.True(t, saramagroup.Hopeless(fmt.Errorf("join: %w", err)), "%v", err)
	}
	for _, err := range []error{
		nil, errors.New("x"), sarama.ErrOutOfBrokers, sarama.ErrUnknownTopicOrPartition, sarama.ErrRebalanceInProgress,
		sarama.ErrNotCoordinatorForConsumer, sarama.ErrNetworkException,
	} {
		require.False(t, saramagroup.Hopeless(err), "%v", err)
	}
}

// A pause longer than the session throws the member out, again and again.
func TestShortSessionsShortenPauses(t *testing.T) {
	s, err := saramagroup.Config{Topics: []string{topic}, Insecure: true, SessionTimeout: 2 * time.Second}.SaramaConfig()
	require.NoError(t, err)
	require.Equal(t, 200*time.Millisecond, s.Consumer.Group.Rebalance.Retry.Backoff)
	require.Equal(t, 500*time.Millisecond, s.Consumer.Group.Heartbeat.Interval)
}
