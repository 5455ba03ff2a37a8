package publisher_test

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

func TestRoutes(t *testing.T) {
	routes := []publisher.Route{
		{Match: publisher.Match{Namespace: "pay*", EventType: "Refund*"}, Topic: "refunds"},
		{Match: publisher.Match{AggregateType: "audit?"}, Topic: "audit.{event_type}-{namespace}"},
		{Match: publisher.Match{Namespace: "pay*"}, Topic: "{namespace}.{aggregate_type}"},
	}
	for _, c := range []struct{ namespace, aggregateType, eventType, topic string }{
		{"payments", "order", "RefundMade", "refunds"},
		{"payments", "order", "OrderPaid", "payments.order"},
		{"shop", "audit1", "Seen", "audit.Seen-shop"},
		{"payments", "audit1", "RefundMade", "refunds"}, // the first match decides
	} {
		topic, err := publisher.TopicOf(routes, nil, &outbox.Row{Namespace: c.namespace, AggregateType: c.aggregateType, Type: c.eventType})
		require.NoError(t, err)
		require.Equal(t, c.topic, topic)
	}
	_, err := publisher.TopicOf(routes, nil, &outbox.Row{Namespace: "shop", AggregateType: "order", Type: "X"})
	require.ErrorIs(t, err, publisher.ErrRoute)
	require.NotErrorIs(t, err, publisher.ErrRecord)
}

func TestTopicsThatRowsMayNotName(t *testing.T) {
	routes := []publisher.Route{{Topic: "{aggregate_type}"}}
	for name, detail := range map[string]string{
		"":                       "empty",
		".":                      "refuses",
		"..":                     "refuses",
		"__consumer_offsets":     "never written",
		"or der":                 "byte 2",
		"örder":                  "byte 0",
		strings.Repeat("x", 250): "at most 249",
	} {
		_, err := publisher.TopicOf(routes, []string{"*"}, &outbox.Row{AggregateType: name})
		require.ErrorIs(t, err, publisher.ErrRecord, name)
		require.ErrorContains(t, err, detail)
	}
	_, err := publisher.TopicOf(routes, []string{"a.*", "b"}, &outbox.Row{AggregateType: "c"})
	require.ErrorIs(t, err, publisher.ErrRoute)
	_, err = publisher.TopicOf(routes, []string{"a.*", "b"}, &outbox.Row{AggregateType: "a.x"})
	require.NoError(t, err)
}

func TestTopicsThatReplaysMayName(t *testing.T) {
	c := publisher.Config{Brokers: []string{"127.0.0.1:1"}, Insecure: true, Routes: []publisher.Route{{Topic: "a.x"}}, Topics: publisher.Topics{Allow: []string{"a.*"}}}
	require.NoError(t, c.Permits("a.repair"))
	require.ErrorIs(t, c.Permits("b"), publisher.ErrRoute)
	require.ErrorIs(t, c.Permits("__x"), publisher.ErrRecord)
}

func TestTemplatesRefusedAtStart(t *testing.T) {
	for template, want := range map[string]string{
		"":                          "empty",
		"{namespace":                "without its }",
		"namespace}":                "without its {",
		"{aggregate_id}":            "unknown variable {aggregate_id}",
		"{{namespace}}":             "unknown variable",
		"a b":                       "[a-zA-Z0-9._-]",
		"__{namespace}":             "Kafka itself",
		"..":                        "refuses",
		strings.Repeat("long", 100): "at most 249",
	} {
		cfg := publisher.Config{Brokers: []string{"localhost:9092"}, Routes: []publisher.Route{{Topic: "fine"}, {Topic: template}}}
		_, err := publisher.Resolve(cfg)
		require.ErrorContains(t, err, "Routes[1].Topic", template)
		require.ErrorContains(t, err, want, template)
	}
	_, err := publisher.Resolve(publisher.Config{
		Brokers: []string{"localhost:9092"}, Routes: []publisher.Route{{Topic: "b"}}, Topics: publisher.Topics{Allow: []string{"a"}},
	})
	require.ErrorContains(t, err, "topics.allow", "a fixed topic outside the allow-list can never work")
}

// path.Match knows the same two wildcards, where no slash is involved.
func TestGlobAgreesWithPathMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*?]{0,12}`).Draw(t, "pattern")
		s := rapid.StringMatching(`[ab]{0,16}`).Draw(t, "s")
		want, err := path.Match(pattern, s)
		require.NoError(t, err)
		require.Equal(t, want, publisher.Glob(pattern, s), "%q %q", pattern, s)
	})
}

func FuzzRoute(f *testing.F) {
	f.Add("{namespace}.{aggregate_type}", "shop", "order", "OrderPaid")
	f.Add("{event_type}", "", "__x", "..")
	f.Add("a{", "ü", "\x00", strings.Repeat("y", 300))
	f.Fuzz(func(t *testing.T, template, namespace, aggregateType, eventType string) {
		row := &outbox.Row{Namespace: namespace, AggregateType: aggregateType, Type: eventType}
		topic, err := publisher.TopicOf([]publisher.Route{{Topic: template}}, nil, row)
		if err == nil {
			require.Empty(t, publisher.InvalidTopic(topic))
			require.Regexp(t, `^[a-zA-Z0-9._-]{1,249}$`, topic)
			return
		}
		var refused *record.RowError
		if !errors.As(err, &refused) {
			require.ErrorContains(t, err, "configure publisher: Routes[0].Topic")
		}
	})
}
