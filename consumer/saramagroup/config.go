package saramagroup

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/IBM/sarama"
)

// Defaults of [Config].
const (
	defaultClientID       = "onceward"
	defaultRetryMin       = 100 * time.Millisecond
	defaultRetryMax       = 30 * time.Second
	defaultCommitInterval = time.Second
	defaultDrainTimeout   = 5 * time.Second
	defaultConcurrency    = 1
	// defaultSessionTimeout is that of Kafka's own clients since 3.0.
	defaultSessionTimeout = 45 * time.Second
	defaultMaxHeld        = 1000
	defaultMaxHeldBytes   = 16 << 20
	// defaultHousekeepingInterval is also how long a redrive that was asked for
	// waits, at most, to begin.
	defaultHousekeepingInterval = 10 * time.Second
)

// defaultVersion is the oldest Kafka that is supported, 2.8. Newer brokers
// speak its protocol.
var defaultVersion = sarama.V2_8_0_0

// Config says what to consume and how to reach Kafka. The zero value of an
// optional field means its default.
type Config struct {
	// Topics are the topics to consume, at least one. A topic that does not
	// exist yet is waited for, and none of the others is read meanwhile.
	Topics []string
	// Version is the protocol version to speak, at least and by default 2.8,
	// which newer brokers speak too.
	Version sarama.KafkaVersion
	// ClientID names this program to the brokers; default "onceward".
	ClientID string
	// TLS encrypts the connections to Kafka. It may be nil with Insecure only.
	TLS *tls.Config
	// SASL logs in; nil is no login.
	SASL *SASL
	// Insecure says that plain text is wanted, which shows events, and credentials
	// of SASL, to the network. Without it TLS is required.
	Insecure bool
	// RetryMin and RetryMax bound the pause before a failed delivery, or a
	// failed join, is tried again. The pause doubles from RetryMin and is
	// shortened at random by up to a half. Defaults 100 ms and 30 s.
	RetryMin, RetryMax time.Duration
	// CommitInterval is how often offsets are committed; they are committed at
	// the end of each session as well. A crash redelivers what was finished
	// since, which the claims then know. Default 1 s.
	CommitInterval time.Duration
	// SessionTimeout is how long Kafka waits for a member that is silent, dead or
	// stopped, before others get its partitions. Brokers accept 6 s to 30 min
	// unless told otherwise. Give consumer.Config the same, so that a stopped
	// process loses its claims at about the same time. At least 1 s; default
	// 45 s, as in Kafka's own clients since 3.0.
	SessionTimeout time.Duration
	// DrainTimeout is how long the message in hand may go on when the session
	// ends, by a rebalance or the end of the context, before it is rolled back.
	// Less than 20 s: it may pass three times within Kafka's rebalance timeout, a minute; default 5 s.
	DrainTimeout time.Duration
	// Concurrency is how many deliveries of one partition run at once; those of
	// one aggregate (record key) never do. A batch counts as one. Default 1.
	Concurrency int
	// MaxHeld and MaxHeldBytes bound the messages of one partition that were
	// read and are not finished: those being delivered, and those that wait behind
	// one of their aggregate that fails, or for their batch. Keys, values and
	// headers count as bytes. Beyond, the partition waits. One message larger than
	// MaxHeldBytes passes alone. Of a message that is finished nothing is kept,
	// so that one aggregate that fails stops the others only when MaxHeld messages
	// of its own wait. What was finished behind the first that is not is delivered
	// again after the session, as duplicates. Defaults 1000 and 16 MiB.
	MaxHeld, MaxHeldBytes int
	// HousekeepingInterval is the pause between two runs of what no message asks
	// for: redriving dead letters (consumer.Router.Redrive), recovering fences
	// (RecoverFences), copying letters to DeadLetterTopic. It goes on while Kafka
	// is away, and is how long a redrive that was asked for waits, at most, to
	// begin. Default 10 s.
	HousekeepingInterval time.Duration
	// DeadLetterTopic gets a copy of each dead letter of the group, whatever its
	// reason, that nobody has decided about before: the message as it came, with
	// headers that say why, see [HeaderDeadReason]. Each is produced at least
	// once, acknowledged by all in-sync replicas; the table
	// onceward.consumer_dead_letters stays the truth, and a redrive changes it
	// alone. Letters from before the topic was configured are copied too. The
	// topic must exist, and take messages a few kilobytes larger than those of
	// Topics, to which it may not belong. A failure is logged and tried again; it
	// holds nothing up. Default: none.
	DeadLetterTopic string
	// Logger gets the member's life and each failed delivery. Default: text to
	// stderr, warnings and errors only; slog.New(slog.DiscardHandler) is silent.
	Logger *slog.Logger
	// Observe is given a [Snapshot] every CommitInterval, and a last one before
	// Run returns; package consumerprom makes metrics of them. Its calls never
	// overlap. It should return soon: Run waits for the last call. Default: none.
	Observe func(Snapshot)

	// hooks lets tests replace the network and build in defects.
	hooks hooks
}

// hooks are set by tests only; nil fields change nothing.
type hooks struct {
	config func(*sarama.Config)
	member func(sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler
	idle   time.Duration // in the place of idleAfter and of lookEvery
	close  time.Duration // in that of closeTimeout
}

func (c Config) idleAfter() time.Duration { return cmp.Or(c.hooks.idle, idleAfter) }
func (c Config) lookEvery() time.Duration { return cmp.Or(c.hooks.idle, lookEvery) }

// endsWithin is for how long Kafka is waited for when the context has ended.
func (c Config) endsWithin() time.Duration {
	return c.DrainTimeout + cmp.Or(c.hooks.close, closeTimeout)
}

// SASL is a login with user and password, of which one of Password and
// PasswordFunc is given. It prints without the password.
type SASL struct {
	Mechanism Mechanism
	User      string
	Password  string
	// PasswordFunc returns the password of this moment, so that it can be changed
	// without a restart: it is asked before Kafka is connected to, and with
	// SCRAM at each connection. A login that is refused is then tried again with what
	// it returns; without it Run ends. It must return soon, and be safe for
	// concurrent use. Its errors are logged, and may not hold the password.
	PasswordFunc func() (string, error)
}

func (s *SASL) password() (string, error) {
	if s.PasswordFunc == nil {
		return s.Password, nil
	}
	password, err := s.PasswordFunc()
	if err == nil && password == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return "", fmt.Errorf("ask SASL.PasswordFunc for the password of user %q: %w; Kafka is not connected to before it answers", s.User, err)
	}
	return password, nil
}

// String returns mechanism and user.
func (s SASL) String() string { return fmt.Sprintf("%s as %s", s.Mechanism, s.User) }

// GoString is String, for %#v.
func (s SASL) GoString() string { return s.String() }

// Mechanism is a SASL mechanism.
type Mechanism string

// The mechanisms that are supported.
const (
	Plain       Mechanism = "PLAIN"
	ScramSHA256 Mechanism = "SCRAM-SHA-256"
	ScramSHA512 Mechanism = "SCRAM-SHA-512"
)

func (c Config) withDefaults() Config {
	c.Version, c.ClientID = cmp.Or(c.Version, defaultVersion), cmp.Or(c.ClientID, defaultClientID)
	c.RetryMin, c.RetryMax = cmp.Or(c.RetryMin, defaultRetryMin), cmp.Or(c.RetryMax, defaultRetryMax)
	c.CommitInterval = cmp.Or(c.CommitInterval, defaultCommitInterval)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, defaultDrainTimeout)
	c.SessionTimeout = cmp.Or(c.SessionTimeout, defaultSessionTimeout)
	c.HousekeepingInterval = cmp.Or(c.HousekeepingInterval, defaultHousekeepingInterval)
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.MaxHeld, c.MaxHeldBytes = cmp.Or(c.MaxHeld, defaultMaxHeld), cmp.Or(c.MaxHeldBytes, defaultMaxHeldBytes)
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return c
}

// drains is how often DrainTimeout may pass at the end of a session: for the workers, the last
// commit, and the marks.
const drains = 3

func (c Config) validate(drained time.Duration) error {
	if len(c.Topics) == 0 {
		return errors.New("config: Topics is empty; name at least one topic")
	}
	for i, topic := range c.Topics {
		if topic == "" {
			return fmt.Errorf("config: Topics[%d] is empty", i)
		}
		if topic == c.DeadLetterTopic {
			return fmt.Errorf("config: DeadLetterTopic %q is one of Topics; a letter would come back as a message for ever", topic)
		}
	}
	if !c.Version.IsAtLeast(defaultVersion) {
		return fmt.Errorf("config: Version %s: want at least %s", c.Version, defaultVersion)
	}
	if c.RetryMin < 0 || c.RetryMax < c.RetryMin {
		return fmt.Errorf("config: RetryMin %s, RetryMax %s: want 0 < RetryMin <= RetryMax", c.RetryMin, c.RetryMax)
	}
	if c.CommitInterval < 0 {
		return fmt.Errorf("config: CommitInterval %s: want more than 0", c.CommitInterval)
	}
	if c.HousekeepingInterval < 0 {
		return fmt.Errorf("config: HousekeepingInterval %s: want more than 0", c.HousekeepingInterval)
	}
	if c.SessionTimeout < time.Second {
		return fmt.Errorf("config: SessionTimeout %s: want at least 1s", c.SessionTimeout)
	}
	if most := rebalanceTimeout / drained; c.DrainTimeout < 0 || c.DrainTimeout >= most {
		return fmt.Errorf("config: DrainTimeout %s: want more than 0 and less than %s", c.DrainTimeout, most)
	}
	if c.Concurrency < 0 || c.MaxHeld < c.Concurrency || c.MaxHeldBytes < 0 {
		return fmt.Errorf("config: Concurrency %d, MaxHeld %d, MaxHeldBytes %d: want more than 0, and MaxHeld no less than Concurrency", c.Concurrency, c.MaxHeld, c.MaxHeldBytes)
	}
	if err := c.SASL.validate(c.TLS != nil || c.Insecure); err != nil {
		return err
	}
	if c.TLS == nil && !c.Insecure {
		return errors.New("config: TLS is nil, so that everybody on the way to Kafka could read and change events; set TLS, or Insecure if the network is trusted")
	}
	return nil
}

func (s *SASL) validate(secure bool) error {
	if s == nil {
		return nil
	}
	switch s.Mechanism {
	case Plain, ScramSHA256, ScramSHA512:
	default:
		return fmt.Errorf("config: SASL.Mechanism %q: want %s, %s or %s", s.Mechanism, Plain, ScramSHA256, ScramSHA512)
	}
	if s.User == "" || (s.Password == "") == (s.PasswordFunc == nil) {
		return errors.New("config: SASL.User is required, and one of SASL.Password and SASL.PasswordFunc")
	}
	if !secure {
		return errors.New("config: SASL without TLS shows the credentials to the network; set TLS, or Insecure if the network is trusted")
	}
	return nil
}
