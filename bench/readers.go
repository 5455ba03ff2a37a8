package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
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
	conf.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend { return pgproto3.NewFrontend(byByte{r}, w) }
	conn, err := pgconn.ConnectConfig(ctx, conf)
	if err != nil {
		return s, fmt.Errorf("connect for replication: %w", err)
	}
	err = pglogrepl.StartReplication(ctx, conn, t.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + publication + "'", "messages 'true'", "binary 'true'"},
	})
	if err != nil {
		return s, fmt.Errorf("start replication: %w", err)
	}
	raw, err := conn.Hijack()
	if err != nil {
		return s, fmt.Errorf("take the connection over: %w", err)
	}
	defer raw.Conn.Close() //nolint:errcheck // what was read has been confirmed
	defer context.AfterFunc(ctx, func() { _ = raw.Conn.SetDeadline(time.Unix(1, 0)) })()
	c := counter{conn: raw.Conn, in: bufio.NewReaderSize(raw.Conn, ceilingBuffer), events: t.Events}
	for !c.done {
		if err := c.next(); err != nil {
			return s, err
		}
	}
	return c.span, c.confirm(c.end)
}

// byByte has who reads from it take no more than it asked for: what comes behind is the counter's.
type byByte struct{ io.Reader }

func (b byByte) Read(p []byte) (int, error) { return b.Reader.Read(p[:min(len(p), 1)]) }

// ceilingBuffer is how much the ceiling takes at once.
const ceilingBuffer = 64 << 10

// counter counts the rows of a stream, for as little as that can cost: a message is looked at where it
// lies, and what it holds is skipped.
type counter struct {
	conn   net.Conn
	in     *bufio.Reader
	events int
	rows   int
	span   span
	told   time.Time
	end    pglogrepl.LSN // of the last transaction
	done   bool
}

// next takes one message.
func (c *counter) next() error {
	const (
		header = 1 + 4              // of a message: its kind and its length, which counts itself
		xlog   = 1 + 8 + 8 + 8      // of XLogData: its kind, two positions and a time
		most   = header + xlog + 18 // of a commit: kind, flags, its position and its end
	)
	head, err := c.in.Peek(header)
	if err != nil {
		return fmt.Errorf("read the stream: %w", err)
	}
	size := int(binary.BigEndian.Uint32(head[1:])) + 1
	switch head[0] {
	case 'd':
		data, err := c.in.Peek(min(size, most))
		if err != nil {
			return fmt.Errorf("read the stream: %w", err)
		}
		if err := c.copied(data[header:], xlog); err != nil {
			return err
		}
	case 'E':
		data, _ := c.in.Peek(min(size, 1<<10)) // the connection ends behind it
		return fmt.Errorf("the server ended the stream: %q", data[header:])
	}
	_, err = c.in.Discard(size)
	return err
}

// copied looks at a message of the streaming protocol, what it holds is behind a header.
func (c *counter) copied(data []byte, header int) error {
	if data[0] == pglogrepl.PrimaryKeepaliveMessageByteID {
		return c.confirm(1)
	}
	return c.count(data[header:])
}

// count looks at a message of pgoutput.
func (c *counter) count(body []byte) error {
	switch body[0] {
	case 'I':
		if c.rows++; c.rows == 1 {
			c.span.First = time.Now()
		}
		if c.rows == c.events {
			c.span.Last = time.Now()
		}
	case 'C': // flags, position of the commit, its end
		if len(body) < 18 {
			return fmt.Errorf("a commit of %d bytes", len(body))
		}
		c.end = pglogrepl.LSN(binary.BigEndian.Uint64(body[10:]))
		c.done = c.rows >= c.events
	}
	return nil
}

// confirm tells the server how far it may forget, at most once a second before the end.
func (c *counter) confirm(position pglogrepl.LSN) error {
	if !c.done && time.Since(c.told) < statusEvery {
		return nil
	}
	c.told = time.Now()
	update := make([]byte, 5+1+8+8+8+8+1) // CopyData of a status: written, flushed, applied, time, no answer
	update[0], update[5] = 'd', pglogrepl.StandbyStatusUpdateByteID
	binary.BigEndian.PutUint32(update[1:], uint32(len(update)-1))
	for _, at := range []int{6, 14, 22} {
		binary.BigEndian.PutUint64(update[at:], uint64(position))
	}
	_, err := c.conn.Write(update)
	return err
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
