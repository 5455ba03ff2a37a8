package cdc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onceward/onceward/outbox"
)

// postgresEpoch is 2000-01-01 UTC, from which timestamps are counted, in Unix
// microseconds.
const postgresEpoch = 946684800 * 1_000_000

// tuple is one decoded row of any of the tables.
type tuple struct {
	row   *outbox.Row // the columns that the tables share
	order *order      // those of the operator's tables; nil for the outbox
	bad   error       // what is wrong with this row, and with no other
}

// rowDecoder decodes tuples into rows. It is not safe for concurrent use.
type rowDecoder struct {
	names intern
}

// decode decodes one tuple. The row owns its bytes, because the connection
// reuses its buffer; columns that nobody needs are not kept. The error is about
// the stream: the message is not what the protocol or the type's send function
// makes.
func (d *rowDecoder) decode(l *layout, w wire) (tuple, error) {
	n := int(w.uint16("number of columns"))
	if w.err == nil && n != len(l.fields) {
		return tuple{}, fmt.Errorf("decode Insert: %d columns, the relation has %d", n, len(l.fields))
	}
	t := tuple{row: new(outbox.Row)}
	if l.table != &outboxTable {
		t.order = new(order)
	}
	for _, f := range l.fields {
		kind := w.uint8("column kind")
		var value []byte
		switch kind {
		case 'n':
		case 'b', 't':
			value = w.take(int(w.uint32("column length")), "column value")
		default:
			if w.err == nil {
				w.err = fmt.Errorf("column kind %q in an insert", kind)
			}
		}
		if w.err != nil {
			return tuple{}, fmt.Errorf("decode Insert: %w", w.err)
		}
		if f == fieldNone {
			continue
		}
		if kind == 'n' {
			t.null(l.table, f)
			continue
		}
		if err := d.set(&t, f, kind, value); err != nil {
			return tuple{}, fmt.Errorf("decode Insert: column %s: %w", fieldSpecs[f].name, err)
		}
	}
	if err := finish(&w, "Insert"); err != nil {
		return tuple{}, err
	}
	own(t.row)
	return t, nil
}

// null takes note of a NULL where the contract has none. The table's owner can
// drop a NOT NULL, and put it back.
func (t *tuple) null(of *table, f field) {
	if of.uses[f] >= required {
		t.spoil(fmt.Errorf("column %s is NULL", fieldSpecs[f].name))
	}
}

// spoil keeps the first thing that is wrong with the row.
func (t *tuple) spoil(err error) {
	if t.bad == nil {
		t.bad = err
	}
}

// own moves what the row refers to out of the connection's buffer, in one piece
// of memory. NULL stays nil, and empty stays empty.
func own(row *outbox.Row) {
	n := len(row.AggregateID) + len(row.Payload) + len(row.Headers) + len(row.Traceparent)
	buf := make([]byte, 0, n)
	for _, b := range [...]*[]byte{&row.AggregateID, &row.Payload, &row.Headers, &row.Traceparent} {
		if *b == nil {
			continue
		}
		from := len(buf)
		buf = append(buf, *b...)
		*b = buf[from:len(buf):len(buf)]
	}
}

// set stores one value.
func (d *rowDecoder) set(t *tuple, f field, kind byte, v []byte) error {
	spec := &fieldSpecs[f]
	if kind == 't' && spec.oid != pgtype.TextOID {
		return fmt.Errorf("came as text, want the binary form of %s", spec.typ)
	}
	row := t.row
	switch f {
	case fieldNamespace:
		row.Namespace = d.names.get(v)
	case fieldAggregateType:
		row.AggregateType = d.names.get(v)
	case fieldAggregateID:
		row.AggregateID = v
	case fieldEventType:
		row.Type = d.names.get(v)
	case fieldPayload:
		row.Payload = v
	case fieldContentType:
		row.ContentType = d.names.get(v)
	case fieldTraceparent:
		row.Traceparent = v
	case fieldHeaders:
		if len(v) < 1 || v[0] != 1 {
			return errors.New("jsonb of an unknown version")
		}
		row.Headers = v[1:]
	case fieldMode, fieldAction, fieldReplayGroup, fieldTopic, fieldReason, fieldRequestedBy:
		d.setOrder(t.order, f, v)
	default:
		return t.setFixed(f, v)
	}
	return nil
}

// setOrder stores the texts of the operator's tables.
func (d *rowDecoder) setOrder(o *order, f field, v []byte) {
	switch f {
	case fieldReplayGroup:
		o.group = d.names.get(v)
	case fieldTopic:
		o.topic = d.names.get(v)
	case fieldReason:
		o.reason = d.names.get(v) // one request has many rows
	case fieldRequestedBy:
		o.requestedBy = d.names.get(v)
	default: // mode or action
		o.kind = d.names.get(v)
	}
}

// setFixed stores the columns of a fixed size.
func (t *tuple) setFixed(f field, v []byte) error {
	want := 8
	switch fieldSpecs[f].oid {
	case pgtype.UUIDOID:
		want = 16
	case pgtype.BoolOID:
		want = 1
	}
	if len(v) != want {
		return fmt.Errorf("has %d bytes, want %d", len(v), want)
	}
	switch f {
	case fieldID:
		t.row.ID = uuid.UUID(v)
	case fieldReplayID, fieldControlID:
		t.order.id = uuid.UUID(v)
	case fieldLetterID:
		t.order.letter = uuid.UUID(v)
	case fieldPayloadNull:
		t.order.payloadNull = v[0] != 0
	case fieldCreatedAt:
		us := int64(binary.BigEndian.Uint64(v))
		if us > maxTimestamp || us < minTimestamp {
			t.spoil(errors.New("column created_at is infinite or absurd"))
			return nil
		}
		t.row.CreatedAt = time.UnixMicro(us + postgresEpoch).UTC()
	case fieldTxID:
		t.row.TxID = binary.BigEndian.Uint64(v)
	case fieldSeq:
		t.row.Seq = int64(binary.BigEndian.Uint64(v))
	default:
		return errors.New("is not a field of a fixed size")
	}
	return nil
}

// Bounds of created_at, in microseconds since 2000: from the year 1 to some time
// in 9993. Infinity and what RFC 3339 cannot write lie beyond.
const (
	minTimestamp = -730_119 * 24 * 3600 * 1_000_000
	maxTimestamp = 7999 * 365 * 24 * 3600 * 1_000_000
)

// intern returns equal strings for equal bytes without allocating, as names of
// types repeat in every row. It is bounded: it keeps strings up to
// maxInternedLen bytes, and forgets all when it holds maxInterned of them.
type intern struct {
	m map[string]string
}

const (
	maxInterned    = 4096
	maxInternedLen = 256
)

func (in *intern) get(b []byte) string {
	if s, ok := in.m[string(b)]; ok {
		return s
	}
	if len(b) > maxInternedLen {
		return string(b)
	}
	if in.m == nil || len(in.m) >= maxInterned {
		in.m = make(map[string]string)
	}
	s := string(b)
	in.m[s] = s
	return s
}
