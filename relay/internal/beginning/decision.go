package beginning

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/state"
)

// Decision is one answer that a relay would give at its start.
type Decision struct {
	Name string // what is decided, in words
	Err  error  // why it does not start; nil: it goes on
	// Code of a gap that it writes down and repairs; empty: none.
	Code string
	// Detail says what it finds, or what is left to the start itself.
	Detail string
	// Advice says what somebody should do though it starts; empty: nothing.
	Advice string
	// Skipped: it was not looked at, because one before it keeps the relay from starting.
	Skipped bool
}

// inKafka is the mode, in relay_state, of a relay whose checkpoint is in Kafka.
const inKafka = "exactly-once"

// Decide says what a session would: by the same code, and without a change. Where the
// database is the relay's, what its caller has decided comes last.
func (s *Beginner) Decide(ctx context.Context, row outboxdb.RelayState, existed bool, settings Decision) []Decision {
	if !existed {
		return []Decision{s.firstStart(ctx), s.wouldEnsure(ctx)}
	}
	all := []Decision{{Name: "first start", Detail: "it has run before"}}
	if err := s.sameSystem(ctx, row, true); err != nil {
		return append(append(all, Decision{Name: nameSystem, Err: err}),
			skipped(namePublication, nameGaps, nameSlot, settings.Name)...)
	}
	source := cdc.Config{Slot: s.conf.Slot}
	if err := cdc.CheckSlotElsewhere(ctx, s.state.Conn, source); err != nil {
		return append(append(all, Decision{Name: nameSlot, Err: err}),
			skipped(namePartitions, nameSystem, namePublication, nameGaps, settings.Name)...)
	}
	if err := s.Filled(ctx); err != nil {
		return append(append(all, Decision{Name: namePartitions, Err: err}),
			skipped(nameSystem, namePublication, nameGaps, nameSlot, settings.Name)...)
	}
	left, err := s.wouldBind(ctx, row)
	_, _, gaps := s.LoadGaps(ctx)
	return append(all, s.decided(ctx, nameSystem, left, err),
		s.decided(ctx, namePublication, "", s.wouldTrust(ctx)), Decision{Name: nameGaps, Err: gaps}, s.wouldEnsure(ctx), settings)
}

// Names of decisions.
const (
	nameSystem      = "system, timeline, checkpoint"
	namePartitions  = "partitions since the last session"
	namePublication = "publication since the last session"
	nameGaps        = "gaps"
	nameSlot        = "replication slot"
)

// skipped names the decisions that are not looked at.
func skipped(names ...string) (all []Decision) {
	for _, name := range names {
		all = append(all, Decision{Name: name, Skipped: true, Detail: "the checks before it failed"})
	}
	return all
}

// firstStart says what becomes of the rows that the table holds already.
func (s *Beginner) firstStart(ctx context.Context) Decision {
	others, err := s.mayBegin(ctx)
	d := Decision{Name: "first start", Err: err}
	if err != nil {
		return d
	}
	rows, err := s.state.Queries.CountOutbox(ctx)
	if err != nil {
		d.Err = fmt.Errorf("count the events of onceward.outbox: %w", err)
		return d
	}
	d.Detail = firstWords(s.conf.Start, rows) + others
	return d
}

// firstWords says what outbox.start does with so many events.
func firstWords(start string, rows int64) string {
	events := label.Count(rows, "event in onceward.outbox is", "events in onceward.outbox are")
	switch {
	case rows == 0:
		return "onceward.outbox is empty"
	case start == StartAll:
		return fmt.Sprintf("outbox.start: all: the %s published first", events)
	default:
		return fmt.Sprintf("outbox.start: now: the %s left out for good: they are never called published, "+
			"and nobody publishes them unless an operator asks for it", events)
	}
}

// decided tells a gap, which by the policy is repaired or asked about, from what
// keeps the relay from starting.
func (s *Beginner) decided(ctx context.Context, name, detail string, err error) Decision {
	found := gapOf(err)
	if found == nil {
		return Decision{Name: name, Detail: detail, Err: err}
	}
	from, err := s.state.Queries.LastPublished(ctx, s.conf.Slot)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) { // it has not begun
		return Decision{Name: name, Err: fmt.Errorf("read what slot %s has published: %w", s.conf.Slot, err)}
	}
	if !s.asks(found, from) {
		return Decision{Name: name, Code: found.Code, Detail: "a gap, which the relay writes down at its start and repairs: " + found.What}
	}
	return Decision{Name: name, Err: &cdc.StartError{
		Code: found.Code, What: "a gap, which the relay writes down at its start; it stops there when events may have passed it by: " + found.What,
		Cure: "start the relay, then outboxctl gap list",
	}}
}

// wouldEnsure is ensureSlot without making or dropping one.
func (s *Beginner) wouldEnsure(ctx context.Context) Decision {
	const name = nameSlot
	began, err := s.state.Began(ctx)
	if err != nil {
		return Decision{Name: name, Err: err}
	}
	if err := s.state.NoStranger(ctx); err != nil {
		return Decision{Name: name, Err: err}
	}
	source := cdc.Config{DSN: "checked", Slot: s.conf.Slot, Publication: s.conf.Publication, FailoverSlot: s.conf.Failover}
	err = cdc.EnsureSlot(ctx, s.state.Conn, source, began)
	var start *cdc.StartError
	if errors.Is(err, cdc.ErrSlotActive) {
		return Decision{Name: name, Detail: "is being made by a process that runs; it waits for transactions that were open when it began, and its health page says for which"}
	}
	if !s.conf.Create || !errors.As(err, &start) {
		return Decision{Name: name, Err: err}
	}
	if start.Code == cdc.CodeSlotMissing { // one that is lost makes room for itself
		if err := cdc.CheckSlotsLeft(ctx, s.state.Conn, source); err != nil {
			return Decision{Name: name, Err: err}
		}
	}
	switch {
	case start.Code == cdc.CodeSlotMissing && !began:
		return Decision{Name: name, Detail: "does not exist yet; the relay makes it at its first start"}
	case start.Code == cdc.CodeSlotMissing || start.Code == cdc.CodeSlotLost && began:
		return s.decided(ctx, name, "", &GapError{Code: start.Code, What: start.What})
	}
	return Decision{Name: name, Err: err}
}

// wouldBind is the part of bind that needs no hold on the slot. The history of
// timelines is read over a replication connection: another timeline is left to the
// start. In exactly-once mode so is the checkpoint, which is in Kafka.
func (s *Beginner) wouldBind(ctx context.Context, row outboxdb.RelayState) (detail string, err error) {
	var system pglogrepl.IdentifySystemResult
	var end string
	err = s.state.Conn.QueryRow(ctx, `SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
		('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int,
		pg_catalog.pg_current_wal_flush_lsn()::text`).Scan(&system.SystemID, &system.Timeline, &end)
	if err != nil {
		return "", fmt.Errorf("identify the system: %w", err)
	}
	if system.XLogPos, err = ledger.ParseLSN(end); err != nil {
		return "", err
	}
	position, err := s.state.SlotPosition(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		position, err = 0, nil // the check of the slot says so
	}
	if err != nil {
		return "", err
	}
	kept, err := state.Kept(row)
	if err != nil {
		return "", err
	}
	b := binding{slot: row.Slot, row: row, system: system, slotPosition: position, kept: kept, gap: kept.Gap}
	var left []string
	if row.Timeline != system.Timeline {
		b.switched = b.kept.Order
		left = append(left, fmt.Sprintf("the server is on timeline %d, the checkpoint on %d: whether one leads to the other is compared at the start", system.Timeline, row.Timeline))
	}
	if row.Mode == inKafka {
		b.kept.Order = max(b.kept.Order, b.slotPosition) // the row's is older
		left = append(left, "the checkpoint in Kafka is compared at the start")
	}
	return strings.Join(left, "; "), b.check()
}

// wouldTrust compares the publication with what is known of it.
func (s *Beginner) wouldTrust(ctx context.Context) error {
	now, err := s.state.Snapshot(ctx, s.conf.Publication)
	if err != nil || now.KnownCatalog == "" { // nothing is known yet
		return err
	}
	return s.SamePublication(now)
}
