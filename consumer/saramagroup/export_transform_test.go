package saramagroup

import (
	"log/slog"

	"github.com/IBM/sarama"
)

// Defects that tests build into a Transform.
func (c TransformConfig) Plain() TransformConfig        { c.faults.plain = true; return c }
func (c TransformConfig) Outside() TransformConfig      { c.faults.outside = true; return c }
func (c TransformConfig) Halves() TransformConfig       { c.faults.halves = true; return c }
func (c TransformConfig) KeepOpen() TransformConfig     { c.faults.keepOpen = true; return c }
func (c TransformConfig) KeepProducer() TransformConfig { c.faults.keepProducer = true; return c }

// TransformRefuses is what a Transform ends with when sarama refuses an answer.
func TransformRefuses(err error) (ended error) {
	t := &transforming{joiner: joiner{stop: func(err error) { ended = err }}}
	t.refused(err)
	return ended
}

// TransactionalID is transactionalID.
func TransactionalID(group, topic string, partition int32) string {
	return transactionalID(group, place{topic, partition})
}

// Member builds a handler around that of the sessions.
func (c TransformConfig) Member(around func(sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler) TransformConfig {
	c.hooks.member = around
	return c
}

// Message is message.
func (o Output) Message() *sarama.ProducerMessage { return o.message() }

// TransformSays is what a Transform logs of an error that ends its session.
func TransformSays(log *slog.Logger, err error) {
	t := &transformer{transforming: &transforming{joiner: joiner{log: log}}}
	t.fail(place{"orders", 0}, err)
}
