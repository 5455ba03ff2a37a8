package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/IBM/sarama"
)

// CreateTopics makes those of the topics that are missing, with one request, as Publish
// would make them with [Topics].Create, whatever that says and however many there are.
// It returns the names of those that it made, and a [*RouteError] for each that it could
// not make. A topic that is there is neither. The error says that no broker can be used.
func CreateTopics(ctx context.Context, cfg Config, topics []string) (made []string, refused []error, err error) {
	err = look(ctx, cfg, func(b *brokers, _ *wire, s *settings) error {
		var failed map[string]*RouteError
		if made, failed, err = makeTopics(b, s, topics); err != nil {
			return fmt.Errorf("create topics: %w", err)
		}
		slices.Sort(made)
		for _, name := range slices.Sorted(maps.Keys(failed)) {
			refused = append(refused, failed[name])
		}
		return nil
	})
	return made, refused, err
}

// makeTopics makes topics with one request, and returns those that were made and why
// others were not. One that is there is neither: another relay was faster. The error, which
// is also that of each topic, says that nothing was answered.
func makeTopics(b *brokers, s *settings, names []string) (made []string, refused map[string]*RouteError, err error) {
	details := make(map[string]*sarama.TopicDetail, len(names))
	for _, name := range names {
		details[name] = &sarama.TopicDetail{NumPartitions: s.Topics.Partitions,
			ReplicationFactor: s.Topics.ReplicationFactor}
	}
	failures, err := b.create(details)
	refused = make(map[string]*RouteError)
	for _, name := range names {
		switch failure := errors.Join(err, failures[name]); {
		case failure == nil:
			made = append(made, name)
		case !errors.Is(failure, sarama.ErrTopicAlreadyExists):
			refused[name] = uncreated(name, failure, s)
		}
	}
	return made, refused, err
}
