package consumer

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/internal/transaction"
)

// answer is what a scripted server says to one statement.
type answer struct {
	columns []uint32   // their types
	rows    [][]string // in text
	tag     string     // default SELECT
	code    string     // SQLSTATE: it fails
	status  byte       // of the transaction afterwards; 0: as it was
	hangUp  bool       // the connection ends without an answer
}

// scripted is a server that speaks enough of PostgreSQL's protocol for the decisions
// behind a statement to be tested without one. What no script names succeeds, without
// rows.
type scripted struct {
	mu     sync.Mutex
	script map[string]answer // by the query's name, or the beginning of a statement
	asked  []string
	trips  int // of which each may bring several statements
}

// scriptedProcessor is one of the group billing, with the default class.
func scriptedProcessor(t *testing.T, script map[string]answer) (*Processor, *scripted) {
	t.Helper()
	s := &scripted{script: script}
	cfg, err := pgxpool.ParseConfig("host=scripted user=scripted sslmode=disable default_query_exec_mode=simple_protocol pool_max_conns=2")
	require.NoError(t, err)
	cfg.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	cfg.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go s.serve(server)
		return client, nil
	}
	p := Disconnected()
	p.group, p.log, p.handlerTimeout = "billing", slog.New(slog.DiscardHandler), time.Minute
	p.lockTimeout, p.bounds = time.Second, transaction.Bounds(time.Second, time.Minute)
	p.db, err = pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(p.db.Close)
	return p, s
}

func (s *scripted) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	server, status := pgproto3.NewBackend(conn, conn), byte('I')
	if _, err := server.ReceiveStartupMessage(); err != nil {
		return
	}
	server.Send(&pgproto3.AuthenticationOk{})
	server.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	server.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	server.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	for {
		server.Send(&pgproto3.ReadyForQuery{TxStatus: status})
		if server.Flush() != nil {
			return
		}
		message, err := server.Receive()
		if err != nil {
			return
		}
		query, ok := message.(*pgproto3.Query)
		if !ok {
			return
		}
		s.mu.Lock()
		s.trips++
		s.mu.Unlock()
		for statement := range strings.SplitSeq(query.String, "\n;") {
			a := s.say(statement)
			if a.hangUp {
				return
			}
			if a.status != 0 {
				status = a.status
			}
			if s.send(server, a); a.code != "" {
				break
			}
		}
	}
}

// say finds the answer to a statement.
func (s *scripted) say(sql string) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, sql)
	for name, a := range s.script {
		if strings.Contains(sql, "-- name: "+name+" ") || strings.HasPrefix(strings.ToUpper(sql), name) {
			return a
		}
	}
	switch word, _, _ := strings.Cut(strings.ToUpper(sql), " "); word {
	case "BEGIN":
		return answer{tag: "BEGIN", status: 'T'}
	case "COMMIT", "ROLLBACK":
		return answer{tag: word, status: 'I'}
	}
	return answer{}
}

func (s *scripted) send(server *pgproto3.Backend, a answer) {
	if a.code != "" {
		server.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: a.code, Message: "scripted"})
		return
	}
	if len(a.columns) > 0 {
		fields := make([]pgproto3.FieldDescription, len(a.columns))
		for i, oid := range a.columns {
			fields[i] = pgproto3.FieldDescription{Name: []byte("c"), DataTypeOID: oid, DataTypeSize: -1, TypeModifier: -1}
		}
		server.Send(&pgproto3.RowDescription{Fields: fields})
	}
	for _, row := range a.rows {
		values := make([][]byte, len(row))
		for i, v := range row {
			values[i] = []byte(v)
		}
		server.Send(&pgproto3.DataRow{Values: values})
	}
	if a.tag == "" {
		a.tag = "SELECT 0"
	}
	server.Send(&pgproto3.CommandComplete{CommandTag: []byte(a.tag)})
}

// statement returns what was asked under a name.
func (s *scripted) statement(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sql := range s.asked {
		if strings.Contains(sql, "-- name: "+name+" ") || strings.HasPrefix(strings.ToUpper(sql), name) {
			return sql
		}
	}
	return ""
}

// open begins a transaction of a delivery, which begins with a statement.
func (p *Processor) open(t *testing.T) pgx.Tx {
	t.Helper()
	tx, err := p.windows.begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT")
	require.NoError(t, err)
	t.Cleanup(func() { transaction.Rollback(context.Background(), tx) })
	return tx
}
