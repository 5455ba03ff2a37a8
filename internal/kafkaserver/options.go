package kafkaserver

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/onceward/onceward/internal/loopback"
)

// Options say which cluster to start. The zero value is a fine test broker.
type Options struct {
	// Brokers is 1 (the default) or 3.
	Brokers int
	// Version is that of the jars; empty is what ONCEWARD_TEST_KAFKA in the
	// environment says, else [DefaultVersion]. They must be in the cache, see [Fetch].
	Version string
	// Dir is the folder for data and logs. It is kept, and data in it is used
	// again. Empty is a temporary folder that [Cluster.Stop] removes.
	Dir string
	// Settings go on top of the defaults, as in server.properties.
	Settings map[string]string
	// Advertise gives the address that broker i (from 0) tells its clients,
	// for example that of a proxy before its own. It is called once per
	// broker, before any starts. nil advertises the address itself.
	Advertise func(i int, address string) string
	// JVM replaces [DefaultJVM], for example with a larger heap.
	JVM []string
	// Detached lets the brokers outlive this program. End them by their
	// process ids.
	Detached bool
}

// DefaultJVM returns the Java options of a broker: a small heap, and what makes
// a short life start fast.
func DefaultJVM() []string {
	return []string{"-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
}

// reserved are the settings that Start chooses for each broker.
var reserved = []string{
	"node.id", "process.roles", "listeners", "advertised.listeners", "log.dirs", "metadata.log.dir", "controller.quorum.voters",
}

func (o *Options) complete() error {
	if o.Brokers == 0 {
		o.Brokers = 1
	}
	if o.Brokers != 1 && o.Brokers != 3 {
		return fmt.Errorf("kafkaserver: Brokers is %d; want 1 or 3", o.Brokers)
	}
	if o.Version == "" {
		o.Version = cmp.Or(os.Getenv("ONCEWARD_TEST_KAFKA"), DefaultVersion)
	}
	if o.JVM == nil {
		o.JVM = DefaultJVM()
	}
	for name, value := range o.Settings {
		if slices.Contains(reserved, name) {
			return fmt.Errorf("kafkaserver: Settings[%q] is %q; Start decides about it", name, value)
		}
		if name == "" || strings.ContainsAny(name, " :=#!\n\r") {
			return fmt.Errorf("kafkaserver: Settings[%q]: not the name of a setting", name)
		}
		if strings.ContainsAny(value, "\n\r") {
			return fmt.Errorf("kafkaserver: Settings[%q] is %q; a value has one line", name, value)
		}
	}
	return nil
}

// broker is the part of the configuration that differs between brokers.
type broker struct {
	node       int    // Kafka's node id, from 1
	dir        string // holds server.properties, server.log and data/
	client     int    // port of the clients' listener
	internal   int    // port of the other brokers' listener
	controller int    // port of the controllers' listener
	advertised string // what clients are told
}

func (b broker) address() string { return loopback.Address(b.client) }

// defaults are the settings of every broker of a cluster of n. Replication is
// as wide as the cluster, and a write survives the loss of one of three.
// Internal topics have few partitions, because each costs files and time.
func defaults(n int) map[string]string {
	replicas, inSync := strconv.Itoa(n), strconv.Itoa(n/2+1)
	return map[string]string{
		"process.roles":                                    "broker,controller",
		"listener.security.protocol.map":                   "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":                       "INTERNAL",
		"controller.listener.names":                        "CONTROLLER",
		"auto.create.topics.enable":                        "false",
		"default.replication.factor":                       replicas,
		"min.insync.replicas":                              inSync,
		"offsets.topic.replication.factor":                 replicas,
		"offsets.topic.num.partitions":                     "5",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    inSync,
		"transaction.state.log.num.partitions":             "5",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            inSync,
		"group.initial.rebalance.delay.ms":                 "0",
		"broker.session.timeout.ms":                        "5000", // how long a killed broker keeps its place; the default is 9 s
		"broker.heartbeat.interval.ms":                     "1000",
		"log.cleaner.dedupe.buffer.size":                   "4194304", // of the heap; the default is 128 MiB
	}
}

// properties returns the text of a broker's server.properties, sorted by name.
// Pure.
func properties(b broker, all []broker, settings map[string]string) string {
	lines := defaults(len(all))
	maps.Copy(lines, settings)
	var voters []string
	for _, v := range all {
		voters = append(voters, fmt.Sprintf("%d@%s", v.node, loopback.Address(v.controller)))
	}
	internal := "INTERNAL://" + loopback.Address(b.internal)
	lines["node.id"] = strconv.Itoa(b.node)
	lines["log.dirs"] = b.data()
	lines["controller.quorum.voters"] = strings.Join(voters, ",")
	lines["listeners"] = "CLIENT://" + b.address() + "," + internal + ",CONTROLLER://" + loopback.Address(b.controller)
	lines["advertised.listeners"] = "CLIENT://" + b.advertised + "," + internal
	var text strings.Builder
	text.WriteString("# Written by Onceward's package kafkaserver.\n")
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&text, "%s=%s\n", name, escape.Replace(lines[name]))
	}
	return text.String()
}

// escape keeps a backslash from joining or bending lines of a properties file.
var escape = strings.NewReplacer(`\`, `\\`)
