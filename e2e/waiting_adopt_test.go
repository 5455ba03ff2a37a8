//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// dieReleasing lets n events of a missing topic wait, makes the topic, and the
// relay dies when a checkpoint is beyond part of them.
func (r *replays) dieReleasing(n int) {
	t := r.t
	r.relay.stop()
	plain := r.relay.env
	r.relay.env = append(append([]string{}, plain...), "CRASH_AT=before-forget")
	r.relay.start()
	r.many("late", "b", n)
	r.waits(n)
	r.topicOf(r.name + ".late")
	select {
	case <-r.relay.process.Done():
	case <-time.After(time.Minute):
		t.Fatal("did not die")
	}
	r.relay.env = plain
	r.slotFree()
	t.Logf("died: checkpoint %s; lanes of release %s; %v", scalar[string](r.environment, `SELECT checkpoint FROM onceward.relay_state`),
		scalar[string](r.environment, `SELECT string_agg(release || ' ' || lanes::text, ' ') FROM onceward.releases`), r.states())
}

func (r *replays) topicOf(name string) {
	require.NoError(r.t, r.admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false))
}

func (r *replays) inTopic(topic string) map[string]int {
	n := map[string]int{}
	for _, m := range r.committed(topic) {
		n[headerOf(m, outbox.HeaderKey)]++
	}
	return n
}

// truth compares the account with both topics.
func (r *replays) truth() (states map[string]int, lies int) {
	in := r.inTopic(r.topic())
	for k, n := range r.inTopic(r.name + ".late") {
		in[k] += n
	}
	states = map[string]int{}
	for key, state := range account(r.t, r.environment) {
		states[state]++
		if state == "published" && in[key] == 0 {
			lies++
		}
	}
	return states, lies
}

// TestWaitingAdoptDumpMidRelease: the relay dies in a release; the database is
// restored from a dump and adopted.
func TestWaitingAdoptDumpMidRelease(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprintf("OnlyWaiting=%t", alone), func(t *testing.T) {
			const n = 20000
			r := waitingEnvironment(t, "18", "idempotent")
			if !alone {
				caughtUp(t, r.environment, r.relay)
			}
			r.dieReleasing(n)
			out := len(r.inTopic(r.name + ".late"))
			r.execute(`SELECT pg_drop_replication_slot($1)`, r.slot())
			r.execute(`UPDATE onceward.relay_state SET system_identifier = '1'`)
			outboxctl(t, r.dsn(maintainerLogin), "adopt", "--by", "dump", "--reason", "moved", "--yes")
			t.Logf("in the topic %d of %d; adopted: %v", out, n, r.states())
			before := sessions(r.relay)
			r.relay.start()
			if alone {
				eventually(t, "the relay streams", 30*time.Second, func() bool { return sessions(r.relay) > before })
			} else {
				r.relay.wait(30 * time.Second)
				t.Log(outboxctlAny(t, r.dsn(operatorLogin), "gap", "list"))
				gap := scalar[string](r.environment, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
				outboxctl(t, r.dsn(operatorLogin), "gap", "accept", gap, "--reason", "it is in Kafka", "--yes")
				r.relay.start()
			}
			caughtUp(t, r.environment, r.relay)
			eventually(t, "nothing waits", time.Minute, func() bool {
				return owed(r.environment) == 0 && scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) == 0
			})
			r.relay.stop()
			states, lies := r.truth()
			t.Logf("in the topic %d of %d; %v; %d are called published and are not", len(r.inTopic(r.name+".late")), n, states, lies)
			require.Len(t, r.inTopic(r.name+".late"), n)
		})
	}
}

// TestWaitingAdoptKafkaGapMidRelease: the relay dies in a release to one Kafka, and
// another one takes its place, of which nothing is known.
func TestWaitingAdoptKafkaGapMidRelease(t *testing.T) {
	t.Parallel()
	const n = 20000
	second := secondKafka(t)
	r := waitingEnvironment(t, "18", "idempotent")
	r.dieReleasing(n)
	r.lead(second.Addrs())
	r.topicOf(r.name + ".late")
	r.relay.pointTo(`admin: {listen: "off"}`, "checkpoint_interval: 50ms")
	adopt := func(cluster string) (out string, code int) {
		return asked(t, r.dsn(operatorLogin), "adopt", "--kafka", "gap", "--cluster", cluster, "--config", r.relay.config, "--reason", "planned", "--yes")
	}
	out, code := adopt("mistyped")
	require.NotZero(t, code)
	require.Contains(t, out, " is of Kafka cluster "+clusterID(t, second.Addrs())+", not of mistyped")
	out, code = adopt(clusterID(t, second.Addrs()))
	require.Zero(t, code, out)
	t.Log(out)
	t.Logf("%v; gaps: %s", r.states(), outboxctlAny(t, r.dsn(operatorLogin), "gap", "list"))
	before := sessions(r.relay)
	r.relay.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return sessions(r.relay) > before })
	caughtUp(t, r.environment, r.relay)
	eventually(t, "nothing waits", time.Minute, func() bool {
		return owed(r.environment) == 0 && scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) == 0
	})
	r.relay.stop()
	states, lies := r.truth()
	t.Logf("in the topic %d of %d; %v; %d are called published and are not", len(r.inTopic(r.name+".late")), n, states, lies)
	require.Zero(t, lies)
}

// TestWaitingAdoptKafkaGapOrder: events wait for a paused route while another Kafka
// takes the place of the first; what was published is repaired there.
func TestWaitingAdoptKafkaGapOrder(t *testing.T) {
	t.Parallel()
	second := secondKafka(t)
	for _, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode, func(t *testing.T) {
			r := waitingEnvironment(t, "18", mode)
			var keys []string
			for range 5 {
				keys = append(keys, r.small("a"))
			}
			r.arrives(r.topic(), keys[4])
			caughtUp(t, r.environment, r.relay)
			eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(r.environment) == 0 })
			r.order(0, "pause", "--route", r.topic())
			r.relay.stop()
			r.relay.start()
			for range 5 {
				keys = append(keys, r.small("a"))
			}
			r.waits(5)
			r.relay.stop()
			r.slotFree()
			r.order(0, "resume", "--route", r.topic())
			r.lead(second.Addrs())
			r.relay.inMode(mode)
			r.relay.pointTo(`admin: {listen: "off"}`, "checkpoint_interval: 50ms")
			r.relay.start()
			require.Contains(t, r.relay.wait(30*time.Second), "OTHER_KAFKA")
			r.order(0, "adopt", "--kafka", "gap", "--reason", "new", "--yes")
			t.Logf("adopted: %v", r.states())
			r.relay.start()
			r.relay.wait(30 * time.Second)
			gap := scalar[string](r.environment, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
			r.order(0, "gap", "repair", gap, "--reason", "new", "--yes")
			r.relay.start()
			caughtUp(t, r.environment, r.relay)
			eventually(t, "nothing waits", time.Minute, func() bool {
				return owed(r.environment) == 0 && scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) == 0
			})
			r.relay.stop()
			t.Logf("wrote %v, states %v", keys, r.states())
			require.Equal(t, keys, firsts(r.keys(r.topic(), "a")))
		})
	}
}

// clusterID asks a cluster for its id.
func clusterID(t *testing.T, addrs []string) string {
	t.Helper()
	conf := kafkaConfig()
	b := sarama.NewBroker(addrs[0])
	require.NoError(t, b.Open(conf))
	defer b.Close()
	m, err := b.GetMetadata(sarama.NewMetadataRequest(conf.Version, nil))
	require.NoError(t, err)
	return *m.ClusterID
}

// TestWaitingAdoptDumpStoppedInRelease: as TestWaitingAdoptDumpMidRelease, and the
// relay was stopped gracefully, as one does before a dump.
func TestWaitingAdoptDumpStoppedInRelease(t *testing.T) {
	t.Parallel()
	const n = 60000
	r := waitingEnvironment(t, "18", "idempotent")
	caughtUp(t, r.environment, r.relay)
	r.many("late", "b", n)
	r.waits(n)
	r.topicOf(r.name + ".late")
	eventually(t, "it is being released", 30*time.Second, func() bool {
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) < n
	})
	r.relay.stop()
	r.slotFree()
	out := len(r.inTopic(r.name + ".late"))
	t.Logf("stopped: %s; %v; %d in the topic", scalar[string](r.environment, `SELECT checkpoint FROM onceward.relay_state`), r.states(), out)
	r.execute(`SELECT pg_drop_replication_slot($1)`, r.slot())
	r.execute(`UPDATE onceward.relay_state SET system_identifier = '1'`)
	outboxctl(t, r.dsn(maintainerLogin), "adopt", "--by", "dump", "--reason", "moved", "--yes")
	r.relay.start()
	r.relay.wait(30 * time.Second)
	t.Log(outboxctlAny(t, r.dsn(operatorLogin), "gap", "list"))
	gap := scalar[string](r.environment, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
	outboxctl(t, r.dsn(operatorLogin), "gap", "accept", gap, "--reason", "it is in Kafka", "--yes")
	r.relay.start()
	caughtUp(t, r.environment, r.relay)
	eventually(t, "nothing waits", time.Minute, func() bool { return scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) == 0 })
	r.relay.stop()
	states, _ := r.truth()
	t.Logf("in the topic %d of %d; %v", len(r.inTopic(r.name+".late")), n, states)
	require.Len(t, r.inTopic(r.name+".late"), n)
}
