package beginning

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
)

// Values of outbox.start.
const (
	StartAsk = "ask"
	StartNow = "now"
	StartAll = "all"
)

// Config is what a session tells its beginner.
type Config struct {
	Relay, Slot, Publication string // names
	Start, Gap               string // what the settings outbox.start and gap say
	Create                   bool   // the slot may be made
	Failover                 bool   // it is to be synchronised to standbys

	Connect func(ctx context.Context) (*pgx.Conn, error) // beside the session's connection
	Refuse  func(setting, why string) error              // makes the error of a setting that forbids to begin
}

// Told is how a beginner tells what it does, which may take as long as it takes.
type Told struct {
	Asks  func(what string) // of PostgreSQL
	Waits func(what string) // for transactions that are open, or the slot
	Names func(what string) // who is waited for meanwhile
}

// lookLimit bounds a look beside the session's connection.
const lookLimit = 30 * time.Second

// Known is what a process knows of its last session.
type Known struct {
	SystemID string
	Timeline int32
	Tick     int64
	Letters  int64
}

// Beginner is what a session is made of that begins: it finds where, by what
// PostgreSQL says, and whether it may. Before the slot is held nothing is changed but
// the slot itself.
type Beginner struct {
	conf      Config
	log       *slog.Logger
	state     *state.State // of the checkpoint's goroutine
	told      Told
	beginning *beginning         // where a relay without a checkpoint that fits starts; nil: it has one
	repairs   map[uuid.UUID]bool // the gaps that this session repairs
}

// New makes the beginner of a session, of its state; what only looks needs no
// log, and tells nothing.
func New(conf Config, log *slog.Logger, owner *state.State, tell Told) *Beginner {
	return &Beginner{conf: conf, log: log, state: owner, told: tell}
}

// Prepare checks the server, makes the slot when it may, and finds the beginning
// of a relay that has none that fits: at the first start, and after a gap. The
// first start over a table with rows is never decided in silence, nor is a slot
// made before it is decided: one that waits for a person pins the log.
func (s *Beginner) Prepare(ctx context.Context, source cdc.Config, found *GapError, last Known) error {
	if err := s.state.Begin(ctx); err != nil {
		return err
	}
	row, existed, err := s.state.Load(ctx)
	if err != nil {
		return s.notInstalled(ctx, source, err)
	}
	if err := s.sameSystem(ctx, row, existed); err != nil {
		return err
	}
	if err := cdc.Check(ctx, s.state.Conn, source); err != nil {
		return s.unlogged(ctx, row, existed, err)
	}
	began, err := s.state.Began(ctx)
	if err != nil {
		return err
	}
	if err := cdc.CheckSlotElsewhere(ctx, s.state.Conn, source); err != nil {
		return err
	}
	if err := s.refuseFilled(ctx, row); err != nil {
		return err
	}
	if found != nil && found.Epoch != row.Epoch {
		found = nil // another session was there meanwhile, and has found it or will
	}
	found = adopted(row, found)
	if !existed {
		s.told.Asks("count the events of onceward.outbox")
		others, err := s.mayBegin(ctx)
		if err != nil {
			return err
		}
		if others != "" {
			s.log.WarnContext(ctx, "the first start of this relay"+others)
		}
	}
	gone, err := s.ensureSlot(ctx, source, began)
	if err != nil {
		return err
	}
	switch {
	case gone != nil && found != nil:
		found.Advance = false // the slot is a new one
	case gone != nil && began:
		found = last.slotGone(gone, row)
	}
	if began && found == nil {
		return nil
	}
	if found != nil && found.Advance {
		if err := s.passLog(ctx); err != nil {
			return err
		}
	}
	return s.findBeginning(ctx, found, row)
}

// passLog leads the slot past log, for which PostgreSQL waits as for what it sends: until
// the standbys of synchronized_standby_slots have it.
func (s *Beginner) passLog(ctx context.Context) error {
	what := "slot " + s.conf.Slot + " is led past log that the server would refuse to decode"
	s.told.Waits(what)
	stop := s.naming(ctx, what, awaitedStandbys)
	defer stop()
	return s.state.PassLog(ctx)
}

// findBeginning finds where the relay begins. It is measured before the slot is
// held, because nobody reads meanwhile what the server sends to who holds it.
func (s *Beginner) findBeginning(ctx context.Context, found *GapError, row outboxdb.RelayState) (err error) {
	b := &beginning{cause: found, epoch: row.Epoch}
	if b.at, err = s.state.SlotPosition(ctx); err != nil {
		return err
	}
	end, err := s.barrier(ctx)
	if err != nil {
		return err
	}
	// It was waited for transactions that were open: one may have attached a partition.
	if err := s.refuseFilled(ctx, row); err != nil {
		return err
	}
	b.end, b.catalog, b.known = snapshot.Of(end), end.PublicationCatalog, end.KnownCatalog
	s.beginning = b
	s.told.Asks("count the events that the stream will not bring")
	b.gap, err = s.measure(ctx)
	return err
}

// notInstalled lets the checks name what an error comes from: tables that are
// missing, rights that the role lacks.
func (s *Beginner) notInstalled(ctx context.Context, source cdc.Config, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if failed := cdc.Check(ctx, s.state.Conn, source); failed != nil {
		return failed
	}
	return err
}

// sameSystem says that the database is another before anything is said of its
// slot, which a copy does not have.
func (s *Beginner) sameSystem(ctx context.Context, row outboxdb.RelayState, existed bool) error {
	if !existed {
		return nil
	}
	var system string
	if err := s.state.Conn.QueryRow(ctx, `SELECT system_identifier::text FROM pg_catalog.pg_control_system()`).Scan(&system); err != nil {
		return fmt.Errorf("read the system identifier: %w", err)
	}
	if system == row.SystemIdentifier {
		return nil
	}
	return otherSystem(row, system)
}

// mayBegin asks about the rows that a table holds before the relay's first start, and
// refuses to begin anew what has run under another slot. It names the other relays.
func (s *Beginner) mayBegin(ctx context.Context) (others string, err error) {
	others, err = s.others(ctx)
	if err != nil || s.conf.Start != StartAsk {
		return others, err
	}
	rows, err := s.state.Queries.CountOutbox(ctx)
	if err != nil {
		return "", fmt.Errorf("count the events of onceward.outbox: %w", err)
	}
	if rows == 0 {
		return others, nil
	}
	slot, err := s.slotMeanwhile(ctx)
	if err != nil {
		return "", err
	}
	return "", s.conf.Refuse("outbox.start", fmt.Sprintf("onceward.outbox holds %s, and relay %s has not begun here, or was retired; %s. "+
		"Set outbox.start: all (or give --set outbox.start=all) and restart the relay to publish them first, or outbox.start: now to publish only what commits from now on: "+
		"these events are never called published then, and retention keeps them until outboxctl partitions maintain --config relay.yaml --drop-before --reason \"…\" lets them go%s", label.Count(rows, "event"), s.conf.Relay, slot, others))
}

// others refuses a name that has run with another slot, and names the relays that may be
// this one under the name before: what they published would be published again.
func (s *Beginner) others(ctx context.Context) (words string, err error) {
	rows, err := s.state.Queries.OtherRelays(ctx, s.conf.Slot)
	if err != nil {
		return "", fmt.Errorf("look for other relays of the outbox: %w", err)
	}
	for _, row := range rows {
		if row.Relay == s.conf.Relay {
			return "", s.conf.Refuse("postgres.slot.name", fmt.Sprintf("%s: relay %s runs with slot %s, or did; with another it would begin anew, over all that it has published, and owe what it has not. "+
				"Put postgres.slot.name: %s (or name: back). If that relay is gone for good and this is another, forget it by outboxctl retire --slot %s --reason \"…\", "+
				"or give this one another name",
				s.conf.Slot, s.conf.Relay, row.Slot, row.Slot, row.Slot))
		}
		words += fmt.Sprintf("; relay %s publishes this outbox too, or did: if this is that one with a new name, put postgres.slot.name: %s and postgres.publication: %s",
			row.Relay, row.Slot, row.Publication)
	}
	return words, nil
}

// slotMeanwhile says what the slot costs while a person is asked: one is there that
// an operator made, or a relay that died before it had written its beginning down.
func (s *Beginner) slotMeanwhile(ctx context.Context) (string, error) {
	var there bool
	if err := s.state.Conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1
		AND database = pg_catalog.current_database())`, s.conf.Slot).Scan(&there); err != nil {
		return "", fmt.Errorf("look for slot %s: %w", s.conf.Slot, err)
	}
	if there {
		return "slot " + s.conf.Slot + " is there already, and keeps log until this is decided", nil
	}
	return "no slot was made", nil
}

// ensureSlot checks the slot, and makes it when it may. The slot of a relay that
// has begun is made anew only with a gap: then it returns what was wrong with it.
func (s *Beginner) ensureSlot(ctx context.Context, source cdc.Config, began bool) (gone *cdc.StartError, err error) {
	stop := s.naming(ctx, "the replication slot waits for transactions that were open when it was begun", openTransactions)
	defer stop()
	err = cdc.EnsureSlot(ctx, s.state.Conn, source, began)
	if !errors.As(err, &gone) || !source.CreateSlot || gone.Code != cdc.CodeSlotLost &&
		(!began || gone.Code != cdc.CodeSlotMissing) {
		if err == nil && !began {
			fault.Crash(fault.AfterSlot)
		}
		return nil, err
	}
	if gone.Code == cdc.CodeSlotLost {
		if err := s.state.DropSlot(ctx); err != nil {
			return nil, err
		}
	}
	s.log.WarnContext(ctx, "the slot is made anew", "slot", s.conf.Slot, "why", gone.What)
	if err := cdc.EnsureSlot(ctx, s.state.Conn, source, false); err != nil {
		return nil, err
	}
	fault.Crash(fault.AfterSlot)
	return gone, nil
}

// unlogged remembers that a partition was found unlogged: when that is mended,
// everything looks as before, and what was written meanwhile was never sent.
func (s *Beginner) unlogged(ctx context.Context, row outboxdb.RelayState, existed bool, err error) error {
	var start *cdc.StartError
	if !existed || !errors.As(err, &start) || start.Code != cdc.CodeTableUnlogged {
		return err
	}
	return s.doubt(ctx, row, knownUnlogged, err)
}

// doubt writes down what a session met that does not begin, and returns it: once
// it is mended, the publication is not taken for the same.
func (s *Beginner) doubt(ctx context.Context, row outboxdb.RelayState, what string, met error) error {
	seen := *s.state
	seen.Epoch = row.Epoch
	return errors.Join(met, seen.SaveCatalog(ctx, what))
}

// Anew reports whether the session begins anew: at the first start, and after a gap.
func (s *Beginner) Anew() bool { return s.beginning != nil }

// Repairing reports whether the session repairs a gap.
func (s *Beginner) Repairing(gap uuid.UUID) bool { return s.repairs[gap] }

// RepairFrom says of the gaps that this session repairs from where: Kafka or the
// database knows how far the repair of each has come.
func (s *Beginner) RepairFrom(gaps []stream.Gap, kept ledger.Repair) []stream.Gap {
	s.repairs = make(map[uuid.UUID]bool, len(gaps))
	for i := range gaps {
		if gaps[i].ID == kept.Gap {
			gaps[i].Cursor = max(gaps[i].Cursor, kept.Cursor)
		}
		s.repairs[gaps[i].ID] = true
	}
	return gaps
}
