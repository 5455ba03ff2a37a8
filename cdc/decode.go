package cdc

import (
	"fmt"

	"github.com/jackc/pglogrepl"
)

// Message types of pgoutput, protocol version 1 (PostgreSQL documentation,
// "Logical Replication Message Formats").
const (
	msgBegin    = 'B'
	msgMessage  = 'M'
	msgCommit   = 'C'
	msgOrigin   = 'O'
	msgRelation = 'R'
	msgType     = 'Y'
	msgInsert   = 'I'
	msgUpdate   = 'U'
	msgDelete   = 'D'
	msgTruncate = 'T'
)

// begin opens a transaction. All that follows up to the commit belongs to it.
type begin struct {
	commitLSN pglogrepl.LSN // start of its commit record
	time      int64         // microseconds since 2000-01-01
	xid       uint32
}

// commit closes a transaction.
type commit struct {
	commitLSN pglogrepl.LSN // as in begin
	endLSN    pglogrepl.LSN // end of its commit record: the position to confirm
	time      int64         // microseconds since 2000-01-01
}

// logical is a message written with pg_logical_emit_message.
type logical struct {
	transactional bool
	lsn           pglogrepl.LSN
	prefix        string
	content       []byte
}

// column is one column of a relation as the server describes it.
type column struct {
	name string
	oid  uint32
}

// relation describes a table before its first row and after every change.
type relation struct {
	oid       uint32
	namespace string
	name      string
	columns   []column
}

// maxColumns is PostgreSQL's own limit of columns in a table.
const maxColumns = 1664

func decodeBegin(data []byte) (begin, error) {
	w := wire{data: data}
	b := begin{commitLSN: pglogrepl.LSN(w.uint64("final LSN")), time: int64(w.uint64("commit time"))}
	b.xid = w.uint32("transaction id")
	return b, finish(&w, "Begin")
}

func decodeCommit(data []byte) (commit, error) {
	w := wire{data: data}
	w.uint8("flags")
	c := commit{
		commitLSN: pglogrepl.LSN(w.uint64("commit LSN")),
		endLSN:    pglogrepl.LSN(w.uint64("end LSN")),
		time:      int64(w.uint64("commit time")),
	}
	return c, finish(&w, "Commit")
}

func decodeLogical(data []byte) (logical, error) {
	w := wire{data: data}
	m := logical{transactional: w.uint8("flags")&1 == 1}
	m.lsn = pglogrepl.LSN(w.uint64("LSN"))
	m.prefix = w.text("prefix")
	m.content = w.take(int(w.uint32("length")), "content")
	return m, finish(&w, "Message")
}

func decodeRelation(data []byte) (relation, error) {
	w := wire{data: data}
	r := relation{oid: w.uint32("oid"), namespace: w.text("namespace"), name: w.text("name")}
	w.uint8("replica identity")
	n := int(w.uint16("number of columns"))
	if w.err == nil && n > maxColumns {
		return r, fmt.Errorf("decode Relation: %d columns, a table has at most %d", n, maxColumns)
	}
	for range n {
		w.uint8("column flags")
		c := column{name: w.text("column name"), oid: w.uint32("column type")}
		w.uint32("type modifier")
		if w.err != nil {
			break
		}
		r.columns = append(r.columns, c)
	}
	return r, finish(&w, "Relation")
}

// decodeInsert returns the relation's oid and the tuple that follows it.
func decodeInsert(data []byte) (oid uint32, tuple wire, err error) {
	w := wire{data: data}
	oid = w.uint32("relation oid")
	if kind := w.uint8("tuple kind"); w.err == nil && kind != 'N' {
		w.err = fmt.Errorf("tuple kind %q, want N", kind)
	}
	if w.err != nil {
		return 0, wire{}, fmt.Errorf("decode Insert: %w", w.err)
	}
	return oid, w, nil
}

// finish turns what went wrong, bytes left over included, into one error.
func finish(w *wire, message string) error {
	if w.err == nil && len(w.data) > 0 {
		w.err = fmt.Errorf("%d bytes left over", len(w.data))
	}
	if w.err != nil {
		return fmt.Errorf("decode %s: %w", message, w.err)
	}
	return nil
}
