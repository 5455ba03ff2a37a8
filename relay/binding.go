package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
)

// Codes of the gaps: the checkpoint does not fit the server that it is used on,
// or events may have passed the relay by. Each stops the relay by name, because
// to go on would skip events in silence.
const (
	CodeOtherSystem         = "OTHER_SYSTEM"
	CodeOtherTimeline       = "OTHER_TIMELINE"
	CodeCheckpointBeyondLog = "CHECKPOINT_BEYOND_LOG"
	CodeWentBack            = "WENT_BACK"
	CodeSlotAdvanced        = "SLOT_ADVANCED"
	CodePublicationChanged  = "PUBLICATION_CHANGED"
)

// binding is what is compared at every connect.
type binding struct {
	slot         string
	row          outboxdb.RelayState
	system       pglogrepl.IdentifySystemResult
	checkpoint   pglogrepl.LSN
	slotPosition pglogrepl.LSN
	switched     pglogrepl.LSN // where the server left the checkpoint's timeline; 0: it never was on it
	last         owned         // what this process knows from its last session
}

// bind checks the binding, and follows the server to another timeline if the
// checkpoint is part of its history.
func (s *session) bind(ctx context.Context, row outboxdb.RelayState, checkpoint, slotPosition pglogrepl.LSN, last owned) error {
	b := binding{slot: row.Slot, row: row, system: s.reader.System(), checkpoint: checkpoint, slotPosition: slotPosition, last: last}
	moved := row.Timeline != b.system.Timeline
	if moved {
		at, ok, err := s.reader.SwitchPoint(row.Timeline)
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
	if moved {
		s.log.WarnContext(ctx, "the server is on another timeline, which holds the checkpoint", "from", row.Timeline, "to", b.system.Timeline, "checkpoint", checkpoint.String())
		if err := s.state.follow(ctx, b.system.Timeline); err != nil {
			return err
		}
	}
	return s.rememberCatalog(ctx, row)
}

// check is pure: it says which gap there is, if any.
func (b binding) check() error {
	gap := func(code, format string, args ...any) error {
		return &cdc.StartError{Code: code, What: fmt.Sprintf(format, args...), Cure: fmt.Sprintf(
			"compare table and topic before going on; to accept the gap and start from the slot's position: DELETE FROM onceward.relay_state WHERE slot = '%s';", b.slot)}
	}
	switch {
	case b.row.SystemIdentifier != b.system.SystemID:
		return gap(CodeOtherSystem, "the checkpoint of slot %s was made on system %s, this server is %s (a restored copy, or another cluster)",
			b.slot, b.row.SystemIdentifier, b.system.SystemID)
	case b.row.Timeline != b.system.Timeline && b.checkpoint > b.switched:
		return gap(CodeOtherTimeline, "the checkpoint %s of slot %s was made on timeline %d, which this server, on timeline %d, left at %s",
			b.checkpoint, b.slot, b.row.Timeline, b.system.Timeline, b.switched)
	case b.row.Timeline == b.system.Timeline && b.last.systemID == b.system.SystemID && b.last.timeline == b.row.Timeline && b.row.Tick < b.last.tick:
		return gap(CodeWentBack, "the database of slot %s went back in time: its tick is %d, this process has seen %d (a snapshot was restored under it)",
			b.slot, b.row.Tick, b.last.tick)
	case b.checkpoint > b.system.XLogPos:
		return gap(CodeCheckpointBeyondLog, "the checkpoint %s of slot %s is beyond the end of the log %s: the database went back in time",
			b.checkpoint, b.slot, b.system.XLogPos)
	case b.slotPosition > b.checkpoint:
		return gap(CodeSlotAdvanced, "slot %s stands at %s, ahead of the checkpoint %s: it was made anew or advanced, and events in between were not sent",
			b.slot, b.slotPosition, b.checkpoint)
	}
	return nil
}

// rememberCatalog compares what is known of the publication with what is there
// now. Rows written while it was another may never have been sent.
func (s *session) rememberCatalog(ctx context.Context, row outboxdb.RelayState) error {
	now, err := s.state.snapshot(ctx, s.cfg.PublicationName())
	if err != nil {
		return err
	}
	if row.PublicationCatalog != nil {
		s.catalog = *row.PublicationCatalog
		return s.samePublication(now.PublicationCatalog)
	}
	s.catalog = now.PublicationCatalog
	return s.state.saveCatalog(ctx, s.catalog)
}

func (s *session) samePublication(now string) error {
	if now == s.catalog {
		return nil
	}
	return &cdc.StartError{
		Code: CodePublicationChanged,
		What: fmt.Sprintf("publication %s was made anew or changed, or the outbox was taken out of it and put back (known: %s; now: %s); events of the time between may not have been sent",
			s.cfg.PublicationName(), s.catalog, now),
		Cure: fmt.Sprintf("compare table and topic before going on; to accept the gap: UPDATE onceward.relay_state SET publication_catalog = NULL WHERE slot = '%s';", s.cfg.SlotName()),
	}
}
