package publisher

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/kafkaconf"
	"github.com/onceward/onceward/record"
)

// Defaults of [Config].
const (
	defaultClientID          = "onceward"
	defaultVersion           = "2.8.0"
	defaultCompression       = "lz4"
	defaultMaxMessageBytes   = 1_000_000
	defaultMaxInFlightBytes  = 16 << 20
	defaultTopicRefresh      = time.Minute
	defaultReplicationFactor = 3
	defaultPartitions        = 12
	defaultMaxCreated        = 1000
)

// SASL mechanisms.
const (
	MechanismPlain       = "PLAIN"
	MechanismSCRAMSHA256 = "SCRAM-SHA-256"
	MechanismSCRAMSHA512 = "SCRAM-SHA-512"
)

// What to do when a topic's partition count changes, for [Config].PartitionChange.
const (
	PartitionsGoOn = "go-on"
	PartitionsHalt = "halt"
)

// Config says to which cluster, with which limits, and by which routes. It is
// read once, by [New], which refuses a value it does not understand and changes
// nothing but zero values, to the defaults named here.
type Config struct {
	// Brokers are host:port addresses to find the cluster by. Required.
	Brokers []string
	// Cluster is the id of the one cluster that may be written to: a broker of
	// another one ends [New], or the publisher, with an [OtherClusterError] before
	// anything is written there. Empty: the first that answers.
	Cluster string
	// ClientID names this process in broker logs and quotas. Default "onceward".
	ClientID string
	// Version is the oldest broker in the cluster. Default and minimum 2.8.0.
	Version string
	// TLS, when not nil, encrypts every connection. It is cloned; the server's
	// name is filled in per broker when empty.
	TLS *tls.Config
	// SASL, when Mechanism is set, authenticates every connection.
	SASL SASL
	// Insecure allows SASL without TLS, and TLS that does not verify.
	Insecure bool

	// Compression is none, gzip, snappy, lz4 or zstd. Default lz4.
	Compression string
	// MaxMessageBytes bounds a record and a batch (Kafka: max.request.size and
	// max.message.bytes), with its headers and the worst case of compression. Of an
	// event it leaves room for the headers of its repair and its replay.
	// The records of a topic that takes less go one by one. Default 1,000,000; 1 KiB to 64 MiB.
	MaxMessageBytes int
	// MaxInFlightBytes bounds the memory of events that were handed over and
	// not acknowledged yet; beyond it Publish blocks. One event larger than
	// that passes alone. Default 16 MiB.
	MaxInFlightBytes int64

	// Routes are tried in order; the first match decides. Required.
	Routes []Route
	// Topics says which topics may be written, and whether to create them.
	Topics Topics
	// Narrow names topics that refused a batch, as [NarrowError] of the
	// publisher before said. Their records go one per batch until their
	// max.message.bytes is seen to be raised.
	Narrow []string
	// PartitionChange says what to do once a topic has another partition
	// count: go-on drains what is in flight, announces the change and places
	// keys by the new count, across which a key has no order; halt makes
	// Publish return a [*PartitionError]. What was before is in Memory. Default
	// go-on.
	PartitionChange string
	// Memory is what the process knows from the publishers before this one.
	// Default: nothing.
	Memory *Memory
	// HeaderStyle is onceward, cloudevents or debezium; see the contract.
	// Default onceward.
	HeaderStyle string
	// TopicRefresh is the time between two looks at every topic in use.
	// Default 1 minute, at least 1 second.
	TopicRefresh time.Duration

	// Sent, if not nil, is told how many records each request has that is sent, or
	// sent again. It must return at once, and be safe for concurrent use.
	Sent func(records int)

	// Logger receives what an operator should see; payloads never appear.
	// Default: discard.
	Logger *slog.Logger
	// Dial replaces the TCP dialer, for tests. TLS is put on top of it.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	faults faults
}

// faults are deliberate defects by which tests show that the checks of the
// guarantee find them. The zero value has none; only tests can set them.
type faults struct {
	// resend: a batch is given up after one retry, and its records are sent again
	// behind what has come a moment later.
	resend bool
}

// SASL holds the credentials of one user.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty for none
	Username  string
	Password  string
}

// Topics bounds what rows may do by naming a topic.
type Topics struct {
	// Allow lists globs (* and ?) of topics that may be written. Empty allows
	// all. Topics that begin with __ are never allowed, nor is the checkpoint's.
	Allow []string
	// Create makes a missing topic instead of refusing the route.
	Create bool
	// Partitions of a created topic. Default 12.
	Partitions int32
	// ReplicationFactor of a created topic. Default 3.
	ReplicationFactor int16
	// MaxCreated bounds how many topics are made, as far as [Config].Memory
	// reaches. Default 1000.
	MaxCreated int
}

// Validate reports what [New] would refuse without a connection; the error names
// field and value.
func (c Config) Validate() error {
	_, err := c.resolve()
	return err
}

// ConfigError says which field of a [Config] is wrong, and why.
type ConfigError struct {
	Field string // e.g. Brokers[0], SASL.Mechanism
	Value string // as it may be shown
	Want  string
}

// Error implements error.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("configure publisher: %s = %s: %s", e.Field, e.Value, e.Want)
}

func configError(field string, value any, want string) error {
	return &ConfigError{Field: field, Value: fmt.Sprint(value), Want: want}
}

// settings is a Config after validation, in the types that sarama wants.
type settings struct {
	Config
	version     sarama.KafkaVersion
	compression sarama.CompressionCodec
	router      *router
	told        []string // addresses of the cluster's brokers, for when the seeds are gone; none before it was reached
}

// resolve fills in defaults and refuses what is wrong.
func (c Config) resolve() (*settings, error) {
	s := &settings{Config: c.withDefaults()}
	s.faults.resend = s.faults.resend || fault.Is(fault.Resend)
	for _, step := range []func() error{s.resolveCluster, s.resolveSecurity, s.resolveLimits, s.resolveTopics} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	var err error
	s.router, err = newRouter(s.Routes, s.Topics.Allow, DefaultCheckpointTopic)
	return s, err
}

func (c Config) withDefaults() Config {
	setDefault(&c.ClientID, defaultClientID)
	setDefault(&c.Version, defaultVersion)
	setDefault(&c.Compression, defaultCompression)
	setDefault(&c.MaxMessageBytes, defaultMaxMessageBytes)
	setDefault(&c.MaxInFlightBytes, defaultMaxInFlightBytes)
	setDefault(&c.TopicRefresh, defaultTopicRefresh)
	setDefault(&c.HeaderStyle, record.StyleOnceward)
	setDefault(&c.PartitionChange, PartitionsGoOn)
	setDefault(&c.Topics.Partitions, defaultPartitions)
	setDefault(&c.Topics.ReplicationFactor, defaultReplicationFactor)
	setDefault(&c.Topics.MaxCreated, defaultMaxCreated)
	if c.Memory == nil {
		c.Memory = new(Memory)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: kafkaconf.DialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (s *settings) resolveCluster() error {
	if len(s.Brokers) == 0 {
		return configError("Brokers", "[]", "name at least one broker as host:port")
	}
	seen := make(map[string]bool, len(s.Brokers))
	for i, address := range s.Brokers {
		field := fmt.Sprintf("Brokers[%d]", i)
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || port == "" {
			return configError(field, fmt.Sprintf("%q", address), "want host:port")
		}
		if seen[address] {
			return configError(field, fmt.Sprintf("%q", address), "listed twice")
		}
		seen[address] = true
	}
	var err error
	if s.version, err = sarama.ParseKafkaVersion(s.Version); err != nil {
		return configError("Version", fmt.Sprintf("%q", s.Version), "want a Kafka version such as 3.9.0")
	}
	if !s.version.IsAtLeast(sarama.V2_8_0_0) {
		return configError("Version", fmt.Sprintf("%q", s.Version), "brokers before 2.8.0 are not supported")
	}
	return nil
}

func (s *settings) resolveSecurity() error {
	if s.TLS != nil && s.TLS.InsecureSkipVerify && !s.Insecure {
		return configError("TLS.InsecureSkipVerify", true, "the broker would not be verified; give its CA, or set Insecure")
	}
	switch s.SASL.Mechanism {
	case "":
		if s.SASL.Username != "" || s.SASL.Password != "" {
			return configError("SASL.Mechanism", `""`, "a user name or password is set; name PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
		}
		return nil
	case MechanismPlain, MechanismSCRAMSHA256, MechanismSCRAMSHA512:
	default:
		return configError("SASL.Mechanism", fmt.Sprintf("%q", s.SASL.Mechanism), "want PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
	}
	if s.SASL.Username == "" {
		return configError("SASL.Username", `""`, "required with SASL")
	}
	if s.SASL.Password == "" {
		return configError("SASL.Password", "(empty)", "required with SASL")
	}
	if s.TLS == nil && !s.Insecure {
		return configError("TLS", "nil", "SASL without TLS shows the credentials to the network; set TLS, or Insecure for a test")
	}
	return nil
}

var compressions = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func (s *settings) resolveLimits() error {
	var ok bool
	if s.compression, ok = compressions[s.Compression]; !ok {
		return configError("Compression", fmt.Sprintf("%q", s.Compression), "want none, gzip, snappy, lz4 or zstd")
	}
	if s.MaxMessageBytes < 1<<10 || s.MaxMessageBytes > 64<<20 {
		return configError("MaxMessageBytes", s.MaxMessageBytes, "want 1 KiB to 64 MiB")
	}
	if s.MaxInFlightBytes < 64<<10 {
		return configError("MaxInFlightBytes", s.MaxInFlightBytes, "want at least 64 KiB")
	}
	return nil
}

func (s *settings) resolveTopics() error {
	switch s.HeaderStyle {
	case record.StyleOnceward, record.StyleCloudEvents, record.StyleDebezium:
	default:
		return configError("HeaderStyle", fmt.Sprintf("%q", s.HeaderStyle), "want onceward, cloudevents or debezium")
	}
	if s.PartitionChange != PartitionsGoOn && s.PartitionChange != PartitionsHalt {
		return configError("PartitionChange", fmt.Sprintf("%q", s.PartitionChange), "want go-on or halt")
	}
	if s.TopicRefresh < time.Second {
		return configError("TopicRefresh", s.TopicRefresh, "want at least 1s")
	}
	if s.Topics.Partitions < 1 {
		return configError("Topics.Partitions", s.Topics.Partitions, "want at least 1")
	}
	if s.Topics.MaxCreated < 1 {
		return configError("Topics.MaxCreated", s.Topics.MaxCreated, "want at least 1")
	}
	if s.Topics.ReplicationFactor < 1 {
		return configError("Topics.ReplicationFactor", s.Topics.ReplicationFactor, "want at least 1")
	}
	return nil
}
