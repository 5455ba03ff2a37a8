package scripted

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

// Server is a PostgreSQL that answers as a test tells it to, statement by
// statement, and writes down what it was asked, on ordinary connections and on
// replication's alike. What is not scripted changes one row and returns none.
type Server struct {
	t        *testing.T
	listener net.Listener
	tasks    sync.WaitGroup

	mu       sync.Mutex
	conns    []net.Conn
	answers  map[string]func(args []string) Reply
	asked    []string // statements, and the positions that the slot was confirmed to, in order
	released pglogrepl.LSN
	streams  []*backend // of replication
	written  pglogrepl.LSN

	Streaming bool // another process streams from the slot
}

// Reply is what a statement returns: rows, each the fields of one struct or one
// value; or how many rows it changed.
type Reply struct {
	Rows    []any
	Changed int
	Err     string // the server's
}

// One is a reply of one row.
func One(row any) Reply { return Reply{Rows: []any{row}} }

// Fenced is the answer to a statement of an epoch that is over: it changes nothing.
func Fenced([]string) Reply { return Reply{} }

// New starts one, which ends with the test.
func New(t *testing.T) *Server {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &Server{t: t, listener: listener, answers: map[string]func([]string) Reply{}}
	s.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			s.tasks.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		s.mu.Lock()
		for _, conn := range s.conns {
			_ = conn.Close()
		}
		s.mu.Unlock()
		s.tasks.Wait()
	})
	return s
}

// DSN has each statement sent with its values as text, and described afterwards.
func (s *Server) DSN() string {
	host, port, _ := net.SplitHostPort(s.listener.Addr().String())
	return "host=" + host + " port=" + port + " user=u dbname=shop sslmode=disable default_query_exec_mode=exec"
}

// On scripts the answer to a statement: a query of sqlc by its name, another by
// words that are in it.
func (s *Server) On(statement string, answer func(args []string) Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[statement] = answer
}

// Returns scripts rows as the answer to a statement.
func (s *Server) Returns(statement string, rows ...any) {
	s.On(statement, func([]string) Reply { return Reply{Rows: rows} })
}

// Log is what was asked so far, of the statements whose names are given, or all.
func (s *Server) Log(names ...string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var log []string
	for _, asked := range s.asked {
		name, _, _ := strings.Cut(asked, " ")
		if len(names) == 0 || slices.Contains(names, name) {
			log = append(log, asked)
		}
	}
	return log
}

// Names are what was asked, without values.
func Names(log []string) (names []string) {
	for _, asked := range log {
		name, _, _ := strings.Cut(asked, " ")
		names = append(names, name)
	}
	return names
}

// Confirmed is the highest position that the slot was confirmed to, once its reader
// was closed.
func (s *Server) Confirmed() pglogrepl.LSN {
	s.mu.Lock()
	streams := slices.Clone(s.streams)
	s.mu.Unlock()
	for _, b := range streams {
		<-b.over
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.released
}

// Connect returns an ordinary connection to it, which ends with the test.
func (s *Server) Connect() *pgx.Conn {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.DSN())
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// backend is one connection of the scripted server.
type backend struct {
	*pgproto3.Backend
	server *Server
	status byte
	sql    string
	args   []string
	answer *Reply
	over   chan struct{}
}

func (s *Server) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // of a client that is gone
	b := &backend{Backend: pgproto3.NewBackend(conn, conn), server: s, status: 'I', over: make(chan struct{})}
	defer close(b.over)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	for name, value := range map[string]string{"server_version": "18.3", "client_encoding": "UTF8", "standard_conforming_strings": "on"} {
		b.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	b.ready()
	for {
		message, err := b.Receive()
		if err != nil {
			return
		}
		if _, over := message.(*pgproto3.Terminate); over {
			return
		}
		b.receive(message)
	}
}

func (b *backend) ready() {
	b.Send(&pgproto3.ReadyForQuery{TxStatus: b.status})
	_ = b.Flush() // the client may have gone
}

func (b *backend) receive(message pgproto3.FrontendMessage) {
	switch m := message.(type) {
	case *pgproto3.Query:
		b.simple(m.String)
	case *pgproto3.Parse:
		b.sql = m.Query
		b.Send(&pgproto3.ParseComplete{})
	case *pgproto3.Bind:
		b.args = b.args[:0:0]
		for _, value := range m.Parameters {
			b.args = append(b.args, string(value))
		}
		b.answer = nil
		b.Send(&pgproto3.BindComplete{})
	case *pgproto3.Describe:
		b.ask()
		b.describe()
	case *pgproto3.Execute:
		b.ask()
		b.finish()
	case *pgproto3.Sync:
		b.ready()
	case *pgproto3.CopyData:
		b.server.update(m.Data)
	}
}

// simple answers a statement without values: of replication, of transactions.
func (b *backend) simple(sql string) {
	b.sql, b.args, b.answer = sql, nil, nil
	switch {
	case sql == "IDENTIFY_SYSTEM":
		b.answer = &Reply{Rows: []any{struct{ Systemid, Timeline, Xlogpos, Dbname string }{"7000", "1", "0/1000", "shop"}}}
	case strings.HasPrefix(sql, "START_REPLICATION") && b.server.Streaming:
		b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "55006", Message: "replication slot is active for PID 4711"})
		b.ready()
		return
	case strings.HasPrefix(sql, "START_REPLICATION"):
		b.server.Note("START_REPLICATION")
		b.server.mu.Lock()
		defer b.server.mu.Unlock()
		b.server.streams = append(b.server.streams, b)
		b.Send(&pgproto3.CopyBothResponse{})
		_ = b.Flush()
		return
	case sql == "begin", sql == "commit", sql == "rollback":
		b.server.Note(sql)
		b.status = map[string]byte{"begin": 'T', "commit": 'I', "rollback": 'I'}[sql]
		b.Send(&pgproto3.CommandComplete{CommandTag: []byte(strings.ToUpper(sql))})
		b.ready()
		return
	}
	b.ask()
	b.describe()
	b.finish()
	b.ready()
}

var queryName = regexp.MustCompile(`(?m)^-- name: (\w+) `)

// ask looks for the answer to the statement, once.
func (b *backend) ask() {
	if b.answer != nil {
		return
	}
	s := b.server
	name := b.sql
	if found := queryName.FindStringSubmatch(b.sql); found != nil {
		name = found[1]
	}
	s.mu.Lock()
	s.asked = append(s.asked, strings.TrimSpace(name+" "+strings.Join(b.args, " ")))
	answer := s.answers[name]
	for words, scripted := range s.answers {
		if answer == nil && name == b.sql && strings.Contains(b.sql, words) {
			answer = scripted
		}
	}
	s.mu.Unlock()
	b.answer = &Reply{Changed: 1}
	if answer != nil {
		given := answer(b.args)
		b.answer = &given
	}
}

func (b *backend) describe() {
	if len(b.answer.Rows) == 0 {
		b.Send(&pgproto3.NoData{})
		return
	}
	var fields []pgproto3.FieldDescription
	for _, value := range values(b.answer.Rows[0]) {
		fields = append(fields, pgproto3.FieldDescription{Name: []byte("column"), DataTypeOID: typeOf(value)})
	}
	b.Send(&pgproto3.RowDescription{Fields: fields})
}

func (b *backend) finish() {
	if b.answer.Err != "" {
		b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "XX000", Message: b.answer.Err})
		return
	}
	for _, row := range b.answer.Rows {
		var columns [][]byte
		for _, value := range values(row) {
			text, err := pgtype.NewMap().Encode(typeOf(value), pgtype.TextFormatCode, value, []byte{})
			if err != nil {
				b.server.t.Errorf("answer %q with %v: %v", b.sql, value, err)
			}
			columns = append(columns, text)
		}
		b.Send(&pgproto3.DataRow{Values: columns})
	}
	b.Send(&pgproto3.CommandComplete{CommandTag: fmt.Appendf(nil, "UPDATE %d", max(len(b.answer.Rows), b.answer.Changed))})
}

// values are the fields of a struct, or the value.
func values(row any) (all []any) {
	v := reflect.ValueOf(row)
	if _, scalar := row.(time.Time); scalar || v.Kind() != reflect.Struct {
		return []any{row}
	}
	for _, field := range v.Fields() {
		all = append(all, field.Interface())
	}
	return all
}

func typeOf(value any) uint32 {
	if known, ok := pgtype.NewMap().TypeForValue(value); ok {
		return known.OID
	}
	v := reflect.TypeOf(value)
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch {
	case v.Kind() == reflect.Uint32:
		return pgtype.OIDOID
	case v == reflect.TypeFor[[16]byte](), v.Name() == "UUID":
		return pgtype.UUIDOID
	case v.Kind() == reflect.Slice && v.Elem().Name() == "UUID":
		return pgtype.UUIDArrayOID
	case v.Kind() == reflect.Slice && v.Elem().Kind() == reflect.Uint32:
		return pgtype.OIDArrayOID
	}
	return pgtype.TextOID
}

// Note writes down what is no query.
func (s *Server) Note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, what)
}

// update takes a status update of replication.
func (s *Server) update(data []byte) {
	if data[0] != pglogrepl.StandbyStatusUpdateByteID {
		return
	}
	flushed := pglogrepl.LSN(binary.BigEndian.Uint64(data[9:]))
	s.mu.Lock()
	defer s.mu.Unlock()
	if flushed > s.released {
		s.released = flushed
		s.asked = append(s.asked, "confirm "+flushed.String())
	}
}

// Echo streams each marker that a session writes back to it, as a server does.
func (s *Server) Echo() {
	s.On("pg_logical_emit_message", func(args []string) Reply {
		content, err := hex.DecodeString(strings.TrimPrefix(args[1], `\x`))
		require.NoError(s.t, err)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.written += 8
		at := binary.BigEndian.AppendUint64(nil, uint64(s.written))
		message := slices.Concat([]byte{'M', 0}, at, []byte(args[0]), []byte{0},
			binary.BigEndian.AppendUint32(nil, uint32(len(content))), content)
		for _, b := range s.streams {
			b.Send(&pgproto3.CopyData{Data: slices.Concat([]byte{pglogrepl.XLogDataByteID}, at, at, make([]byte, 8),
				message)})
			_ = b.Flush()
		}
		return Reply{Rows: []any{"0/1000"}}
	})
}

// Forget clears what was written down.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = nil
}
