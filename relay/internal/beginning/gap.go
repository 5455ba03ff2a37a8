package beginning

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
)

// Values of the setting gap.
const (
	GapRepair = "repair"
	GapAsk    = "ask"
)

// States of a gap, as the table has them.
const (
	gapOpen      = "open"
	gapRepairing = "repairing"
	gapRepaired  = "repaired"
	gapBefore    = "before"
)

// codeFirstStart is the cause of what was committed before a relay began.
const codeFirstStart = "FIRST_START"

// GapError: events may have passed the relay by. The session that finds it ends;
// the next one writes the gap down, takes the slot's position for its checkpoint,
// and goes on from there. The invariant: what is called published is visible in
// the published snapshot and in no gap; so, when a gap is written down, its end
// becomes the published snapshot in the same transaction.
type GapError struct {
	Code, What string
	Advance    bool  // the server may refuse to decode what the slot still keeps
	Tick       int64 // what was known: the new beginning lies above it
	Letters    int64
	Epoch      int64 // of the session that found it
}

// Error implements error.
func (e *GapError) Error() string { return e.Code + ": " + e.What }

// asked reports whether an operator decides about the gap whatever the policy is:
// the database is not the one that the checkpoint was made on any more, so that
// Kafka may hold what it lacks.
func (e *GapError) asked() bool {
	switch e.Code {
	case CodeWentBack, CodeOtherTimeline, CodeCheckpointBeyondLog:
		return true
	}
	return false
}

// gapOf finds what has to be written down in the error that ended a session.
func gapOf(err error) *GapError {
	var gap *GapError
	if errors.As(err, &gap) {
		return gap
	}
	var foreign *cdc.ForeignRowError
	if errors.As(err, &foreign) {
		// Rows of the outbox under the names of its partitions are read from the table.
		return &GapError{Code: CodePublicationChanged, What: "the publication was another: " + err.Error(), Advance: true}
	}
	var start *cdc.StartError
	if errors.As(err, &start) && start.Code == cdc.CodePublicationMissing && start.Err != nil {
		// The stream met the time without the publication: before PostgreSQL 18
		// the server refuses to decode it.
		return &GapError{Code: CodePublicationChanged, What: start.What, Advance: true}
	}
	return nil
}

// FoundIn makes the error of a session one that the next session understands, if
// it tells of a gap.
func (s *Beginner) FoundIn(err error) error {
	gap := gapOf(err)
	if gap == nil {
		return err
	}
	gap.Epoch = s.state.Epoch
	return gap
}

// beginning is where a relay starts from without a checkpoint that fits: at its
// first start, and after a gap. It is made before the slot is held, because what
// it waits for may last, and used by the session that holds the slot next.
type beginning struct {
	cause *GapError         // nil: the first start
	epoch int64             // of the session before: nobody had the slot meanwhile
	at    pglogrepl.LSN     // of the slot that E was taken for; one that nobody holds does not move
	end   snapshot.Snapshot // E: what is not visible in it comes by the stream

	catalog string // of the publication, read with E
	known   string // of it to the relay, read with E: `partitions adopt` changes it
	gap     outboxdb.InsertGapParams
}

// BeginAnew writes the beginning down, if there is one, in one transaction: the
// gap, its end as the published snapshot, and the slot's position as the
// checkpoint.
func (s *Beginner) BeginAnew(ctx context.Context, row outboxdb.RelayState, at pglogrepl.LSN,
	timeline int32) (outboxdb.RelayState, error) {
	b := s.beginning
	if b == nil {
		return row, nil
	}
	if row.Epoch != b.epoch+1 || at != b.at {
		return row, fmt.Errorf("%w: another session had slot %s while this one waited, or it was made anew", state.ErrFenced, s.conf.Slot)
	}
	found, now := b.gap, b.catalog
	var replays int64
	err := pgx.BeginFunc(ctx, s.state.Conn, func(tx pgx.Tx) error {
		q := outboxdb.New(tx)
		anew := outboxdb.BeginAnewParams{
			ConfirmedLsn: at.String(), Timeline: timeline, PublicationCatalog: &now,
			Slot: s.conf.Slot, Epoch: s.state.Epoch, KnownCatalog: b.known,
		}
		if b.cause != nil {
			anew.Tick, anew.Letters = b.cause.Tick, b.cause.Letters
		}
		if err := s.keepWaiting(ctx, q, row, at); err != nil { // orders that have ended settle their letters
			return err
		}
		if err := letters.TakeBack(ctx, q, row); err != nil {
			return err
		}
		rows, err := q.BeginAnew(ctx, anew)
		if err := s.state.Fenced("begin anew", rows, err); err != nil {
			return err
		}
		if b.cause != nil && fault.Is(fault.ForgetGap) || found.State == gapBefore && fault.Is(fault.ForgetBefore) {
			found.State = gapRepaired
		}
		if err := q.InsertGap(ctx, found); err != nil {
			return fmt.Errorf("write the gap down: %w", err)
		}
		written, err := q.ListGaps(ctx, outboxdb.ListGapsParams{States: []string{}, GapID: &found.GapID})
		if err != nil {
			return fmt.Errorf("read the gap: %w", err)
		}
		for _, g := range written {
			replays = g.Replays
		}
		rows, err = q.SavePublished(ctx, outboxdb.SavePublishedParams{
			Slot: s.conf.Slot, Epoch: s.state.Epoch, Snapshot: b.end.Text, TakenAt: b.end.At,
			Attachings: b.end.Attachings,
		})
		return s.state.Fenced("save published snapshot", rows, err)
	})
	if err != nil {
		return row, err
	}
	fault.Crash(fault.AfterGap)
	s.tellBeginning(ctx, found, replays)
	row, _, err = s.state.Load(ctx)
	return row, err
}

// keepWaiting takes over what waits for its route: it is no part of the gap.
func (s *Beginner) keepWaiting(ctx context.Context, q *outboxdb.Queries, row outboxdb.RelayState,
	at pglogrepl.LSN) error {
	kept, err := state.Kept(row)
	if err != nil {
		return err
	}
	if err := stream.NewTable(s.state, &kept).BeginAnew(ctx, q, at); err != nil {
		return fmt.Errorf("take over what waits for slot %s: %w", row.Slot, err)
	}
	return nil
}

// measure says what the beginning leaves behind.
func (s *Beginner) measure(ctx context.Context) (outboxdb.InsertGapParams, error) {
	b := s.beginning
	id, err := uuid.NewV7()
	if err != nil {
		return outboxdb.InsertGapParams{}, fmt.Errorf("make a gap's id: %w", err)
	}
	g := outboxdb.InsertGapParams{
		GapID: id, Slot: s.conf.Slot, Cause: codeFirstStart, Detail: "committed before the relay began", FromSnapshot: snapshot.None,
		ToSnapshot: b.end.Text, State: gapRepairing,
	}
	if b.cause != nil {
		g.Cause, g.Detail = b.cause.Code, b.cause.What
		last, err := s.state.Queries.LastPublished(ctx, s.conf.Slot)
		if err != nil {
			return g, fmt.Errorf("read what slot %s has published: %w", s.conf.Slot, err)
		}
		g.FromSnapshot = last
		if fault.Is(fault.GapFromNow) {
			g.FromSnapshot = g.ToSnapshot
		}
	}
	if g.Events, err = s.state.Queries.CountGap(ctx,
		outboxdb.CountGapParams{FromSnapshot: g.FromSnapshot, ToSnapshot: g.ToSnapshot, Slot: g.Slot}); err != nil {
		return g, fmt.Errorf("count the events of the gap: %w", err)
	}
	switch {
	case g.Events == 0:
		g.State = gapRepaired
	case b.cause == nil && s.conf.Start == StartNow:
		g.State = gapBefore
	case b.cause == nil, b.cause.Code == CodeOtherKafka:
		// Nobody has published it, and who adopted the cluster wants it so.
	case s.asks(b.cause, g.FromSnapshot):
		g.State = gapOpen
	}
	return g, nil
}

// asks reports whether an operator decides about a gap that begins at a snapshot. None
// visible is what `outboxctl adopt --by dump` leaves: events that were given up are in it.
func (s *Beginner) asks(cause *GapError, from string) bool {
	return s.conf.Gap == GapAsk || cause.asked() || from == snapshot.None
}

func (s *Beginner) tellBeginning(ctx context.Context, g outboxdb.InsertGapParams, replays int64) {
	switch {
	case s.beginning.cause != nil && g.Events+replays == 0:
		s.log.WarnContext(ctx, "nothing has passed the relay by, though it might have", "code", g.Cause, "what", g.Detail, "gap", g.GapID)
	case s.beginning.cause != nil:
		s.log.ErrorContext(ctx, "a gap: events may have passed the relay by", "code", g.Cause, "what", g.Detail, "gap", g.GapID, "events", g.Events, "state", g.State,
			"replays_not_repaired", replays)
	case g.Events > 0:
		s.log.WarnContext(ctx, "first start over a table that holds events", "events", g.Events, "outbox.start", s.conf.Start, "gap", g.GapID, "state", g.State)
	}
}

// LoadGaps reads which gaps are to be repaired, and up to where the stream leaves
// events out. A gap that an operator has to decide about stops the relay by name.
func (s *Beginner) LoadGaps(ctx context.Context) (end snapshot.Visible, gaps []stream.Gap, err error) {
	slot := s.conf.Slot
	rows, err := s.state.Queries.GapsOfSlot(ctx, slot)
	if err != nil {
		return end, nil, fmt.Errorf("read the gaps of slot %s: %w", slot, err)
	}
	for _, r := range rows {
		if r.State == gapOpen {
			return end, nil, undecided(r)
		}
		gaps = append(gaps, stream.Gap{ID: r.GapID, Cause: r.Cause, Cursor: r.Cursor, Events: r.Events,
			First: r.Cause == codeFirstStart})
	}
	text, err := s.state.Queries.LastGap(ctx, slot)
	if errors.Is(err, pgx.ErrNoRows) {
		return end, gaps, nil
	}
	if err != nil {
		return end, nil, fmt.Errorf("read the gaps of slot %s: %w", slot, err)
	}
	end, err = snapshot.Parse(text)
	return end, gaps, err
}

func undecided(g outboxdb.GapsOfSlotRow) error {
	return &cdc.StartError{
		Code: g.Cause, What: fmt.Sprintf("%s; %s may not have been published (gap %s, found %s)", g.Detail, label.Count(g.Events, "event"), g.GapID, g.FoundAt.UTC().Format(time.RFC3339)),
		Cure: fmt.Sprintf("outboxctl gap show %[1]s (it lists them); then outboxctl gap repair %[1]s --reason \"…\" (they are published), or outboxctl gap accept %[1]s --reason \"…\" (they are given up)", g.GapID),
	}
}

// publicationOID returns the second word of what is known of a publication;
// empty when there was none.
func publicationOID(catalog string) string {
	if words := strings.Fields(catalog); len(words) > 1 {
		return words[1]
	}
	return ""
}

// adopted is the gap that `outboxctl adopt --kafka gap` leaves to the next session:
// what no snapshot called published yet.
func adopted(row outboxdb.RelayState, found *GapError) *GapError {
	if !row.KafkaGap || found != nil {
		return found
	}
	return &GapError{
		Code: CodeOtherKafka, Epoch: row.Epoch,
		What: fmt.Sprintf("the relay was bound to Kafka cluster %s; what it had not proved to be published by then is published there", state.BoundTo(row)),
	}
}
