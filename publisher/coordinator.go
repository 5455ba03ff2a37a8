package publisher

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/backoff"
)

// coordinatorTries bounds the questions for one coordinator, a pause of at most
// fetchCeiling apart.
const coordinatorTries = 60

// findCoordinators waits until the transactional id and the group have a
// coordinator. Asking is what makes a new cluster create the internal topics
// behind them; sarama, asking for the one, would wait for both, the second of
// which nobody has asked for.
func (t *Transactional) findCoordinators(b *brokers, w *wire) error {
	for _, ask := range []struct {
		kind sarama.CoordinatorType
		key  string
	}{{sarama.CoordinatorTransaction, t.config.ID}, {sarama.CoordinatorGroup, t.config.Group}} {
		request := &sarama.FindCoordinatorRequest{Version: 3, CoordinatorKey: ask.key, CoordinatorType: ask.kind}
		if err := awaitCoordinator(b, w, request); err != nil {
			return fmt.Errorf("find the coordinator of %q: %w: %s", ask.key, err, t.advise(err))
		}
	}
	return nil
}

func awaitCoordinator(b *brokers, w *wire, request *sarama.FindCoordinatorRequest) error {
	for try := 1; ; try++ {
		var refusal error
		err := b.ask(func(conn *sarama.Broker) error {
			response, err := conn.FindCoordinator(request)
			if err != nil {
				return err
			}
			refusal = nil
			if response.Err != sarama.ErrNoError {
				refusal = response.Err
			}
			return nil
		})
		switch {
		case err == nil && refusal == nil:
			return nil
		case !passing(refusal) || try == coordinatorTries || !w.pause(backoff.After(try, fetchBackoff, fetchCeiling)):
			return errors.Join(err, refusal)
		}
	}
}
