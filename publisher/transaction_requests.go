package publisher

import (
	"slices"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/indoubt"
	"github.com/onceward/onceward/publisher/internal/produce"
)

// Versions of the requests about transactions: those that Kafka 2.8 knows.
const (
	joinVersion   = 3
	offsetVersion = 3
	endVersion    = 3
)

// txn is the producer and its transaction as the brokers know them: what the
// coordinators are asked for. One goroutine at a time has it.
type txn struct {
	config             TransactionConfig
	wire               *wire
	coordinator, group *coordinator // of the transactional id, and of the group
	producer           produce.Producer
	grouped            bool // the group is in the open transaction
	touched            bool // the coordinator may know of the open transaction
}

func newTxn(s *settings, w *wire, config TransactionConfig, connection *sarama.Config) *txn {
	return &txn{
		config: config, wire: w,
		coordinator: newCoordinator(s, connection, sarama.CoordinatorTransaction, config.ID),
		group:       newCoordinator(s, connection, sarama.CoordinatorGroup, config.Group),
	}
}

// hangUp closes the connections.
func (t *txn) hangUp() {
	t.coordinator.forget()
	t.group.forget()
}

// repeat asks a coordinator until it takes the request, or refuses it for good, or
// the wire is cut.
func (t *txn) repeat(c *coordinator, fn func(*sarama.Broker) (sarama.KError, error)) error {
	for try := 1; ; try++ {
		err := c.ask(fn)
		if err == nil || !passing(err) || try > transactionTries(t.config.Timeout) ||
			!t.wire.Pause(backoff.After(try, transactionBackoff, transactionCeiling)) {
			return err
		}
	}
}

// initialize gets the producer a new epoch, see [produce.Init].
func (t *txn) initialize() error {
	return t.repeat(t.coordinator, func(conn *sarama.Broker) (refusal sarama.KError, err error) {
		t.producer, refusal, err = produce.Init(conn, &t.config.ID, t.config.Timeout, produce.Nobody)
		return refusal, err
	})
}

// addPartitions adds partitions to the open transaction, before anything is written
// there. With an error it names the topic that is to blame.
func (t *txn) addPartitions(partitions map[string][]int32) (topic string, err error) {
	t.touched = true
	err = t.repeat(t.coordinator, func(conn *sarama.Broker) (refusal sarama.KError, err error) {
		response, err := conn.AddPartitionsToTxn(&sarama.AddPartitionsToTxnRequest{
			Version: joinVersion, TransactionalID: t.config.ID,
			ProducerID: t.producer.ID, ProducerEpoch: t.producer.Epoch, TopicPartitions: partitions,
		})
		if err != nil {
			return 0, err
		}
		for name, asked := range partitions {
			if len(response.Errors[name]) < len(asked) {
				return 0, sarama.ErrIncompleteResponse // what is written there might be in no transaction
			}
		}
		topic, refusal = refusalOf(response.Errors)
		return refusal, nil
	})
	return topic, err
}

// refusalOf returns the error of the partition that is to blame: the others are
// answered OPERATION_NOT_ATTEMPTED then.
func refusalOf(errors map[string][]*sarama.PartitionError) (topic string, refusal sarama.KError) {
	for name, partitions := range errors {
		for _, p := range partitions {
			blamed := refusal != sarama.ErrNoError && refusal != sarama.ErrOperationNotAttempted
			if p.Err != sarama.ErrNoError && !blamed {
				topic, refusal = name, p.Err
			}
		}
	}
	return topic, refusal
}

// addGroup adds the group to the open transaction, once.
func (t *txn) addGroup() error {
	if t.grouped {
		return nil
	}
	t.touched = true
	err := t.repeat(t.coordinator, func(conn *sarama.Broker) (sarama.KError, error) {
		response, err := conn.AddOffsetsToTxn(&sarama.AddOffsetsToTxnRequest{
			Version: offsetVersion, TransactionalID: t.config.ID,
			ProducerID: t.producer.ID, ProducerEpoch: t.producer.Epoch, GroupID: t.config.Group,
		})
		if err != nil {
			return 0, err
		}
		return response.Err, nil
	})
	t.grouped = err == nil
	return err
}

// commitOffset writes the position into the open transaction.
func (t *txn) commitOffset(pos Position) error {
	// In range: checked.
	offset := &sarama.PartitionOffsetMetadata{
		Partition: checkpointPartition, Offset: int64(pos.Order), LeaderEpoch: -1, Metadata: &pos.Meta,
	}
	return t.repeat(t.group, func(conn *sarama.Broker) (sarama.KError, error) {
		response, err := conn.TxnOffsetCommit(&sarama.TxnOffsetCommitRequest{
			Version: offsetVersion, TransactionalID: t.config.ID,
			ProducerID: t.producer.ID, ProducerEpoch: t.producer.Epoch, GroupID: t.config.Group, GenerationID: -1,
			Topics: map[string][]*sarama.PartitionOffsetMetadata{t.config.Topic: {offset}},
		})
		if err != nil {
			return 0, err
		}
		partitions := response.Topics[t.config.Topic]
		i := slices.IndexFunc(partitions, func(p *sarama.PartitionError) bool {
			return p.Partition == checkpointPartition
		})
		if i < 0 {
			return 0, sarama.ErrIncompleteResponse
		}
		return partitions[i].Err, nil
	})
}

// commit commits what is open.
func (t *txn) commit() error {
	err := t.repeat(t.coordinator, func(conn *sarama.Broker) (sarama.KError, error) {
		response, err := conn.EndTxn(&sarama.EndTxnRequest{
			Version: endVersion, TransactionalID: t.config.ID,
			ProducerID: t.producer.ID, ProducerEpoch: t.producer.Epoch, TransactionResult: true,
		})
		if err != nil {
			return 0, err
		}
		return response.Err, nil
	})
	if err == nil {
		t.grouped, t.touched = false, false
	}
	return err
}

// abort aborts what is open, by a new epoch: so the end of an abort has another epoch than that
// of a commit (see indoubt). A producer that was overtaken is refused, unless its heir has a
// transaction open: that one is aborted, and its relay begins again at the checkpoint.
func (t *txn) abort() error {
	return t.repeat(t.coordinator, func(conn *sarama.Broker) (refusal sarama.KError, err error) {
		_, refusal, err = produce.Init(conn, &t.config.ID, t.config.Timeout, t.producer)
		if refusal == sarama.ErrConcurrentTransactions {
			refusal = sarama.ErrNoError // the abort is decided; nobody needs the epoch
		}
		return refusal, err
	})
}

// finish commits what is left of a transaction that is half committed.
func (t *txn) finish(s *settings, connection *sarama.Config) error {
	coordinator := func(again bool) (string, error) {
		if again {
			t.coordinator.forget()
			t.coordinator.doubt()
		}
		err := t.coordinator.find()
		return t.coordinator.link.Address, err
	}
	return indoubt.Finish(connection, t.config.ID, coordinator, t.wire.Pause, s.Logger)
}
