package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/process"
)

// reader is a side that reads a slot and publishes nothing: ceiling takes what the walsender
// sends and throws it away, reader decodes it as the relay does and throws it away then.
type reader struct {
	stage   *stage
	name    string
	read    int // events so far
	process *process.Process
	logFile string
}

func (r *reader) slot() string      { return r.stage.name + "_" + r.name }
func (r *reader) sink() *sink.Topic { return nil }

func (r *reader) backend(ctx context.Context) (int, error) { return r.stage.walsender(ctx, r.slot()) }

func (r *reader) prepare(ctx context.Context) error { return r.stage.createSlot(ctx, r.slot()) }

func (r *reader) start(context.Context) (_ *process.Process, err error) {
	r.logFile = r.stage.path(r.name + ".log")
	t := task{Kind: r.name, DSN: r.stage.dsn(), Slot: r.slot(), Events: r.stage.written - r.read}
	r.process, err = startTask(t, r.logFile)
	r.read = r.stage.written
	return r.process, err
}

func (r *reader) ready(context.Context) (bool, error) { return true, nil }

// finished: the process ends by itself.
func (r *reader) finished(context.Context, int) (bool, error) {
	select {
	case <-r.process.Done():
		if err := r.process.Err(); err != nil {
			return false, fmt.Errorf("%s: %w%s", r.name, err, process.Tail(r.logFile))
		}
		return true, nil
	default:
		return false, nil
	}
}

func (r *reader) stop(ctx context.Context) error { return r.process.Stop(ctx, syscall.SIGTERM) }

// span is when the process had its first event and its last.
func (r *reader) span() (s span, err error) { return s, lastLine(r.logFile, &s) }

// hasSpan is a side that says by itself when its events came.
type hasSpan interface{ span() (span, error) }

// statusEvery is how often the server is told that somebody reads.
const statusEvery = time.Second

// readSlot is the ceiling: it looks at nothing but the first byte of each message, counts the
// rows, and confirms the slot at the end of the transaction of the last.
func readSlot(ctx context.Context, t task) (s span, err error) {
	conf, err := pgconn.ParseConfig(t.DSN)
	if err != nil {
		return s, errors.New("read the DSN of the task")
	}
	conf.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, conf)
	if err != nil {
		return s, fmt.Errorf("connect for replication: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // what was read has been confirmed
	err = pglogrepl.StartReplication(ctx, conn, t.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + publication + "'", "messages 'true'", "binary 'true'"},
	})
	if err != nil {
		return s, fmt.Errorf("start replication: %w", err)
	}
	c := counter{conn: conn, events: t.Events}
	for !c.done {
		if err := c.next(ctx); err != nil {
			return s, err
		}
	}
	return c.span, c.confirm(ctx, c.end)
}

// counter counts the rows of a stream.
type counter struct {
	conn   *pgconn.PgConn
	events int
	rows   int
	span   span
	told   time.Time
	end    pglogrepl.LSN // of the last transaction
	done   bool
}

// next takes one message.
func (c *counter) next(ctx context.Context) error {
	message, err := c.conn.ReceiveMessage(ctx)
	if err != nil {
		return fmt.Errorf("read the stream: %w", err)
	}
	data, ok := message.(*pgproto3.CopyData)
	if !ok {
		if failed, ok := message.(*pgproto3.ErrorResponse); ok {
			return pgconn.ErrorResponseToPgError(failed)
		}
		return nil
	}
	if data.Data[0] == pglogrepl.PrimaryKeepaliveMessageByteID {
		return c.confirm(ctx, 1)
	}
	const header = 25 // of XLogData: its type, two positions and a time
	switch body := data.Data[header:]; body[0] {
	case 'I':
		if c.rows++; c.rows == 1 {
			c.span.First = time.Now()
		}
		if c.rows == c.events {
			c.span.Last = time.Now()
		}
	case 'C': // flags, position of the commit, its end
		c.end = pglogrepl.LSN(binary.BigEndian.Uint64(body[10:]))
		c.done = c.rows >= c.events
	}
	return nil
}

// confirm tells the server how far it may forget, at most once a second before the end.
func (c *counter) confirm(ctx context.Context, position pglogrepl.LSN) error {
	if !c.done && time.Since(c.told) < statusEvery {
		return nil
	}
	c.told = time.Now()
	return pglogrepl.SendStandbyStatusUpdate(ctx, c.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: position})
}

// readItems is the bare reader: what the relay does before it publishes.
func readItems(ctx context.Context, t task) (s span, err error) {
	r, err := cdc.Open(ctx, cdc.Config{DSN: t.DSN, Slot: t.Slot, Publication: publication})
	if err != nil {
		return s, err
	}
	reading, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	r.Resume(1, 1)
	go func() { ended <- r.Run(reading) }()
	s, end, err := countItems(ctx, r, t.Events)
	r.Confirm(end)
	stop()
	return s, errors.Join(err, <-ended, r.Close(ctx))
}

// countItems takes items until the transaction of the last event has ended.
func countItems(ctx context.Context, r *cdc.Reader, events int) (s span, end pglogrepl.LSN, err error) {
	var items []cdc.Item
	for rows := 0; ; {
		if items, err = r.Next(ctx, items); err != nil {
			return s, 1, err
		}
		for i := range items {
			switch items[i].Kind { //nolint:exhaustive // what else there is does not matter here
			case cdc.KindEvent:
				if rows++; rows == 1 {
					s.First = time.Now()
				}
				if rows == events {
					s.Last = time.Now()
				}
			case cdc.KindCommit:
				if rows >= events {
					return s, items[i].End, nil
				}
			}
		}
	}
}
