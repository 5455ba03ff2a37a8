package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
	"github.com/onceward/onceward/relay/retention"
)

// FieldError says which field of the configuration is wrong, and why.
type FieldError struct {
	Field  string // path in relay.yaml
	Detail string
}

// Error implements error.
func (e *FieldError) Error() string { return fmt.Sprintf("config: %s: %s", e.Field, e.Detail) }

// Constraint is what is asked of the values of one key of relay.yaml. [Config.Validate]
// and the JSON schema read the same ones, so that an editor knows what the relay does.
type Constraint struct {
	Key      string   // path in relay.yaml; [] stands for each item of a list
	Required bool     // there is no default, and an empty value is refused
	OneOf    []string // all that a text may be
	Pattern  string   // what a text matches
	Min, Max int64    // of a number, of a size in bytes, of a duration in nanoseconds; a Max of 0 is none
	Optional bool     // zero and the empty text are taken, too: for the default, or for none

	want string // in words
	// elsewhere: the publisher or retention refuses it, in words of its own. A test
	// holds what stands here against what they do.
	elsewhere bool
}

// mechanisms are those of [SASLConfig].
var mechanisms = []string{publisher.MechanismPlain, publisher.MechanismSCRAMSHA256, publisher.MechanismSCRAMSHA512}

const adminListen = "admin.listen"

var constraints = []Constraint{
	{Key: "name", Required: true, Pattern: `^[a-z0-9_]{1,54}$`, want: "want 1 to 54 characters of a-z, 0-9 and _"},
	{Key: "kafka.brokers", Required: true, want: "empty; list at least one host:port"},
	{Key: "kafka.brokers[]", Pattern: `^(\[.+\]|[^:]+):[^:]+$`, elsewhere: true},
	{Key: "routes", Required: true,
		want: `empty; without a route no event has a topic. For one topic per aggregate type: routes: [{topic: "{namespace}.{aggregate_type}"}]`},
	{Key: "routes[].topic", Required: true, elsewhere: true,
		Pattern: `^([a-zA-Z0-9._-]|\{(namespace|aggregate_type|event_type)\})+$`},

	{Key: "postgres.slot.create", OneOf: []string{"auto", "never"}},
	{Key: "outbox.start", OneOf: []string{StartAsk, StartNow, StartAll}},
	{Key: "gap", OneOf: []string{GapRepair, GapAsk}},
	{Key: "kafka.mode", OneOf: []string{ModeIdempotent, ModeExactlyOnce}},
	{Key: "kafka.compression", OneOf: []string{"none", "gzip", "snappy", "lz4", "zstd"}, Optional: true, elsewhere: true},
	{Key: "kafka.sasl.mechanism", OneOf: mechanisms, Optional: true},
	{Key: "headers", OneOf: []string{record.StyleOnceward, record.StyleCloudEvents, record.StyleDebezium}},
	{Key: "topics.partition_change", OneOf: []string{publisher.PartitionsGoOn, publisher.PartitionsHalt}},
	{Key: "log.format", OneOf: []string{"json", "text"}},
	{Key: "log.level", OneOf: []string{"debug", "info", "warn", "error"}},
	{Key: "routes[].poison", OneOf: []string{PoisonParkAggregate, PoisonPark, PoisonHalt}, Optional: true},

	{Key: "queue.bytes", Min: 64 << 10, want: "want at least 64KiB"},
	{Key: "kafka.max_message_bytes", Min: 1 << 10, Max: 64 << 20, Optional: true, elsewhere: true},
	{Key: "kafka.transaction.interval", Min: int64(time.Millisecond), want: "want at least 1ms"},
	{Key: "kafka.transaction.max_bytes", Min: 64 << 10, want: "want at least 64KiB"},
	{Key: "kafka.transaction.timeout", Min: int64(time.Second), Max: int64(15 * time.Minute), want: "want 1s to 15m"},
	{Key: "topics.partitions", Min: 1, Optional: true, elsewhere: true},
	{Key: "topics.replication_factor", Min: 1, Optional: true, elsewhere: true},
	{Key: "topics.max_created", Min: 1, want: "want at least 1; topics.create: false makes none"},
	{Key: "max_parked_aggregates", want: "want 0 or more"},
	{Key: "checkpoint_interval", Min: int64(10 * time.Millisecond), want: "want at least 10ms"},
	{Key: "outbox.partitions.ahead", Min: 1, Max: retention.MaxDays, Optional: true, elsewhere: true},
	{Key: "outbox.partitions.keep", Min: 1, Max: retention.MaxDays, Optional: true, elsewhere: true},
	{Key: "outbox.partitions.every", Min: int64(time.Second), want: "want at least 1s"},
	{Key: adminListen, Pattern: `^(off|(\[[^\]]+\]|[^:]*):[^:]+)$`, Optional: true, want: "want host:port, such as 127.0.0.1:8088, or off"},
	{Key: "stop_grace", Min: 1, want: "want more than 0"},
}

// Constraints returns what is asked of the keys, one by one. What is asked of several
// together, [Config.Validate] knows alone.
func Constraints() []Constraint { return slices.Clone(constraints) }

// refuses says what is wrong with a value; empty: nothing.
func (r *Constraint) refuses(v reflect.Value) string {
	if r.Optional && v.IsZero() {
		return ""
	}
	switch v.Kind() {
	case reflect.Slice:
		if r.Required && v.Len() == 0 {
			return r.want
		}
	case reflect.String:
		if len(r.OneOf) > 0 && !slices.Contains(r.OneOf, v.String()) {
			return fmt.Sprintf("%q: want one of %v", v.String(), r.OneOf)
		}
		if r.Pattern != "" && !regexp.MustCompile(r.Pattern).MatchString(v.String()) {
			return fmt.Sprintf("%q: %s", v.String(), r.want)
		}
	default:
		if n := v.Int(); n < r.Min || r.Max > 0 && n > r.Max {
			return fmt.Sprintf("%v: %s", v.Interface(), r.want)
		}
	}
	return ""
}

// valuesAt calls f with each value that a key has below v, and with its path.
func valuesAt(v reflect.Value, key, path string, f func(path string, v reflect.Value)) {
	if key == "" {
		f(path, v)
		return
	}
	if rest, ok := strings.CutPrefix(key, "[]"); ok {
		for i := range v.Len() {
			valuesAt(v.Index(i), rest, fmt.Sprintf("%s[%d]", path, i), f)
		}
		return
	}
	name, rest := strings.TrimPrefix(key, "."), ""
	if i := strings.IndexAny(name, ".["); i >= 0 {
		name, rest = name[:i], name[i:]
	}
	for field, value := range v.Fields() {
		if field.Tag.Get("koanf") == name {
			valuesAt(value, rest, strings.TrimPrefix(path+"."+name, "."), f)
		}
	}
}

// invalid is what [Config.Validate] refuses.
func invalid(c *Config) (found []error) {
	wrong := make(map[string]bool)
	add := func(field, detail string) {
		wrong[field] = true
		found = append(found, &FieldError{field, detail})
	}
	for _, r := range constraints {
		if r.elsewhere {
			continue
		}
		valuesAt(reflect.ValueOf(*c), r.Key, "", func(path string, v reflect.Value) {
			if detail := r.refuses(v); detail != "" {
				add(path, detail)
			}
		})
	}
	if (c.Postgres.DSN == "") == (c.Postgres.DSNFile == "") {
		add("postgres.dsn", "give exactly one of postgres.dsn, postgres.dsn_file and ONCEWARD_POSTGRES_DSN")
	}
	c.Kafka.SASL.half(add)
	t := c.Kafka.Transaction
	if interval := "kafka.transaction.interval"; !wrong[interval] && !wrong["kafka.transaction.timeout"] && t.Interval > t.Timeout/2 {
		add(interval, fmt.Sprintf("%s: want at most half of kafka.transaction.timeout = %s", t.Interval, t.Timeout))
	}
	if _, port, err := net.SplitHostPort(c.Admin.Listen); err == nil && !wrong[adminListen] {
		if _, err := net.DefaultResolver.LookupPort(context.Background(), "tcp", port); err != nil { // asks nobody
			add(adminListen, fmt.Sprintf("%q: its port is none; want 0 to 65535", c.Admin.Listen))
		}
	}
	days := c.retention()
	for _, each := range []retention.Config{{Ahead: days.Ahead}, {Keep: days.Keep}} {
		var refused *retention.ConfigError
		if errors.As(each.Validate(), &refused) {
			add("outbox.partitions."+strings.ToLower(refused.Field), refused.Detail)
		}
	}
	return found
}

// half finds half a login: without it, what is left out shows as a connection that the
// broker closes.
func (s SASLConfig) half(add func(field, detail string)) {
	const field = "kafka.sasl."
	switch {
	case s == (SASLConfig{}):
		return
	case s.Mechanism == "":
		add(field+"mechanism", fmt.Sprintf("is missing, and kafka.sasl has a user or a password; want one of %v", mechanisms))
	}
	if s.Username == "" {
		add(field+"username", "is missing")
	}
	if s.PasswordFile == "" {
		add(field+"password_file", "is missing")
	}
}

// refusedByPublisher asks the publisher about one value at a time, beside others that are
// fine: it says the first thing that it does not like.
func refusedByPublisher(c *Config) (found []error) {
	all := c.sink(nil)
	ask := func(field string, change func(p *publisher.Config)) bool {
		p := publisher.Config{Brokers: []string{"broker:9092"}, Routes: []publisher.Route{{Topic: "{namespace}"}}}
		change(&p)
		err := inRelayYAML(p.Validate())
		var wrong *FieldError
		if errors.As(err, &wrong) {
			err = &FieldError{field, wrong.Detail}
		}
		if err != nil {
			found = append(found, err)
		}
		return err == nil
	}
	var before []string // one that is listed twice is wrong beside the other
	for i, broker := range all.Brokers {
		if ask(fmt.Sprintf("kafka.brokers[%d]", i), func(p *publisher.Config) { p.Brokers = append(slices.Clone(before), broker) }) {
			before = append(before, broker)
		}
	}
	ask("kafka.compression", func(p *publisher.Config) { p.Compression = all.Compression })
	ask("kafka.max_message_bytes", func(p *publisher.Config) { p.MaxMessageBytes = all.MaxMessageBytes })
	ask("topics.partitions", func(p *publisher.Config) { p.Topics.Partitions = all.Topics.Partitions })
	ask("topics.replication_factor", func(p *publisher.Config) { p.Topics.ReplicationFactor = all.Topics.ReplicationFactor })
	for i, route := range all.Routes {
		ask(fmt.Sprintf("routes[%d].topic", i), func(p *publisher.Config) {
			p.Routes, p.Topics.Allow = []publisher.Route{route}, all.Topics.Allow
		})
	}
	return found
}

// wrongFiles reads what a session reads when it connects.
func wrongFiles(c *Config) (found []error) {
	look := func(field, path string, read func() error) {
		err := read()
		var system syscall.Errno
		if errors.As(err, &system) && secret.Suspect(path) {
			err = &FieldError{field, "it looks like a connection string (not shown); want the path of a file that holds it"}
		}
		if err != nil {
			found = append(found, err)
		}
	}
	pg, kafka := c.Postgres, c.Kafka
	if (pg.DSN == "") != (pg.DSNFile == "") {
		look("postgres.dsn_file", pg.DSNFile, func() error { _, err := c.DSN(); return err })
	}
	if pg.MaintenanceDSNFile != "" {
		look("postgres.maintenance_dsn_file", pg.MaintenanceDSNFile, func() error { _, err := c.maintenanceDSN(); return err })
	}
	if kafka.SASL.PasswordFile != "" {
		look("kafka.sasl.password_file", kafka.SASL.PasswordFile, func() error { _, err := kafka.SASL.password(); return err })
	}
	look("kafka.tls.ca_file", "", func() error { _, err := kafka.TLS.roots(); return err })
	look("kafka.tls.cert_file", "", func() error { _, err := kafka.TLS.certificates(); return err })
	return found
}
