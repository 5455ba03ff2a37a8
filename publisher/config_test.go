package publisher_test

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher"
)

func minimal() publisher.Config {
	return publisher.Config{Brokers: []string{"kafka-1:9093"}, Routes: []publisher.Route{{Topic: "{namespace}"}}}
}

func TestDefaults(t *testing.T) {
	cfg, err := publisher.Resolve(minimal())
	require.NoError(t, err)
	require.Equal(t, "onceward", cfg.ClientID)
	require.Equal(t, "2.8.0", cfg.Version)
	require.Equal(t, "lz4", cfg.Compression)
	require.Equal(t, 1_000_000, cfg.MaxMessageBytes)
	require.EqualValues(t, 16<<20, cfg.MaxInFlightBytes)
	require.Equal(t, time.Minute, cfg.TopicRefresh)
	require.EqualValues(t, 12, cfg.Topics.Partitions)
	require.EqualValues(t, 3, cfg.Topics.ReplicationFactor)
	require.False(t, cfg.Topics.Create)
	require.Equal(t, "onceward", cfg.HeaderStyle)
	require.Equal(t, "go-on", cfg.PartitionChange)
}

func TestConfigIsRefusedByFieldAndValue(t *testing.T) {
	for want, change := range map[string]func(*publisher.Config){
		`Brokers = []`:                     func(c *publisher.Config) { c.Brokers = nil },
		`Brokers[0] = "kafka"`:             func(c *publisher.Config) { c.Brokers = []string{"kafka"} },
		`Brokers[0] = ":9092"`:             func(c *publisher.Config) { c.Brokers = []string{":9092"} },
		`Brokers[1] = "a:1": listed twice`: func(c *publisher.Config) { c.Brokers = []string{"a:1", "a:1"} },
		`Version = "new"`:                  func(c *publisher.Config) { c.Version = "new" },
		`Version = "2.7.0"`:                func(c *publisher.Config) { c.Version = "2.7.0" },
		`Compression = "brotli"`:           func(c *publisher.Config) { c.Compression = "brotli" },
		`MaxMessageBytes = 100`:            func(c *publisher.Config) { c.MaxMessageBytes = 100 },
		`MaxMessageBytes = 100000000`:      func(c *publisher.Config) { c.MaxMessageBytes = 100_000_000 },
		`MaxInFlightBytes = -1`:            func(c *publisher.Config) { c.MaxInFlightBytes = -1 },
		`TopicRefresh = 1ms`:               func(c *publisher.Config) { c.TopicRefresh = time.Millisecond },
		`HeaderStyle = "json": want`:       func(c *publisher.Config) { c.HeaderStyle = "json" },
		`PartitionChange = "stop": want`:   func(c *publisher.Config) { c.PartitionChange = "stop" },
		`Topics.Partitions = -1`:           func(c *publisher.Config) { c.Topics.Partitions = -1 },
		`Topics.ReplicationFactor = -1`:    func(c *publisher.Config) { c.Topics.ReplicationFactor = -1 },
		`Routes = []`:                      func(c *publisher.Config) { c.Routes = nil },
		`TLS.InsecureSkipVerify = true`:    func(c *publisher.Config) { c.TLS = &tls.Config{InsecureSkipVerify: true} },
		`SASL.Mechanism = "": a user name`: func(c *publisher.Config) { c.SASL.Username = "u" },
		`SASL.Mechanism = "GSSAPI"`:        func(c *publisher.Config) { c.SASL.Mechanism = "GSSAPI" },
		`SASL.Username = ""`:               func(c *publisher.Config) { c.SASL.Mechanism = "PLAIN" },
		`SASL.Password = (empty)`:          func(c *publisher.Config) { c.SASL = publisher.SASL{Mechanism: "PLAIN", Username: "u"} },
		`TLS = nil: SASL without TLS shows`: func(c *publisher.Config) {
			c.SASL = publisher.SASL{Mechanism: "PLAIN", Username: "u", Password: "canary"}
		},
	} {
		cfg := minimal()
		change(&cfg)
		_, err := publisher.Resolve(cfg)
		require.ErrorContains(t, err, "configure publisher: "+want)
		require.NotContains(t, err.Error(), "canary")
	}
	_, err := publisher.New(within(t), minimal(), nil)
	require.ErrorContains(t, err, "acknowledged = nil")
}

// Each value is one of the traps that sarama's defaults set, or that the order
// of events rests on.
func TestSaramaConfigIsPinned(t *testing.T) {
	cfg := minimal()
	cfg.TLS = &tls.Config{ServerName: "kafka"}
	cfg.SASL = publisher.SASL{Mechanism: "SCRAM-SHA-512", Username: "relay", Password: "secret"}
	c, body, err := publisher.WriteConfig(cfg, publisher.TransactionConfig{})
	require.NoError(t, err)
	require.NoError(t, c.Validate())

	require.Equal(t, sarama.WaitForAll, body.RequiredAcks)
	require.Less(t, time.Duration(body.Timeout)*time.Millisecond, c.Net.ReadTimeout, "the broker gives up before we do")
	require.Nil(t, body.TransactionalID)
	require.EqualValues(t, 8, body.Version)
	require.Equal(t, 1, c.Net.MaxOpenRequests)
	require.Equal(t, 998_896, publisher.BatchLimit(1_000_000))

	require.False(t, c.Metadata.AllowAutoTopicCreation)
	require.False(t, c.Metadata.Full)

	require.Equal(t, sarama.V2_8_0_0, c.Version)
	require.Equal(t, "onceward", c.ClientID)
	require.Equal(t, 10*time.Second, c.Net.DialTimeout)
	require.Equal(t, 30*time.Second, c.Net.ReadTimeout)
	require.Equal(t, 30*time.Second, c.Net.WriteTimeout)
	require.True(t, c.Net.Proxy.Enable, "every connection is dialled by the wire")
	require.True(t, c.Net.TLS.Enable)
	require.NotSame(t, cfg.TLS, c.Net.TLS.Config)
	require.True(t, c.Net.SASL.Enable)
	require.EqualValues(t, "SCRAM-SHA-512", c.Net.SASL.Mechanism)
	require.NotNil(t, c.Net.SASL.SCRAMClientGeneratorFunc)
}
