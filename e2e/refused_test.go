//go:build e2e

package e2e

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/outbox"
)

// TestRefusedAgain: a letter that the broker refuses again, which nobody can
// know before it is sent, is open again with the new reason, once; its retry has
// ended, and nothing else waits for it. So where the topic's limit may be read.
func TestRefusedAgain(t *testing.T) {
	t.Parallel()
	cluster, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Settings: map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found": "true",
	}})
	require.NoError(t, err)
	stopAtTheEnd(t, cluster)
	for _, c := range modesAndVersions() {
		t.Run(c[0]+"/PostgreSQL"+c[1], func(t *testing.T) {
			r := newReplays(t, newEnvironmentBetween(t, postgres(t, c[1]), cluster.Addrs()), c[0])
			r.makeTopic(r.name+".tiny", map[string]string{"max.message.bytes": "20000"})
			r.makeTopic(r.name+".blind", map[string]string{"max.message.bytes": "20000"})
			r.blind(r.name + ".blind")
			for _, kind := range []string{"blind", "tiny"} {
				r.refusedAgain(kind)
			}
			r.relay.stop()
		})
	}
}

// blind forbids to read a topic's settings.
func (r *replays) blind(topic string) {
	r.t.Helper()
	var allowed []*sarama.Acl
	for _, operation := range []sarama.AclOperation{sarama.AclOperationRead, sarama.AclOperationWrite, sarama.AclOperationDescribe, sarama.AclOperationDelete} {
		allowed = append(allowed, &sarama.Acl{Principal: "User:*", Host: "*", Operation: operation, PermissionType: sarama.AclPermissionAllow})
	}
	require.NoError(r.t, r.admin.CreateACLs([]*sarama.ResourceAcls{{
		Resource: sarama.Resource{ResourceType: sarama.AclResourceTopic, ResourceName: topic, ResourcePatternType: sarama.AclPatternLiteral}, Acls: allowed,
	}}))
}

// random is a payload that no compression makes smaller.
func random(n int) []byte {
	b := make([]byte, n)
	dice := rand.NewChaCha8([32]byte{1})
	_, _ = dice.Read(b)
	return b
}

func (r *replays) refusedAgain(kind string) {
	t := r.t
	topic := r.name + "." + kind
	letter := func(key, column string) string {
		return scalar[string](r.environment, `SELECT `+column+`::text FROM onceward.dead_letters WHERE namespace || ':' || letter_id = $1`, key)
	}
	bad := r.enqueue(kind, "a", random(50_000))
	eventually(t, "the letter is written", time.Minute, func() bool {
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.dead_letters WHERE namespace || ':' || letter_id = $1`, bad) == 1
	})
	sessions := func() int { return strings.Count(r.relay.log(), "slot taken") }
	for round := range 2 {
		began, n := time.Now(), sessions()
		out := r.order(3, "dead", "retry", bad, "--reason", "again", "--yes", "--wait", "30s")
		require.Contains(t, out, "refused again: ")
		after := r.small("free")
		r.arrives(r.topic(), after)
		same := r.enqueue(kind, "b", []byte("{}"))
		r.arrives(topic, same)
		require.Equal(t, "open", letter(bad, "state"))
		require.Equal(t, 2+round, int(scalar[int32](r.environment, `SELECT attempts FROM onceward.dead_letters WHERE namespace || ':' || letter_id = $1`, bad)))
		require.LessOrEqual(t, sessions()-n, 1, "the refusal ends one session at most")
		t.Logf("%s, %s: refused again and all others on within %s, %d more sessions: %s", r.mode, kind, time.Since(began).Round(time.Millisecond), sessions()-n, letter(bad, "error"))
		for _, once := range []struct{ topic, key string }{{r.topic(), after}, {topic, same}} {
			require.Equal(t, 1, r.copies(once.topic, once.key), once.key)
		}
	}
	require.True(t, r.relay.logs("a retried dead letter was refused again") && r.relay.logs(bad))

	behind := r.enqueue(kind, "a", []byte("{}"))
	_, err := r.admin.DeleteACL(sarama.AclFilter{
		ResourceType: sarama.AclResourceTopic, ResourceName: &topic, ResourcePatternTypeFilter: sarama.AclPatternLiteral,
		Operation: sarama.AclOperationAny, PermissionType: sarama.AclPermissionAny,
	}, false)
	require.NoError(t, err)
	larger := "1000000"
	require.NoError(t, r.admin.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &larger},
	}, false))
	eventually(t, "the event behind it is a letter", time.Minute, func() bool {
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.dead_letters WHERE namespace || ':' || letter_id = $1`, behind) == 1
	})
	eventually(t, "the larger limit is seen, at the latest a second after the last look", 30*time.Second, func() bool {
		out, _ := process.Run(t.Context(), process.Spec{
			Path: outboxctlBinary(t), Args: []string{"dead", "retry", bad, "--reason", "limit raised", "--yes", "--wait", "30s"},
			Env: []string{"OUTBOXCTL_DSN=" + r.dsn(operatorLogin), "OUTBOXCTL_INSECURE=true"},
		})
		return strings.Contains(out, "2 done")
	})
	require.Equal(t, []string{bad, behind}, r.keys(topic, "a"))
}

func (r *replays) copies(topic, key string) (n int) {
	for _, m := range r.committed(topic) {
		if headerOf(m, outbox.HeaderKey) == key {
			n++
		}
	}
	return n
}

// TestSingleWordKeepsOrder: a retry of one letter, as an outboxctl of the release
// before ordered it, while its route is paused: later events of its aggregate
// stay behind it, through a kill -9 too; what is said of another letter acts at
// once; and what is held can be given up.
func TestSingleWordKeepsOrder(t *testing.T) {
	t.Parallel()
	for _, c := range modesAndVersions() {
		t.Run(c[0]+"/PostgreSQL"+c[1], func(t *testing.T) {
			r := newReplays(t, newEnvironment(t, c[1]), c[0])
			r.makeTopic(r.name+".other", nil)
			r.singleWords()
			r.relay.stop()
		})
	}
}

func (r *replays) singleWords() {
	t := r.t
	bad, unrelated, given := r.poison("p"), r.enqueue("other", "q", make([]byte, 1_200_000)), r.poison("g")
	r.letters(3)
	file := filepath.Join(t.TempDir(), "payload")
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	for _, key := range []string{bad, given} {
		r.order(0, "dead", "edit", key, "--payload-file", file, "--reason", "smaller", "--yes", "--wait", "30s")
	}
	r.order(0, "pause", "--route", r.topic())
	eventually(t, "the relay has heard it", 30*time.Second, func() bool {
		before := len(r.committed(r.topic()))
		r.small("s")
		r.arrives(r.name+".other", r.enqueue("other", "s", []byte("{}")))
		return len(r.committed(r.topic())) == before
	})
	single := func(key string) {
		_, id, _ := strings.Cut(key, ":")
		r.execute(`INSERT INTO onceward.controls (control_id, action, namespace, letter_id, reason, requested_by) VALUES ($1, 'retry', $2, $3, 'as before', 'me')`, uuid.New(), r.name, uuid.MustParse(id))
	}
	single(bad)
	later := r.small("p")
	single(given)
	r.arrives(r.name+".other", r.enqueue("other", "s", []byte("{}")))
	require.Contains(t, r.order(0, "dead", "discard", unrelated, "--reason", "not wanted", "--yes", "--wait", "30s"), "1 done", "a held retry keeps no other word waiting")
	r.relay.kill()
	r.relay.start()
	latest := r.small("p")
	r.arrives(r.name+".other", r.enqueue("other", "s", []byte("{}")))
	r.order(0, "resume", "--route", r.topic())
	r.arrives(r.topic(), latest)
	require.Equal(t, []string{bad, later, latest}, firsts(r.keys(r.topic(), "p")))
	r.arrives(r.topic(), given)
}
