package beginning

import (
	"context"
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
)

// Codes of the gaps: the checkpoint does not fit the server that it is used on,
// or events may have passed the relay by. Each is written down, because to go on
// would skip events in silence; but another system is no gap of this one.
const (
	CodeOtherSystem         = "OTHER_SYSTEM"
	CodeOtherTimeline       = "OTHER_TIMELINE"
	CodeCheckpointBeyondLog = "CHECKPOINT_BEYOND_LOG"
	CodeWentBack            = "WENT_BACK"
	CodeSlotAdvanced        = "SLOT_ADVANCED"
	CodeLettersLost         = "LETTERS_LOST"
	CodePublicationChanged  = "PUBLICATION_CHANGED"
)

// CodeOtherKafka: the brokers are of another cluster than the one that holds what
// the account calls published. It halts the relay, and is the cause of the gaps
// that `outboxctl adopt --kafka gap` leaves.
const CodeOtherKafka = "OTHER_KAFKA"

// binding is what is compared at every connect.
type binding struct {
	slot         string
	row          outboxdb.RelayState
	system       pglogrepl.IdentifySystemResult
	kept         ledger.Checkpoint // from the mode's own place
	slotPosition pglogrepl.LSN
	gap          uint64        // the end of the last gap that the database has
	switched     pglogrepl.LSN // where the server left the checkpoint's timeline; 0: it never was on it
	last         Known         // what this process knows from its last session
}

// Taken is what a session has taken over: the relay's row, where its slot stood, and the
// end of its last gap.
type Taken struct {
	Row          outboxdb.RelayState
	SlotPosition pglogrepl.LSN
	Gap          uint64
}

// Bind checks the binding, and follows the server to another timeline if the
// checkpoint is part of its history.
func (s *Beginner) Bind(ctx context.Context, reader *cdc.Reader, taken Taken, kept ledger.Checkpoint,
	last Known) error {
	row := taken.Row
	b := binding{slot: row.Slot, row: row, system: reader.System(), kept: kept, slotPosition: taken.SlotPosition,
		gap: taken.Gap, last: last}
	if kept.Timeline != b.system.Timeline {
		at, ok, err := reader.SwitchPoint(kept.Timeline)
		if err != nil {
			return err
		}
		if ok {
			b.switched = at
		}
	}
	if err := b.check(); err != nil {
		return err
	}
	if row.Timeline != b.system.Timeline {
		s.log.WarnContext(ctx, "the server is on another timeline, which holds the checkpoint", "from", row.Timeline, "to", b.system.Timeline, "checkpoint", kept.Order.String())
		if err := s.state.Follow(ctx, b.system.Timeline); err != nil {
			return err
		}
	}
	return s.rememberCatalog(ctx)
}

// otherSystem: transaction ids of another cluster mean nothing here.
func otherSystem(row outboxdb.RelayState, system string) error {
	return &cdc.StartError{
		Code: CodeOtherSystem, What: fmt.Sprintf("relay %s (slot %s) has run on system %s, this server is %s: a restored copy, or another cluster", row.Relay, row.Slot, row.SystemIdentifier, system),
		Cure: "if this is not the database that you meant, put the right one into the DSN (postgres.dsn, or the file of postgres.dsn_file); " +
			"if it takes the place of the other for good: outboxctl adopt --by copy --reason \"…\", or --by dump --reason \"…\" (outboxctl adopt --help says which)",
	}
}

// adoptedAt is the checkpoint that `outboxctl adopt --by` writes: before everything.
const adoptedAt = "0/1"

// check is pure: it says which gap there is, if any.
func (b binding) check() error {
	gap := func(code, format string, args ...any) error {
		return &GapError{
			Code: code, What: fmt.Sprintf(format, args...), Tick: max(b.kept.Tick, b.last.Tick),
			Letters: max(b.kept.Letters, b.last.Letters),
			Advance: code == CodeOtherSystem, // what the slot keeps may be of tables that were dropped
		}
	}
	c, same := &b.kept, b.kept.Timeline == b.system.Timeline
	known := b.last.SystemID == b.system.SystemID // this process has been here
	switch {
	case b.row.SystemIdentifier != b.system.SystemID:
		return otherSystem(b.row, b.system.SystemID)
	case b.row.ConfirmedLsn == adoptedAt:
		return gap(CodeOtherSystem, "relay %s was adopted here: events that were pending in the database that it came from, "+
			"or are not proved to be published, are not in the log of slot %s", b.row.Relay, b.slot)
	case fault.Is(fault.NoHistory):
		return nil
	case !same && max(c.Order, c.UpTo.Commit) > b.switched:
		return gap(CodeOtherTimeline, "the checkpoint %s of slot %s was made on timeline %d, which this server, on timeline %d, left at %s",
			max(c.Order, c.UpTo.Commit), b.slot, c.Timeline, b.system.Timeline, b.switched)
	case same && b.row.Tick < c.Tick:
		return gap(CodeWentBack, "the database of slot %s went back in time: its tick is %d, the checkpoint in Kafka has %d (a snapshot was restored under it)",
			b.slot, b.row.Tick, c.Tick)
	case same && c.Strange:
		return gap(CodeWentBack, strangeCheckpoint, b.slot, c.Order)
	case known && b.row.Tick < b.last.Tick && (same && b.last.Timeline == b.system.Timeline ||
		b.slotPosition > c.Order):
		return gap(CodeWentBack, wentBack, b.slot, b.row.Tick, b.last.Tick)
	case b.row.DeadLetters < c.Letters || known && b.row.DeadLetters < b.last.Letters:
		return gap(CodeLettersLost, lettersLost, b.slot, b.row.DeadLetters, max(c.Letters, b.last.Letters))
	case max(c.Order, c.UpTo.Commit) > b.system.XLogPos:
		return gap(CodeCheckpointBeyondLog, "the checkpoint %s of slot %s is beyond the end of the log %s: the database went back in time",
			max(c.Order, c.UpTo.Commit), b.slot, b.system.XLogPos)
	case c.Gap > b.gap: // the checkpoint fits, what it was made behind does not
		return gap(CodeSlotAdvanced, lostGap, c.Order, b.slot)
	case b.slotPosition > c.Order:
		return gap(CodeSlotAdvanced, "slot %s stands at %s, ahead of the checkpoint %s: it was made anew or advanced, and events in between were not sent",
			b.slot, b.slotPosition, c.Order)
	}
	return nil
}

// What a process, or Kafka, knows that the database does not.
const (
	strangeCheckpoint = "the checkpoint in Kafka of slot %s, %s, was made by a session that this database does not know: it went back in time " +
		"(a snapshot was restored under it), or the relay of another copy of it publishes to the same Kafka: stop that one before you decide"
	wentBack = "the database of slot %s went back in time: its tick is %d, this process has seen %d (a snapshot was restored under it, " +
		"or a standby that lagged was promoted); Kafka may hold events that it lacks"
	lostGap = "the checkpoint %s in Kafka was made behind a gap of slot %s that this database has lost (a standby that lagged was promoted): " +
		"whether the events in it were published is not known"
	lettersLost = "the database of slot %s has lost writes of dead letters or of what waits: it counts %d, %d were made " +
		"(it went back in time, or a standby without them was promoted)"
)

// slotGone is the gap of a slot that is missing or lost. A database that went back in
// time mostly lacks the slot too: where this process knows it, that is the cause.
func (o Known) slotGone(start *cdc.StartError, row outboxdb.RelayState) *GapError {
	gap := &GapError{Code: start.Code, What: start.What}
	if o.SystemID != row.SystemIdentifier {
		return gap
	}
	gap.Tick, gap.Letters = o.Tick, o.Letters
	switch {
	case row.Tick < o.Tick:
		gap.Code, gap.What = CodeWentBack, fmt.Sprintf(wentBack, row.Slot, row.Tick, o.Tick)+"; "+start.What
	case row.DeadLetters < o.Letters:
		gap.Code, gap.What = CodeLettersLost, fmt.Sprintf(lettersLost, row.Slot, row.DeadLetters, o.Letters)+"; "+start.What
	}
	return gap
}

// rememberCatalog compares what is known of the publication with what is there
// now. Rows written while it was another may never have been sent.
func (s *Beginner) rememberCatalog(ctx context.Context) error {
	now, err := s.state.Snapshot(ctx, s.conf.Publication)
	if err != nil {
		return err
	}
	if now.KnownCatalog == "" {
		return s.state.SaveCatalog(ctx, now.PublicationCatalog)
	}
	return s.SamePublication(now)
}

// What is known of the publication where something else makes it unlike any other.
const (
	knownFilled   = "filled"   // a partition came with rows, and was adopted or detached
	knownUnlogged = "unlogged" // a partition was not logged
)

// changedWords say why events may not have been sent.
func changedWords(publication, known, now string) string {
	switch known {
	case knownFilled:
		return "a partition held rows when it was attached, and was adopted or detached again; what of it no stream has brought is published from the table"
	case knownUnlogged:
		return "a partition was not logged for a time, so that what was written to it meanwhile was never sent"
	}
	return fmt.Sprintf("publication %s was made anew, changed or re-owned, or one of its tables was taken out of it and put back (known: %s; now: %s); events of the time between may not have been sent",
		publication, known, now)
}

// SamePublication compares what is known of the publication with what is there
// now. Before PostgreSQL 18 the server refuses to decode rows of a time without
// the publication.
func (s *Beginner) SamePublication(taken outboxdb.TakeSnapshotRow) error {
	known, now := taken.KnownCatalog, taken.PublicationCatalog
	if now == known {
		return nil
	}
	return &GapError{
		Code:    CodePublicationChanged,
		What:    changedWords(s.conf.Publication, known, now),
		Advance: publicationOID(now) != publicationOID(known) && cdc.ServerMajor(s.state.Conn) < 18,
	}
}
