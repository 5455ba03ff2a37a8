package record

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// Decode reads the event of a record in any of the header styles: onceward and
// debezium, known by the header idempotency-key, and CloudEvents 1.0 binary mode. It is
// pure and strict.
//
// The idempotency key and the event type must be there exactly once; other
// headers of the contract at most once, and valid when they are there. Headers
// outside the contract go into Event.Headers whatever they hold. The error is
// a [*MalformedError].
//
// What others write is read by [CloudEvents] and [DebeziumOutbox]: the id of a record
// that Debezium has written carries no namespace.
func Decode(rec Record) (Event, error) {
	r := reader{headers: rec.Headers}
	ev := Event{AggregateID: string(rec.Key), Payload: rec.Value}
	switch {
	case r.count(outbox.HeaderKey) > 0:
		r.onceward(&ev)
	case r.count(headerCESpecVersion) > 0 || r.count(headerCEID) > 0:
		r.cloudEvents(&ev)
	default:
		return Event{}, &MalformedError{
			Header: outbox.HeaderKey,
			Detail: "missing, and there is no ce_id either; was this record written by a relay? " + elsewhere,
		}
	}
	r.copied(&ev)
	ev.ContentType = r.optional(contentType(rec.Headers))
	// Tracing libraries add a traceparent of their own; the last one counts.
	// ce_traceparent is where the event began, for when that is all there is.
	ev.Traceparent = cmp.Or(r.last(HeaderTraceparent), r.last(headerCETraceparent))
	ev.Headers = r.others()
	if r.err != nil {
		return Event{}, r.err
	}
	return ev, nil
}

// Ours reports whether a record claims to be of a relay of ours. One that does
// and is damaged is no foreign one: it would get another key than its copies.
func Ours(headers []Header) bool {
	r := reader{headers: headers}
	if r.count(outbox.HeaderKey) > 0 {
		return true
	}
	k := r.key(headerCEID)
	return r.err == nil && r.last(headerCESource) == k.Namespace()
}

// elsewhere says what reads a record that no relay of ours has written.
const elsewhere = "A record of another producer is read by Config.Readers of package consumer, e.g. record.CloudEvents"

// reader reads headers and keeps the first error, so that the callers need not
// look at each one.
type reader struct {
	headers []Header
	err     error
}

func (r *reader) onceward(ev *Event) {
	ev.Key = r.key(outbox.HeaderKey)
	if r.count(HeaderEventType) == 0 && r.count(headerDebeziumType) > 0 {
		r.debezium(ev)
	} else {
		ev.Type = r.eventType(HeaderEventType)
	}
	ev.AggregateType = r.optional(HeaderAggregateType)
	ev.OccurredAt = r.time(HeaderOccurredAt)
	ev.Position = r.optional(HeaderPosition)
}

// debezium reads what the style has of its own. Id says the same as the key, or
// one of them was changed on the way.
func (r *reader) debezium(ev *Event) {
	ev.Type = r.eventType(headerDebeziumType)
	r.required(headerDebeziumID)
	if id := r.uuid(headerDebeziumID); id != ev.Key.UUID() {
		r.fail(headerDebeziumID, fmt.Sprintf("%s is not the UUID of idempotency-key, %s", id, ev.Key), nil)
	}
}

func (r *reader) cloudEvents(ev *Event) {
	if v := r.required(headerCESpecVersion); v != "1.0" {
		r.fail(headerCESpecVersion, fmt.Sprintf("%q found, want 1.0", v), nil)
	}
	ev.Key = r.key(headerCEID)
	if v := r.required(headerCESource); v != ev.Key.Namespace() {
		r.fail(headerCESource, fmt.Sprintf("%q is not the namespace of ce_id, %q", v, ev.Key.Namespace()), nil)
	}
	ev.Type = r.eventType(headerCEType)
	ev.AggregateType = r.optional(headerCEAggregateType)
	ev.OccurredAt = r.time(headerCETime)
	ev.Position = r.optional(HeaderPosition)
	if subject := r.optional(headerCESubject); ev.AggregateID == "" {
		ev.AggregateID = subject
	}
}

// copied reads the headers of replays and repairs.
func (r *reader) copied(ev *Event) {
	ev.RepairID = r.uuid(HeaderRepairID)
	ev.ReplayID = r.uuid(HeaderReplayID)
	ev.ReplayMode = ReplayMode(r.optional(HeaderReplayMode))
	ev.ReplayGroup = r.optional(HeaderReplayGroup)
	if header, detail := (Replay{ev.ReplayID, ev.ReplayMode, ev.ReplayGroup}).flaw(); header != "" {
		r.fail(header, detail, nil)
	}
}

func (r *reader) fail(header, detail string, cause error) {
	if r.err == nil {
		r.err = &MalformedError{Header: header, Detail: detail, Err: cause}
	}
}

func (r *reader) count(name string) int {
	n := 0
	for i := range r.headers {
		if r.headers[i].Name == name {
			n++
		}
	}
	return n
}

func (r *reader) last(name string) string {
	for _, h := range slices.Backward(r.headers) {
		if h.Name == name {
			return string(h.Value)
		}
	}
	return ""
}

// optional reads a header that may be absent, as text.
func (r *reader) optional(name string) string {
	if n := r.count(name); n > 1 {
		r.fail(name, fmt.Sprintf("present %d times, want once", n), nil)
	}
	v := r.last(name)
	if !isText(v) {
		r.fail(name, fmt.Sprintf("%.120q is not UTF-8 text without NUL", v), nil)
	}
	return v
}

func (r *reader) required(name string) string {
	if r.count(name) == 0 {
		r.fail(name, "missing", nil)
		return ""
	}
	v := r.optional(name)
	if v == "" {
		r.fail(name, "empty", nil)
	}
	return v
}

func (r *reader) eventType(name string) string {
	v := r.required(name)
	if len(v) > MaxType {
		r.fail(name, fmt.Sprintf("%d bytes long, at most %d are allowed", len(v), MaxType), nil)
	}
	return v
}

// key does not judge a key's time: an event from the future is no malformed
// record.
func (r *reader) key(name string) outbox.Key {
	text := r.required(name)
	k, err := outbox.ParseKeyAt(text, time.Time{}, outbox.NoSkewLimit)
	switch {
	case err != nil && name == headerCEID: // any CloudEvent has one
		r.fail(name, err.Error()+". "+elsewhere, err)
	case err != nil:
		r.fail(name, err.Error(), err)
	}
	return k
}

func (r *reader) time(name string) time.Time {
	v := r.optional(name)
	if v == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		r.fail(name, fmt.Sprintf("%.120q is not a time of RFC 3339", v), err)
	}
	return t.UTC()
}

func (r *reader) uuid(name string) uuid.UUID {
	v := r.optional(name)
	if v == "" {
		return uuid.Nil
	}
	id, err := uuid.Parse(v)
	if err != nil || id == uuid.Nil {
		r.fail(name, fmt.Sprintf("%.120q is not a UUID", v), err)
	}
	return id
}

// others returns the headers outside the contract, nil when there are none.
func (r *reader) others() map[string]string {
	var m map[string]string
	for _, h := range r.headers {
		if outbox.ReservedHeader(h.Name) || strings.EqualFold(h.Name, HeaderContentType) {
			continue
		}
		if m == nil {
			m = make(map[string]string)
		}
		m[h.Name] = string(h.Value)
	}
	return m
}

// contentType returns the name under which the record carries its content
// type: some gateways write Content-Type.
func contentType(headers []Header) string {
	for _, h := range headers {
		if strings.EqualFold(h.Name, HeaderContentType) {
			return h.Name
		}
	}
	return HeaderContentType
}

// isText reports whether s is what a text column of PostgreSQL can hold.
func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}
