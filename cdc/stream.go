package cdc

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// DecodeError: the stream itself is not what this version understands: a message
// out of order or cut short, rows that nobody can tell apart any more because
// the column of their id is gone. To read it again gives the same, so the relay
// stops; the slot has not moved past it. What is wrong with one row alone is no
// DecodeError but [Item].Bad, or Incomplete.
type DecodeError struct {
	Err error
}

// Error implements error.
func (e *DecodeError) Error() string { return "decode stream: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *DecodeError) Unwrap() error { return e.Err }

// ForeignRowError: the publication carries a row of a table that the relay does
// not read. It may be one of the outbox under the name of its partition, so that
// it is never passed over in silence.
type ForeignRowError struct {
	Table string
}

// Error implements error.
func (e *ForeignRowError) Error() string {
	return "row of table " + e.Table + ", which the publication of a relay does not have"
}

// stream turns the messages of pgoutput into items. It is pure: it holds the
// open transaction and the described tables, and knows no connection.
type stream struct {
	// skip is the position up to which everything has ended: transactions with
	// a commit end at or before it make no items.
	skip      pglogrepl.LSN
	received  pglogrepl.LSN // highest position that was read whole
	relations map[uint32]*layout
	foreign   map[uint32]string // names of tables that the relay does not read
	rows      rowDecoder
	ignored   uint64 // updates, deletes, truncates

	open    bool // between Begin and Commit
	skipped bool // the open transaction makes no items
	begin   begin
}

// change handles one message. Transactions do not overlap in protocol version
// 1: what stands between Begin and Commit is one of them. ok says whether the
// message makes an item.
func (s *stream) change(kind byte, data []byte) (it Item, ok bool, err error) {
	switch kind {
	case msgInsert:
		it, ok, err = s.insert(data)
	case msgBegin:
		err = s.beginTx(data)
	case msgCommit:
		it, ok, err = s.commitTx(data)
	case msgRelation:
		err = s.relation(data)
	case msgUpdate, msgDelete, msgTruncate:
		s.ignored++
	case msgMessage:
		var m logical
		if m, err = decodeLogical(data); err == nil {
			it, ok = s.logical(m)
		}
	case msgOrigin, msgType:
	default:
		err = fmt.Errorf("unknown pgoutput message %q", kind)
	}
	if err != nil {
		return Item{}, false, &DecodeError{err}
	}
	return it, ok, nil
}

// idle takes the end of the log between two transactions for a position: the
// server has decoded and sent everything before it.
func (s *stream) idle(end pglogrepl.LSN) (Item, bool) {
	if s.open || end <= s.received {
		return Item{}, false
	}
	s.received = end
	return Item{Kind: KindIdle, End: end}, end > s.skip
}

func (s *stream) beginTx(data []byte) error {
	if s.open {
		return fmt.Errorf("transaction begins inside transaction %d", s.begin.xid)
	}
	b, err := decodeBegin(data)
	if err != nil {
		return err
	}
	// The position to skip to is the end of a log record. A commit record that
	// starts before it therefore also ends at or before it; commitTx checks.
	s.open, s.begin, s.skipped = true, b, b.commitLSN < s.skip
	return nil
}

func (s *stream) commitTx(data []byte) (Item, bool, error) {
	c, err := decodeCommit(data)
	if err != nil {
		return Item{}, false, err
	}
	if !s.open || c.commitLSN != s.begin.commitLSN {
		return Item{}, false, fmt.Errorf("commit at %s without its beginning", c.commitLSN)
	}
	skipped := s.skipped
	s.open, s.skipped = false, false
	s.received = max(s.received, c.endLSN)
	if skipped {
		if c.endLSN > s.skip {
			return Item{}, false, fmt.Errorf("transaction %d ends at %s, behind the checkpoint %s that cuts through it: the checkpoint is not of this log", s.begin.xid, c.endLSN, s.skip)
		}
		return Item{}, false, nil
	}
	return Item{Kind: KindCommit, Commit: c.commitLSN, End: c.endLSN, CommitTime: serverTime(c.time)}, true, nil
}

// reading returns when the open transaction was committed, in Unix microseconds;
// 0 between two, and in one that makes no items.
func (s *stream) reading() int64 {
	if !s.open || s.skipped {
		return 0
	}
	return s.begin.time + postgresEpoch
}

func (s *stream) relation(data []byte) error {
	rel, err := decodeRelation(data)
	if err != nil {
		return err
	}
	if s.relations == nil {
		s.relations, s.foreign = make(map[uint32]*layout), make(map[uint32]string)
	}
	delete(s.foreign, rel.oid)
	l := newLayout(rel)
	if l == nil {
		s.foreign[rel.oid] = rel.namespace + "." + rel.name
	}
	s.relations[rel.oid] = placed(s.relations[rel.oid], l)
	return nil
}

// logical finds our own messages. A transactional one is part of its
// transaction, and skipped with it.
func (s *stream) logical(m logical) (Item, bool) {
	if m.transactional && s.skipped {
		return Item{}, false
	}
	it, ok := decodeMarker(m)
	if m.transactional {
		it.Commit = s.begin.commitLSN
	}
	return it, ok
}

func (s *stream) insert(data []byte) (Item, bool, error) {
	if !s.open {
		return Item{}, false, errors.New("row outside a transaction")
	}
	if s.skipped {
		return Item{}, false, nil
	}
	oid, w, err := decodeInsert(data)
	if err != nil {
		return Item{}, false, err
	}
	l, known := s.relations[oid]
	if !known {
		return Item{}, false, fmt.Errorf("row of relation %d, which was not described", oid)
	}
	if l == nil {
		return Item{}, false, fmt.Errorf("transaction %d, commit at %s: %w", s.begin.xid, s.begin.commitLSN, &ForeignRowError{s.foreign[oid]})
	}
	if l.fatal {
		return Item{}, false, fmt.Errorf("transaction %d, commit at %s: %w", s.begin.xid, s.begin.commitLSN, l.wrong)
	}
	t, err := s.rows.decode(l, w)
	if err != nil {
		return Item{}, false, fmt.Errorf("transaction %d, commit at %s: %w", s.begin.xid, s.begin.commitLSN, err)
	}
	return s.item(l, t), true, nil
}

// item makes the item of a row, and judges the row as a whole.
func (s *stream) item(l *layout, t tuple) Item {
	it := Item{Kind: l.table.kind, Commit: s.begin.commitLSN, CommitTime: serverTime(s.begin.time)}
	// True for savepoints and prepared transactions too: the column's default
	// is the top-level transaction. Anything else was forged or restored, and
	// would look published before it is.
	const low = 1<<32 - 1 // the rest is the epoch
	if t.row.TxID&low != uint64(s.begin.xid) {
		// Said first: nothing else in a forged row is to be believed.
		t.bad = fmt.Errorf("tx_id %d is not of the transaction that committed the row (xid %d): it was forged, or restored from another cluster: it is not published unless its dead letter is retried", t.row.TxID, s.begin.xid)
	}
	whole := l.wrong == nil
	switch it.Kind {
	case KindReplay:
		it.Row, it.Replay = t.row, t.replay(whole)
	case KindControl:
		it.Control = t.control(whole)
	default:
		it.Row = t.row
	}
	if it.Bad = t.bad; it.Bad == nil && !whole {
		it.Incomplete = l.wrong
	}
	return it
}

// serverTime converts the protocol's microseconds since 2000-01-01.
func serverTime(us int64) time.Time { return time.UnixMicro(us + postgresEpoch) }
