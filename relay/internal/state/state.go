package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/snapshot"
)

// ErrFenced: a newer session of this relay owns the slot, or a command of an
// operator wants the next one to begin anew. This one stops without having
// written anything after that.
var ErrFenced = errors.New("fenced: a newer session or a command of outboxctl ended this one")

// State reads and writes this relay's row of onceward.relay_state, over one
// connection of one goroutine. Every write checks the epoch, so that a process
// that wakes after another took over changes nothing.
type State struct {
	Conn    *pgx.Conn
	Queries *outboxdb.Queries
	Slot    string
	Epoch   int64
	Written int64 // the counter of relay_state, see count
}

// New returns the state of a slot over a connection, which no session owns yet.
func New(conn *pgx.Conn, slot string) *State {
	return &State{Conn: conn, Queries: outboxdb.New(conn), Slot: slot}
}

// Load returns the row, or false when this relay never ran.
func (s *State) Load(ctx context.Context) (outboxdb.RelayState, bool, error) {
	row, err := s.Queries.LoadRelayState(ctx, s.Slot)
	if errors.Is(err, pgx.ErrNoRows) {
		return row, false, nil
	}
	if err != nil {
		return row, false, fmt.Errorf("load relay state of slot %s: %w", s.Slot, err)
	}
	return row, true, nil
}

// Take makes this session the owner: it writes the row when there is none, and
// raises the epoch. It must come after START_REPLICATION, which proves that no
// other session streams.
func (s *State) Take(ctx context.Context, first outboxdb.InsertRelayStateParams) (outboxdb.RelayState, error) {
	if _, err := s.Queries.InsertRelayState(ctx, first); err != nil {
		return outboxdb.RelayState{}, fmt.Errorf("insert relay state of slot %s: %w", s.Slot, err)
	}
	row, err := s.Queries.BumpEpoch(ctx, outboxdb.BumpEpochParams{Slot: s.Slot, Relay: first.Relay})
	if err != nil {
		return row, fmt.Errorf("raise epoch of slot %s: %w", s.Slot, err)
	}
	s.Epoch = row.Epoch
	return row, nil
}

// Owns returns [ErrFenced] when another session has raised the epoch.
func (s *State) Owns(ctx context.Context) error {
	row, _, err := s.Load(ctx)
	if err == nil && row.Epoch != s.Epoch {
		return ErrFenced
	}
	return err
}

// Save writes a checkpoint, durably, and returns its tick. [ErrFenced] says that
// another session has raised the epoch.
func (s *State) Save(ctx context.Context, c ledger.Checkpoint) (tick int64, err error) {
	if fault.Is(fault.NoEpoch) {
		return s.Unfenced(ctx, c.Order)
	}
	meta := c.Meta()
	tick, err = s.Queries.SaveCheckpoint(ctx, outboxdb.SaveCheckpointParams{ConfirmedLsn: c.Order.String(),
		Checkpoint: &meta, Slot: s.Slot, Epoch: s.Epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrFenced
	}
	if err != nil {
		return 0, fmt.Errorf("save checkpoint %s of slot %s: %w", c.Order, s.Slot, err)
	}
	return tick, nil
}

// RaiseTick makes the tick of the next checkpoint in Kafka, durably.
func (s *State) RaiseTick(ctx context.Context) (int64, error) {
	tick, err := s.Queries.RaiseTick(ctx, outboxdb.RaiseTickParams{Slot: s.Slot, Epoch: s.Epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrFenced
	}
	if err != nil {
		return 0, fmt.Errorf("raise tick of slot %s: %w", s.Slot, err)
	}
	return tick, nil
}

// EnterExactlyOnce records that the checkpoint is in Kafka.
func (s *State) EnterExactlyOnce(ctx context.Context) error {
	n, err := s.Queries.EnterExactlyOnce(ctx, outboxdb.EnterExactlyOnceParams{Slot: s.Slot, Epoch: s.Epoch})
	return s.Fenced("enter exactly-once mode", n, err)
}

// LeaveExactlyOnce takes the checkpoint over from Kafka.
func (s *State) LeaveExactlyOnce(ctx context.Context, c *ledger.Checkpoint) (tick int64, err error) {
	meta := c.Meta()
	tick, err = s.Queries.LeaveExactlyOnce(ctx, outboxdb.LeaveExactlyOnceParams{ConfirmedLsn: c.Order.String(),
		Checkpoint: &meta, Slot: s.Slot, Epoch: s.Epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrFenced
	}
	if err != nil {
		return 0, fmt.Errorf("leave exactly-once mode of slot %s: %w", s.Slot, err)
	}
	return tick, nil
}

// Snapshot takes a snapshot of the database, and reads what the publication is
// like, and what the relay knows of it, in the same statement.
func (s *State) Snapshot(ctx context.Context, publication string) (outboxdb.TakeSnapshotRow, error) {
	row, err := s.Queries.TakeSnapshot(ctx, outboxdb.TakeSnapshotParams{Publication: publication, Slot: s.Slot})
	if err != nil {
		return row, fmt.Errorf("take snapshot: %w", err)
	}
	return row, nil
}

// SavePublished writes the published snapshot.
func (s *State) SavePublished(ctx context.Context, published snapshot.Snapshot) error {
	n, err := s.Queries.SavePublished(ctx, outboxdb.SavePublishedParams{
		Slot: s.Slot, Epoch: s.Epoch, Snapshot: published.Text, TakenAt: published.At, Attachings: published.Attachings,
	})
	return s.Fenced("save published snapshot", n, err)
}

// SaveCatalog writes what is known of the publication.
func (s *State) SaveCatalog(ctx context.Context, catalog string) error {
	n, err := s.Queries.SavePublicationCatalog(ctx,
		outboxdb.SavePublicationCatalogParams{PublicationCatalog: &catalog, Slot: s.Slot, Epoch: s.Epoch})
	return s.Fenced("save what is known of the publication", n, err)
}

// Follow records that the server went on to another timeline.
func (s *State) Follow(ctx context.Context, timeline int32) error {
	n, err := s.Queries.SaveTimeline(ctx, outboxdb.SaveTimelineParams{Timeline: timeline, Slot: s.Slot, Epoch: s.Epoch})
	return s.Fenced("save timeline", n, err)
}

// Fenced turns an update that found no row of this epoch into [ErrFenced].
func (s *State) Fenced(what string, rows int64, err error) error {
	if err == nil && rows == 0 {
		err = ErrFenced
	}
	if err != nil {
		return fmt.Errorf("%s of slot %s: %w", what, s.Slot, err)
	}
	return nil
}

// Unfenced is [State.Save] with [fault.NoEpoch].
func (s *State) Unfenced(ctx context.Context, position pglogrepl.LSN) (tick int64, err error) {
	err = s.Conn.QueryRow(ctx, `UPDATE onceward.relay_state SET confirmed_lsn = $1, tick = tick + 1 WHERE slot = $2 RETURNING tick`,
		position.String(), s.Slot).Scan(&tick)
	return tick, err
}

// Kept is the checkpoint of relay_state. A relay of an older release moves the
// position alone: then what the text says of the stream is out of date.
func Kept(row outboxdb.RelayState) (ledger.Checkpoint, error) {
	confirmed, err := ledger.ParseLSN(row.ConfirmedLsn)
	if err != nil {
		return ledger.Checkpoint{}, err
	}
	kept := ledger.Checkpoint{Order: confirmed}
	if row.Checkpoint != nil {
		if kept, err = ledger.Read(*row.Checkpoint); err != nil {
			return kept, fmt.Errorf("read the checkpoint of slot %s: %w", row.Slot, err)
		}
		if kept.Order != confirmed {
			kept.Order, kept.UpTo = confirmed, ledger.Place{}
		}
	}
	kept.Timeline, kept.Tick, kept.Letters = row.Timeline, row.Tick, row.DeadLetters
	return kept, nil
}

// BoundTo returns the cluster that a relay is bound to; empty: none is known.
func BoundTo(row outboxdb.RelayState) string {
	if row.KafkaCluster == nil {
		return ""
	}
	return *row.KafkaCluster
}
