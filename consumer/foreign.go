package consumer

import (
	"errors"
	"fmt"

	"github.com/onceward/onceward/consumer/internal/aside"
	"github.com/onceward/onceward/record"
)

// RecordReader makes the event of a record that no relay of ours has written.
// [record.CloudEvents] and [record.DebeziumOutbox] have one; any other function will do that
// obeys these rules:
//
//   - mine is false for a record of another kind, which the next reader gets;
//   - Key is a function of what the record says of the event, so that every copy
//     has the same: [outbox.ExternalKey] with a time that belongs to the event, or
//     [record.TimelessKey], never the time of arrival or the record's place;
//   - Payload and AggregateID are the same in every copy, or the second one is a
//     mismatch;
//   - it is pure, and safe for concurrent use: a record is read more than once,
//     also when its dead letter is redriven.
//
// A record whose reader returns an error, panics, ends its goroutine, or makes an event without Key, or
// with no Type or too long a one, becomes a dead letter with the reason "malformed".
type RecordReader func(rec Record) (ev record.Event, mine bool, err error)

// parse makes the event of a record: of ours with [record.Decode], whatever the
// readers would make of it, because its other copies have that key.
func (p *Processor) parse(rec Record) (Event, error) {
	if len(p.readers) > 0 && !record.Ours(rec.Headers) {
		for _, reader := range p.readers {
			if ev, mine, err := p.readForeign(reader, rec); mine || err != nil {
				return ev, err
			}
		}
	}
	read, err := record.Decode(rec)
	if err != nil {
		return Event{Source: rec.Source}, err
	}
	return Event{Event: read, Source: rec.Source, RecordHeaders: rec.Headers}, nil
}

func (p *Processor) readForeign(reader RecordReader, rec Record) (ev Event, mine bool, err error) {
	err = aside.Do(func() error {
		return recovered(func() (err error) { ev.Event, mine, err = reader(rec); return err })
	})
	if err == nil && !mine {
		return Event{}, false, nil
	}
	if err == nil {
		err = ev.validate()
	}
	if err == nil && record.Timeless(ev.Key) && !p.windows.byArrival(ev.Type) {
		// Below every floor for ever, and stream time would stand still with it.
		err = fmt.Errorf("the event carries no time, and this group keys %q by event time, which stays so: have its reader make a key with a time, and redrive the letter; "+
			"or discard it, and let a group whose class of it is Keyed: consumer.ByArrival from the beginning handle such events", ev.Type)
	}
	if err != nil {
		if malformed := (*record.MalformedError)(nil); !errors.As(err, &malformed) {
			err = &record.MalformedError{Detail: err.Error(), Err: err}
		}
		return Event{}, true, err
	}
	ev.Source, ev.RecordHeaders, ev.raw = rec.Source, rec.Headers, &rec
	return ev, true, nil
}
