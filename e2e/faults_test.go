//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/pgserver"
)

// ground is a Kafka cluster whose clients see its brokers only through a network
// with faults. The tests that need faults share one for each number of brokers,
// and heal it before they end.
type ground struct {
	cluster *kafkaserver.Cluster
	network *kafkaproxy.Network // link i leads to broker i
}

// checkpointTopic is where relays in exactly-once mode keep their checkpoints.
const checkpointTopic = "onceward.checkpoint"

// faultyKafka returns the ground with so many brokers.
func faultyKafka(t *testing.T, brokers int) *ground {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if g := shared.grounds[brokers]; g != nil {
		return g
	}
	g := &ground{network: kafkaproxy.New()}
	var err error
	g.cluster, err = kafkaserver.Start(t.Context(), kafkaserver.Options{
		Brokers: brokers,
		Settings: map[string]string{
			"broker.session.timeout.ms":    "3000",
			"group.min.session.timeout.ms": "1000",
			// How often the coordinator looks for transactions that are too old.
			"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
		},
		Advertise: func(_ int, address string) string {
			link, err := g.network.Add(t.Context(), address)
			require.NoError(t, err)
			return link.Addr()
		},
	})
	if err == nil {
		err = g.cluster.CreateTopic(t.Context(), checkpointTopic, 2, map[string]string{"cleanup.policy": "compact"})
	}
	if err != nil {
		_ = g.network.Close()
		t.Fatal(err)
	}
	if shared.grounds == nil {
		shared.grounds = map[int]*ground{}
	}
	shared.grounds[brokers] = g
	return g
}

// stop ends the cluster and its network.
func (g *ground) stop(ctx context.Context) error {
	return errors.Join(g.network.Close(), g.cluster.Stop(ctx))
}

// impatientPostgres returns the server of a version that gives up a silent
// walsender after three seconds, shared by the tests that need faults.
func impatientPostgres(t *testing.T, version string) *pgserver.Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	name := version + ", impatient"
	if shared.postgres[name] == nil {
		// A shutdown waits, for authentication_timeout, for whoever has connected meanwhile and
		// said nothing, as through a link that holds what it is given.
		s, err := pgserver.Start(t.Context(), pgserver.Options{Version: version, Settings: map[string]string{"wal_sender_timeout": "3s", "authentication_timeout": "10s"}})
		if err != nil {
			t.Fatal(err)
		}
		shared.postgres[name] = s
	}
	return shared.postgres[name]
}

// arena is an environment between faults: its relays reach Kafka and PostgreSQL only
// through proxies. The superuser, the writers and the other brokers do not.
type arena struct {
	*environment
	ground   *ground
	postgres *kafkaproxy.Link // the relays' way to the server
	relays   []*relayProcess
	logs     []string // of all relays, those that were replaced included
}

// newArena makes an environment on the shared servers, with its topic.
func newArena(t *testing.T, version string, brokers int) *arena {
	t.Helper()
	return newArenaOf(t, version, brokers, 6)
}

func newArenaOf(t *testing.T, version string, brokers int, partitions int32) *arena {
	t.Helper()
	return newArenaOn(t, impatientPostgres(t, version), brokers, partitions)
}

// newArenaOn makes an environment on a server of the caller's choice.
func newArenaOn(t *testing.T, server *pgserver.Server, brokers int, partitions int32) *arena {
	t.Helper()
	g := faultyKafka(t, brokers)
	a := &arena{environment: newEnvironmentBetween(t, server, g.cluster.Addrs()), ground: g}
	a.partitions = partitions
	t.Cleanup(a.heal) // before the environment closes
	way := kafkaproxy.New()
	t.Cleanup(func() { require.NoError(t, way.Close()) })
	dsn, err := url.Parse(a.server.DSN(a.name))
	require.NoError(t, err)
	a.postgres, err = way.AddPlain(t.Context(), dsn.Host)
	require.NoError(t, err)
	a.install()
	require.NoError(t, g.cluster.CreateTopic(t.Context(), a.topic(), a.partitions, nil))
	return a
}

// heal ends the faults of the network and gives the environment an admin client that
// has not met them.
func (a *arena) heal() {
	a.ground.network.Heal()
	if a.postgres != nil {
		a.postgres.Heal()
	}
	_ = a.admin.Close()
	admin, err := sarama.NewClusterAdmin(a.brokers, kafkaConfig())
	require.NoError(a.t, err)
	a.admin = admin
}

// relay makes a relay of the arena that is not started. Its client id tells it
// from its twins.
func (a *arena) relay(client, defect string, more ...string) *relayProcess {
	a.t.Helper()
	path := filepath.Join(a.t.TempDir(), "relay.yaml")
	text := fmt.Sprintf(`name: %s
postgres: {dsn: "%s", insecure: true}
routes: [{topic: "{namespace}.{aggregate_type}"}]
checkpoint_interval: 50ms
stop_grace: 2s
log: {format: text}
admin: {listen: "127.0.0.1:0"}
kafka:
  brokers: ["%s"]
  insecure: true
  client_id: %s
%s
`, a.name, a.way(a.name), strings.Join(a.brokers, `", "`), a.client(client), strings.Join(more, "\n"))
	require.NoError(a.t, os.WriteFile(path, []byte(text), 0o600))
	r := a.newRelay(path, defect)
	a.relays = append(a.relays, r)
	a.logs = append(a.logs, r.logFile)
	return r
}

// way leads a relay to a database through the proxy, over TLS where the server speaks it.
func (a *arena) way(database string) string {
	dsn, err := url.Parse(a.dsn(relayLogin))
	require.NoError(a.t, err)
	dsn.Host, dsn.Path, dsn.RawQuery = a.postgres.Addr(), "/"+database, "sslmode=prefer"
	return dsn.String()
}

// client is the client id of a relay, of which no other arena has one.
func (a *arena) client(name string) string { return a.name + "-" + name }

// producers is how often a relay has asked for a producer.
func (a *arena) producers(name string) int {
	return a.ground.network.Seen(kafkaproxy.InitProducerID, a.client(name))
}

// exactlyOnce are the settings of exactly-once mode, to follow client_id.
func exactlyOnce(timeout time.Duration) string {
	return fmt.Sprintf("  mode: exactly-once\n  transaction: {interval: 50ms, timeout: %s}", timeout)
}

// streams starts a relay and waits until it holds the slot.
func (a *arena) streams(r *relayProcess) {
	a.t.Helper()
	before := sessionsIn(r)
	r.start()
	eventually(a.t, "the relay streams", 30*time.Second, func() bool { return sessionsIn(r) > before })
}

// sessionsIn is sessions for a log that may not be there yet.
func sessionsIn(r *relayProcess) int {
	if _, err := os.Stat(r.logFile); err != nil {
		return 0
	}
	return sessions(r)
}

// confirmed waits until the slot was confirmed up to the last commit, one that it
// makes included, or a relay ends by itself.
func (a *arena) confirmed(limit time.Duration) {
	a.t.Helper()
	last := scalar[string](a.environment, `SELECT pg_current_wal_insert_lsn()::text`)
	writeOne(a.t, a.environment)
	ended := false
	eventually(a.t, "everything is published and confirmed", limit, func() bool {
		for _, r := range a.relays {
			if r.process != nil {
				select {
				case <-r.process.Done():
					ended = true
				default:
				}
			}
		}
		return ended || scalar[bool](a.environment, `SELECT coalesce(confirmed_flush_lsn > $1::pg_lsn, false) FROM pg_replication_slots WHERE slot_name = $2`, last, a.slot())
	})
	require.False(a.t, ended, "a relay ended by itself")
}
