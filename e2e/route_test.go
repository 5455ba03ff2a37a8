//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/outbox"
)

// TestRouteFatalHolds: a topic that is missing and one that is forbidden hold
// their own events only; others go on, through a kill -9 too; once the topic is
// there, or allowed, what waited comes by itself, in order. In exactly-once mode
// nothing of it all is twice.
func TestRouteFatalHolds(t *testing.T) {
	t.Parallel()
	cluster, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Settings: map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found": "true",
	}})
	require.NoError(t, err)
	stopAtTheEnd(t, cluster)
	for _, c := range modesAndVersions() {
		t.Run(c[0]+"/PostgreSQL"+c[1], func(t *testing.T) {
			r := newReplays(t, newEnvironmentBetween(t, postgres(t, c[1]), cluster.Addrs()), c[0])
			r.holdAndHeal()
		})
	}
}

func (r *replays) holdAndHeal() {
	t := r.t
	missing, forbidden := r.name+".missing", r.name+".forbidden"
	r.makeTopic(forbidden, nil)
	require.NoError(t, r.admin.CreateACLs([]*sarama.ResourceAcls{{
		Resource: sarama.Resource{ResourceType: sarama.AclResourceTopic, ResourceName: forbidden, ResourcePatternType: sarama.AclPatternLiteral},
		Acls:     []*sarama.Acl{{Principal: "User:*", Host: "*", Operation: sarama.AclOperationWrite, PermissionType: sarama.AclPermissionDeny}},
	}}))
	// topics.create, which newReplays sets for the checkpoint's topic, would make
	// the missing one.
	r.relay.stop()
	r.relay.env = append(r.relay.env, "ONCEWARD_TOPICS_CREATE=false")
	r.relay.start()

	waiting := map[string][]string{}
	wait := func(n int) {
		for range n {
			waiting[missing] = append(waiting[missing], r.enqueue("missing", "m", []byte("{}")))
			waiting[forbidden] = append(waiting[forbidden], r.enqueue("forbidden", "f", []byte("{}")))
		}
	}
	wait(5)
	passed := []string{r.small("free")}
	r.arrives(r.topic(), passed[0])
	require.NoError(t, bulk(t.Context(), r.environment, 0, 2000, 10))
	wait(5)
	passed = append(passed, r.small("free"))
	r.arrives(r.topic(), passed[1])
	require.True(t, r.relay.logs("route held") && r.relay.logs(missing) && r.relay.logs(forbidden))
	require.Zero(t, scalar[int](r.environment, `SELECT count(*) FROM onceward.dead_letters`), "a route that rests makes no letters")

	r.relay.kill()
	r.relay.start()
	passed = append(passed, r.small("free"))
	r.arrives(r.topic(), passed[2])

	r.makeTopic(missing, nil)
	_, err := r.admin.DeleteACL(sarama.AclFilter{
		ResourceType: sarama.AclResourceTopic, ResourceName: &forbidden, ResourcePatternTypeFilter: sarama.AclPatternLiteral,
		Operation: sarama.AclOperationWrite, PermissionType: sarama.AclPermissionDeny,
	}, false)
	require.NoError(t, err)
	wait(1)
	for topic, keys := range waiting {
		r.arrives(topic, keys[len(keys)-1])
		got := r.keys(topic, topic[len(r.name)+1:][:1])
		if r.mode == "idempotent" {
			got = firsts(got)
		}
		require.Equal(t, keys, got, topic)
	}
	seen := make(map[string]int)
	for _, m := range r.committed(r.topic()) {
		seen[headerOf(m, outbox.HeaderKey)]++
	}
	require.Len(t, seen, 2000+len(passed))
	if r.mode == "exactly-once" {
		for key, n := range seen {
			require.Equal(t, 1, n, "%s was published again behind a route that is held", key)
		}
	}
	r.relay.stop()
}

// stopAtTheEnd stops a server, or a cluster, of the test's own.
func stopAtTheEnd(t *testing.T, server interface {
	Stop(ctx context.Context) error
}) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, server.Stop(ctx))
	})
}
