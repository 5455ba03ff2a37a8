package publisher

import "github.com/IBM/sarama"

// The defects that an end-to-end test can inject into a binary built with the tag
// onceward_defects, each the classic way to break one promise. Packages cdc and
// relay have more.
const (
	// defectNoRotation goes on with a producer whose commit was sent twice.
	defectNoRotation = "no-rotation"
	// defectNoCheckpoint does not see the checkpoint in Kafka, so that the relay
	// must find out by other means how far it came.
	defectNoCheckpoint = "no-checkpoint"
	// defectResend gives a batch up after one retry, and hands what was given up
	// over again.
	defectResend = "resend"
)

// spoil applies the defects of the idempotent producer.
func (c *Config) spoil() {
	if defect != defectResend {
		return
	}
	c.faults.config = func(s *sarama.Config) { s.Producer.Retry.Max = 1 }
	c.faults.resend = func(p *Publisher, failed *sarama.ProducerError) { p.input <- failed.Msg }
}

// spoil applies the defects of transactions.
func (c *TransactionConfig) spoil() {
	if defect == defectNoRotation {
		c.faults.keepProducer = true
	}
}
