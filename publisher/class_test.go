package publisher

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
)

// Every error that a produce request, a look-up or a transaction of ours can
// end with, by the table of Kafka's protocol and sarama's own.
func TestClasses(t *testing.T) {
	for class, errs := range map[errorClass][]error{
		classTransient: {
			sarama.ErrOutOfBrokers, sarama.ErrNotConnected, sarama.ErrClosedClient, sarama.ErrShuttingDown, sarama.ErrInsufficientData,
			sarama.ErrIncompleteResponse, sarama.ErrBrokerNotFound, sarama.ErrControllerNotAvailable,
			sarama.ErrUnknown, sarama.ErrInvalidMessage, sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition, sarama.ErrRequestTimedOut,
			sarama.ErrBrokerNotAvailable, sarama.ErrReplicaNotAvailable, sarama.ErrNetworkException, sarama.ErrNotEnoughReplicas,
			sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrKafkaStorageError, sarama.ErrLogDirNotFound, sarama.ErrFencedLeaderEpoch,
			sarama.ErrUnknownLeaderEpoch, sarama.ErrOffsetsLoadInProgress, sarama.ErrConsumerCoordinatorNotAvailable,
			sarama.ErrNotCoordinatorForConsumer, sarama.ErrConcurrentTransactions, sarama.ErrUnstableOffsetCommit,
			sarama.ErrThrottlingQuotaExceeded, sarama.ErrNotController, sarama.ErrReassignmentInProgress, sarama.ErrStaleBrokerEpoch,
			io.EOF, syscall.ECONNRESET, errors.New("something new"), sarama.KError(999),
		},
		classRoute: {
			sarama.ErrUnknownTopicOrPartition, sarama.ErrInvalidTopic, sarama.ErrInvalidPartition, sarama.ErrTopicAuthorizationFailed,
			sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge, sarama.ErrInvalidTimestamp,
		},
		classRecord: {sarama.ErrInvalidRecord, sarama.ErrUnsupportedForMessageFormat, sarama.ErrPolicyViolation},
		classRelay: {
			sarama.ErrClusterAuthorizationFailed, sarama.ErrTransactionalIDAuthorizationFailed, sarama.ErrGroupAuthorizationFailed,
			sarama.ErrSASLAuthenticationFailed, sarama.ErrUnsupportedSASLMechanism, sarama.ErrIllegalSASLState, sarama.ErrSecurityDisabled,
			sarama.ErrUnsupportedVersion, sarama.ErrUnsupportedCompressionType, sarama.ErrInvalidTransactionTimeout, sarama.ErrInvalidRequest,
			&tls.CertificateVerificationError{Err: io.EOF}, tls.AlertError(45),
		},
		classProducer: {
			sarama.ErrOutOfOrderSequenceNumber, sarama.ErrDuplicateSequenceNumber, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerEpoch,
			sarama.ErrProducerFenced, sarama.ErrInvalidProducerIDMapping, sarama.ErrInvalidTxnState, sarama.ErrTransactionCoordinatorFenced,
		},
	} {
		for _, err := range errs {
			require.Equal(t, class, classify(err), "%v", err)
			require.Equal(t, class, classify(fmt.Errorf("publish: %w", errors.Join(io.ErrUnexpectedEOF, err))), "wrapped: %v", err)
		}
	}
}
