//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/outbox"
)

// secondKafka is a cluster beside the one that all tests share.
func secondKafka(t *testing.T) *kafkaserver.Cluster {
	t.Helper()
	c, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Brokers: 1})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

// lead makes the environment's Kafka another one, with the topic, empty.
func (w *environment) lead(brokers []string) {
	w.t.Helper()
	require.NoError(w.t, w.admin.DeleteTopic(w.topic()))
	require.NoError(w.t, w.admin.Close())
	w.brokers = brokers
	var err error
	w.admin, err = sarama.NewClusterAdmin(w.brokers, kafkaConfig())
	require.NoError(w.t, err)
	w.createTopic(nil)
}

// mirror writes records into the environment's topic, as a mirror of another cluster does.
func (w *environment) mirror(records []*sarama.ConsumerMessage) {
	w.t.Helper()
	producer, err := sarama.NewSyncProducer(w.brokers, kafkaConfig())
	require.NoError(w.t, err)
	for _, r := range records {
		m := &sarama.ProducerMessage{Topic: r.Topic, Partition: r.Partition, Key: sarama.ByteEncoder(r.Key), Value: sarama.ByteEncoder(r.Value)}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, *h)
		}
		_, _, err := producer.SendMessage(m)
		require.NoError(w.t, err)
	}
	require.NoError(w.t, producer.Close())
}

// checked is what relay check says, and its exit code.
func checked(t *testing.T, r *relayProcess) (int, string) {
	t.Helper()
	out, err := process.Run(t.Context(), process.Spec{Path: r.binary, Args: []string{"check", "--config", r.config}, Env: r.env})
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), out
	}
	require.NoError(t, err)
	return 0, out
}

// pointTo writes the environment's brokers into the relay's configuration.
func (r *relayProcess) pointTo(config ...string) { r.config = r.w.config(config...) }

// foreigner is a relay that published to one Kafka and is pointed to another.
type foreigner struct {
	*environment
	relay  *relayProcess
	config []string
	before []*sarama.ConsumerMessage // what the first Kafka held
	letter outbox.Key                // of a dead letter that was replayed
	owed   []string                  // keys of events that nobody has published
	all    int
}

// adoptions are the words of adopt --kafka, and what the gap of the last is decided to be.
var adoptions = []string{"continue", "from-position", "gap repair", "gap accept"}

// TestForeignKafka: the brokers of a relay are of another cluster. It stops by
// name, and writes nothing there; relay check says the same. What an operator says
// of the new cluster is what the account says then, and the topics agree. A topic
// that is deleted and made anew is told once.
func TestForeignKafka(t *testing.T) {
	t.Parallel()
	second := secondKafka(t)
	for i, mode := range []string{"idempotent", "exactly-once"} {
		for j, word := range adoptions {
			if !full() && (i+j)%2 == 1 {
				continue // each word in one mode
			}
			t.Run(mode+"/"+word, func(t *testing.T) { adoptForeign(t, second, mode, word, versions[(i+j/2)%len(versions)]) })
		}
		if mode == "idempotent" {
			t.Run("goes on by itself", func(t *testing.T) { goesOnByItself(t, second) })
		}
		t.Run(mode+"/topic made anew", func(t *testing.T) { remadeTopic(t, mode) })
	}
}

// goesOnByItself: a relay that stays when it is halted looks for the end of the
// cause without the slot, and needs no restart.
func goesOnByItself(t *testing.T, second *kafkaserver.Cluster) {
	w := settled(t, versions[1])
	first := startRelay(t, w, "checkpoint_interval: 100ms")
	caughtUp(t, w, first)
	first.stop()
	before := w.committed(w.topic())
	w.lead(second.Addrs())
	w.mirror(before)
	r := staying(w, "checkpoint_interval: 100ms")
	r.start()
	halted(t, r, "OTHER_KAFKA")
	epoch := scalar[int64](w, `SELECT epoch FROM onceward.relay_state`)
	key := writeOne(t, w)
	looks := 0
	asked := ""
	eventually(t, "it looks again and again", time.Minute, func() bool {
		now := scalar[string](w, `SELECT coalesce(max(query_start)::text, '') FROM pg_stat_activity WHERE application_name LIKE 'onceward process %' AND query LIKE '%SaveKafkaMet%'`)
		if now != asked && now != "" {
			asked = now
			looks++
		}
		return looks > 2
	})
	require.Equal(t, epoch, scalar[int64](w, `SELECT epoch FROM onceward.relay_state`), "without the slot")
	require.Equal(t, 1, strings.Count(r.log(), "code=OTHER_KAFKA"), "it says so once")
	outboxctl(t, w.dsn(operatorLogin), "adopt", "--kafka", "continue", "--reason", "a mirror", "--yes")
	eventually(t, "it goes on by itself", 30*time.Second, func() bool { return sessions(r) == 1 })
	caughtUp(t, w, r)
	require.Equal(t, 1, w.published()[key])
	r.stop()
	requireTrue(t, w)
}

func adoptForeign(t *testing.T, second *kafkaserver.Cluster, mode, word, version string) {
	f := publishedElsewhere(t, mode, version)
	f.lead(second.Addrs())
	f.stopsByName(t)
	ctl := func(args ...string) string { return outboxctl(t, f.dsn(operatorLogin), args...) }
	how, decision, _ := strings.Cut(word, " ")
	if how != "gap" {
		f.mirror(f.before)
	}
	out := ctl("adopt", "--kafka", how, "--reason", "moved", "--yes")
	require.Contains(t, out, "is bound to Kafka cluster")
	require.Equal(t, "adopt kafka "+how, scalar[string](f.environment, `SELECT action FROM onceward.relay_actions ORDER BY action_id DESC LIMIT 1`))
	if how == "gap" {
		f.decide(t, decision)
	}
	r := f.relay
	r.start()
	caughtUp(t, f.environment, r)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(f.environment) == 0 })
	r.stop()
	states, copies := requireTrue(t, f.environment)
	want := map[string]int{"before": 1, "published": f.all + 1} // and the one that caughtUp wrote
	switch word {
	case "gap accept":
		want = map[string]int{"before": 1, "published": len(f.owed) + 1, "given-up": f.all - len(f.owed) - 1, "parked": 1}
	case "gap repair":
		want["published"]--
		want["parked"] = 1
		require.Zero(t, copies)
	}
	require.Equal(t, want, states)
	require.LessOrEqual(t, copies, f.all/2, "what was published after the last checkpoint")
	if how == "gap" {
		ctl("dead", "retry", f.letter.String(), "--reason", "in the new cluster too", "--yes", "--wait", "0s")
		r.start()
		eventually(t, "the letter is published again", 30*time.Second, func() bool { return f.published()[f.letter.String()] == 1 })
		r.stop()
		requireTrue(t, f.environment)
	}
	truth, err := readTruth(t.Context(), f.pool)
	require.NoError(t, err)
	if decision != "accept" {
		found, _ := verify(f.committed(f.topic()), truth, nil, f.partitions)
		for _, v := range found {
			require.NotEqual(t, order, v.statement, summary(found))
		}
	}
	t.Logf("PostgreSQL %s: %d events; %v; %d copies", version, f.all, states, copies)
}

// publishedElsewhere is a relay that is killed under load, with events that are
// owed, one that is older than it, and a dead letter that was replayed.
func publishedElsewhere(t *testing.T, mode, version string) *foreigner {
	f := &foreigner{environment: settled(t, version), config: []string{"checkpoint_interval: 100ms", "outbox: {start: now}", `admin: {listen: "127.0.0.1:0"}`}}
	w := f.environment
	w.execute(`INSERT INTO counters VALUES ('old', 0)`)
	require.NoError(t, oneOf(t.Context(), w, 9, "old")) // of an aggregate of its own: it is never published
	f.relay = w.newRelay(w.config(f.config...), "").inMode(mode)
	f.relay.env = append(f.relay.env, "ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=3s") // a killed relay holds readers back as long
	r := f.relay
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	require.NotEmpty(t, scalar[string](w, `SELECT kafka_cluster FROM onceward.relay_state`))
	f.letter = replayedLetter(t, w)
	load := produce(w, 3)
	load.atLeast(150)
	load.stop()
	caughtUp(t, w, r)
	eventually(t, "what is published is called so", 30*time.Second, func() bool { return owed(w) == 0 })
	load = produce(w, 3)
	load.atLeast(30)
	r.kill()
	load.stop()
	eventually(t, "the slot is free", 10*time.Second, func() bool {
		return !scalar[bool](w, `SELECT bool_or(active) FROM pg_replication_slots WHERE slot_name = $1`, w.slot())
	})
	writeOne(t, w)
	f.before = w.committed(w.topic())
	for key, state := range account(t, w) {
		if state == "pending" {
			f.owed = append(f.owed, key)
		}
	}
	f.all = scalar[int](w, `SELECT count(*) FROM onceward.outbox`) - 1
	return f
}

// replayedLetter is the key of an event that was too large, was edited and replayed.
func replayedLetter(t *testing.T, w *environment) outbox.Key {
	t.Helper()
	key, err := outbox.NewKey(w.name)
	require.NoError(t, err)
	_, err = w.app.Exec(t.Context(), `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, 'order', 'a-9', 'OrderChanged', $3)`,
		key.UUID(), w.name, make([]byte, 1_200_000))
	require.NoError(t, err)
	state := func() (state string) {
		_ = w.pool.QueryRow(t.Context(), `SELECT state FROM onceward.dead_letters WHERE letter_id = $1`, key.UUID()).Scan(&state)
		return state
	}
	eventually(t, "it is a dead letter", 30*time.Second, func() bool { return state() == "open" })
	file := filepath.Join(t.TempDir(), "payload")
	require.NoError(t, os.WriteFile(file, []byte(`{"aggregate":"a-9","n":1}`), 0o600))
	for _, args := range [][]string{
		{"dead", "edit", key.String(), "--payload-file", file, "--reason", "too large", "--yes", "--wait", "30s"},
		{"dead", "retry", key.String(), "--reason", "mended", "--yes", "--wait", "30s"},
	} {
		outboxctl(t, w.dsn(operatorLogin), args...)
	}
	eventually(t, "it is replayed", 30*time.Second, func() bool { return state() == "replayed" })
	return key
}

// stopsByName: started and restarted, the relay stops with OTHER_KAFKA, and the
// other cluster holds nothing of it.
func (f *foreigner) stopsByName(t *testing.T) {
	t.Helper()
	r := f.relay
	r.pointTo(f.config...)
	code, out := checked(t, r)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "OTHER_KAFKA")
	require.Contains(t, out, "outboxctl adopt --kafka gap --slot ")
	said := account(t, f.environment)
	for range 2 {
		r.start()
		log := r.wait(30 * time.Second)
		require.Contains(t, log, "OTHER_KAFKA: ")
		require.Contains(t, log, "outboxctl adopt --kafka gap --slot ")
	}
	require.Equal(t, said, account(t, f.environment), "the account is as it was")
	require.Empty(t, f.committed(f.topic()))
	topics, err := f.admin.ListTopics()
	require.NoError(t, err)
	groups, err := f.admin.ListConsumerGroups()
	require.NoError(t, err)
	for group := range groups {
		require.NotContains(t, group, f.name)
	}
	for topic := range topics {
		require.True(t, !strings.HasPrefix(topic, f.name) || topic == f.topic(), topic)
	}
	status, out := statusOf(t, f.environment)
	require.Equal(t, 3, status)
	require.Contains(t, out, "OTHER_KAFKA")
}

// decide is gap repair or accept of what `adopt --kafka gap` leaves.
func (f *foreigner) decide(t *testing.T, decision string) {
	t.Helper()
	states := map[string]int{}
	for key, state := range account(t, f.environment) {
		states[state]++
		if state == "published" {
			t.Errorf("%s is called published", key)
		}
	}
	require.Equal(t, map[string]int{"before": 1, "parked": 1, "pending": len(f.owed), "gap": f.all - len(f.owed) - 1}, states)
	f.relay.start()
	log := f.relay.wait(30 * time.Second)
	require.Contains(t, log, "outboxctl gap repair")
	require.Equal(t, "open repairing", scalar[string](f.environment, `SELECT string_agg(state, ' ' ORDER BY state) FROM onceward.gaps WHERE cause = 'OTHER_KAFKA'`))
	gap := scalar[string](f.environment, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
	require.Empty(t, f.committed(f.topic()))
	outboxctl(t, f.dsn(operatorLogin), "gap", decision, gap, "--reason", "moved", "--yes")
}

// remadeTopic: a topic is deleted and made anew while the relay runs.
func remadeTopic(t *testing.T, mode string) {
	w := settled(t, versions[0])
	r := w.newRelay(w.config("checkpoint_interval: 100ms", `admin: {listen: "127.0.0.1:0"}`), "").inMode(mode)
	r.env = append(r.env, "ONCEWARD_TOPICS_CREATE=false")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	for range 5 {
		writeOne(t, w)
	}
	caughtUp(t, w, r)
	eventually(t, "the topic is known", 30*time.Second, func() bool { return scalar[int](w, `SELECT count(*) FROM onceward.kafka_topics`) == 1 })
	const anew = "a topic was deleted and made anew"
	require.False(t, r.logs(anew))
	r.stop() // the count is written
	require.Equal(t, 6, scalar[int](w, `SELECT records::int FROM onceward.kafka_topics`))
	require.False(t, r.logs(anew))
	again := *r
	r = &again
	r.logFile = filepath.Join(t.TempDir(), "again.log")
	r.start()
	t.Cleanup(func() {
		if r.process != nil {
			r.process.Kill()
		}
	})
	eventually(t, "the relay streams again", 30*time.Second, func() bool { return r.logs("slot taken") })
	require.NoError(t, w.admin.DeleteTopic(w.topic()))
	eventually(t, "the topic is gone", 30*time.Second, func() bool {
		topics, err := w.admin.ListTopics()
		_, there := topics[w.topic()]
		return err == nil && !there
	})
	writeOne(t, w)
	w.createTopic(nil)
	eventually(t, "it is told", 2*time.Minute, func() bool { return r.logs(anew) })
	caughtUp(t, w, r)
	_, page := readPage(t, adminURL(t, r)+"/metrics")
	require.Contains(t, page, `onceward_topics_remade_total{relay="`+w.name+`"} 1`)
	r.stop()
	require.Equal(t, 1, strings.Count(r.log(), anew))
	require.Contains(t, r.log(), "records=6")
	_, out := statusOf(t, w)
	require.Contains(t, out, "TOPIC MADE ANEW")
	var status struct {
		Remade []struct {
			Topic          string
			Times, Records int
		} `json:"topics_made_anew"`
	}
	out = outboxctlAny(t, w.dsn(operatorLogin), "status", "--output", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &status), out)
	require.Len(t, status.Remade, 1)
	require.Equal(t, w.topic(), status.Remade[0].Topic)
	require.Equal(t, 6, status.Remade[0].Records)
	r.start()
	eventually(t, "the relay streams once more", 30*time.Second, func() bool { return sessions(r) == 2 })
	caughtUp(t, w, r)
	r.stop()
	require.Equal(t, 1, strings.Count(r.log(), anew), "once")
}

// outboxctlAny is outboxctl with any exit code.
func outboxctlAny(t *testing.T, dsn string, args ...string) string {
	t.Helper()
	out, err := process.Run(t.Context(), process.Spec{
		Path: outboxctlBinary(t), Args: args, Env: []string{"OUTBOXCTL_DSN=" + dsn, "OUTBOXCTL_INSECURE=true"},
	})
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return out
}
