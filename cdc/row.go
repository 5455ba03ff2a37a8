package cdc

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onceward/onceward/outbox"
)

// field is a column of the outbox that the relay needs.
type field uint8

const (
	fieldID field = iota
	fieldNamespace
	fieldAggregateType
	fieldAggregateID
	fieldEventType
	fieldPayload
	fieldContentType
	fieldHeaders
	fieldTraceparent
	fieldCreatedAt
	fieldTxID
	fieldSeq
	fieldCount
	fieldNone = fieldCount // a column that the relay does not need
)

// fieldSpec says how a needed column must look.
type fieldSpec struct {
	name     string
	oid      uint32
	typ      string
	nullable bool
}

var fieldSpecs = [fieldCount]fieldSpec{
	fieldID:            {"id", pgtype.UUIDOID, "uuid", false},
	fieldNamespace:     {"namespace", pgtype.TextOID, "text", false},
	fieldAggregateType: {"aggregate_type", pgtype.TextOID, "text", false},
	fieldAggregateID:   {"aggregate_id", pgtype.TextOID, "text", false},
	fieldEventType:     {"event_type", pgtype.TextOID, "text", false},
	fieldPayload:       {"payload", pgtype.ByteaOID, "bytea", true},
	fieldContentType:   {"content_type", pgtype.TextOID, "text", false},
	fieldHeaders:       {"headers", pgtype.JSONBOID, "jsonb", true},
	fieldTraceparent:   {"traceparent", pgtype.TextOID, "text", true},
	fieldCreatedAt:     {"created_at", pgtype.TimestamptzOID, "timestamptz", false},
	fieldTxID:          {"tx_id", xid8OID, "xid8", false},
	fieldSeq:           {"seq", pgtype.Int8OID, "bigint", false},
}

const xid8OID = 5069

// layout maps the columns of one version of the outbox, in the order in which
// the server sends them, to fields. Columns are found by name, so that added,
// dropped and reordered ones do no harm.
type layout []field

// newLayout makes the layout of a relation. A needed column that is gone, or
// that has another type, is an error with its name.
func newLayout(r relation) (layout, error) {
	l := make(layout, len(r.columns))
	var seen [fieldCount]bool
	for i, c := range r.columns {
		l[i] = fieldNone
		for f, spec := range fieldSpecs {
			if spec.name != c.name {
				continue
			}
			varchar := spec.oid == pgtype.TextOID && c.oid == pgtype.VarcharOID // the same bytes
			if spec.oid != c.oid && !varchar {
				return nil, fmt.Errorf("table %s.%s: column %s has type oid %d, want %s (oid %d); change it back with ALTER TABLE … ALTER COLUMN … TYPE %s",
					r.namespace, r.name, c.name, c.oid, spec.typ, spec.oid, spec.typ)
			}
			l[i], seen[f] = field(f), true
		}
	}
	for f, ok := range seen {
		if !ok {
			return nil, fmt.Errorf("table %s.%s: column %s (%s) is missing; the relay needs it, restore it or run `outboxctl migrate status --side outbox`",
				r.namespace, r.name, fieldSpecs[f].name, fieldSpecs[f].typ)
		}
	}
	return l, nil
}

// postgresEpoch is 2000-01-01 UTC, from which timestamps are counted, in Unix
// microseconds.
const postgresEpoch = 946684800 * 1_000_000

// rowDecoder decodes tuples into rows. It is not safe for concurrent use.
type rowDecoder struct {
	names intern
}

// decode decodes one tuple. The row owns its bytes: one copy is made of the
// whole tuple, because the connection reuses its buffer.
func (d *rowDecoder) decode(l layout, w wire) (*outbox.Row, error) {
	n := int(w.uint16("number of columns"))
	if w.err == nil && n != len(l) {
		return nil, fmt.Errorf("decode Insert: %d columns, the relation has %d", n, len(l))
	}
	w.data = append(make([]byte, 0, len(w.data)), w.data...)
	row := new(outbox.Row)
	for _, f := range l {
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
			return nil, fmt.Errorf("decode Insert: %w", w.err)
		}
		if f == fieldNone {
			continue
		}
		if err := d.set(row, f, kind, value); err != nil {
			return nil, fmt.Errorf("decode Insert: column %s: %w", fieldSpecs[f].name, err)
		}
	}
	if err := finish(&w, "Insert"); err != nil {
		return nil, err
	}
	return row, nil
}

// set stores one column value into the row.
func (d *rowDecoder) set(row *outbox.Row, f field, kind byte, v []byte) error {
	spec := &fieldSpecs[f]
	if kind == 'n' {
		if !spec.nullable {
			return fmt.Errorf("is NULL")
		}
		return nil
	}
	if kind == 't' && spec.oid != pgtype.TextOID {
		return fmt.Errorf("came as text, want the binary form of %s", spec.typ)
	}
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
			return fmt.Errorf("jsonb of an unknown version")
		}
		row.Headers = v[1:]
	default:
		return setFixed(row, f, v)
	}
	return nil
}

// setFixed stores the columns of a fixed size.
func setFixed(row *outbox.Row, f field, v []byte) error {
	want := 8
	if f == fieldID {
		want = 16
	}
	if len(v) != want {
		return fmt.Errorf("has %d bytes, want %d", len(v), want)
	}
	switch f {
	case fieldID:
		row.ID = uuid.UUID(v)
	case fieldCreatedAt:
		us := int64(binary.BigEndian.Uint64(v))
		if us > maxTimestamp || us < -maxTimestamp {
			return fmt.Errorf("is infinite or absurd")
		}
		row.CreatedAt = time.UnixMicro(us + postgresEpoch).UTC()
	case fieldTxID:
		row.TxID = binary.BigEndian.Uint64(v)
	case fieldSeq:
		row.Seq = int64(binary.BigEndian.Uint64(v))
	default:
		return fmt.Errorf("is not a field of a fixed size")
	}
	return nil
}

// maxTimestamp bounds created_at to some 8,000 years around 2000, in
// microseconds; infinity and what RFC 3339 cannot write lie beyond it.
const maxTimestamp = 7999 * 365 * 24 * 3600 * 1_000_000

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
