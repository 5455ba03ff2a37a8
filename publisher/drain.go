package publisher

import (
	"errors"
	"runtime"

	"github.com/IBM/sarama"
)

// ackBatch is the most tags that one call of the acknowledged function gets.
const ackBatch = 1024

// drain is the only reader of sarama's two channels, and the only giver of the
// wire's permits; the wire says why that has to be one goroutine. It ends when
// sarama has closed both channels, after AsyncClose.
type drain struct {
	publisher    *Publisher
	successes    <-chan *sarama.ProducerMessage
	errors       <-chan *sarama.ProducerError
	acknowledged func(tags []uint64)

	tags  []uint64
	bytes int64
}

func (d *drain) run() {
	d.tags = make([]uint64, 0, ackBatch)
	for d.successes != nil || d.errors != nil {
		select {
		case message, open := <-d.successes:
			if !open {
				d.successes = nil
				continue
			}
			d.add(message)
			d.collect()
			d.report()
		case failure, open := <-d.errors:
			if !open {
				d.errors = nil
				continue
			}
			d.fail(failure)
		case d.publisher.wire.permits <- struct{}{}:
		}
	}
}

// collect takes the successes that are about to be sent. sarama sends them one
// by one on an unbuffered channel, so the sender is given one chance to come.
func (d *drain) collect() {
	for yielded := false; len(d.tags) < ackBatch; {
		select {
		case message, open := <-d.successes:
			if !open {
				d.successes = nil
				return
			}
			d.add(message)
			yielded = false
		default:
			if yielded {
				return
			}
			yielded = true
			runtime.Gosched()
		}
	}
}

func (d *drain) add(message *sarama.ProducerMessage) {
	r := pendingOf(message)
	d.tags = append(d.tags, r.tag)
	d.bytes += r.cost
	r.end()
}

// report gives the tags to the caller before the counts fall, so that when
// Flush returns every acknowledgement has been reported.
func (d *drain) report() {
	d.acknowledged(d.tags)
	d.publisher.inflight.done(len(d.tags), d.bytes)
	d.tags, d.bytes = d.tags[:0], 0
}

// fail ends the publisher, or what is left of it while it closes. Either cuts the
// wire before the next permit is given.
func (d *drain) fail(failure *sarama.ProducerError) {
	p := d.publisher
	if resend := p.settings.faults.resend; resend != nil {
		go resend(p, failure)
		return
	}
	select {
	case <-p.quit:
		p.cut() // given up by Close, which is no failure
	default:
		if errors.Is(failure.Err, sarama.ErrInvalidTimestamp) {
			p.settings.Memory.refuseClock(failure.Msg.Topic)
		}
		err := explain(failure, p.settings)
		if p.transactional {
			err = asFenced(err, failure.Err)
		}
		p.fail(err)
	}
	r := pendingOf(failure.Msg)
	r.end()
	p.inflight.done(1, r.cost)
}
