package cdc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/internal/secret"
)

// ErrSlotActive: another process streams from the slot; this one is a standby.
var ErrSlotActive = errors.New("replication slot is in use")

// ErrSilent: the server sent nothing for longer than Config.SilenceLimit.
var ErrSilent = errors.New("server is silent")

// Reader is one replication session: the connection that owns the slot, and the
// queue that it fills. [Open] makes it, one goroutine runs [Reader.Run], one
// calls [Reader.Next], any may call [Reader.Confirm].
type Reader struct {
	cfg     Config
	conn    *pgconn.PgConn
	socket  *socket // of the connection; nil until that is there
	system  pglogrepl.IdentifySystemResult
	history []byte // of the timelines before the present one
	queue   *queue

	confirmed atomic.Uint64 // what the server may forget
	reading   atomic.Int64  // when the open transaction was committed, in Unix microseconds; 0 between two
	stream    stream        // of the goroutine in Run
	heard     time.Time     // when the server sent last; likewise
	rests     rests         // likewise
	dry       uint64        // of the socket, as it was at the last rest; likewise
	rested    pglogrepl.LSN // the transaction before the last rest; likewise
}

// Open connects, and takes hold of the slot with START_REPLICATION. When it
// returns, this session is the slot's only reader: everything that depends on
// being alone comes after it. [ErrSlotActive] says that another is.
//
// START_REPLICATION is sent with 0/0, so the server starts where the slot
// stands; what has ended beyond that is skipped here, by the position given to
// [Reader.Resume]. A start position beyond the end of the log would be accepted
// by the server, and everything would be skipped in silence.
func Open(ctx context.Context, cfg Config) (*Reader, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Reader{cfg: cfg, queue: newQueue(cfg.QueueBytes)}
	conn, err := connect(ctx, cfg, r.queue.wake)
	if err != nil {
		return nil, err
	}
	r.conn, r.socket = conn, socketOf(conn.Conn())
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return r, nil
}

// CheckConnect opens the connection that [Open] would, and closes it: the server may
// let no replication in, or have no walsender left.
func CheckConnect(ctx context.Context, cfg Config) error {
	conn, err := connect(ctx, cfg, func() {})
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// connect opens a connection that calls before each read from the system.
func connect(ctx context.Context, cfg Config, before func()) (*pgconn.PgConn, error) {
	conf, err := pgconn.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, secret.ParseError("cdc.Config.DSN", err)
	}
	conf.RuntimeParams["replication"] = "database"
	conf.RuntimeParams["application_name"] = "onceward relay " + cfg.Slot
	pgconf.Startup(conf.RuntimeParams)
	Bound(conf)
	if cfg.configure != nil {
		cfg.configure(conf)
	}
	dial := conf.DialFunc
	conf.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return newSocket(unpoll(conn), before), nil
	}
	conn, err := pgconn.ConnectConfig(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("connect for replication: %w", ExplainConnect(err, conf))
	}
	return conn, nil
}

func (r *Reader) start(ctx context.Context) error {
	var err error
	if r.system, err = pglogrepl.IdentifySystem(ctx, r.conn); err != nil {
		return fmt.Errorf("identify system: %w", err)
	}
	if r.system.Timeline > 1 {
		history, err := pglogrepl.TimelineHistory(ctx, r.conn, r.system.Timeline)
		if err != nil {
			return fmt.Errorf("read history of timeline %d: %w", r.system.Timeline, err)
		}
		r.history = history.Content
	}
	if err := r.alterFailover(ctx); err != nil {
		return err
	}
	err = pglogrepl.StartReplication(ctx, r.conn, r.cfg.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + r.cfg.Publication + "'", "messages 'true'", "binary 'true'"},
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55006" {
		return fmt.Errorf("%w: %s", ErrSlotActive, pg.Message)
	}
	if err != nil {
		return fmt.Errorf("start replication from slot %s: %w", r.cfg.Slot, err)
	}
	return nil
}

// System returns the identity of the server: system identifier, timeline, end
// of the log at the time of Open, database.
func (r *Reader) System() pglogrepl.IdentifySystemResult { return r.system }

// SwitchPoint returns where the server left an earlier timeline for one that
// leads to the present one: what was read up to there is part of this server's
// history. ok is false when the timeline is not an ancestor.
func (r *Reader) SwitchPoint(timeline int32) (at pglogrepl.LSN, ok bool, err error) {
	return switchPoint(r.history, timeline)
}

// Resume says where the session begins: transactions with a commit end at or
// before ended are not delivered, and the server may forget everything up to
// checkpoint, which is durable. Required before Run, because the first status
// update tells the checkpoint to the server, which also takes a lower position
// than it had.
func (r *Reader) Resume(ended, checkpoint pglogrepl.LSN) {
	r.stream.skip = ended
	r.Confirm(checkpoint)
}

// Confirm lets the server forget everything up to the position. It must be a
// durable checkpoint already. The next status update tells the server; a lower
// position than before is ignored. Safe for concurrent use.
func (r *Reader) Confirm(position pglogrepl.LSN) {
	for {
		old := r.confirmed.Load()
		if uint64(position) <= old || r.confirmed.CompareAndSwap(old, uint64(position)) {
			return
		}
	}
}

// Next waits for the next items and returns all there are, in order. The slice
// is valid until the next call. Its error is the one that ended Run, io.EOF when
// that was none, or that of ctx.
func (r *Reader) Next(ctx context.Context, used []Item) ([]Item, error) {
	return r.queue.take(ctx, used)
}

// QueueBytes returns how many bytes were read and not yet published.
func (r *Reader) QueueBytes() int { return r.queue.held() }

// Lend makes the queue smaller by what something else of its caller's takes, in bytes,
// down to a quarter of [Config.QueueBytes]; 0 gives it back. It may be called at any time.
func (r *Reader) Lend(bytes int) { r.queue.lend(bytes) }

// Reading returns the commit time of the transaction that is being read; zero
// between two. One row may take minutes to come.
func (r *Reader) Reading() time.Time {
	us := r.reading.Load()
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// Run reads until ctx ends, which is no error, or the session breaks. The
// connection stays open after it: [Reader.Close] sends the last position.
func (r *Reader) Run(ctx context.Context) error {
	if r.confirmed.Load() == 0 {
		return errors.New("run reader: Resume was not called with a position")
	}
	stop := context.AfterFunc(ctx, func() { _ = r.conn.Conn().SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err := r.loop(ctx)
	if ctx.Err() != nil {
		err = nil
	}
	r.queue.close(err)
	return err
}

// Close tells the server the last confirmed position and gives the slot back.
// Run must have returned.
func (r *Reader) Close(ctx context.Context) error {
	if !r.conn.IsClosed() {
		_ = r.conn.Conn().SetReadDeadline(time.Time{})
		if err := r.sendStatus(ctx, false); err != nil {
			return errors.Join(err, r.conn.Close(ctx))
		}
	}
	return r.conn.Close(ctx)
}

func (r *Reader) loop(ctx context.Context) error {
	frontend := r.conn.Frontend()
	r.heard = time.Now()
	var next time.Time // when a status update is due
	for ctx.Err() == nil {
		now := time.Now()
		if !now.Before(next) {
			if err := r.tick(ctx, now); err != nil {
				return err
			}
			next = now.Add(r.cfg.StatusInterval)
			if err := r.conn.Conn().SetReadDeadline(next); err != nil {
				return fmt.Errorf("set read deadline: %w", err)
			}
			continue // ctx may have ended before the deadline was set
		}
		msg, err := frontend.Receive()
		if err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				continue
			}
			return fmt.Errorf("read from the server: %w", err)
		}
		r.heard = now
		if err := r.receive(ctx, msg); err != nil {
			return err
		}
		r.rest(frontend)
	}
	return ctx.Err()
}

// rest lets the server go ahead when everything that it sent was read, at the end of a
// transaction, unless the last time was longer ago: what comes after a silence is read at
// once, and under a flow many transactions with one wake-up.
func (r *Reader) rest(frontend *pgproto3.Frontend) {
	if r.stream.open || frontend.ReadBufferLen() > 0 || r.socket.left.Load() > 0 {
		return
	}
	dry := r.socket.dry.Load()
	if dry == r.dry {
		return // TLS has more of what was taken
	}
	r.dry = dry
	now, late := time.Now(), time.Duration(0)
	if at := r.stream.begin.commitLSN; at != r.rested { // not of a keepalive: others write, and nothing of ours is late
		late, r.rested = now.Sub(serverTime(r.stream.begin.time)), at
	}
	if wait := r.rests.due(now, late, r.socket.taken.Load()); wait > 0 {
		r.queue.wake()
		time.Sleep(wait)
		now = time.Now()
	}
	r.rests.last = now
}

// tick is what is done once per StatusInterval.
func (r *Reader) tick(ctx context.Context, now time.Time) error {
	silent, limit := now.Sub(r.heard), r.cfg.SilenceLimit
	if limit > 0 && silent > limit {
		return fmt.Errorf("%w for %s (limit %s): the session counts as dead", ErrSilent, silent.Round(time.Second), limit)
	}
	// A server with nothing to send says nothing while it hears from us, so it
	// is asked: one that lives and is not busy answers at once.
	return r.sendStatus(ctx, limit > 0 && silent > limit/4)
}

// sendStatus tells the server what it may forget. All three positions are set:
// the library copies the written one into a flushed one of zero, and so would
// confirm what was only read.
func (r *Reader) sendStatus(ctx context.Context, ask bool) error {
	r.queue.wake()
	confirmed := pglogrepl.LSN(r.confirmed.Load())
	if err := r.conn.Conn().SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return fmt.Errorf("set write deadline: %w", err)
	}
	err := pglogrepl.SendStandbyStatusUpdate(ctx, r.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: max(r.stream.received, confirmed),
		WALFlushPosition: confirmed,
		WALApplyPosition: confirmed,
		ReplyRequested:   ask,
	})
	if err != nil {
		return fmt.Errorf("send status update: %w", err)
	}
	return nil
}

func (r *Reader) receive(ctx context.Context, msg pgproto3.BackendMessage) error {
	switch m := msg.(type) {
	case *pgproto3.CopyData:
		return r.copyData(ctx, m.Data)
	case *pgproto3.ErrorResponse:
		return r.streamError(pgconn.ErrorResponseToPgError(m))
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return fmt.Errorf("server ended the stream: it is shutting down")
	}
	return nil // notices and parameter changes
}

// streamError names the error of a stream that an operator can mend: the
// publication is looked up as it was when each row was written.
func (r *Reader) streamError(pg *pgconn.PgError) error {
	if pg.Code == "42704" && strings.Contains(pg.Message, "publication") {
		return &StartError{Code: CodePublicationMissing, Err: pg,
			What: fmt.Sprintf("publication %s did not exist when rows that are still to be read were written", r.cfg.Publication),
			Cure: "outboxctl migrate up --side outbox --relay " + relayOf(r.cfg.Publication) + " makes it again; the relay then writes down what was not sent as a gap: outboxctl gap list"}
	}
	return fmt.Errorf("server ended the stream: %w", pg)
}

// copyData unpacks the streaming replication protocol.
func (r *Reader) copyData(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return &DecodeError{errors.New("empty message")}
	}
	switch data[0] {
	case pglogrepl.XLogDataByteID:
		const header = 1 + 8 + 8 + 8 // kind, start of the data, end of the log, time
		if len(data) <= header {
			return &DecodeError{fmt.Errorf("XLogData of %d bytes, want more than %d", len(data), header)}
		}
		it, ok, err := r.stream.change(data[header], data[header+1:])
		r.reading.Store(r.stream.reading())
		if err != nil || !ok {
			return err
		}
		return r.push(ctx, it)
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		if len(data) != 1+8+8+1 {
			return &DecodeError{fmt.Errorf("keepalive of %d bytes, want 18", len(data))}
		}
		return r.keepalive(ctx, pglogrepl.LSN(binary.BigEndian.Uint64(data[1:])), data[17] == 1)
	}
	return &DecodeError{fmt.Errorf("unknown replication message %q", data[0])}
}

func (r *Reader) keepalive(ctx context.Context, end pglogrepl.LSN, reply bool) error {
	if it, ok := r.stream.idle(end); ok {
		if err := r.push(ctx, it); err != nil {
			return err
		}
	}
	if reply {
		return r.sendStatus(ctx, false)
	}
	return nil
}

// push waits for room in the queue. Meanwhile nothing is read, and status
// updates go on: the server's own requests sit unread behind the rows.
func (r *Reader) push(ctx context.Context, it Item) error {
	if r.queue.push(it) {
		return nil
	}
	r.queue.wake()
	status := time.NewTicker(r.cfg.StatusInterval)
	defer status.Stop()
	for !r.queue.push(it) {
		select {
		case <-r.queue.space:
		case <-status.C:
			if fault.Is(fault.Mute) {
				continue
			}
			if err := r.sendStatus(ctx, false); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.heard = time.Now() // it was us who were silent
	return nil
}
