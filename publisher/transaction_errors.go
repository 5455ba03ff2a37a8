package publisher

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

// fenced reports whether a broker says that the producer's epoch is not the
// newest any more.
func fenced(err error) bool {
	return errors.Is(err, sarama.ErrProducerFenced) || errors.Is(err, sarama.ErrInvalidProducerEpoch)
}

// asFenced adds [ErrFenced] to a failure that has this cause.
func asFenced(failure, cause error) error {
	if fenced(cause) && !errors.Is(failure, ErrFenced) {
		return fmt.Errorf("%w: %w", ErrFenced, failure)
	}
	return failure
}

// explain turns an error about the transaction into one for the
// operator. An explained one stays as it is.
func (t *Transactional) explain(action string, err error) error {
	if errors.Is(err, ErrFailed) {
		return err
	}
	return asFenced(fmt.Errorf("%w: %s of %q: %w: %s", ErrFailed, action, t.config.ID, err, t.advise(err)), err)
}

// explainWait is for the caller's own end of a wait, which leaves the
// transaction without an end.
func (t *Transactional) explainWait(err error) error {
	if errors.Is(err, ErrFailed) || errors.Is(err, ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: commit a transaction of %q: %w; whether it was committed, the checkpoint says", ErrFailed, t.config.ID, err)
}

// explainStart explains why there is no producer id.
func (t *Transactional) explainStart(err error) error {
	return asFenced(fmt.Errorf("start transactions of %q: %w; %s", t.config.ID, err, t.advise(err)), err)
}

// advise says what an operator does about an error of the transaction.
func (t *Transactional) advise(err error) string {
	switch {
	case fenced(err):
		return "another producer with this transactional id has taken over, or the coordinator has aborted the transaction; nothing to do unless it repeats"
	case errors.Is(err, sarama.ErrInvalidTransactionTimeout):
		return fmt.Sprintf("the transaction's timeout of %s is above transaction.max.timeout.ms of the brokers; lower the one or raise the other", t.config.Timeout)
	case errors.Is(err, sarama.ErrTransactionalIDAuthorizationFailed):
		return t.settings.grant("--operation Write --operation Describe --transactional-id " + t.config.ID)
	case errors.Is(err, sarama.ErrGroupAuthorizationFailed):
		return t.settings.grant("--operation Read --group " + t.config.Group)
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed):
		return "WRITE is needed on the topics of the routes, READ on that of checkpoints: " + t.settings.grant("--operation Read --operation Describe --topic "+t.config.Topic)
	case errors.Is(err, sarama.ErrInvalidProducerIDMapping):
		return "the brokers forgot this transactional id (transactional.id.expiration.ms); a new producer cures it, nothing to do"
	case errors.Is(err, sarama.ErrOffsetMetadataTooLarge):
		return fmt.Sprintf("raise offset.metadata.max.bytes of the brokers to its default of %d", maxMeta)
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
		return fmt.Sprintf("a topic is gone; see whether %s and the topics of the routes exist", t.config.Topic)
	}
	return "the relay goes on from the checkpoint with a new producer"
}
