package kafka

import "github.com/onceward/onceward/publisher"

// Where says in which cluster and topic events are looked for.
type Where struct {
	Config publisher.Config
	Topic  string // empty: of the routes
	Routed bool   // the configuration has routes
	Slot   string // of the configuration's relay; empty: there is no configuration
}

// TopicOf is the topic of an event: the one that is named, or that to which its route leads.
func (w Where) TopicOf(namespace, aggregateType, eventType string) (string, error) {
	if w.Topic != "" {
		return w.Topic, nil
	}
	return w.Config.TopicOf(namespace, aggregateType, eventType)
}
