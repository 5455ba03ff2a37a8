package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
)

// SlotPosition returns what the slot has confirmed; [pgx.ErrNoRows] where it is not there, or is
// just being made.
func (s *State) SlotPosition(ctx context.Context) (pglogrepl.LSN, error) {
	var text string
	err := s.Conn.QueryRow(ctx, `SELECT confirmed_flush_lsn::text FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn IS NOT NULL`, s.Slot).Scan(&text)
	if err != nil {
		return 0, fmt.Errorf("read position of slot %s: %w", s.Slot, err)
	}
	return ledger.ParseLSN(text)
}

// Begin makes this session the only one that begins on the slot, until begun or
// the end of its connection: another that took the slot meanwhile would raise the
// epoch, and void what this one waits for. Its error is [cdc.ErrSlotActive] when
// there is one already.
func (s *State) Begin(ctx context.Context) error {
	lock, err := s.Queries.LockBeginning(ctx, s.Slot)
	if err != nil {
		return fmt.Errorf("lock slot %s: %w", s.Slot, err)
	}
	if lock.Ours {
		return nil
	}
	if err := s.NoStranger(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: another process begins on slot %s", cdc.ErrSlotActive, s.Slot)
}

// NoStranger names who has the lock of those that begin, and is no relay's role:
// anybody who may log in can take it, and would be waited for like another process.
func (s *State) NoStranger(ctx context.Context) error {
	who, err := s.Queries.BeginningStranger(ctx, s.Slot)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look who begins on slot %s: %w", s.Slot, err)
	}
	return &cdc.StartError{Code: cdc.CodeLockHeld, What: fmt.Sprintf("role %q (PID %d), which is no relay's, holds the advisory lock by which the processes of slot %s begin one at a time", who.Role, who.Pid, s.Slot),
		Cure: fmt.Sprintf("end that session, as its role, as a superuser or with pg_signal_backend: SELECT pg_catalog.pg_terminate_backend(%d, 5000);", who.Pid)}
}

// Begun lets others begin: the slot is held now.
func (s *State) Begun(ctx context.Context) error {
	ours, err := s.Queries.UnlockBeginning(ctx, s.Slot)
	if err == nil && !ours {
		err = errors.New("another session has it")
	}
	if err != nil {
		return fmt.Errorf("unlock slot %s: %w", s.Slot, err)
	}
	return nil
}

// SlotFree returns [cdc.ErrSlotActive] when somebody streams from the slot. To
// try all the same would end in the same, and in a line of the server's log.
func (s *State) SlotFree(ctx context.Context) error {
	pid, err := s.Queries.SlotActive(ctx, s.Slot)
	switch {
	case err != nil:
		return fmt.Errorf("look whether slot %s is free: %w", s.Slot, err)
	case pid != 0:
		return fmt.Errorf("%w: by PID %d", cdc.ErrSlotActive, pid)
	}
	return nil
}

// Began reports whether the relay's first start has ended.
func (s *State) Began(ctx context.Context) (bool, error) {
	began, err := s.Queries.Began(ctx, s.Slot)
	if err != nil {
		return false, fmt.Errorf("look for what slot %s has published: %w", s.Slot, err)
	}
	return began, nil
}

// DropSlot removes the slot if the server has invalidated it: another process may
// have made it anew meanwhile. One that is gone or in use is that process's.
func (s *State) DropSlot(ctx context.Context) error {
	_, err := s.Conn.Exec(ctx, `SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots
		WHERE slot_name = $1 AND wal_status = 'lost' AND database = pg_catalog.current_database()`, s.Slot)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (pg.Code == "42704" || pg.Code == "55006") { // undefined_object, object_in_use
		return fmt.Errorf("%w: another process makes slot %s anew", cdc.ErrSlotActive, s.Slot)
	}
	if err != nil {
		return fmt.Errorf("drop the invalidated slot %s: %w", s.Slot, err)
	}
	return nil
}

// PassLog leads the slot past what the server would refuse to decode. The events
// in it are visible in the end of the gap, so that they are part of it.
func (s *State) PassLog(ctx context.Context) error {
	if _, err := s.Conn.Exec(ctx, `SELECT pg_catalog.pg_replication_slot_advance($1, pg_catalog.pg_current_wal_insert_lsn())`, s.Slot); err != nil {
		return fmt.Errorf("lead slot %s past a time without its publication: %w", s.Slot, err)
	}
	return nil
}
