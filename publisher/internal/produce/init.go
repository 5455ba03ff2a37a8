package produce

import (
	"time"

	"github.com/IBM/sarama"
)

// Nobody is no producer.
var Nobody = Producer{ID: -1, Epoch: -1} //nolint:gochecknoglobals // never changed

// Init asks a broker for a producer. With a transactional id the broker is its
// coordinator, and the producer has a new epoch, which ends whatever another one of
// the same id left open, and fences it; a transaction lives no longer than timeout. present is
// [Nobody], or the producer that asks, which is then refused if it was itself fenced (KIP-360).
func Init(
	conn *sarama.Broker, transactionalID *string, timeout time.Duration, present Producer,
) (Producer, sarama.KError, error) {
	response, err := conn.InitProducerID(&sarama.InitProducerIDRequest{
		Version: initVersion, TransactionalID: transactionalID, TransactionTimeout: timeout,
		ProducerID: present.ID, ProducerEpoch: present.Epoch,
	})
	if err != nil {
		return Producer{}, sarama.ErrNoError, err
	}
	return Producer{ID: response.ProducerID, Epoch: response.ProducerEpoch}, response.Err, nil
}

// initVersion is the version of requests for a producer that Kafka 2.8 knows.
const initVersion = 4
