// Package indoubt ends a Kafka transaction of which one half is committed while its
// coordinator calls it open.
//
// A broker that coordinates a transaction may have the decision to commit at the end of its own
// log only, die, be started again before the controller has fenced it, send the markers of the
// commit by that log, and be deposed before all partitions have theirs (docs/adr/0031). The
// coordinator after it knows of no decision, and the next producer of the transactional id would
// have it abort the other half. It keeps no state.
package indoubt

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/backoff"
)

// Brokers are asked again while one of them is not there, or the end of the transaction is
// under way: some 15 seconds.
const (
	tries      = 20
	firstPause = 20 * time.Millisecond
	longest    = time.Second
)

// errNotFound is TRANSACTIONAL_ID_NOT_FOUND: nobody has used it yet.
const errNotFound = sarama.KError(105)

// errUnderWay: a coordinator has decided, perhaps one that was deposed and does not know it.
var errUnderWay = errors.New("the end of the transaction is under way")

// Finish commits what is left of the open transaction of a transactional id, if one of its
// partitions has the end of a commit already. Call it before anybody asks for the producer of
// that id, and only for ids of which each transaction has an epoch of its own, and none is
// aborted by EndTxn: then the end of a transaction with the epoch of the open one is of that
// one, and it is a commit, because an abort by InitProducerId or a timeout has a higher epoch.
//
// It needs DESCRIBE on the transactional id, READ on the topics of its transactions and on
// __consumer_offsets, and brokers of 3.0. Without them it goes on and says so, where there is
// an open transaction to be seen. pause waits before brokers are asked again, and returns false
// when they shall not be.
func Finish(client sarama.Client, id string, pause func(time.Duration) bool, log *slog.Logger) error {
	log = log.With("transactional_id", id)
	for try := 1; ; try++ {
		err := look(client, id, log)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, sarama.ErrUnsupportedVersion):
			log.Debug("brokers before 3.0 do not say whether a transaction is half committed", "error", err)
			return nil
		case refused(err):
			log.Warn("whether an open transaction is half committed cannot be seen, and it is aborted; "+
				"grant READ on the topic, see \"A broker that is back too soon\" in docs/operations.md", "error", err)
			return nil
		case try == tries || !pause(backoff.After(try, firstPause, longest)):
			return err
		}
		_ = client.RefreshTransactionCoordinator(id) // what is wrong with it, the next request says
	}
}

func refused(err error) bool {
	return errors.Is(err, sarama.ErrTopicAuthorizationFailed) || errors.Is(err, sarama.ErrClusterAuthorizationFailed)
}

// look asks once, and commits.
func look(client sarama.Client, id string, log *slog.Logger) error {
	coordinator, err := client.TransactionCoordinator(id)
	if err != nil {
		return fmt.Errorf("find the coordinator of transactional id %q: %w", id, err)
	}
	return on(client, coordinator, func(conn *sarama.Broker) error {
		open, err := describe(conn, id)
		if err != nil {
			return fmt.Errorf("ask %s for transactional id %q: %w", conn.Addr(), id, err)
		}
		half, err := committed(client, open)
		if !half {
			return err
		}
		end, err := conn.EndTxn(&sarama.EndTxnRequest{
			Version: 1, TransactionalID: id, TransactionResult: true,
			ProducerID: open.ProducerID, ProducerEpoch: open.ProducerEpoch,
		})
		if err == nil && end.Err != sarama.ErrNoError {
			err = end.Err
		}
		if err != nil {
			return fmt.Errorf("commit what is left of the transaction of %q: %w", id, err)
		}
		log.Warn("committed what was left of a transaction that a coordinator had begun to commit, and of which its successor did not know",
			"producer_id", open.ProducerID, "producer_epoch", open.ProducerEpoch)
		return nil
	})
}

// describe returns the transaction of an id if it is open, and else one without topics.
func describe(conn *sarama.Broker, id string) (open sarama.TransactionState, err error) {
	answer, err := conn.DescribeTransactions(&sarama.DescribeTransactionsRequest{TransactionalIDs: []string{id}})
	if err != nil {
		return open, err
	}
	i := slices.IndexFunc(answer.TransactionStates, func(s sarama.TransactionState) bool {
		return s.TransactionalID == id
	})
	if i < 0 {
		return open, sarama.ErrIncompleteResponse
	}
	is := answer.TransactionStates[i]
	switch {
	case is.ErrorCode == errNotFound:
		return open, nil
	case is.ErrorCode != sarama.ErrNoError:
		return open, is.ErrorCode
	case slices.Contains([]string{"PrepareCommit", "PrepareAbort", "PrepareEpochFence"}, is.TransactionState):
		return open, errUnderWay
	case is.TransactionState == "Ongoing":
		return is, nil
	}
	return open, nil
}

// committed reports whether a partition of an open transaction has its end. A partition that
// cannot be asked is an error only if no other one says so.
func committed(client sarama.Client, open sarama.TransactionState) (half bool, err error) {
	for _, topic := range open.Topics {
		for _, partition := range topic.Partitions {
			half, failed := ended(client, topic.Topic, partition, open)
			if half {
				return true, nil
			}
			if failed != nil && (err == nil || refused(err)) {
				err = fmt.Errorf("ask for the producers of %s/%d: %w", topic.Topic, partition, failed)
			}
		}
	}
	return false, err
}

// ended reports whether a partition knows the producer of an open transaction, and nothing of it
// that is open.
func ended(client sarama.Client, topic string, partition int32, open sarama.TransactionState) (is bool, err error) {
	leader, err := client.Leader(topic, partition)
	if err != nil {
		return false, err
	}
	err = on(client, leader, func(conn *sarama.Broker) error {
		answer, err := conn.DescribeProducers(&sarama.DescribeProducersRequest{
			Topics: []sarama.DescribeProducersRequestTopic{{Name: topic, PartitionIndexes: []int32{partition}}},
		})
		if err != nil {
			return err
		}
		if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
			return sarama.ErrIncompleteResponse
		}
		of := answer.Topics[0].Partitions[0]
		is = slices.ContainsFunc(of.ActiveProducers, func(s sarama.ProducerState) bool {
			return s.ProducerID == open.ProducerID && s.ProducerEpoch == int32(open.ProducerEpoch) &&
				s.CurrentTxnStartOffset < 0
		})
		if of.ErrorCode != sarama.ErrNoError {
			return of.ErrorCode
		}
		return nil
	})
	if err != nil && !refused(err) {
		_ = client.RefreshMetadata(topic) // it may be led by another one
	}
	return is, err
}

// on runs ask on a connection of its own: a client of an older version refuses to send requests
// of Kafka 3.0.
func on(client sarama.Client, to *sarama.Broker, ask func(*sarama.Broker) error) error {
	config := *client.Config()
	config.Version = sarama.V3_0_0_0
	conn := sarama.NewBroker(to.Addr())
	err := conn.Open(&config)
	if err == nil {
		_, err = conn.Connected()
	}
	if err != nil {
		return fmt.Errorf("connect to %s: %w", to.Addr(), err)
	}
	defer func() { _ = conn.Close() }()
	return ask(conn)
}
