package saramagroup

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

// askCoordinator puts a question to a group's coordinator. Where that fails, whoever it is then
// is asked next, as far as somebody says: sarama's client keeps the broker that it knows.
func askCoordinator(client sarama.Client, group string, question func(*sarama.Broker) error) error {
	coordinator, err := client.Coordinator(group)
	if err != nil {
		return fmt.Errorf("find the group's coordinator: %w", err)
	}
	if err := question(coordinator); err != nil {
		if said := sarama.KError(0); !errors.As(err, &said) { // or others use it, too
			_ = coordinator.Close()
		}
		_ = client.RefreshCoordinator(group)
		return fmt.Errorf("ask %s: %w", coordinator.Addr(), err)
	}
	return nil
}

// fetchOffsets asks for a group's offsets, and their metadata.
func fetchOffsets(client sarama.Client, of *sarama.OffsetFetchRequest) (answer *sarama.OffsetFetchResponse, err error) {
	err = askCoordinator(client, of.ConsumerGroup, func(coordinator *sarama.Broker) (err error) {
		if answer, err = coordinator.FetchOffset(of); err == nil && answer.Err != sarama.ErrNoError {
			err = answer.Err
		}
		return err
	})
	return answer, err
}
