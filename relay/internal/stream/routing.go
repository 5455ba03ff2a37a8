package stream

import (
	"errors"
	"slices"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

// maxTopics bounds the cache of topics, whose keys come from rows.
const maxTopics = 10_000

// Policies of a route, for events that can never become a record.
const (
	PolicyParkAggregate = "park-aggregate" // they become dead letters, and the later ones of their aggregates behind them
	PolicyPark          = "park"           // they become dead letters, alone
	PolicyHalt          = "halt"           // an operator decides
)

// Routing answers what the publisher does not say by itself: which policy a
// poison event has, and whether its topic is paused. It is pure.
type Routing struct {
	relay    string // its name
	config   publisher.Config
	policies []string // of config.Routes
	topics   map[[3]string]string
}

// NewRouting is that of a relay, with the policy of each route.
func NewRouting(relay string, policies []string, sink publisher.Config) *Routing {
	return &Routing{relay: relay, config: sink, policies: policies, topics: make(map[[3]string]string)}
}

// policy returns the poison policy of the first route that matches, and the
// default where none does.
func (r *Routing) policy(row *outbox.Row) string {
	for i, route := range r.config.Routes {
		if route.Match.Matches(row.Namespace, row.AggregateType, row.Type) {
			return r.policies[i]
		}
	}
	return PolicyParkAggregate
}

// pausedBy reports whether an event's topic, or where it has none its
// namespace/aggregate_type, is among those that an operator paused.
func (r *Routing) pausedBy(ev publisher.Event, paused []string) *publisher.RouteError {
	topic := r.routeOf(ev)
	if !slices.Contains(paused, topic) {
		return nil
	}
	return &publisher.RouteError{Topic: topic, Route: topic, Wanted: true, Reason: "is paused by an operator",
		Cure: "`outboxctl resume --relay " + r.relay + " --route " + topic + "` lets it go on"}
}

// routeOf is what an event is held by when it cannot be published.
func (r *Routing) routeOf(ev publisher.Event) string {
	if ev.Topic != "" {
		return ev.Topic
	}
	return r.topic(ev.Row)
}

func (r *Routing) topic(row *outbox.Row) string {
	return r.TopicOf(row.Namespace, row.AggregateType, row.Type)
}

// TopicOf is the topic of events of a namespace, aggregate type and type.
func (r *Routing) TopicOf(namespace, aggregateType, eventType string) string {
	key := [3]string{namespace, aggregateType, eventType}
	if topic, ok := r.topics[key]; ok {
		return topic
	}
	topic, err := r.config.TopicOf(namespace, aggregateType, eventType)
	if err != nil {
		topic = ""
		var route *publisher.RouteError
		if errors.As(err, &route) {
			topic = route.Route
		}
	}
	if len(r.topics) >= maxTopics {
		clear(r.topics)
	}
	r.topics[key] = topic
	return topic
}
