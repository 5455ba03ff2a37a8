package cdc

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onceward/onceward/internal/fault"
)

// field is a column that the relay needs, in whichever of its tables. Columns
// of one name mean the same in all of them, and have the same type.
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
	fieldReplayID
	fieldMode
	fieldReplayGroup
	fieldTopic
	fieldControlID
	fieldAction
	fieldLetterID
	fieldPayloadNull
	fieldReason
	fieldRequestedBy
	fieldCount
	fieldNone = fieldCount // a column that the relay does not need
)

// fieldSpec says how a needed column must look.
type fieldSpec struct {
	name string
	oid  uint32
	typ  string
}

var fieldSpecs = [fieldCount]fieldSpec{
	fieldID:            {"id", pgtype.UUIDOID, "uuid"},
	fieldNamespace:     {"namespace", pgtype.TextOID, "text"},
	fieldAggregateType: {"aggregate_type", pgtype.TextOID, "text"},
	fieldAggregateID:   {"aggregate_id", pgtype.TextOID, "text"},
	fieldEventType:     {"event_type", pgtype.TextOID, "text"},
	fieldPayload:       {"payload", pgtype.ByteaOID, "bytea"},
	fieldContentType:   {"content_type", pgtype.TextOID, "text"},
	fieldHeaders:       {"headers", pgtype.JSONBOID, "jsonb"},
	fieldTraceparent:   {"traceparent", pgtype.TextOID, "text"},
	fieldCreatedAt:     {"created_at", pgtype.TimestamptzOID, "timestamptz"},
	fieldTxID:          {"tx_id", xid8OID, "xid8"},
	fieldSeq:           {"seq", pgtype.Int8OID, "bigint"},
	fieldReplayID:      {"replay_id", pgtype.UUIDOID, "uuid"},
	fieldMode:          {"mode", pgtype.TextOID, "text"},
	fieldReplayGroup:   {"replay_group", pgtype.TextOID, "text"},
	fieldTopic:         {"topic", pgtype.TextOID, "text"},
	fieldControlID:     {"control_id", pgtype.UUIDOID, "uuid"},
	fieldAction:        {"action", pgtype.TextOID, "text"},
	fieldLetterID:      {"letter_id", pgtype.UUIDOID, "uuid"},
	fieldPayloadNull:   {"payload_null", pgtype.BoolOID, "boolean"},
	fieldReason:        {"reason", pgtype.TextOID, "text"},
	fieldRequestedBy:   {"requested_by", pgtype.TextOID, "text"},
}

const xid8OID = 5069

// use says how a table uses a field.
type use uint8

const (
	unused   use = iota
	optional     // NULL, or no such column, is the default
	nullable     // NULL means something, or does not matter
	required     // NULL makes a bad row
	identity     // without it nobody can tell which row it is, or whether it was forged
)

// table is one whose rows make items.
type table struct {
	name string
	kind Kind
	uses [fieldCount]use
}

// The tables of the publication, as docs/contract.md has them.
var (
	outboxTable = table{name: "outbox", kind: KindEvent, uses: [fieldCount]use{
		fieldID: identity, fieldTxID: identity,
		fieldNamespace: required, fieldAggregateType: required, fieldAggregateID: required, fieldEventType: required,
		fieldContentType: required, fieldCreatedAt: required, fieldSeq: required,
		fieldPayload: nullable, fieldHeaders: nullable, fieldTraceparent: nullable,
	}}
	replaysTable = table{name: "replays", kind: KindReplay, uses: [fieldCount]use{
		fieldReplayID: identity, fieldTxID: identity,
		fieldID: required, fieldNamespace: required, fieldAggregateType: required, fieldAggregateID: required,
		fieldEventType:   required,
		fieldContentType: required, fieldCreatedAt: required, fieldSeq: required, fieldMode: required,
		fieldPayload: nullable, fieldHeaders: nullable, fieldTraceparent: nullable,
		fieldReplayGroup: nullable, fieldTopic: nullable, fieldReason: nullable, fieldRequestedBy: nullable,
	}}
	controlsTable = table{name: "controls", kind: KindControl, uses: [fieldCount]use{
		fieldControlID: identity, fieldTxID: identity,
		fieldAction: required, fieldSeq: required,
		fieldNamespace: nullable, fieldAggregateType: nullable, fieldAggregateID: nullable, fieldLetterID: nullable,
		fieldPayload: nullable, fieldHeaders: nullable, fieldPayloadNull: optional, fieldReason: nullable,
		fieldRequestedBy: nullable,
	}}
	publishedTables = []*table{&outboxTable, &replaysTable, &controlsTable}
)

// LayoutError: a table that the relay reads lacks a column that it needs, or
// has it with a type of other bytes.
type LayoutError struct {
	Table  string // with its schema
	Column string
	Detail string
	Cure   string
}

// Error implements error.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("table %s: column %s %s; %s", e.Table, e.Column, e.Detail, e.Cure)
}

// layout maps the columns of one version of a table, in the order in which the
// server sends them, to fields. Columns are found by name, so that added,
// dropped and reordered ones do no harm.
type layout struct {
	table  *table
	fields []field
	// wrong is what the first needed column in the table's order suffers from;
	// fatal says that it is one of the identity.
	wrong *LayoutError
	fatal bool
}

// newLayout makes the layout of a relation; nil when its rows make no items.
// What is wrong with it is found here and becomes an error with the first row:
// a table that nobody writes to is nobody's fault.
func newLayout(r relation) *layout {
	for _, t := range publishedTables {
		if r.namespace == "onceward" && r.name == t.name {
			return t.layout(r)
		}
	}
	return nil
}

func (t *table) layout(r relation) *layout {
	l := &layout{table: t, fields: make([]field, len(r.columns))}
	var faults [fieldCount]*LayoutError
	for f, use := range t.uses {
		if use > optional {
			faults[f] = missing(r, &fieldSpecs[f])
		}
	}
	for i, c := range r.columns {
		l.fields[i] = fieldNone
		for f := range t.uses {
			if t.uses[f] == unused || fieldSpecs[f].name != c.name {
				continue
			}
			if faults[f] = mistyped(r, c, &fieldSpecs[f]); faults[f] == nil {
				l.fields[i] = field(f)
			}
		}
	}
	for f, fault := range faults {
		if fault == nil {
			continue
		}
		fatal := t.uses[f] == identity
		if l.wrong == nil || fatal && !l.fatal {
			l.wrong, l.fatal = fault, fatal
		}
	}
	return l
}

func missing(r relation, spec *fieldSpec) *LayoutError {
	return &LayoutError{
		Table: r.namespace + "." + r.name, Column: spec.name, Detail: fmt.Sprintf("(%s) is missing", spec.typ),
		Cure: "the relay needs it, restore it or run `outboxctl migrate status --side outbox`",
	}
}

// mistyped compares types; varchar has the bytes of text.
func mistyped(r relation, c column, spec *fieldSpec) *LayoutError {
	if c.oid == spec.oid || spec.oid == pgtype.TextOID && c.oid == pgtype.VarcharOID {
		return nil
	}
	return &LayoutError{
		Table: r.namespace + "." + r.name, Column: c.name, Detail: fmt.Sprintf("has type oid %d, want %s (oid %d)", c.oid, spec.typ, spec.oid),
		Cure: "change it back with ALTER TABLE … ALTER COLUMN … TYPE " + spec.typ,
	}
}

// placed applies [fault.ByPlace] to the layout of a table that was described
// before.
func placed(first, now *layout) *layout {
	if !fault.Is(fault.ByPlace) || first == nil || now == nil {
		return now
	}
	l := *now
	l.fields = make([]field, len(now.fields))
	for i := range l.fields {
		l.fields[i] = fieldNone
		if i < len(first.fields) {
			l.fields[i] = first.fields[i]
		}
	}
	return &l
}
