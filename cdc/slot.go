package cdc

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// EnsureSlot checks the slot, and creates it when it may: Config.CreateSlot is
// set, and existed, which the caller knows from its own state, is false. A slot
// that was there once is never created again in silence, because what was
// written in between would be skipped. Errors are those of [Check], which comes
// first.
func EnsureSlot(ctx context.Context, conn *pgx.Conn, cfg Config, existed bool) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	var plugin, walStatus, database string
	var ours, made, twoPhase bool
	err = conn.QueryRow(ctx, `SELECT coalesce(plugin, 'none: a physical slot'), coalesce(database = pg_catalog.current_database(), false), coalesce(wal_status, ''),
		confirmed_flush_lsn IS NOT NULL, coalesce(database, ''), two_phase FROM pg_catalog.pg_replication_slots WHERE slot_name = $1`, cfg.Slot).
		Scan(&plugin, &ours, &walStatus, &made, &database, &twoPhase)
	if errors.Is(err, pgx.ErrNoRows) {
		return createSlot(ctx, conn, cfg, existed)
	}
	if err != nil {
		return fmt.Errorf("look up slot %s: %w", cfg.Slot, err)
	}
	if database != "" && !ours {
		return slotElsewhere(cfg.Slot, database)
	}
	if plugin != "pgoutput" {
		return &StartError{Code: codeSlotForeign, What: fmt.Sprintf("slot %s exists, but with plugin %s, where pgoutput is needed", cfg.Slot, plugin),
			Cure: "give the relay another name, or drop that slot if nothing uses it: " + dropSlot(cfg.Slot)}
	}
	if twoPhase {
		return &StartError{Code: codeSlotForeign, What: fmt.Sprintf("slot %s was made with two_phase: it brings transactions when they are prepared, and an event counts when it is committed", cfg.Slot),
			Cure: "drop that slot, the relay makes it anew, and what a relay had not published by then becomes a gap: " + dropSlot(cfg.Slot)}
	}
	if walStatus == "lost" {
		return &StartError{Code: CodeSlotLost, What: fmt.Sprintf("slot %s was invalidated: the server has removed log that the relay had not read", cfg.Slot),
			Cure: gapCure}
	}
	if !made {
		return fmt.Errorf("%w: slot %s is being made by another process", ErrSlotActive, cfg.Slot)
	}
	return nil
}

// CheckSlotElsewhere says that the slot of this name is of another database, as beside a
// copy of a database on the same server. [EnsureSlot] says it too: this asks it alone, for
// what comes before and has a cure that would end in it.
func CheckSlotElsewhere(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	var database string
	err := conn.QueryRow(ctx, `SELECT database::text FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND database <> pg_catalog.current_database()`, cfg.Slot).Scan(&database)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for slot %s of another database: %w", cfg.Slot, err)
	}
	return slotElsewhere(cfg.Slot, database)
}

func slotElsewhere(slot, database string) error {
	return &StartError{Code: codeSlotForeign, What: fmt.Sprintf("slot %s exists and is of database %q: slots are of the whole server, and some relay of that database uses it or did", slot, database),
		Cure: "give this relay another name, or another postgres.slot.name, if it has never run; one that has run begins anew under another slot, over the whole outbox"}
}

// gapCure is for a slot whose relay has begun.
const gapCure = "set postgres.slot.create: auto and restart the relay: it makes the slot anew and writes down what was not sent as a gap, see outboxctl gap list"

func createSlot(ctx context.Context, conn *pgx.Conn, cfg Config, existed bool) error {
	create := createSlotSQL(cfg, conn)
	switch {
	case existed:
		return &StartError{Code: CodeSlotMissing, What: fmt.Sprintf("slot %s existed and is gone (dropped, or lost in a failover); events written since then are in onceward.outbox and not all in Kafka", cfg.Slot),
			Cure: gapCure}
	case !cfg.CreateSlot:
		return &StartError{Code: CodeSlotMissing, What: fmt.Sprintf("slot %s does not exist and postgres.slot.create is never", cfg.Slot),
			Cure: create + " (or set postgres.slot.create: auto and restart the relay)"}
	}
	cfg.Logger.InfoContext(ctx, "creating the replication slot; this waits for transactions that are open now", "slot", cfg.Slot)
	if cfg.Creating != nil {
		cfg.Creating()
	}
	if _, err := conn.Exec(ctx, create); err != nil {
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg) && pg.Code == "42710":
			return fmt.Errorf("%w: another process is making slot %s", ErrSlotActive, cfg.Slot)
		case errors.As(err, &pg) && pg.Code == "53400":
			return slotsExhausted(cfg, err)
		}
		return fmt.Errorf("create slot %s: %w", cfg.Slot, err)
	}
	return nil
}

// CheckSlotsLeft says what making the slot would meet where every slot of the server
// is in use.
func CheckSlotsLeft(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	var used bool
	err := conn.QueryRow(ctx, `SELECT pg_catalog.count(*) >= pg_catalog.current_setting('max_replication_slots')::int FROM pg_catalog.pg_replication_slots`).Scan(&used)
	switch {
	case err != nil:
		return fmt.Errorf("count the replication slots: %w", err)
	case used:
		return slotsExhausted(cfg, nil)
	}
	return nil
}

func slotsExhausted(cfg Config, err error) error {
	return &StartError{Code: codeSlotsExhausted, What: fmt.Sprintf("slot %s cannot be made: every replication slot of the server is in use", cfg.Slot),
		Cure: "drop a slot that nobody needs (SELECT slot_name, active FROM pg_catalog.pg_replication_slots;), or raise max_replication_slots and restart the server", Err: err}
}

// createSlotSQL returns the statement that makes the slot; the names in it were
// validated. Servers before 17 have no failover slots.
func createSlotSQL(cfg Config, conn *pgx.Conn) string {
	if cfg.FailoverSlot && ServerMajor(conn) >= firstFailover {
		return fmt.Sprintf("SELECT pg_catalog.pg_create_logical_replication_slot('%s', 'pgoutput', false, false, true);", cfg.Slot)
	}
	return fmt.Sprintf("SELECT pg_catalog.pg_create_logical_replication_slot('%s', 'pgoutput');", cfg.Slot)
}

func dropSlot(slot string) string {
	return fmt.Sprintf("SELECT pg_catalog.pg_drop_replication_slot('%s');", slot)
}

// ServerMajor returns the server's major version, as it told it at login; 0 when
// it cannot be read.
func ServerMajor(conn *pgx.Conn) int { return major(conn.PgConn()) }

func major(conn *pgconn.PgConn) int {
	var major int
	if _, err := fmt.Sscanf(conn.ParameterStatus("server_version"), "%d", &major); err != nil {
		return 0
	}
	return major
}
