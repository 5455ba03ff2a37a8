package produce

import (
	"errors"
	"slices"

	"github.com/IBM/sarama"
)

// verdict is what an answer says about one batch.
type verdict int8

const (
	verdictAcked  verdict = iota // every in-sync replica has it
	verdictAgain                 // it was refused for now
	verdictLost                  // whether it was seen is not known
	verdictFailed                // it was refused, and will be
)

// passingRefusals may be gone at the next try: they are about leaders and replicas.
// A topic that is not known may be so on this broker only, for now; that it is
// nowhere, the watcher finds out.
var passingRefusals = []sarama.KError{
	sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition, sarama.ErrUnknownTopicOrPartition,
	sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrRequestTimedOut,
	sarama.ErrKafkaStorageError, sarama.ErrInvalidMessage,
}

// judgeAnswer says what became of a lane's batch. It is pure.
func judgeAnswer(a answer, l *lane) (v verdict, cause error) {
	if a.err != nil {
		return judgeLoss(a.err), a.err
	}
	block := a.response.GetBlock(l.topic.Name, l.partition)
	if block == nil {
		return verdictLost, sarama.ErrIncompleteResponse
	}
	switch {
	case block.Err == sarama.ErrNoError, block.Err == sarama.ErrDuplicateSequenceNumber: // it had come before
		return verdictAcked, nil
	case slices.Contains(passingRefusals, block.Err):
		return verdictAgain, block.Err
	}
	return verdictFailed, block.Err
}

// judgeLoss says what becomes of a batch whose request had no answer. What the
// client refuses to send, or the broker to hear, it does so again.
func judgeLoss(err error) verdict {
	var unwritable sarama.PacketEncodingError
	if errors.As(err, &unwritable) || errors.Is(err, sarama.ErrSASLAuthenticationFailed) ||
		errors.Is(err, sarama.ErrUnsupportedVersion) {
		return verdictFailed
	}
	return verdictLost
}
