package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/snapshot"
)

// ErrFenced: a newer session of this relay owns the slot, or a command of an
// operator wants the next one to begin anew. This one stops without having
// written anything after that.
var ErrFenced = errors.New("fenced: a newer session or a command of outboxctl ended this one")

// state reads and writes this relay's row of onceward.relay_state, over one
// connection of one goroutine. Every write checks the epoch, so that a process
// that wakes after another took over changes nothing.
type state struct {
	conn    *pgx.Conn
	queries *outboxdb.Queries
	slot    string
	epoch   int64
	written int64 // the counter of relay_state, see count
}

func newState(conn *pgx.Conn, slot string) *state {
	return &state{conn: conn, queries: outboxdb.New(conn), slot: slot}
}

// load returns the row, or false when this relay never ran.
func (s *state) load(ctx context.Context) (outboxdb.RelayState, bool, error) {
	row, err := s.queries.LoadRelayState(ctx, s.slot)
	if errors.Is(err, pgx.ErrNoRows) {
		return row, false, nil
	}
	if err != nil {
		return row, false, fmt.Errorf("load relay state of slot %s: %w", s.slot, err)
	}
	return row, true, nil
}

// slotPosition returns what the slot has confirmed.
func (s *state) slotPosition(ctx context.Context) (pglogrepl.LSN, error) {
	var text string
	err := s.conn.QueryRow(ctx, `SELECT confirmed_flush_lsn::text FROM pg_catalog.pg_replication_slots WHERE slot_name = $1`, s.slot).Scan(&text)
	if err != nil {
		return 0, fmt.Errorf("read position of slot %s: %w", s.slot, err)
	}
	return ledger.ParseLSN(text)
}

// begin makes this session the only one that begins on the slot, until begun or
// the end of its connection: another that took the slot meanwhile would raise the
// epoch, and void what this one waits for. Its error is [cdc.ErrSlotActive] when
// there is one already.
func (s *state) begin(ctx context.Context) error {
	lock, err := s.queries.LockBeginning(ctx, s.slot)
	if err != nil {
		return fmt.Errorf("lock slot %s: %w", s.slot, err)
	}
	if lock.Ours {
		return nil
	}
	if err := s.noStranger(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: another process begins on slot %s", cdc.ErrSlotActive, s.slot)
}

// noStranger names who has the lock of those that begin, and is no relay's role:
// anybody who may log in can take it, and would be waited for like another process.
func (s *state) noStranger(ctx context.Context) error {
	who, err := s.queries.BeginningStranger(ctx, s.slot)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look who begins on slot %s: %w", s.slot, err)
	}
	return &cdc.StartError{Code: cdc.CodeLockHeld, What: fmt.Sprintf("role %q (PID %d), which is no relay's, holds the advisory lock by which the processes of slot %s begin one at a time", who.Role, who.Pid, s.slot),
		Cure: fmt.Sprintf("end that session, as its role, as a superuser or with pg_signal_backend: SELECT pg_catalog.pg_terminate_backend(%d, 5000);", who.Pid)}
}

// begun lets others begin: the slot is held now.
func (s *state) begun(ctx context.Context) error {
	ours, err := s.queries.UnlockBeginning(ctx, s.slot)
	if err == nil && !ours {
		err = errors.New("another session has it")
	}
	if err != nil {
		return fmt.Errorf("unlock slot %s: %w", s.slot, err)
	}
	return nil
}

// slotFree returns [cdc.ErrSlotActive] when somebody streams from the slot. To
// try all the same would end in the same, and in a line of the server's log.
func (s *state) slotFree(ctx context.Context) error {
	pid, err := s.queries.SlotActive(ctx, s.slot)
	switch {
	case err != nil:
		return fmt.Errorf("look whether slot %s is free: %w", s.slot, err)
	case pid != 0:
		return fmt.Errorf("%w: by PID %d", cdc.ErrSlotActive, pid)
	}
	return nil
}

// take makes this session the owner: it writes the row when there is none, and
// raises the epoch. It must come after START_REPLICATION, which proves that no
// other session streams.
func (s *state) take(ctx context.Context, first outboxdb.InsertRelayStateParams) (outboxdb.RelayState, error) {
	if _, err := s.queries.InsertRelayState(ctx, first); err != nil {
		return outboxdb.RelayState{}, fmt.Errorf("insert relay state of slot %s: %w", s.slot, err)
	}
	row, err := s.queries.BumpEpoch(ctx, outboxdb.BumpEpochParams{Slot: s.slot, Relay: first.Relay})
	if err != nil {
		return row, fmt.Errorf("raise epoch of slot %s: %w", s.slot, err)
	}
	s.epoch = row.Epoch
	return row, nil
}

// owns returns [ErrFenced] when another session has raised the epoch.
func (s *state) owns(ctx context.Context) error {
	row, _, err := s.load(ctx)
	if err == nil && row.Epoch != s.epoch {
		return ErrFenced
	}
	return err
}

// save writes a checkpoint, durably, and returns its tick. [ErrFenced] says that
// another session has raised the epoch.
func (s *state) save(ctx context.Context, c ledger.Checkpoint) (tick int64, err error) {
	if fault.Is(fault.NoEpoch) {
		return s.unfenced(ctx, c.Order)
	}
	meta := c.Meta()
	tick, err = s.queries.SaveCheckpoint(ctx, outboxdb.SaveCheckpointParams{ConfirmedLsn: c.Order.String(), Checkpoint: &meta, Slot: s.slot, Epoch: s.epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrFenced
	}
	if err != nil {
		return 0, fmt.Errorf("save checkpoint %s of slot %s: %w", c.Order, s.slot, err)
	}
	return tick, nil
}

// raiseTick makes the tick of the next checkpoint in Kafka, durably.
func (s *state) raiseTick(ctx context.Context) (int64, error) {
	tick, err := s.queries.RaiseTick(ctx, outboxdb.RaiseTickParams{Slot: s.slot, Epoch: s.epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrFenced
	}
	if err != nil {
		return 0, fmt.Errorf("raise tick of slot %s: %w", s.slot, err)
	}
	return tick, nil
}

// enterExactlyOnce records that the checkpoint is in Kafka.
func (s *state) enterExactlyOnce(ctx context.Context) error {
	n, err := s.queries.EnterExactlyOnce(ctx, outboxdb.EnterExactlyOnceParams{Slot: s.slot, Epoch: s.epoch})
	return s.fenced("enter exactly-once mode", n, err)
}

// leaveExactlyOnce takes the checkpoint over from Kafka.
func (s *state) leaveExactlyOnce(ctx context.Context, c *ledger.Checkpoint) (tick int64, err error) {
	meta := c.Meta()
	tick, err = s.queries.LeaveExactlyOnce(ctx, outboxdb.LeaveExactlyOnceParams{ConfirmedLsn: c.Order.String(), Checkpoint: &meta, Slot: s.slot, Epoch: s.epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrFenced
	}
	if err != nil {
		return 0, fmt.Errorf("leave exactly-once mode of slot %s: %w", s.slot, err)
	}
	return tick, nil
}

// snapshot takes a snapshot of the database, and reads what the publication is
// like, and what the relay knows of it, in the same statement.
func (s *state) snapshot(ctx context.Context, publication string) (outboxdb.TakeSnapshotRow, error) {
	row, err := s.queries.TakeSnapshot(ctx, outboxdb.TakeSnapshotParams{Publication: publication, Slot: s.slot})
	if err != nil {
		return row, fmt.Errorf("take snapshot: %w", err)
	}
	return row, nil
}

func (s *state) savePublished(ctx context.Context, published snapshot.Snapshot) error {
	n, err := s.queries.SavePublished(ctx, outboxdb.SavePublishedParams{
		Slot: s.slot, Epoch: s.epoch, Snapshot: published.Text, TakenAt: published.At, Attachings: published.Attachings,
	})
	return s.fenced("save published snapshot", n, err)
}

func (s *state) saveCatalog(ctx context.Context, catalog string) error {
	n, err := s.queries.SavePublicationCatalog(ctx, outboxdb.SavePublicationCatalogParams{PublicationCatalog: &catalog, Slot: s.slot, Epoch: s.epoch})
	return s.fenced("save what is known of the publication", n, err)
}

// follow records that the server went on to another timeline.
func (s *state) follow(ctx context.Context, timeline int32) error {
	n, err := s.queries.SaveTimeline(ctx, outboxdb.SaveTimelineParams{Timeline: timeline, Slot: s.slot, Epoch: s.epoch})
	return s.fenced("save timeline", n, err)
}

// fenced turns an update that found no row of this epoch into [ErrFenced].
func (s *state) fenced(what string, rows int64, err error) error {
	if err == nil && rows == 0 {
		err = ErrFenced
	}
	if err != nil {
		return fmt.Errorf("%s of slot %s: %w", what, s.slot, err)
	}
	return nil
}

// commitGrace is how long a transaction that is under way may take when the session
// ends meanwhile.
const commitGrace = 5 * time.Second

// write runs work in one transaction that counts only while this session owns
// the slot; else the error is [ErrFenced] and nothing was changed. A graceful stop
// lets it end: it would close the connection, which the last flush needs.
func (s *state) write(ctx context.Context, what string, work func(*outboxdb.Queries) error) error {
	ctx, cancel := outlast(ctx, commitGrace)
	defer cancel()
	err := pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		q := s.queries.WithTx(tx)
		if _, err := q.LockEpoch(ctx, outboxdb.LockEpochParams{Slot: s.slot, Epoch: s.epoch}); err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				return ErrFenced
			}
			return err
		}
		return work(q)
	})
	if err != nil {
		return fmt.Errorf("%s of slot %s: %w", what, s.slot, err)
	}
	return nil
}

// counted is what a transaction of letters or of what waits adds to the counter that
// a checkpoint carries. Everything counts that a database which went back in time
// must not lack: a letter, an effect of a control, a retry that failed. What settles
// retries does not: it is done again.
type counted struct {
	writes  int
	skipped *uuid.UUID // of the word that is obeyed by it, and forgotten
}

// count runs work as [state.write] does, and raises the counter.
func (s *state) count(ctx context.Context, what string, work func(*outboxdb.Queries) (counted, error)) error {
	var written int64
	err := s.write(ctx, what, func(q *outboxdb.Queries) error {
		c, err := work(q)
		if err != nil {
			return err
		}
		written, err = q.CountLetters(ctx, outboxdb.CountLettersParams{Slot: s.slot, Added: int64(c.writes), Skipped: c.skipped})
		return err
	})
	if err == nil {
		s.written = written
	}
	return err
}

// outlast returns a context that ends the given time after ctx does.
func outlast(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-out.Done():
		}
	})
	return out, func() { stop(); cancel() }
}
