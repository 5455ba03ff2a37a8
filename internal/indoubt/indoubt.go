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
// under way: about a minute, as long as that is borne of the request for a producer.
const (
	tries      = 70
	firstPause = 20 * time.Millisecond
	longest    = time.Second
)

// errNotFound is TRANSACTIONAL_ID_NOT_FOUND: nobody has used it yet.
const errNotFound = sarama.KError(105)

// Offsets is the topic of the groups' offsets. Records in it have no sequence numbers.
const Offsets = "__consumer_offsets"

// Finish commits what is left of the open transaction of a transactional id, if one of its
// partitions has the end of a commit already. Call it before anybody asks for the producer of
// that id, and only for ids of which each transaction has an epoch of its own, and none is
// aborted by EndTxn: then the end of a transaction with the epoch of the open one is of that
// one, and it is a commit, because an abort by InitProducerId or a timeout has a higher epoch.
//
// It needs READ on the topics of its transactions and on __consumer_offsets, and brokers of
// 3.0. Without them it goes on, and the log says so where a transaction is open. pause waits
// before brokers are asked again, and returns false when they shall not be. coordinator returns
// the address of the id's coordinator, and looks it up anew when it is asked again.
func Finish(
	config *sarama.Config, id string, coordinator func(again bool) (address string, err error),
	pause func(time.Duration) bool, log *slog.Logger,
) error {
	asked := *config
	asked.Version = sarama.V3_0_0_0 // of the requests; a client of an older one refuses to send them
	config, log = &asked, log.With("transactional_id", id)
	for try := 1; ; try++ {
		address, err := coordinator(try > 1)
		if err == nil {
			err = look(config, address, id, log)
		} else {
			err = fmt.Errorf("find the coordinator of transactional id %q: %w", id, err)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, sarama.ErrUnsupportedVersion):
			log.Debug("brokers before 3.0 do not say whether a transaction is half committed", "error", err)
			return nil
		case refused(err):
			log.Warn("whether an open transaction is half committed cannot be seen, and it is aborted: if it is, events are lost or doubled; "+
				"grant READ on the topics that are named, and on "+Offsets+
				", see \"A broker that is back too soon\" in docs/operations.md, and of Transform in docs/transform.md", "error", err)
			return nil
		case errors.Is(err, sarama.ErrTransactionalIDAuthorizationFailed), try == tries,
			!pause(backoff.After(try, firstPause, longest)):
			return err
		}
	}
}

// worse is what of two errors is to be told: that which may pass, or else both.
func worse(err, other error) error {
	switch {
	case other == nil:
		return err
	case err == nil, refused(err) && !refused(other):
		return other
	case refused(other) && refused(err):
		return errors.Join(err, other)
	}
	return err
}

func refused(err error) bool {
	return errors.Is(err, sarama.ErrTopicAuthorizationFailed) || errors.Is(err, sarama.ErrClusterAuthorizationFailed)
}

// look asks once, and commits.
func look(config *sarama.Config, coordinator, id string, log *slog.Logger) error {
	return on(config, coordinator, func(conn *sarama.Broker) error {
		open, err := describe(conn, id)
		if err != nil {
			return fmt.Errorf("ask %s for transactional id %q: %w", conn.Addr(), id, err)
		}
		half, err := committed(config, conn, open)
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
		return open, fmt.Errorf("the end of the transaction is under way: %w", sarama.ErrConcurrentTransactions)
	case is.TransactionState == "Ongoing":
		return is, nil
	}
	return open, nil
}

// committed reports whether a partition of an open transaction has its end. A partition that
// cannot be asked is an error only if no other one says so; a topic that is gone says nothing.
func committed(config *sarama.Config, conn *sarama.Broker, open sarama.TransactionState) (half bool, err error) {
	if len(open.Topics) == 0 {
		return false, nil
	}
	leaders, err := leadersOf(conn, open)
	for leader, topics := range leaders {
		failed := on(config, leader, func(conn *sarama.Broker) error {
			answer, err := conn.DescribeProducers(&sarama.DescribeProducersRequest{Topics: topics})
			if err != nil {
				return fmt.Errorf("ask %s for the producers of a transaction: %w", leader, err)
			}
			ended, err := ended(answer, open)
			half = half || ended
			return err
		})
		err = worse(err, failed)
	}
	if half {
		return true, nil
	}
	return false, err
}

// leadersOf returns which of the partitions of a transaction each broker leads. The error is
// of those that nobody leads.
func leadersOf(conn *sarama.Broker, open sarama.TransactionState) (
	leaders map[string][]sarama.DescribeProducersRequestTopic, err error,
) {
	// Kafka leaves out of a transaction what may not be described.
	request := &sarama.MetadataRequest{Version: metadataVersion, Topics: []string{Offsets}}
	for _, t := range open.Topics {
		if t.Topic != Offsets {
			request.Topics = append(request.Topics, t.Topic)
		}
	}
	answer, err := conn.GetMetadata(request)
	if err != nil {
		return nil, fmt.Errorf("ask %s for the leaders of a transaction: %w", conn.Addr(), err)
	}
	leaders = make(map[string][]sarama.DescribeProducersRequestTopic)
	for _, t := range answer.Topics {
		if t.Err == sarama.ErrTopicAuthorizationFailed {
			err = worse(err, fmt.Errorf("find the leaders of %s: %w", t.Name, t.Err))
		}
	}
	for _, t := range open.Topics {
		i := slices.IndexFunc(answer.Topics, func(m *sarama.TopicMetadata) bool { return m.Name == t.Topic })
		if i < 0 || answer.Topics[i].Err == sarama.ErrUnknownTopicOrPartition ||
			answer.Topics[i].Err == sarama.ErrTopicAuthorizationFailed {
			continue
		}
		if refusal := answer.Topics[i].Err; refusal != sarama.ErrNoError {
			err = worse(err, fmt.Errorf("find the leaders of %s: %w", t.Topic, refusal))
			continue
		}
		for _, partition := range t.Partitions {
			leader := leaderOf(answer, i, partition)
			if leader == "" {
				err = worse(err, fmt.Errorf("find the leader of %s/%d: %w", t.Topic, partition, sarama.ErrLeaderNotAvailable))
				continue
			}
			leaders[leader] = with(leaders[leader], t.Topic, partition)
		}
	}
	return leaders, err
}

// with adds a partition to topics, of which the last one may be its own.
func with(
	topics []sarama.DescribeProducersRequestTopic, topic string, partition int32,
) []sarama.DescribeProducersRequestTopic {
	if n := len(topics) - 1; n < 0 || topics[n].Name != topic {
		topics = append(topics, sarama.DescribeProducersRequestTopic{Name: topic})
	}
	last := &topics[len(topics)-1]
	last.PartitionIndexes = append(last.PartitionIndexes, partition)
	return topics
}

// metadataVersion is one that Kafka 3.0 knows.
const metadataVersion = 9

func leaderOf(answer *sarama.MetadataResponse, topic int, partition int32) (address string) {
	for _, p := range answer.Topics[topic].Partitions {
		for _, b := range answer.Brokers {
			if p.ID == partition && p.Leader == b.ID() {
				return b.Addr()
			}
		}
	}
	return ""
}

// ended reports whether a partition knows the producer of an open transaction, and nothing of it
// that is open. Events with a sequence number have been written then; without, it is the end
// of an abort of which the coordinator has the epoch only.
func ended(answer *sarama.DescribeProducersResponse, open sarama.TransactionState) (is bool, err error) {
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != sarama.ErrNoError {
				err = worse(err, fmt.Errorf("ask for the producers of %s/%d: %w", t.Name, p.PartitionIndex, p.ErrorCode))
			}
			is = is || slices.ContainsFunc(p.ActiveProducers, func(s sarama.ProducerState) bool {
				return s.ProducerID == open.ProducerID && s.ProducerEpoch == int32(open.ProducerEpoch) &&
					s.CurrentTxnStartOffset < 0 && (s.LastSequence >= 0 || t.Name == Offsets)
			})
		}
	}
	return is, err
}

// on runs ask on a connection of its own.
func on(config *sarama.Config, address string, ask func(*sarama.Broker) error) error {
	conn := sarama.NewBroker(address)
	err := conn.Open(config)
	if err == nil {
		_, err = conn.Connected()
	}
	if err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	return ask(conn)
}
