package kafkaserver

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/loopback"
	"github.com/onceward/onceward/internal/process"
)

// startTimeout bounds formatting and the start of the whole cluster. Three brokers beside other
// tests have taken more than a minute; one that dies is noticed at once.
const startTimeout = 3 * time.Minute

func (b broker) data() string       { return filepath.Join(b.dir, "data") }
func (b broker) properties() string { return filepath.Join(b.dir, "server.properties") }
func (b broker) log() string        { return filepath.Join(b.dir, "server.log") }

// layOut chooses folders and ports of n brokers. The ports are the cluster's until
// they are released, also while a broker is down.
func layOut(ctx context.Context, dir string, opts Options) ([]broker, *loopback.Reservation, error) {
	const listeners = 3
	reserved, err := loopback.Reserve(ctx, listeners*opts.Brokers)
	if err != nil {
		return nil, nil, err
	}
	ports := reserved.Ports()
	brokers := make([]broker, opts.Brokers)
	for i := range brokers {
		p := ports[listeners*i:]
		b := broker{
			node: i + 1, dir: filepath.Join(dir, "broker-"+strconv.Itoa(i)),
			client: p[0], internal: p[1], controller: p[2],
		}
		b.advertised = b.address()
		if opts.Advertise != nil {
			b.advertised = opts.Advertise(i, b.advertised)
		}
		brokers[i] = b
	}
	return brokers, reserved, nil
}

// program is how Java is run for one cluster.
type program struct {
	java     string
	options  []string
	jars     string
	detached bool
}

func (p program) spec(b broker, class string, args ...string) process.Spec {
	java := append([]string{}, p.options...)
	java = append(java,
		"-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
		"-cp", filepath.Join(p.jars, "*"), class)
	return process.Spec{
		Path: p.java, Args: append(java, args...), Dir: b.dir, LogFile: b.log(), Detached: p.detached,
	}
}

// tools are the programs of Kafka that printed commands call, and the class that each runs.
var tools = map[string]string{
	"kafka-acls.sh":            "org.apache.kafka.tools.AclCommand",
	"kafka-cluster.sh":         "org.apache.kafka.tools.ClusterTool",
	"kafka-configs.sh":         "kafka.admin.ConfigCommand",
	"kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
	"kafka-topics.sh":          "org.apache.kafka.tools.TopicCommand",
	"kafka-transactions.sh":    "org.apache.kafka.tools.TransactionsCommand",
}

// Scripts returns, by name, shell scripts that do what Kafka's own of these names do, with
// the jars of the cluster, which come without them: those that printed commands call.
func (c *Cluster) Scripts() map[string]string {
	scripts := make(map[string]string, len(tools))
	for name, class := range tools {
		scripts[name] = fmt.Sprintf("#!/bin/sh\nexec %q -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp %q %s \"$@\"\n",
			c.program.java, filepath.Join(c.program.jars, "*"), class)
	}
	return scripts
}

// format writes the broker's configuration and, where its data folder is new,
// has Kafka's StorageTool prepare it.
func (p program) format(ctx context.Context, b broker, text, cluster string) error {
	if err := os.MkdirAll(b.dir, 0o755); err != nil { //nolint:gosec // G301: test data
		return fmt.Errorf("make the folder of broker %d: %w", b.node, err)
	}
	if err := os.WriteFile(b.properties(), []byte(text), 0o644); err != nil { //nolint:gosec // G306: test data
		return fmt.Errorf("write the settings of broker %d: %w", b.node, err)
	}
	_, err := os.Stat(filepath.Join(b.data(), "meta.properties"))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = process.Run(ctx, p.spec(b, "kafka.tools.StorageTool",
		"format", "--cluster-id", cluster, "--config", b.properties()))
	if err != nil {
		return fmt.Errorf("format the storage of broker %d: %w", b.node, err)
	}
	return nil
}

// start starts the broker's process.
func (p program) start(b broker) (*process.Process, error) {
	spec := p.spec(b, "kafka.Kafka", b.properties())
	if !p.detached {
		spec.DeathSignal = syscall.SIGKILL
	}
	proc, err := process.Start(spec)
	if err != nil {
		return nil, fmt.Errorf("start broker %d: %w", b.node, err)
	}
	return proc, nil
}

// clusterID returns a random id in Kafka's form: 22 characters of base64, of
// which the first is no dash, since that would begin an option.
func clusterID() string {
	id := uuid.New()
	id[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(id[:])
}
