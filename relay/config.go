package relay

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/stream"
	"github.com/onceward/onceward/relay/retention"
)

// Config is relay.yaml. Every field may also be given as an environment
// variable ONCEWARD_<PATH>, e.g. ONCEWARD_POSTGRES_DSN; lists and maps only in
// the file. Package relay/config reads it, [Default] has the defaults.
type Config struct {
	// Name of the relay, [a-z0-9_]{1,54}. Slot and publication are called
	// onceward_<name> unless they are named. Required.
	Name     string         `koanf:"name"`
	Postgres PostgresConfig `koanf:"postgres"`
	Outbox   OutboxConfig   `koanf:"outbox"`
	Kafka    KafkaConfig    `koanf:"kafka"`
	// Routes lead events to topics; the first that matches wins. Required.
	Routes []RouteConfig `koanf:"routes"`
	// Headers is the style of the record headers: onceward, cloudevents (CloudEvents
	// 1.0, binary mode) or debezium (as its Outbox Event Router). Default onceward.
	Headers string       `koanf:"headers"`
	Topics  TopicsConfig `koanf:"topics"`
	Queue   QueueConfig  `koanf:"queue"`
	Admin   AdminConfig  `koanf:"admin"`
	Log     LogConfig    `koanf:"log"`
	// Gap says what to do when events may have passed the relay by (its slot was
	// dropped, lost or advanced, its publication was changed, letters were lost):
	// repair (publish from the table what is not proved published, then go on) or
	// ask (stop until `outboxctl gap repair` or `gap accept` decides). What may be
	// in Kafka already, at most a tick, is published twice by a repair. A database
	// that went back in time is asked about whatever this says, if an event is in
	// doubt. Default repair.
	Gap string `koanf:"gap"`
	// CheckpointInterval is the time between two checkpoints. Default 1s.
	CheckpointInterval time.Duration `koanf:"checkpoint_interval"`
	// MaxParkedAggregates is how many aggregates of one type in one namespace may
	// wait behind a dead letter of theirs; the event that would park one more
	// waits, with all that type's events behind it. Default 1000.
	MaxParkedAggregates int `koanf:"max_parked_aggregates"`
	// ExitOnHalt ends the process, with exit code 1, when only an operator can
	// mend what is wrong. By default it stays, gives the slot back, shows what is
	// wrong on /readyz and in `outboxctl status`, and goes on by itself once it is
	// mended; only another relay.yaml needs a restart. Default false.
	ExitOnHalt bool `koanf:"exit_on_halt"`
	// StopGrace bounds the flush when the relay is told to stop; give the process 15 s
	// more, for a database that does not answer. Default 30s.
	StopGrace time.Duration `koanf:"stop_grace"`
}

// PostgresConfig says where the outbox is.
type PostgresConfig struct {
	// DSN of the database, URL or keywords. It may hold a password: prefer
	// DSNFile or the environment.
	DSN string `koanf:"dsn"`
	// DSNFile is a file that holds the DSN; read again at every connect.
	DSNFile string `koanf:"dsn_file"`
	// MaintenanceDSNFile holds the DSN of a member of the owner's role; with it
	// the relay makes partitions ahead and drops those that are published. Empty:
	// another job does it (outboxctl partitions maintain).
	MaintenanceDSNFile string `koanf:"maintenance_dsn_file"`
	// Insecure allows a connection that is not sslmode=verify-full.
	Insecure bool       `koanf:"insecure"`
	Slot     SlotConfig `koanf:"slot"`
	// Publication, onceward_<name> when empty.
	Publication string `koanf:"publication"`
}

// SlotConfig says how the replication slot is made.
type SlotConfig struct {
	// Name, onceward_<name> when empty.
	Name string `koanf:"name"`
	// Create is auto (the relay makes the slot when it has never existed) or
	// never. Default auto.
	Create string `koanf:"create"`
	// Failover asks for a slot that is synchronised to standbys, PostgreSQL 17
	// and newer; one that is there without is altered before the relay reads from
	// it. Default true; older servers ignore it.
	Failover bool `koanf:"failover"`
}

// OutboxConfig says how to take up the table.
type OutboxConfig struct {
	// Start says what to do at the relay's first start over a table that holds
	// events already: ask (make no slot, stop and say so), all (publish them
	// first, in the order of their seq) or now (publish only what commits from
	// now on; what is older is never called published, and retention keeps it
	// until it is told to drop it). Default ask.
	Start      string           `koanf:"start"`
	Partitions PartitionsConfig `koanf:"partitions"`
}

// PartitionsConfig says which days have a partition. It is used only with
// postgres.maintenance_dsn_file.
type PartitionsConfig struct {
	// Ahead is how many days after today have a partition. Default 14.
	Ahead int `koanf:"ahead"`
	// Keep is how many days before today are kept, published or not. Default 7.
	Keep int `koanf:"keep"`
	// Every is the time between two rounds. Default 10m.
	Every time.Duration `koanf:"every"`
}

// KafkaConfig says where to publish.
type KafkaConfig struct {
	// Brokers to learn the cluster from, host:port. Required.
	Brokers []string `koanf:"brokers"`
	// ClientID in the brokers' logs and quotas, onceward-<name> when empty.
	ClientID string `koanf:"client_id"`
	// Insecure allows connections without TLS.
	Insecure bool       `koanf:"insecure"`
	TLS      TLSConfig  `koanf:"tls"`
	SASL     SASLConfig `koanf:"sasl"`
	// Mode is idempotent (every event at least once) or exactly-once (every
	// event once for consumers with isolation.level=read_committed, at the price
	// of kafka.transaction.interval). A change takes effect at the next start,
	// from the checkpoint of the mode before. Default idempotent.
	Mode        string            `koanf:"mode"`
	Transaction TransactionConfig `koanf:"transaction"`
	// Compression is none, gzip, snappy, lz4 or zstd. Default lz4.
	Compression string `koanf:"compression"`
	// MaxMessageBytes bounds a record, an event's with room for the headers of its
	// repair and its replay. Default 1000000, of which 998462 are for the event, with
	// key and headers. The records of a topic whose max.message.bytes is below it go one
	// by one, which is slow; one beyond that limit is a dead letter.
	MaxMessageBytes Bytes `koanf:"max_message_bytes"`
}

// TransactionConfig bounds one Kafka transaction of exactly-once mode.
type TransactionConfig struct {
	// Interval is about the longest that an event waits for its transaction to be
	// visible, where a commit, the database's part included, takes as long as the one before
	// and less than a quarter of it; at least half an interval lies between two commits. An event that comes alone is
	// committed at once, but commits begin no sooner than an interval after one
	// another, less what one takes, unless max_bytes have come. While the relay is
	// behind, a transaction lasts a quarter of that, up to four intervals. Default 100ms.
	Interval time.Duration `koanf:"interval"`
	// MaxBytes of events after which a transaction is committed. A session begins with 16KiB for
	// each second of the timeout, which grows by half while commits take less than an eighth of the timeout,
	// and is halved where one takes longer: under a quota, say. Default 32MiB.
	MaxBytes Bytes `koanf:"max_bytes"`
	// Timeout is after how long Kafka aborts a transaction of a relay that went
	// silent (transaction.timeout.ms). Default 60s; at most what the brokers
	// allow (transaction.max.timeout.ms, 15m).
	Timeout time.Duration `koanf:"timeout"`
}

// longest is how long a transaction may last while the relay is behind.
func (t TransactionConfig) longest() time.Duration {
	return max(t.Interval, min(4*t.Interval, t.Timeout/4))
}

// TLSConfig is the relay's side of TLS to Kafka.
type TLSConfig struct {
	// CAFile verifies the brokers; the system's roots when empty.
	CAFile string `koanf:"ca_file"`
	// CertFile and KeyFile identify the relay (mutual TLS).
	CertFile string `koanf:"cert_file"`
	// KeyFile holds the private key of CertFile.
	KeyFile string `koanf:"key_file"`
}

// SASLConfig logs in to Kafka.
type SASLConfig struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; none when empty.
	Mechanism string `koanf:"mechanism"`
	// Username to log in with.
	Username string `koanf:"username"`
	// PasswordFile holds the password; read again at every connect.
	PasswordFile string `koanf:"password_file"`
}

// RouteConfig leads the events that match to a topic.
type RouteConfig struct {
	Match MatchConfig `koanf:"match"`
	// Topic is a template over the row's columns, e.g.
	// "{namespace}.{aggregate_type}". Required.
	Topic string `koanf:"topic"`
	// Poison says what to do with an event that can never become a record (it is
	// too large, or its row is broken): park-aggregate keeps it as a dead letter,
	// and the later events of its aggregate behind it; park keeps it alone and
	// goes on with the later ones; halt waits for the operator to skip it.
	// Default park-aggregate.
	Poison string `koanf:"poison"`
}

// MatchConfig holds glob patterns; an empty one matches everything.
type MatchConfig struct {
	// Namespace of the event's key, e.g. "shop*".
	Namespace string `koanf:"namespace"`
	// AggregateType of the row, e.g. "order*".
	AggregateType string `koanf:"aggregate_type"`
	// EventType of the row, e.g. "Audit*".
	EventType string `koanf:"event_type"`
}

// TopicsConfig guards the topics.
type TopicsConfig struct {
	// Allow lists glob patterns of the names that a row may lead to; everything
	// but internal topics when empty.
	Allow []string `koanf:"allow"`
	// Create makes missing topics. Default false.
	Create bool `koanf:"create"`
	// Partitions of a created topic. Default 12.
	Partitions int `koanf:"partitions"`
	// ReplicationFactor of a created topic. Default 3.
	ReplicationFactor int `koanf:"replication_factor"`
	// MaxCreated bounds how many topics a process makes, since rows name them; the
	// events of one more wait. Default 1000.
	MaxCreated int `koanf:"max_created"`
	// PartitionChange says what to do when a topic gets another number of
	// partitions, across which a key has no order: go-on (drain, say so, place
	// keys by the new number) or halt. Default go-on.
	PartitionChange string `koanf:"partition_change"`
}

// QueueConfig bounds the relay's memory.
type QueueConfig struct {
	// Bytes read from the log and not yet handed to the producer; half as much
	// may be on its way to Kafka. Of thousands of routes that are held each
	// takes 700 bytes of it, up to three quarters. Default 16MiB.
	Bytes Bytes `koanf:"bytes"`
}

// Bytes is a size: a number, or a number with KiB, MiB, GiB, kB, MB or GB.
type Bytes int64

var byteUnits = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (b *Bytes) UnmarshalText(text []byte) error {
	s, factor := strings.TrimSpace(string(text)), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/factor {
		return fmt.Errorf("size %q: want a whole number with KiB, MiB, GiB, kB, MB, GB or nothing", text)
	}
	*b = Bytes(n * factor)
	return nil
}

// AdminConfig is the HTTP side.
type AdminConfig struct {
	// Listen is the address of /healthz, /readyz and /metrics. Default
	// 127.0.0.1:8088; "off" for none.
	Listen string `koanf:"listen"`
	// Pprof serves Go's profiles there, too, at /debug/pprof/: where CPU time and
	// memory go. They name functions of the program, no events, and whoever reaches
	// the address can take one. Default false.
	Pprof bool `koanf:"pprof"`
}

// LogConfig says how to log.
type LogConfig struct {
	// Format is json or text. Default json.
	Format string `koanf:"format"`
	// Level is debug, info, warn or error. Default info.
	Level string `koanf:"level"`
}

// Modes of publishing: [KafkaConfig].Mode, and what relay_state remembers.
const (
	ModeIdempotent  = "idempotent"
	ModeExactlyOnce = "exactly-once"
)

// What to do with an event that can never become a record: [RouteConfig].Poison.
const (
	PoisonParkAggregate = stream.PolicyParkAggregate
	PoisonPark          = stream.PolicyPark
	PoisonHalt          = stream.PolicyHalt
)

// Values of outbox.start: [OutboxConfig].Start.
const (
	StartAsk = beginning.StartAsk
	StartNow = beginning.StartNow
	StartAll = beginning.StartAll
)

// What becomes of a gap: [Config].Gap.
const (
	GapRepair = beginning.GapRepair
	GapAsk    = beginning.GapAsk
)

// Default returns the configuration with every default in it.
func Default() Config {
	return Config{
		Postgres: PostgresConfig{Slot: SlotConfig{Create: "auto", Failover: true}},
		Outbox: OutboxConfig{Start: StartAsk, Partitions: PartitionsConfig{Ahead: retention.DefaultAhead,
			Keep: retention.DefaultKeep, Every: 10 * time.Minute}},
		Kafka: KafkaConfig{
			Mode: ModeIdempotent, Compression: "lz4", MaxMessageBytes: 1_000_000,
			Transaction: TransactionConfig{Interval: 100 * time.Millisecond, MaxBytes: 32 << 20, Timeout: time.Minute},
		},
		Headers:             "onceward",
		Topics:              TopicsConfig{Partitions: 12, ReplicationFactor: 3, MaxCreated: 1000, PartitionChange: "go-on"},
		Queue:               QueueConfig{Bytes: 16 << 20},
		Admin:               AdminConfig{Listen: "127.0.0.1:8088"},
		Gap:                 GapRepair,
		Log:                 LogConfig{Format: "json", Level: "info"},
		CheckpointInterval:  time.Second,
		MaxParkedAggregates: 1000,
		StopGrace:           30 * time.Second,
	}
}

// Validate checks what can be checked without a connection and without a file. The
// error joins a [*FieldError] for each field that is wrong.
func (c *Config) Validate() error {
	found := c.Invalid()
	if len(found) == 1 {
		return found[0]
	}
	return errors.Join(found...)
}

// Invalid lists what [Config.Validate] joins.
func (c *Config) Invalid() []error { return slices.Concat(invalid(c), refusedByPublisher(c)) }

// Problems lists all that keeps a relay of this configuration from being made: what
// [Config.Validate] refuses, and what is wrong with the files that are named, which it
// reads. Of a file that cannot be read here the error wraps
// the system's, a [syscall.Errno].
func (c *Config) Problems() []error {
	return append(c.Invalid(), wrongFiles(c)...)
}

// SlotName returns the name of the replication slot.
func (c *Config) SlotName() string { return orDefault(c.Postgres.Slot.Name, "onceward_"+c.Name) }

// PublicationName returns the name of the publication.
func (c *Config) PublicationName() string {
	return orDefault(c.Postgres.Publication, "onceward_"+c.Name)
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (c *Config) retention() retention.Config {
	return retention.Config{Ahead: c.Outbox.Partitions.Ahead, Keep: c.Outbox.Partitions.Keep}
}

// policies are those of the routes.
func (c *Config) policies() []string {
	policies := make([]string, len(c.Routes))
	for i, r := range c.Routes {
		policies[i] = orDefault(r.Poison, PoisonParkAggregate)
	}
	return policies
}
