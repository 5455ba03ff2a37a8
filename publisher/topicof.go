package publisher

// TopicOf returns the topic that the routes lead an event to. It needs no
// connection. The error is what Publish would return: a [*RouteError] when no
// route matches or the topic is not allowed, a [*RecordError] for a name that
// Kafka cannot have; or that of a configuration that [Config.Validate] refuses.
func (c Config) TopicOf(namespace, aggregateType, eventType string) (string, error) {
	s, err := c.resolve()
	if err != nil {
		return "", err
	}
	return s.router.topic(origin{namespace, aggregateType, eventType})
}
