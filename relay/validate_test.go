package relay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/publisher"
)

func constraint(t *testing.T, key string) Constraint {
	t.Helper()
	for _, c := range Constraints() {
		if c.Key == key {
			return c
		}
	}
	t.Fatalf("no constraint of %s", key)
	return Constraint{}
}

// Every constraint is of a key that there is, and every default keeps it.
func TestConstraintsAreOfKeysThatAreThere(t *testing.T) {
	cfg := minimal()
	for _, c := range Constraints() {
		found := 0
		valuesAt(reflect.ValueOf(cfg), c.Key, "", func(path string, v reflect.Value) {
			found++
			require.Empty(t, c.refuses(v), path)
			require.Equal(t, strings.ReplaceAll(c.Key, "[]", "[0]"), path)
		})
		require.Equal(t, 1, found, c.Key)
	}
}

// What the publisher and retention refuse is what the constraints say of their keys: the
// schema reads these.
func TestConstraintsAreThoseOfThePublisher(t *testing.T) {
	refused := func(key string, change func(c *Config)) bool {
		cfg := minimal()
		change(&cfg)
		for _, err := range cfg.Problems() {
			var field *FieldError
			require.ErrorAs(t, err, &field)
			require.Equal(t, key, field.Field)
			return true
		}
		return false
	}
	for key, set := range map[string]func(c *Config, n int64){
		"kafka.max_message_bytes":   func(c *Config, n int64) { c.Kafka.MaxMessageBytes = Bytes(n) },
		"topics.partitions":         func(c *Config, n int64) { c.Topics.Partitions = int(n) },
		"topics.replication_factor": func(c *Config, n int64) { c.Topics.ReplicationFactor = int(n) },
		"outbox.partitions.ahead":   func(c *Config, n int64) { c.Outbox.Partitions.Ahead = int(n) },
		"outbox.partitions.keep":    func(c *Config, n int64) { c.Outbox.Partitions.Keep = int(n) },
	} {
		bounds := constraint(t, key)
		require.True(t, bounds.Optional, key)
		for n, fine := range map[int64]bool{0: true, -1: false, bounds.Min: true, bounds.Min - 1: bounds.Min == 1, bounds.Max: true, bounds.Max + 1: bounds.Max == 0} {
			require.Equal(t, !fine, refused(key, func(c *Config) { set(c, n) }), "%s: %d", key, n)
		}
	}
	codecs := constraint(t, "kafka.compression").OneOf
	for _, name := range append(codecs, "") {
		require.False(t, refused("kafka.compression", func(c *Config) { c.Kafka.Compression = name }), name)
	}
	cfg := minimal()
	cfg.Kafka.Compression = "brotli"
	require.ErrorContains(t, errors.Join(cfg.Problems()...), "want "+strings.Join(codecs[:4], ", ")+" or "+codecs[4], "all that the publisher knows")

	rapid.Check(t, func(r *rapid.T) {
		for key, draw := range map[string]struct {
			characters string
			set        func(c *Config, text string)
		}{
			"routes[].topic":  {`(a|\.|-|_|/|\{|\}|é|\{namespace\}|\{aggregate_type\}|\{event_type\}|\{tenant\}){0,4}`, func(c *Config, text string) { c.Routes[0].Topic = text }},
			"kafka.brokers[]": {`(a|b\.c|:|9093|\[::1\]|\[|\]){0,4}`, func(c *Config, text string) { c.Kafka.Brokers[0] = text }},
		} {
			text := rapid.StringMatching(draw.characters).Draw(r, key)
			if key == "routes[].topic" && (strings.HasPrefix(text, "__") || strings.Trim(text, ".") == "") {
				continue // names that Kafka keeps for itself: no pattern says that
			}
			if key != "routes[].topic" && strings.ContainsAny(strings.ReplaceAll(text, "[::1]:", ""), "[]") {
				continue // half an address in brackets
			}
			matches := regexp.MustCompile(constraint(t, key).Pattern).MatchString(text)
			if taken := !refused(strings.ReplaceAll(key, "[]", "[0]"), func(c *Config) { draw.set(c, text) }); matches != taken {
				r.Fatalf("%s = %q: the pattern takes it: %v, the publisher: %v", key, text, matches, taken)
			}
		}
	})
}

func TestValidateSaysAllAtOnce(t *testing.T) {
	cfg := minimal()
	require.NoError(t, cfg.Validate())
	cfg.Name, cfg.Gap, cfg.Queue.Bytes, cfg.Postgres.DSN = "Orders", "never", 1, ""
	cfg.Kafka.Transaction.Interval = time.Hour
	err := cfg.Validate()
	var first *FieldError
	require.ErrorAs(t, err, &first)
	for _, want := range []string{`config: name: "Orders": want 1 to 54`, `config: gap: "never": want one of [repair ask]`, "config: queue.bytes: 1: want", "config: postgres.dsn: give exactly one", "config: kafka.transaction.interval: 1h0m0s: want at most half"} {
		require.ErrorContains(t, err, want)
	}
	require.Len(t, strings.Split(err.Error(), "\n"), 5)
	cfg = minimal()
	cfg.Gap = "never"
	require.EqualError(t, cfg.Validate(), `config: gap: "never": want one of [repair ask]`)
}

// A relay is made exactly when there is no problem.
func TestProblemsAreWhatNewRefuses(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	require.NoError(t, os.WriteFile(file, []byte("no certificate"), 0o600))
	gone := filepath.Join(folder, "gone")
	for name, tc := range map[string]struct {
		change func(c *Config)
		want   string
		file   bool // it cannot be read
	}{
		"fine":           {func(*Config) {}, "", false},
		"name":           {func(c *Config) { c.Name = "" }, "name", false},
		"broker":         {func(c *Config) { c.Kafka.Brokers = []string{"a:1", "b", "a:1"} }, `kafka.brokers[1]: "b"`, false},
		"topic":          {func(c *Config) { c.Routes = append(c.Routes, RouteConfig{Topic: "{x}"}) }, `routes[1].topic: "{x}"`, false},
		"not verified":   {func(c *Config) { c.Postgres.DSN = "host=db" }, "postgres.dsn: the connection", false},
		"dsn file":       {func(c *Config) { c.Postgres.DSN, c.Postgres.DSNFile = "", gone }, "read postgres.dsn_file " + gone, true},
		"maintainer":     {func(c *Config) { c.Postgres.MaintenanceDSNFile = gone }, "read postgres.maintenance_dsn_file", true},
		"sasl":           {func(c *Config) { c.Kafka.SASL = SASLConfig{publisher.MechanismPlain, "u", gone} }, "read kafka.sasl.password_file", true},
		"ca":             {func(c *Config) { c.Kafka.TLS.CAFile = file }, "kafka.tls.ca_file: " + file + " holds no certificate", false},
		"no ca":          {func(c *Config) { c.Kafka.TLS.CAFile = gone }, "read kafka.tls.ca_file", true},
		"certificate":    {func(c *Config) { c.Kafka.TLS.CertFile, c.Kafka.TLS.KeyFile = file, file }, "use kafka.tls.cert_file with kafka.tls.key_file", false},
		"no certificate": {func(c *Config) { c.Kafka.TLS.CertFile, c.Kafka.TLS.KeyFile = gone, gone }, "read kafka.tls.cert_file", true},
		"half a pair":    {func(c *Config) { c.Kafka.TLS.CertFile = file }, "kafka.tls: cert_file and key_file go together", false},
		"misplaced":      {func(c *Config) { c.Postgres.DSN, c.Postgres.DSNFile = "", "host=db password=S3CR3T" }, "postgres.dsn_file: it looks like a connection string", false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := minimal()
			tc.change(&cfg)
			problems := errors.Join(cfg.Problems()...)
			_, err := New(cfg, nil)
			require.Equal(t, err == nil, problems == nil, "New: %v", err)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, problems, tc.want)
			require.NotContains(t, fmt.Sprint(problems), "S3CR3T")
			var system syscall.Errno
			require.Equal(t, tc.file, errors.As(problems, &system))
		})
	}
	cfg := minimal()
	cfg.Kafka.Brokers = []string{"a:1", "b", "a:1"}
	require.Len(t, cfg.Problems(), 2, "each broker is asked about")
}

// What the relay could not listen on is seen before it starts.
func TestAdminListenIsAnAddress(t *testing.T) {
	cfg := minimal()
	for listen, fine := range map[string]bool{
		"off": true, "": true, ":8088": true, "127.0.0.1:0": true, "localhost:65535": true, "[::1]:8088": true, ":http": true,
		"8088": false, "0.0.0.0": false, "localhost": false, ":99999": false, ":-1": false, "localhost:": false, "::1": false, "a:b:c": false, "[::1]": false, ":no-such-service": false,
	} {
		cfg.Admin.Listen = listen
		err := cfg.Validate()
		if fine {
			require.NoError(t, err, listen)
			continue
		}
		var field *FieldError
		require.ErrorAs(t, err, &field, listen)
		require.Equal(t, "admin.listen", field.Field)
		require.Contains(t, field.Detail, fmt.Sprintf("%q: ", listen))
	}
}
