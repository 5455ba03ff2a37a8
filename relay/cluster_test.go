package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
)

// Another cluster halts the relay by a name, with commands that name the slot and
// the cluster, and no page without a login shows more.
func TestAnotherKafkaHalts(t *testing.T) {
	cfg := Config{Name: "orders"}
	err := otherKafka(&cfg, &publisher.OtherClusterError{Known: "mine", Met: "other", Address: "k:9092"})
	require.True(t, permanent(err))
	code, text := reason(StateHalted, err)
	require.Equal(t, beginning.CodeOtherKafka, code)
	for _, part := range []string{"mine", "other", "k:9092", "outboxctl adopt --kafka gap --slot onceward_orders --cluster other --reason", "--kafka from-position", "--kafka continue"} {
		require.Contains(t, text, part)
	}
	require.Equal(t, beginning.CodeOtherKafka, codeOf(err))
}

// The routes' hash is of what they do: a default that is written out changes
// nothing, another order does.
func TestOtherwise(t *testing.T) {
	a, b := RouteConfig{Topic: "a"}, RouteConfig{Topic: "b", Match: MatchConfig{Namespace: "shop"}}
	here := Config{Kafka: KafkaConfig{Mode: ModeExactlyOnce}, Routes: []RouteConfig{a, b}}
	same, turned := here, here
	same.Routes = []RouteConfig{{Topic: "a", Poison: PoisonParkAggregate}, b}
	turned.Routes = []RouteConfig{b, a}
	hash := here.routesHash()
	require.Equal(t, hash, same.routesHash())
	require.NotEqual(t, hash, turned.routesHash())
	require.Empty(t, here.otherwise(outboxdb.RelayState{Mode: ModeExactlyOnce}), "nobody has said his routes yet")
	require.Empty(t, here.otherwise(outboxdb.RelayState{Mode: ModeExactlyOnce, Routes: &hash}))
	require.Equal(t, "kafka.mode is idempotent there and exactly-once here", here.otherwise(outboxdb.RelayState{Mode: ModeIdempotent, Routes: &hash}))
	require.Equal(t, "the routes have hash "+hash+" there and "+turned.routesHash()+" here", turned.otherwise(outboxdb.RelayState{Mode: ModeExactlyOnce, Routes: &hash}))
}

// A standby that is configured otherwise is told of: it is talked about, though a
// standby is not.
func TestSettingsAreSaid(t *testing.T) {
	now := time.Now()
	v := newVitals("orders", now)
	v.enter(StateStandby, nil, now)
	v.report(WaitSettings, Wait{What: "slot s", Since: now, Detail: "kafka.mode"})
	h := v.health(now.Add(time.Minute))
	require.Len(t, h.Waiting, 2)
	said := make(reminders).tick(now.Add(time.Minute), h.Waiting)
	require.Len(t, said, 1)
	require.Equal(t, WaitSettings, said[0].wait.For)
	require.NotEmpty(t, waitWords[WaitSettings])
}
