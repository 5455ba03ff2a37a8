// Package rights asks a broker what a principal may do in exactly-once mode. It changes nothing:
// a broker looks at the rights first, whatever it coordinates, and then finds neither the
// producer nor the member that asks.
package rights

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/publisher/internal/produce"
)

// Refusals say what is refused; nil: nothing.
type Refusals struct {
	ID     error    // to write and to describe the transactional id
	Group  error    // to read the group
	Half   error    // to see whether a transaction is half committed
	Topics []string // to read these, which is why; else it is because brokers before 3.0 do not say
}

// Ask asks the broker at an address.
func Ask(config *sarama.Config, address, id, group string, topics []string) (r Refusals, err error) {
	asked := *config
	asked.Version = sarama.V3_0_0_0 // of the requests; a client of an older one refuses to send them
	link := produce.Link{Config: &asked, Address: address}
	defer link.Close()
	err = link.Do(func(conn *sarama.Broker) error {
		if err := r.askTransactions(conn, id, group); err != nil || r.Half != nil {
			return err
		}
		return r.askTopics(conn, topics)
	})
	return r, err
}

func (r *Refusals) askTransactions(conn *sarama.Broker, id, group string) error {
	added, err := conn.AddOffsetsToTxn(&sarama.AddOffsetsToTxnRequest{
		TransactionalID: id, ProducerID: produce.Nobody.ID, ProducerEpoch: produce.Nobody.Epoch, GroupID: group,
	})
	if err != nil {
		return err
	}
	beat, err := conn.Heartbeat(&sarama.HeartbeatRequest{GroupId: group, GenerationId: -1})
	if err != nil {
		return err
	}
	r.take(added.Err, beat.Err)
	described, err := conn.DescribeTransactions(&sarama.DescribeTransactionsRequest{TransactionalIDs: []string{id}})
	if errors.Is(err, sarama.ErrUnsupportedVersion) {
		r.Half = err
		return nil
	}
	if err != nil {
		return err
	}
	for _, state := range described.TransactionStates {
		r.take(state.ErrorCode)
	}
	return nil
}

func (r *Refusals) askTopics(conn *sarama.Broker, names []string) error {
	request := sarama.NewMetadataRequest(sarama.V3_0_0_0, names)
	request.IncludeTopicAuthorizedOperations, request.AllowAutoTopicCreation = true, false
	there, err := conn.GetMetadata(request)
	if err != nil {
		return err
	}
	for _, topic := range there.Topics {
		if Refused(topic, sarama.AclOperationRead) {
			r.Topics = append(r.Topics, topic.Name)
		}
	}
	if r.Topics != nil {
		slices.Sort(r.Topics)
		r.Half = fmt.Errorf("read %s: %w", strings.Join(r.Topics, ", "), sarama.ErrTopicAuthorizationFailed)
	}
	return nil
}

// take takes in what is refused for want of a right. Everything else was looked at behind it.
func (r *Refusals) take(answers ...sarama.KError) {
	for _, answer := range answers {
		switch {
		case errors.Is(answer, sarama.ErrTransactionalIDAuthorizationFailed):
			r.ID = answer
		case errors.Is(answer, sarama.ErrGroupAuthorizationFailed):
			r.Group = answer
		}
	}
}

// Refused reports whether the broker said what may be done to a topic, and this is
// not in it. Brokers that do not say leave the field at 0 or its minimum.
func Refused(topic *sarama.TopicMetadata, what sarama.AclOperation) bool {
	allowed := topic.TopicAuthorizedOperations
	return errors.Is(topic.Err, sarama.ErrTopicAuthorizationFailed) || allowed > 0 && allowed&(1<<what) == 0
}
