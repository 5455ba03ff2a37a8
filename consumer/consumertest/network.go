package consumertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// fault is what is to happen at a statement.
type fault struct {
	at     int  // which statement, counted from 1; 0: none
	answer bool // the server runs it, and its answer is lost; else it is not sent
	crash  bool // all connections are cut, and there are no new ones; else only this one
}

// network stands between one process and its database. It counts the statements of the
// process, and cuts its connections. Safe for concurrent use.
type network struct {
	mu         sync.Mutex
	links      map[*link]struct{}
	dead       bool
	fault      fault
	statements []string // since the network was armed
	struck     string   // what the fault has hit
	cut        []uint32 // the sessions whose connections were
}

// link is one connection.
type link struct {
	net.Conn
	network   *network
	deaf      atomic.Bool // the next answer is lost
	tail      []byte      // of what the server has said since
	statement string      // under way and not sent yet; of the network
	session   uint32      // of the server; of the network
}

var errCut = errors.New("consumertest has cut the connection")

// join takes a connection in; it is AfterNetConnect of pgconn, behind TLS.
func (n *network) join(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		return conn, errCut
	}
	l := &link{Conn: conn, network: n}
	n.links[l] = struct{}{}
	return l, nil
}

// arm sets what is to happen next, and begins to count.
func (n *network) arm(f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault, n.statements, n.struck = f, nil, ""
}

// disarm says what the fault has hit; empty: nothing. It returns the statements, too.
func (n *network) disarm() (struck string, statements []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = fault{}
	return n.struck, n.statements
}

// kill ends all that the process says, as its death does.
func (n *network) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.killLocked()
}

func (n *network) killLocked() {
	n.dead = true
	for l := range n.links {
		n.cutLocked(l)
	}
}

func (n *network) cutLocked(l *link) {
	_ = l.Conn.Close()
	delete(n.links, l)
	if l.session != 0 {
		n.cut = append(n.cut, l.session)
	}
}

// buried returns the sessions that were cut off since it was asked last.
func (n *network) buried() []uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	cut := n.cut
	n.cut = nil
	return cut
}

// passes counts a statement that is about to be sent. False: it must not be.
func (n *network) passes(l *link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.statement == "" || n.dead {
		return !n.dead
	}
	n.statements = append(n.statements, l.statement)
	l.statement = ""
	if len(n.statements) != n.fault.at || n.struck != "" {
		return true
	}
	place := fmt.Sprintf("%s (statement %d)", n.statements[n.fault.at-1], n.fault.at)
	if n.fault.answer {
		n.struck = "after " + place + ", whose answer was lost"
		l.deaf.Store(true)
		return true
	}
	n.struck = "before " + place
	n.strikeLocked(l)
	return false
}

func (n *network) strikeLocked(l *link) {
	n.cutLocked(l)
	if n.fault.crash {
		n.killLocked()
	}
}

// Write implements net.Conn.
func (l *link) Write(b []byte) (int, error) {
	if runs(b) && !l.network.passes(l) {
		return 0, errCut
	}
	return l.Conn.Write(b)
}

// Read implements net.Conn. Of an answer that is to be lost it waits for the end, so that
// the server has done what it was asked.
func (l *link) Read(b []byte) (int, error) {
	for {
		read, err := l.Conn.Read(b)
		if !l.deaf.Load() {
			return read, err
		}
		const ready = 6 // bytes of ReadyForQuery: 'Z', the length 5, and the state
		l.tail = append(l.tail, b[:read]...)
		l.tail = l.tail[max(0, len(l.tail)-ready):]
		if err != nil || len(l.tail) == ready && bytes.HasPrefix(l.tail, []byte{'Z', 0, 0, 0, 5}) {
			l.network.mu.Lock()
			defer l.network.mu.Unlock()
			l.network.strikeLocked(l)
			return 0, errCut
		}
	}
}

// Close implements net.Conn.
func (l *link) Close() error {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	delete(l.network.links, l)
	return l.Conn.Close()
}

// runs reports whether messages to the server run something: a Query, or a Bind. What only
// prepares a statement changes nothing.
func runs(b []byte) bool {
	for len(b) >= 5 {
		if b[0] == 'Q' || b[0] == 'B' {
			return true
		}
		next := 1 + int(binary.BigEndian.Uint32(b[1:5]))
		if next < 5 || next > len(b) {
			return false
		}
		b = b[next:]
	}
	return false
}

// begins notes the statement that a connection is about to send.
func (n *network) begins(conn *pgx.Conn, statement string) {
	l, ok := conn.PgConn().Conn().(*link)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l.statement, l.session = statement, conn.PgConn().PID()
}

// TraceQueryStart implements pgx.QueryTracer.
func (n *network) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	n.begins(conn, called(data.SQL))
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (n *network) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (n *network) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	last := "an empty batch"
	for _, q := range data.Batch.QueuedQueries {
		last = called(q.SQL)
	}
	n.begins(conn, last)
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (n *network) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (n *network) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// called is what a report calls a statement: one of Onceward's by its name, any other by
// its beginning.
func called(sql string) string {
	const most = 60
	if named, ok := strings.CutPrefix(sql, "-- name: "); ok {
		name, _, _ := strings.Cut(named, " ")
		if name == "ClaimEvents" {
			return "the claim"
		}
		return "Onceward's " + name
	}
	text := strings.Join(strings.Fields(sql), " ")
	switch upper := strings.ToUpper(text); {
	case upper == "COMMIT", upper == "ROLLBACK":
		return upper
	case strings.HasPrefix(upper, "BEGIN"):
		return "BEGIN"
	}
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return "`" + text + "`"
}
