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

// Permits says whether a topic that a replay names may be written, by what the
// configuration says. The error is what Publish would return, as of
// [Config.TopicOf].
func (c Config) Permits(topic string) error {
	s, err := c.resolve()
	if err != nil {
		return err
	}
	_, err = s.router.permit(topic)
	return err
}
