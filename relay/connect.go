package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
)

// DSN returns the DSN, read from its file when it has one, and refuses a
// connection that could be read or answered by somebody else.
func (c *Config) DSN() (string, error) {
	if c.Postgres.DSNFile == "" {
		return c.verified("postgres.dsn", c.Postgres.DSN)
	}
	const key = "postgres.dsn_file"
	text, err := secret.File(key, c.Postgres.DSNFile)
	if err != nil {
		return "", &fileError{codeDSN, key, err}
	}
	return c.verified(key, text)
}

// maintenanceDSN returns the DSN of the maintainer's role.
func (c *Config) maintenanceDSN() (string, error) {
	const key = "postgres.maintenance_dsn_file"
	text, err := secret.File(key, c.Postgres.MaintenanceDSNFile)
	if err != nil {
		return "", &fileError{codeDSN, key, err}
	}
	return c.verified(key, text)
}

// Connect opens the ordinary connection. Checkpoints are durable when they
// return, whatever the server's default is.
func Connect(ctx context.Context, text, slot string) (*pgx.Conn, error) {
	return connect(ctx, text, slot, 0)
}

// connect is Connect to a connection that outlives the end of a context by a grace:
// a statement that is under way then may end, and the connection goes on.
func connect(ctx context.Context, text, slot string, grace time.Duration) (*pgx.Conn, error) {
	conf, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, secret.ParseError("postgres.dsn", err)
	}
	conf.RuntimeParams["application_name"] = "onceward relay " + slot
	conf.RuntimeParams["synchronous_commit"] = "on"
	pgconf.Startup(conf.RuntimeParams)
	cdc.Bound(&conf.Config)
	conf.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn(), DeadlineDelay: grace}
	}
	conn, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", cdc.ExplainConnect(err, &conf.Config))
	}
	return conn, nil
}

// beginner is what a session that begins is told.
func (c *Config) beginner() beginning.Config {
	return beginning.Config{
		Relay: c.Name, Slot: c.SlotName(), Publication: c.PublicationName(), Start: c.Outbox.Start, Gap: c.Gap, Create: c.Postgres.Slot.Create == "auto",
		Failover: c.Postgres.Slot.Failover,
		Refuse:   func(setting, why string) error { return &FieldError{setting, why} },
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			dsn, err := c.DSN()
			if err != nil {
				return nil, err
			}
			return Connect(ctx, dsn, c.SlotName())
		},
	}
}

// Publisher makes the sink's configuration, and validates it; secrets are read anew
// every time. What is wrong is a [*FieldError].
func (c *Config) Publisher(log *slog.Logger) (publisher.Config, error) {
	p, err := c.publisher(log)
	if err != nil {
		return p, err
	}
	return p, inRelayYAML(p.Validate())
}

// sinkFields are the paths in relay.yaml of what the publisher calls otherwise.
var sinkFields = strings.NewReplacer(
	"Brokers", "kafka.brokers", "SASL.Mechanism", "kafka.sasl.mechanism", "SASL.Username", "kafka.sasl.username", "SASL.Password", "kafka.sasl.password_file",
	"TLS", "kafka.tls", "Compression", "kafka.compression", "MaxMessageBytes", "kafka.max_message_bytes", "MaxInFlightBytes", "queue.bytes", "HeaderStyle", "headers",
	"PartitionChange", "topics.partition_change", "Topics.Partitions", "topics.partitions", "Topics.ReplicationFactor", "topics.replication_factor",
	"Routes", "routes", ".Topic", ".topic",
)

// inRelayYAML turns what the publisher refuses into the words of relay.yaml.
func inRelayYAML(err error) error {
	var wrong *publisher.ConfigError
	if !errors.As(err, &wrong) {
		return err
	}
	return &FieldError{sinkFields.Replace(wrong.Field), wrong.Value + ": " + wrong.Want}
}

func (c *Config) publisher(log *slog.Logger) (publisher.Config, error) {
	p := c.sink(log)
	if c.Kafka.SASL != (SASLConfig{}) {
		password, err := c.Kafka.SASL.password()
		if err != nil {
			return p, err
		}
		p.SASL = publisher.SASL{Mechanism: c.Kafka.SASL.Mechanism, Username: c.Kafka.SASL.Username, Password: password}
	}
	if c.Kafka.Insecure && c.Kafka.TLS == (TLSConfig{}) {
		return p, nil
	}
	conf, err := c.Kafka.TLS.load()
	p.TLS = conf
	return p, err
}

// Routing is the publisher's configuration without what files hold: enough to say where an
// event leads, and not to connect.
func (c *Config) Routing() publisher.Config { return c.sink(slog.New(slog.DiscardHandler)) }

// sink is the publisher's configuration without what files hold.
func (c *Config) sink(log *slog.Logger) publisher.Config {
	p := publisher.Config{
		Brokers: c.Kafka.Brokers, ClientID: orDefault(c.Kafka.ClientID, "onceward-"+c.Name), Insecure: c.Kafka.Insecure,
		Compression: c.Kafka.Compression, MaxMessageBytes: int(c.Kafka.MaxMessageBytes),
		MaxInFlightBytes: max(int64(c.Queue.Bytes)/2, 64<<10),
		Logger:           log,
		HeaderStyle:      c.Headers, PartitionChange: c.Topics.PartitionChange,
		Topics: publisher.Topics{
			Allow: c.Topics.Allow, Create: c.Topics.Create, Partitions: int32(c.Topics.Partitions),
			ReplicationFactor: int16(c.Topics.ReplicationFactor), MaxCreated: c.Topics.MaxCreated,
		},
	}
	for _, r := range c.Routes {
		p.Routes = append(p.Routes, publisher.Route{
			Match: publisher.Match{Namespace: r.Match.Namespace, AggregateType: r.Match.AggregateType,
				EventType: r.Match.EventType},
			Topic: r.Topic,
		})
	}
	return p
}

// fileError: a file that relay.yaml names cannot be used. It is read anew for every
// session, so that a relay tries again.
type fileError struct {
	code string
	key  string // of relay.yaml
	err  error  // which names it too
}

// Error implements error.
func (e *fileError) Error() string { return e.err.Error() }

// Unwrap returns the system's error.
func (e *fileError) Unwrap() error { return e.err }

func (s SASLConfig) password() (string, error) {
	const key = "kafka.sasl.password_file"
	password, err := secret.File(key, s.PasswordFile)
	if err != nil {
		return "", &fileError{CodeKafka, key, err}
	}
	return password, nil
}

func (t TLSConfig) load() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if conf.RootCAs, err = t.roots(); err != nil {
		return nil, err
	}
	conf.Certificates, err = t.certificates()
	return conf, err
}

// roots verify the brokers; nil are the system's.
func (t TLSConfig) roots() (*x509.CertPool, error) {
	if t.CAFile == "" {
		return nil, nil //nolint:nilnil // as crypto/tls has it
	}
	pem, err := tlsFile("kafka.tls.ca_file", t.CAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, &FieldError{"kafka.tls.ca_file", t.CAFile + " holds no certificate in PEM form"}
	}
	return roots, nil
}

// certificates identify the relay, if there are any.
func (t TLSConfig) certificates() ([]tls.Certificate, error) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, &FieldError{"kafka.tls", "cert_file and key_file go together"}
	}
	if t.CertFile == "" {
		return nil, nil
	}
	certificate, err := tlsFile("kafka.tls.cert_file", t.CertFile)
	if err != nil {
		return nil, err
	}
	key, err := tlsFile("kafka.tls.key_file", t.KeyFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, &fileError{CodeKafka, "kafka.tls", fmt.Errorf("use kafka.tls.cert_file with kafka.tls.key_file: %w", err)}
	}
	return []tls.Certificate{pair}, nil
}

func tlsFile(key, path string) ([]byte, error) {
	text, err := os.ReadFile(path) //nolint:gosec // G304: the operator names the file
	if err != nil {
		return nil, &fileError{CodeKafka, key, fmt.Errorf("read %s: %w", key, err)}
	}
	return text, nil
}

// verified returns the DSN if it is sslmode=verify-full, or may be less.
func (c *Config) verified(field, text string) (string, error) {
	ok, err := pgconf.VerifiesServer(field, text)
	switch {
	case err != nil:
		return "", err
	case ok || c.Postgres.Insecure:
		return text, nil
	}
	return "", &FieldError{field, "the connection is not sslmode=verify-full; add it (with sslrootcert) or, on a network that you trust, set postgres.insecure: true"}
}
