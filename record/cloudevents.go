package record

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// CloudEvents reads events of other producers in CloudEvents 1.0, Kafka protocol
// binding: binary mode, and structured mode in JSON, also as the Python SDK writes
// it, without the content type of the envelope. Records of ours in the style
// cloudevents are read as ever.
//
// An event is known by source and id, as CloudEvents has it: its key is
// outbox.ExternalKey(Namespace, source + " " + id, time). An event without time has
// [TimelessKey] of the same, and its class must be keyed consumer.ByArrival. The attribute
// time belongs to the identity here: where a producer sets it anew when it sends an
// event again, say Timeless.
//
// Payload is the data: of binary mode the record's value; of structured mode the
// bytes of `data` as they stand, those in `data_base64`, or the text of a string
// whose datacontenttype is not JSON. AggregateID is the record's key, else subject.
// Headers holds the other headers, and the extension attributes as ce_<name>. A
// copy in the other mode may have another payload, and is then a mismatch.
type CloudEvents struct {
	// Namespace names the system that these events come from, as in
	// [outbox.ExternalKey]: [a-z][a-z0-9._-]{0,62}. Required; never change it.
	Namespace string
	// Timeless takes no notice of the attribute time for the key.
	Timeless bool
}

// cloudEvent is an event in either mode.
type cloudEvent struct {
	attributes map[string]string
	data       []byte
	headers    map[string]string // beside the event's
}

// Read is a consumer.RecordReader.
func (c CloudEvents) Read(rec Record) (ev Event, mine bool, err error) {
	r := reader{headers: rec.Headers}
	var e cloudEvent
	switch r.count(headerCESpecVersion) + r.count(headerCEID) {
	default:
		e = r.binaryMode(rec.Value)
	case 0:
		if e, mine = r.structuredMode(rec.Value); !mine {
			return Event{}, false, nil
		}
	}
	if r.err != nil {
		return Event{}, true, r.err
	}
	ev, err = c.event(rec.Key, &e)
	return ev, true, err
}

// binaryMode reads the attributes from the headers.
func (r *reader) binaryMode(value []byte) cloudEvent {
	e := cloudEvent{attributes: make(map[string]string), data: value, headers: make(map[string]string)}
	for _, h := range r.headers {
		if name, ok := strings.CutPrefix(h.Name, "ce_"); ok {
			e.attributes[name] = r.optional(h.Name)
		} else if !strings.EqualFold(h.Name, HeaderContentType) {
			e.headers[h.Name] = string(h.Value)
		}
	}
	e.attributes["datacontenttype"] = r.optional(contentType(r.headers))
	return e
}

const cloudEventsJSON = "application/cloudevents+json"

// structuredMode reads the attributes from the value. Mine: the content type says
// so, or nothing says otherwise and the value does.
func (r *reader) structuredMode(value []byte) (e cloudEvent, mine bool) {
	header := r.last(contentType(r.headers))
	media, _, _ := strings.Cut(header, ";")
	said := strings.EqualFold(strings.TrimSpace(media), cloudEventsJSON)
	var envelope map[string]json.RawMessage
	if !said && !bytes.HasPrefix(bytes.TrimLeft(value, " \t\r\n"), []byte("{")) {
		return e, false
	}
	err := json.Unmarshal(value, &envelope)
	switch {
	case !said && (err != nil || envelope["specversion"] == nil || envelope["source"] == nil):
		return e, false
	case err != nil:
		r.fail(HeaderContentType, "says that the value is a CloudEvent in JSON, and it is not: "+err.Error(), err)
	}
	e = cloudEvent{attributes: make(map[string]string), headers: make(map[string]string)}
	for name, value := range envelope {
		if name != "data" && name != "data_base64" {
			r.attribute(&e, name, value)
		}
	}
	if !said && e.attributes["datacontenttype"] == "" {
		e.attributes["datacontenttype"] = header
	}
	for _, h := range r.headers {
		if !strings.EqualFold(h.Name, HeaderContentType) {
			e.headers[h.Name] = string(h.Value)
		}
	}
	r.data(&e, envelope)
	return e, true
}

// attribute reads an attribute: text, a number, a boolean; null is none.
func (r *reader) attribute(e *cloudEvent, name string, value json.RawMessage) {
	var text string
	switch value[0] {
	case 'n':
	case '"':
		if err := json.Unmarshal(value, &text); err != nil || !isText(text) {
			r.fail("ce_"+name, fmt.Sprintf("%.120q is not text without NUL", value), err)
		}
		e.attributes[name] = text
	case '{', '[':
		r.fail("ce_"+name, "is an object or an array; an attribute is text, a number or a boolean", nil)
	default:
		e.attributes[name] = string(value)
	}
}

// data reads the data of structured mode; none is a tombstone.
func (r *reader) data(e *cloudEvent, envelope map[string]json.RawMessage) {
	data, inBase64 := envelope["data"], envelope["data_base64"]
	var err error
	switch media := e.attributes["datacontenttype"]; {
	case inBase64 != nil && data != nil:
		err = fmt.Errorf("data and data_base64 are both there")
	case inBase64 != nil:
		err = json.Unmarshal(inBase64, &e.data)
	case data == nil || bytes.Equal(data, []byte("null")):
	case data[0] == '"' && !isJSON(media):
		var text string
		err = json.Unmarshal(data, &text)
		e.data = []byte(text)
	default:
		e.data = data
	}
	if err != nil {
		r.fail(HeaderContentType, "data of the CloudEvent: "+err.Error(), err)
	}
}

// isJSON reports whether data of this media type is JSON; so is data of none.
func isJSON(media string) bool {
	media, _, _ = strings.Cut(strings.ToLower(media), ";")
	media = strings.TrimSpace(media)
	return media == "" || strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

// event makes the event of a CloudEvent.
func (c CloudEvents) event(key []byte, e *cloudEvent) (Event, error) {
	take := func(name string) string {
		v := e.attributes[name]
		delete(e.attributes, name)
		return v
	}
	for _, name := range []string{"specversion", "id", "source", "type"} {
		if e.attributes[name] == "" {
			return Event{}, &MalformedError{Header: "ce_" + name, Detail: "missing or empty"}
		}
	}
	if v := take("specversion"); v != "1.0" {
		return Event{}, &MalformedError{Header: headerCESpecVersion, Detail: fmt.Sprintf("%.20q found, want 1.0", v)}
	}
	id, source, at := take("id"), take("source"), take("time")
	ev := Event{Type: take("type"), AggregateID: string(key), Payload: e.data, ContentType: take("datacontenttype")}
	if strings.ContainsAny(source, " \t\r\n") {
		return Event{}, &MalformedError{Header: headerCESource, Detail: fmt.Sprintf("%.120q is not a URI reference", source)}
	}
	if at != "" {
		t, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return Event{}, &MalformedError{Header: headerCETime, Detail: fmt.Sprintf("%.120q is not a time of RFC 3339", at), Err: err}
		}
		ev.OccurredAt = t.UTC()
	}
	if subject := take("subject"); ev.AggregateID == "" {
		ev.AggregateID = subject
	}
	ev.Traceparent = cmp.Or(e.headers[HeaderTraceparent], take("traceparent"))
	delete(e.headers, HeaderTraceparent)
	for name, value := range e.attributes {
		e.headers["ce_"+name] = value
	}
	if len(e.headers) > 0 {
		ev.Headers = e.headers
	}
	var err error
	ev.Key, err = foreignKey(c.Namespace, source+" "+id, ev.OccurredAt, c.Timeless)
	if err != nil {
		return Event{}, &MalformedError{Header: headerCEID, Detail: err.Error(), Err: err}
	}
	return ev, nil
}
