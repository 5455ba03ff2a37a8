package cdc

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// walsender is a scripted server: it answers the start of replication and then
// sends what the test tells it to. It runs inside a synctest bubble, over
// net.Pipe, so that time is virtual.
type walsender struct {
	t        *testing.T
	backend  *pgproto3.Backend
	conn     net.Conn
	started  chan struct{}
	statuses chan pglogrepl.StandbyStatusUpdate
	refuse   *pgproto3.ErrorResponse             // instead of starting to stream
	answers  bool                                // a status update that asks for a reply
	watch    func(pglogrepl.StandbyStatusUpdate) // instead of statuses
	version  string                              // said at login
	lacks    bool                                // the slot was made without failover
	asked    []string                            // about that
	unheard  *pgproto3.ErrorResponse             // instead of altering it
}

func newWalsender(t *testing.T) *walsender {
	return &walsender{t: t, started: make(chan struct{}), statuses: make(chan pglogrepl.StandbyStatusUpdate, 10_000)}
}

// config makes a reader's configuration that leads to this server.
func (w *walsender) config() Config {
	return Config{
		DSN: "host=127.0.0.1 user=u dbname=shop sslmode=disable", Slot: "onceward_shop", Publication: "onceward_shop",
		configure: func(c *pgconn.Config) {
			c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
			c.DialFunc = func(context.Context, string, string) (net.Conn, error) {
				client, server := net.Pipe()
				w.conn = server
				go w.serve()
				return client, nil
			}
		},
	}
}

func (w *walsender) serve() {
	defer w.conn.Close()
	w.backend = pgproto3.NewBackend(w.conn, w.conn)
	if _, err := w.backend.ReceiveStartupMessage(); err != nil {
		w.t.Error(err)
		return
	}
	w.send(&pgproto3.AuthenticationOk{}, &pgproto3.ParameterStatus{Name: "server_version", Value: w.version}, &pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		m, err := w.backend.Receive()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.Query:
			w.query(m.String)
		case *pgproto3.CopyData:
			if m.Data[0] == pglogrepl.StandbyStatusUpdateByteID {
				at := func(i int) pglogrepl.LSN { return pglogrepl.LSN(binary.BigEndian.Uint64(m.Data[i:])) }
				if w.answers && m.Data[len(m.Data)-1] == 1 {
					w.stream(keepaliveData(0x900, false))
				}
				update := pglogrepl.StandbyStatusUpdate{WALWritePosition: at(1), WALFlushPosition: at(9), WALApplyPosition: at(17)}
				if w.watch != nil {
					w.watch(update)
					continue
				}
				w.statuses <- update
			}
		case *pgproto3.Terminate:
			return
		}
	}
}

func (w *walsender) query(sql string) {
	switch {
	case strings.HasPrefix(sql, "IDENTIFY_SYSTEM"):
		w.send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
			{Name: []byte("systemid")}, {Name: []byte("timeline")}, {Name: []byte("xlogpos")}, {Name: []byte("dbname")},
		}}, &pgproto3.DataRow{Values: [][]byte{[]byte("7000"), []byte("1"), []byte("0/1000"), []byte("shop")}},
			&pgproto3.CommandComplete{CommandTag: []byte("IDENTIFY_SYSTEM")}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	case strings.HasPrefix(sql, "SELECT 1 "):
		w.asked = append(w.asked, sql)
		w.send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("one")}}})
		if w.lacks {
			w.send(&pgproto3.DataRow{Values: [][]byte{[]byte("1")}})
		}
		w.send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT")}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	case strings.HasPrefix(sql, "ALTER_REPLICATION_SLOT "):
		w.asked = append(w.asked, sql)
		if w.unheard != nil {
			w.send(w.unheard, &pgproto3.ReadyForQuery{TxStatus: 'I'})
			return
		}
		w.send(&pgproto3.CommandComplete{CommandTag: []byte("ALTER_REPLICATION_SLOT")}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	case w.refuse != nil:
		w.send(w.refuse, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	default:
		if want := `START_REPLICATION SLOT onceward_shop LOGICAL 0/0 (proto_version '1', publication_names 'onceward_shop', messages 'true', binary 'true')`; sql != want {
			w.t.Errorf("query %q, want %q", sql, want)
		}
		w.send(&pgproto3.CopyBothResponse{})
		close(w.started)
	}
}

func (w *walsender) send(messages ...pgproto3.BackendMessage) {
	for _, m := range messages {
		w.backend.Send(m)
	}
	_ = w.backend.Flush() // the client may have gone
}

func (w *walsender) stream(data ...[]byte) {
	for _, d := range data {
		w.send(&pgproto3.CopyData{Data: d})
	}
}

// drain returns the statuses received so far.
func (w *walsender) drain() []pglogrepl.StandbyStatusUpdate {
	var all []pglogrepl.StandbyStatusUpdate
	for {
		select {
		case s := <-w.statuses:
			all = append(all, s)
		default:
			return all
		}
	}
}

// running is a reader that streams from a scripted server.
type running struct {
	*Reader
	server *walsender
	cancel context.CancelFunc
	ended  chan error
}

func start(t *testing.T, tweak func(*Config)) *running {
	t.Helper()
	return startOn(t, newWalsender(t), tweak)
}

func startOn(t *testing.T, w *walsender, tweak func(*Config)) *running {
	t.Helper()
	cfg := w.config()
	if tweak != nil {
		tweak(&cfg)
	}
	r, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	<-w.started
	r.Resume(0x900, 0x900)
	ctx, cancel := context.WithCancel(t.Context())
	run := &running{Reader: r, server: w, cancel: cancel, ended: make(chan error, 1)}
	go func() { run.ended <- r.Run(ctx) }()
	return run
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	require.NoError(t, <-r.ended)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = r.Close(ctx)
}
