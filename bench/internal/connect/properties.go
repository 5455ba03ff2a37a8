package connect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Source says what a connector reads, and where to.
type Source struct {
	Brokers                              string // with commas between
	Host, Port, User, Password, Database string
	Slot, Publication                    string
	Topic                                string
	Offsets                              string // a file
	// Tuned are settings for speed: larger batches of the connector and of its producer, and
	// shorter pauses. Without them everything that has to do with speed is Debezium's and Kafka's default.
	Tuned bool
}

// Worker are the properties of the process.
func (s Source) Worker() string {
	p := map[string]string{
		"bootstrap.servers":                       s.Brokers,
		"key.converter":                           "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":                         "io.debezium.converters.BinaryDataConverter", // the payload as it is
		"offset.storage.file.filename":            s.Offsets,
		"offset.flush.interval.ms":                "1000",
		"listeners":                               "http://127.0.0.1:0",
		"connector.client.config.override.policy": "All",
	}
	return text(p)
}

// Connector are the properties of the connector.
func (s Source) Connector() string {
	p := map[string]string{
		"name":                                    "outbox",
		"connector.class":                         "io.debezium.connector.postgresql.PostgresConnector",
		"tasks.max":                               "1",
		"database.hostname":                       s.Host,
		"database.port":                           s.Port,
		"database.user":                           s.User,
		"database.password":                       s.Password,
		"database.dbname":                         s.Database,
		"topic.prefix":                            s.Database,
		"plugin.name":                             "pgoutput",
		"slot.name":                               s.Slot,
		"publication.name":                        s.Publication,
		"publication.autocreate.mode":             "disabled",
		"snapshot.mode":                           "no_data",
		"table.include.list":                      "onceward.outbox",
		"message.prefix.exclude.list":             "onceward.*", // the relay's own, of which its converter knows no records: the task would die
		"tombstones.on.delete":                    "false",
		"producer.override.acks":                  "all",
		"transforms":                              "outbox",
		"transforms.outbox.type":                  "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.table.field.event.id":  "id",
		"transforms.outbox.table.field.event.key": "aggregate_id",
		"transforms.outbox.table.field.event.payload":         "payload",
		"transforms.outbox.table.fields.additional.placement": "event_type:header:eventType,namespace:header:namespace",
		"transforms.outbox.route.by.field":                    "aggregate_type",
		"transforms.outbox.route.topic.replacement":           s.Topic,
	}
	if s.Tuned {
		maps.Copy(p, map[string]string{
			"max.batch.size":                                          "8192",
			"max.queue.size":                                          "32768",
			"poll.interval.ms":                                        "5",
			"producer.override.linger.ms":                             "5",
			"producer.override.batch.size":                            "524288",
			"producer.override.compression.type":                      "lz4",
			"producer.override.enable.idempotence":                    "true",
			"producer.override.max.in.flight.requests.per.connection": "5", // Connect's is 1
		})
	}
	return text(p)
}

// text writes properties, sorted. A backslash begins an escape in them.
func text(properties map[string]string) string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&out, "%s=%s\n", name, strings.ReplaceAll(properties[name], `\`, `\\`))
	}
	return out.String()
}
