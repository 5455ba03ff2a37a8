package cdc

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"
)

// The server's side of pgoutput, protocol version 1, binary: what the tests of
// this package speak.

type message struct{ b []byte }

func (m *message) u8(v byte) *message { m.b = append(m.b, v); return m }
func (m *message) u16(v uint16) *message {
	m.b = binary.BigEndian.AppendUint16(m.b, v)
	return m
}

func (m *message) u32(v uint32) *message {
	m.b = binary.BigEndian.AppendUint32(m.b, v)
	return m
}

func (m *message) u64(v uint64) *message {
	m.b = binary.BigEndian.AppendUint64(m.b, v)
	return m
}
func (m *message) raw(v []byte) *message { m.b = append(m.b, v...); return m }
func (m *message) str(v string) *message { return m.raw([]byte(v)).u8(0) }

func beginMessage(commitLSN pglogrepl.LSN, xid uint32) []byte {
	return new(message).u8(msgBegin).u64(uint64(commitLSN)).u64(0).u32(xid).b
}

func commitMessage(commitLSN, end pglogrepl.LSN) []byte {
	return new(message).u8(msgCommit).u8(0).u64(uint64(commitLSN)).u64(uint64(end)).u64(0).b
}

const (
	outboxOID   = 16400
	replaysOID  = 16401
	controlsOID = 16402
)

// oids of the tables, as the scripted server numbers them.
var oids = map[*table]uint32{&outboxTable: outboxOID, &replaysTable: replaysOID, &controlsTable: controlsOID}

// columnsOf are those that the relay needs of a table, and one that it does not.
func columnsOf(t *table) []column {
	cols := []column{{"not_needed", pgtype.TextOID}}
	for f, use := range t.uses {
		if use != unused {
			cols = append(cols, column{fieldSpecs[f].name, fieldSpecs[f].oid})
		}
	}
	return cols
}

func outboxColumns() []column { return columnsOf(&outboxTable) }

// without leaves one column out.
func without(cols []column, name string) []column {
	return slices.DeleteFunc(slices.Clone(cols), func(c column) bool { return c.name == name })
}

// altered gives one column another name and type.
func altered(cols []column, name string, to column) []column {
	cols = slices.Clone(cols)
	cols[slices.IndexFunc(cols, func(c column) bool { return c.name == name })] = to
	return cols
}

// describe makes the Relation messages of all three tables.
func describe() [][]byte {
	var out [][]byte
	for _, t := range publishedTables {
		out = append(out, relationMessage(oids[t], t.name, columnsOf(t)))
	}
	return out
}

func relationMessage(oid uint32, name string, cols []column) []byte {
	m := new(message).u8(msgRelation).u32(oid).str("onceward").str(name).u8('d').u16(uint16(len(cols)))
	for _, c := range cols {
		m.u8(0).str(c.name).u32(c.oid).u32(0xffffffff)
	}
	return m.b
}

// testRow is a row as the server sends it; missing values are NULL.
type testRow map[string][]byte

func newTestRow(id uuid.UUID, xid uint64, payload string) testRow {
	return testRow{
		"id": id[:], "namespace": []byte("shop"), "aggregate_type": []byte("order"), "aggregate_id": []byte("o-1"),
		"event_type": []byte("OrderPaid"), "payload": []byte(payload), "content_type": []byte("application/json"),
		"headers": []byte("\x01{\"a\": \"b\"}"), "created_at": new(message).u64(0).b,
		"tx_id": new(message).u64(xid).b, "seq": new(message).u64(42).b,
	}
}

// newTestReplay is a row of onceward.replays.
func newTestReplay(id uuid.UUID, xid uint64, mode, group string) testRow {
	row := newTestRow(testID, xid, "a secret")
	row["replay_id"], row["mode"], row["reason"], row["requested_by"] = id[:], []byte(mode), []byte("a hole"), []byte("ada")
	if group != "" {
		row["replay_group"] = []byte(group)
	}
	return row
}

// newTestControl is a row of onceward.controls about one letter.
func newTestControl(id uuid.UUID, xid uint64, action string, letter uuid.UUID) testRow {
	return testRow{
		"control_id": id[:], "action": []byte(action), "letter_id": letter[:], "reason": []byte("mended"), "requested_by": []byte("ada"),
		"tx_id": new(message).u64(xid).b, "seq": new(message).u64(43).b,
	}
}

func insertMessage(oid uint32, cols []column, row testRow) []byte {
	m := new(message).u8(msgInsert).u32(oid).u8('N').u16(uint16(len(cols)))
	for _, c := range cols {
		v, ok := row[c.name]
		if !ok {
			m.u8('n')
			continue
		}
		m.u8('b').u32(uint32(len(v))).raw(v)
	}
	return m.b
}

func logicalMessage(transactional bool, prefix string, content []byte) []byte {
	m := new(message).u8(msgMessage)
	if transactional {
		m.u8(1)
	} else {
		m.u8(0)
	}
	return m.u64(1).str(prefix).u32(uint32(len(content))).raw(content).b
}

func xlogData(wal []byte) []byte {
	return new(message).u8(pglogrepl.XLogDataByteID).u64(0).u64(0).u64(0).raw(wal).b
}

func keepaliveData(end pglogrepl.LSN, reply bool) []byte {
	m := new(message).u8(pglogrepl.PrimaryKeepaliveMessageByteID).u64(uint64(end)).u64(0)
	if reply {
		return m.u8(1).b
	}
	return m.u8(0).b
}

var testEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
