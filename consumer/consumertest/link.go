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

var errCut = errors.New("consumertest has cut the connection")

// fault is what is to happen at a statement.
type fault struct {
	at     int    // which statement, counted from 1; 0: none
	answer bool   // the server runs it, and its answer is lost; else it is not sent
	crash  bool   // all connections are cut, and there are no new ones; else only this one
	hold   func() // nil, or nothing is cut: the at-th COMMIT is sent when this has returned
}

// network stands between one process and its database: it counts the statements of the
// process, and cuts its connections. Safe for concurrent use.
type network struct {
	mu         sync.Mutex
	links      map[*link]struct{}
	dead       bool
	fault      fault
	statements []string // since it was armed
	struck     string   // which of them the fault has hit, and how
	cut        []uint32 // the server's sessions whose connections were
}

// link is one connection.
type link struct {
	net.Conn
	network  *network
	prepared map[string]string // statements by their names; "" is one, too
	deaf     atomic.Bool       // the answer that comes is lost
	tail     []byte            // of that answer, as far as it came
	session  uint32            // of the server; of the network
}

// join takes a connection in, behind TLS.
func (n *network) join(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		return conn, errCut
	}
	l := &link{Conn: conn, network: n, prepared: make(map[string]string)}
	n.links[l] = struct{}{}
	return l, nil
}

// joined learns which session of the server a connection has.
func (n *network) joined(_ context.Context, conn *pgx.Conn) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l, ok := conn.PgConn().Conn().(*link); ok {
		l.session = conn.PgConn().PID()
	}
	return nil
}

// arm sets what is to happen, and begins to count.
func (n *network) arm(f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault, n.statements, n.struck = f, nil, ""
}

// disarm says what the fault has hit, empty for nothing, and what was counted.
func (n *network) disarm() (struck string, statements []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = fault{}
	return n.struck, n.statements
}

// kill cuts all connections, as the death of the process does.
func (n *network) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = true
	for l := range n.links {
		n.sever(l)
	}
}

// sever cuts one; n.mu is held.
func (n *network) sever(l *link) {
	_ = l.Conn.Close()
	delete(n.links, l)
	if l.session != 0 {
		n.cut = append(n.cut, l.session)
	}
}

// severed returns the sessions that were cut off since it was asked last.
func (n *network) severed() (sessions []uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	sessions, n.cut = n.cut, nil
	return sessions
}

// strike lets the fault happen; n.mu is held.
func (n *network) strike(l *link) {
	n.sever(l)
	for other := range n.links {
		if n.fault.crash {
			n.sever(other)
		}
	}
	n.dead = n.dead || n.fault.crash
}

// passes counts a statement that is about to be sent, and reports whether it may be.
func (n *network) passes(l *link, statement string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.statements = append(n.statements, called(statement))
	if hold := n.fault.hold; hold != nil {
		if called(statement) == commit && count(n.statements, commit) == n.fault.at {
			n.mu.Unlock()
			hold()
			n.mu.Lock()
		}
		return !n.dead
	}
	if len(n.statements) != n.fault.at || n.dead {
		return !n.dead
	}
	place := fmt.Sprintf("%s (statement %d)", n.statements[n.fault.at-1], n.fault.at)
	if n.fault.answer {
		n.struck = "after " + place + ", whose answer was lost"
		l.deaf.Store(true)
		return true
	}
	n.struck = "before " + place
	n.strike(l)
	return false
}

// commit is what reports call a COMMIT.
const commit = "COMMIT"

func count(statements []string, name string) (times int) {
	for _, s := range statements {
		if s == name {
			times++
		}
	}
	return times
}

// Write implements net.Conn.
func (l *link) Write(b []byte) (int, error) {
	if statement := l.asked(b); statement != "" && !l.network.passes(l, statement) {
		return 0, errCut
	}
	return l.Conn.Write(b)
}

// asked returns the last statement that messages to the server run. What only prepares
// one, or looks whether the server is there, is none.
func (l *link) asked(b []byte) (statement string) {
	for len(b) >= 5 {
		next := 1 + int(binary.BigEndian.Uint32(b[1:5]))
		if next < 5 || next > len(b) {
			break
		}
		first, rest, _ := bytes.Cut(b[5:next], []byte{0})
		second, _, _ := bytes.Cut(rest, []byte{0})
		switch b[0] {
		case 'Q': // Query: its text
			statement = strings.TrimPrefix(string(first), "-- ping")
		case 'P': // Parse: a name, and its text
			l.prepared[string(first)] = string(second)
		case 'B': // Bind: a portal, and the name of the statement
			statement = l.prepared[string(second)]
		}
		b = b[next:]
	}
	return statement
}

// Read implements net.Conn. It waits for the end of an answer that is to be lost, so that
// the server has done what it was asked.
func (l *link) Read(b []byte) (int, error) {
	read, err := l.Conn.Read(b)
	if !l.deaf.Load() {
		return read, err
	}
	const ready = 6 // bytes of ReadyForQuery: 'Z', its length, and the state
	for err == nil {
		l.tail = append(l.tail, b[:read]...)
		l.tail = l.tail[max(0, len(l.tail)-ready):]
		if len(l.tail) == ready && bytes.HasPrefix(l.tail, []byte{'Z', 0, 0, 0, 5}) {
			break
		}
		read, err = l.Conn.Read(b)
	}
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	l.network.strike(l)
	return 0, errCut
}

// Close implements net.Conn.
func (l *link) Close() error {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	delete(l.network.links, l)
	return l.Conn.Close()
}

// called is what reports call a statement: one of Onceward's by its name, any other by its
// beginning.
func called(sql string) string {
	const most = 60
	if named, ours := strings.CutPrefix(sql, "-- name: "); ours {
		name, _, _ := strings.Cut(named, " ")
		if name == "ClaimEvent" || name == "ClaimEvents" {
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
