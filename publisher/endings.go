package publisher

import (
	"errors"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/publisher/internal/produce"
)

// ackBatch is the most tags that one call of the acknowledged function gets.
const ackBatch = 1024

// acked reports records that have been acknowledged. The caller has the tags before
// the counts fall, so that when Flush returns every acknowledgement has been reported.
func (p *Publisher) acked(first *produce.Record) {
	var bytes int64
	for r := first; r != nil; {
		following, ended := r.Next(), pendingOf(r)
		p.tags = append(p.tags, ended.tag)
		bytes += r.Cost
		ended.end()
		p.records.put(ended)
		if r = following; r == nil || len(p.tags) == ackBatch {
			p.acknowledged(p.tags)
			p.inflight.done(len(p.tags), bytes)
			p.tags, bytes = p.tags[:0], 0
		}
	}
}

// giveUp ends the publisher because of a record that was not taken, or what is left
// of it while it closes.
func (p *Publisher) giveUp(first *produce.Record, cause error) {
	if p.closing() {
		p.wire.cut() // given up by Close, which is no failure
		return
	}
	if errors.Is(cause, sarama.ErrInvalidTimestamp) {
		p.settings.Memory.refuseClock(first.Topic.Name)
	}
	err := explain(pendingOf(first), cause, p.settings)
	if p.transactional {
		err = asFenced(err, cause)
	}
	p.fail(err)
}
