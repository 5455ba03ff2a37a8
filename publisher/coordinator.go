package publisher

import (
	"errors"
	"slices"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/publisher/internal/produce"
)

// coordinatorTries bounds the questions for one coordinator, a pause of at most
// fetchCeiling apart.
const coordinatorTries = 60

// coordinatorDoubts is how many questions may reach none before another broker is
// asked for it.
const coordinatorDoubts = 3

// coordinator is the broker that answers for a transactional id or a group. It is
// looked up again when it turns out not to be it, or not to answer. One goroutine at
// a time uses it.
type coordinator struct {
	brokers *brokers // are asked who it is
	request sarama.FindCoordinatorRequest
	link    produce.Link // to nobody while the address is empty
	vain    int          // questions in a row that reached no coordinator
}

func newCoordinator(s *settings, config *sarama.Config, kind sarama.CoordinatorType, key string) *coordinator {
	return &coordinator{
		brokers: newBrokers(config, s), link: produce.Link{Config: config},
		request: sarama.FindCoordinatorRequest{Version: 3, CoordinatorKey: key, CoordinatorType: kind},
	}
}

// ask runs fn on the connection to the coordinator, and returns what it was refused
// with, or the network's error.
func (c *coordinator) ask(fn func(*sarama.Broker) (sarama.KError, error)) error {
	if err := c.find(); err != nil {
		return err
	}
	refusal := sarama.ErrNoError
	err := c.link.Do(func(conn *sarama.Broker) (err error) {
		refusal, err = fn(conn)
		return err
	})
	moved := refusal == sarama.ErrNotCoordinatorForConsumer || refusal == sarama.ErrConsumerCoordinatorNotAvailable
	if err != nil || moved {
		c.forget()
		c.doubt()
	} else {
		c.vain = 0
	}
	if err == nil && refusal != sarama.ErrNoError {
		return refusal
	}
	return err
}

// find looks the coordinator up, unless it is known.
func (c *coordinator) find() error {
	if c.link.Address != "" {
		return nil
	}
	var response *sarama.FindCoordinatorResponse
	err := c.brokers.Ask(func(conn *sarama.Broker) (err error) {
		response, err = conn.FindCoordinator(&c.request)
		return err
	})
	c.brokers.Close() // it may be long until the next question
	if err != nil {
		return err
	}
	if response.Err == sarama.ErrNoError && response.Coordinator == nil {
		response.Err = sarama.ErrConsumerCoordinatorNotAvailable
	}
	if response.Err != sarama.ErrNoError {
		c.doubt()
		return response.Err
	}
	c.link.Address = response.Coordinator.Addr()
	return nil
}

// doubt counts a question that reached no coordinator. After some, another broker is
// asked who it is: one that is cut off from the others names that of then, for ever.
func (c *coordinator) doubt() {
	if c.vain++; c.vain%coordinatorDoubts == 0 {
		c.brokers.Elsewhere()
	}
}

// forget has the coordinator looked up anew.
func (c *coordinator) forget() {
	c.link.Close()
	c.link.Address = ""
}

// findCoordinators waits until the transactional id and the group have a
// coordinator. Asking is what makes a new cluster create the internal topics
// behind them. With an error it returns which of them has none.
func (t *txn) findCoordinators() (key string, err error) {
	for _, c := range []*coordinator{t.coordinator, t.group} {
		if err := c.await(t.wire); err != nil {
			return c.request.CoordinatorKey, err
		}
	}
	return "", nil
}

func (c *coordinator) await(w *wire) error {
	for try := 1; ; try++ {
		err := c.find()
		if err == nil || !passing(err) || try == coordinatorTries {
			return err
		}
		if !w.Pause(backoff.After(try, fetchBackoff, fetchCeiling)) {
			return err
		}
	}
}

// passing reports whether an error of a coordinator may be gone at the next try:
// anything but a refusal by the broker, and those that Kafka's own client takes for
// passing.
func passing(err error) bool {
	var refusal sarama.KError
	if !errors.As(err, &refusal) {
		return true
	}
	return slices.Contains([]sarama.KError{
		sarama.ErrOffsetsLoadInProgress, sarama.ErrConsumerCoordinatorNotAvailable, sarama.ErrNotCoordinatorForConsumer,
		sarama.ErrConcurrentTransactions, sarama.ErrUnstableOffsetCommit,
		sarama.ErrRequestTimedOut, sarama.ErrNetworkException, sarama.ErrThrottlingQuotaExceeded,
		// Of a topic that this broker has not heard of yet: it was there a moment ago.
		sarama.ErrUnknownTopicOrPartition,
		sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition, sarama.ErrReplicaNotAvailable,
		sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrKafkaStorageError,
		sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch, sarama.ErrInvalidMessage, sarama.ErrNotController,
	}, refusal)
}
