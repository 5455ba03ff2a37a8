package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/IBM/sarama"
)

// CreateTopics makes those of the topics that are missing, with one request, as Publish
// would make them with [Topics].Create, whatever that says and however many there are.
// It returns the names of those that it made, and a [*RouteError] for each that it could
// not make. A topic that somebody else makes meanwhile is neither. The error says that
// no broker can be used.
func CreateTopics(ctx context.Context, cfg Config, topics []string) (made []string, refused []error, err error) {
	err = look(ctx, cfg, func(b *brokers, _ *wire, s *settings) error {
		response, err := b.describe(topics)
		if err != nil {
			return fmt.Errorf("look up topics: %w", err)
		}
		details := make(map[string]*sarama.TopicDetail)
		for _, metadata := range response.Topics {
			if missing(metadata) {
				details[metadata.Name] = &sarama.TopicDetail{
					NumPartitions: s.Topics.Partitions, ReplicationFactor: s.Topics.ReplicationFactor,
				}
			}
		}
		if len(details) == 0 {
			return nil
		}
		failures, err := b.create(details)
		if err != nil {
			return fmt.Errorf("create topics: %w", err)
		}
		for name := range details {
			switch failure := failures[name]; {
			case failure == nil:
				made = append(made, name)
			case !errors.Is(failure, sarama.ErrTopicAlreadyExists):
				refused = append(refused, uncreated(name, failure, s))
			}
		}
		slices.Sort(made)
		return nil
	})
	return made, refused, err
}
