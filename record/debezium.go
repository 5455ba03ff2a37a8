package record

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// DebeziumOutbox reads what Debezium's Outbox Event Router has written, by its
// header id: the topic's past, or a producer that stays with Debezium. Records of
// ours in the style debezium, which have an idempotency-key, are read as ever.
//
// An id that is a UUID of version 7 is the key's own, with its time: an event that
// Debezium has published, and a relay of ours publishes again from the same table,
// is then one event, when Namespace is that of the outbox. Any other id gives
// outbox.ExternalKey(Namespace, id, time) with the time of TimeHeader, and without
// one [TimelessKey], so that its class must be keyed consumer.ByArrival. The timestamp of
// the record is no such time: it is that of Debezium's work unless its
// configuration says otherwise, and another one in each copy.
//
// Payload is the record's value, AggregateID its key, and Headers all its headers.
type DebeziumOutbox struct {
	// Namespace names the producing service, as in [outbox.ExternalKey].
	// Required; never change it.
	Namespace string
	// TypeHeader holds the event type. Debezium writes it when
	// table.fields.additional.placement has type:header:eventType. Default
	// eventType.
	TypeHeader string
	// Type is that of records without TypeHeader. Without it they are malformed.
	Type string
	// TimeHeader holds a time of the row, such as its created_at
	// (created_at:header:createdAt): RFC 3339, or a whole number of milli-, micro-
	// or nanoseconds since 1970. It must be there when it is named. Default: none.
	TimeHeader string
}

// Read is a consumer.RecordReader.
func (d DebeziumOutbox) Read(rec Record) (ev Event, mine bool, err error) {
	r := reader{headers: rec.Headers}
	if r.count(headerDebeziumID) == 0 || r.count(outbox.HeaderKey) > 0 || r.count(headerCESpecVersion) > 0 {
		return Event{}, false, nil
	}
	id := r.required(headerDebeziumID)
	typeHeader := cmp.Or(d.TypeHeader, headerDebeziumType)
	ev = Event{
		Type: cmp.Or(r.optional(typeHeader), d.Type), AggregateID: string(rec.Key), Payload: rec.Value,
		ContentType: r.optional(contentType(rec.Headers)), Traceparent: r.last(HeaderTraceparent),
		Headers: make(map[string]string),
	}
	if ev.Type == "" {
		r.fail(typeHeader, "missing; have Debezium write it (table.fields.additional.placement), or set DebeziumOutbox.Type", nil)
	}
	if d.TimeHeader != "" {
		ev.OccurredAt = r.instant(d.TimeHeader)
	}
	for _, h := range rec.Headers {
		ev.Headers[h.Name] = string(h.Value)
	}
	if r.err == nil {
		ev.Key, err = d.key(id, ev.OccurredAt)
		if err != nil {
			r.fail(headerDebeziumID, err.Error(), err)
		}
	}
	return ev, true, r.err
}

func (d DebeziumOutbox) key(id string, at time.Time) (outbox.Key, error) {
	if parsed, err := uuid.Parse(id); err == nil && parsed.String() == id && parsed.Version() == 7 {
		return outbox.KeyFrom(d.Namespace, parsed, time.Time{}, outbox.NoSkewLimit)
	}
	return foreignKey(d.Namespace, id, at, false)
}

// instant reads a required time, as Kafka Connect writes it into a header: text of
// a column with a time zone, a number of one without, in the unit of its precision.
// The size tells the unit until the year 2286.
func (r *reader) instant(name string) time.Time {
	v := r.required(name)
	n, err := strconv.ParseInt(v, 10, 64)
	switch {
	case err != nil:
		return r.time(name)
	case len(v) == 13:
		return time.UnixMilli(n).UTC()
	case len(v) == 16:
		return time.UnixMicro(n).UTC()
	case len(v) == 19:
		return time.Unix(0, n).UTC()
	}
	r.fail(name, fmt.Sprintf("%d is not a time in milli-, micro- or nanoseconds since 1970", n), nil)
	return time.Time{}
}
