package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// StartError is a precondition that the server does not meet. Nothing was read
// and nothing is lost by it.
type StartError struct {
	Code string // stable name, e.g. PUBLICATION_MISSING
	What string // what is wrong, with the names concerned
	Cure string // the command or SQL that mends it
}

// Error implements error.
func (e *StartError) Error() string {
	return fmt.Sprintf("%s: %s. To mend it: %s", e.Code, e.What, e.Cure)
}

// Codes of [StartError].
const (
	CodeVersion            = "VERSION_TOO_OLD"
	CodeWALLevel           = "WAL_LEVEL"
	CodeEncoding           = "ENCODING"
	CodeRole               = "ROLE_WITHOUT_REPLICATION"
	CodeTableMissing       = "TABLE_MISSING"
	CodeTableUnlogged      = "TABLE_UNLOGGED"
	CodePublicationMissing = "PUBLICATION_MISSING"
	CodePublicationContent = "PUBLICATION_CONTENT"
	CodeSlotMissing        = "SLOT_MISSING"
	CodeSlotForeign        = "SLOT_FOREIGN"
	CodeSlotLost           = "SLOT_LOST"
)

// minServerVersion is the oldest server that is supported, as
// server_version_num has it.
const minServerVersion = 150000

// Check compares the server with what streaming needs, in the order in which
// things depend on one another. The error is a [*StartError], or what the
// connection gave.
func Check(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	for _, check := range []func(context.Context, *pgx.Conn, Config) error{checkServer, checkTable, checkPublication} {
		if err := check(ctx, conn, cfg); err != nil {
			return err
		}
	}
	return nil
}

// SenderTimeout returns the server's wal_sender_timeout: how long it waits for a
// status update. 0 means for ever.
func SenderTimeout(ctx context.Context, conn *pgx.Conn) (time.Duration, error) {
	var ms int64
	if err := conn.QueryRow(ctx, `SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'`).Scan(&ms); err != nil {
		return 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func checkServer(ctx context.Context, conn *pgx.Conn, _ Config) error {
	var version int
	var walLevel, encoding, role string
	var replication bool
	err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
		current_setting('server_encoding'), rolname, rolreplication OR rolsuper
		FROM pg_catalog.pg_roles WHERE rolname = current_user`).Scan(&version, &walLevel, &encoding, &role, &replication)
	if err != nil {
		return fmt.Errorf("read server settings: %w", err)
	}
	switch {
	case version < minServerVersion:
		return &StartError{CodeVersion, fmt.Sprintf("the server has version %d, 15 is the oldest supported", version/10000), "upgrade PostgreSQL"}
	case walLevel != "logical":
		return &StartError{CodeWALLevel, fmt.Sprintf("wal_level is %s, logical decoding needs logical", walLevel),
			"ALTER SYSTEM SET wal_level = 'logical'; and restart the server"}
	case encoding != "UTF8":
		return &StartError{CodeEncoding, fmt.Sprintf("the database is encoded in %s; a character that UTF-8 lacks would stop the stream for ever", encoding),
			"move the outbox into a database with encoding UTF8"}
	case !replication:
		return &StartError{CodeRole, fmt.Sprintf("role %q has no REPLICATION", role),
			fmt.Sprintf("ALTER ROLE %s REPLICATION;", pgx.Identifier{role}.Sanitize())}
	}
	return nil
}

func checkTable(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	var persistence string
	err := conn.QueryRow(ctx, `SELECT c.relpersistence::text FROM pg_catalog.pg_class c
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'onceward' AND c.relname = 'outbox'`).Scan(&persistence)
	if errors.Is(err, pgx.ErrNoRows) {
		return &StartError{CodeTableMissing, fmt.Sprintf("table onceward.outbox does not exist in database %q", conn.Config().Database),
			"outboxctl migrate up --side outbox --relay " + relayOf(cfg.Publication)}
	}
	if err != nil {
		return fmt.Errorf("look up onceward.outbox: %w", err)
	}
	if persistence != "p" {
		return &StartError{CodeTableUnlogged, "table onceward.outbox is not logged, so its rows never reach the log",
			"ALTER TABLE onceward.outbox SET LOGGED;"}
	}
	return nil
}

func checkPublication(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	create := fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE onceward.outbox, onceward.replays, onceward.controls WITH (publish = 'insert', publish_via_partition_root = true);", cfg.Publication)
	var insertOnly, viaRoot, allTables bool
	var covered int
	err := conn.QueryRow(ctx, `SELECT p.pubinsert AND NOT (p.pubupdate OR p.pubdelete OR p.pubtruncate), p.pubviaroot, p.puballtables,
		(SELECT count(*) FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid
		 AND r.prrelid IN ('onceward.outbox'::regclass, 'onceward.replays'::regclass, 'onceward.controls'::regclass) AND r.prqual IS NULL)
		FROM pg_catalog.pg_publication p WHERE p.pubname = $1`, cfg.Publication).Scan(&insertOnly, &viaRoot, &allTables, &covered)
	if errors.Is(err, pgx.ErrNoRows) {
		return &StartError{CodePublicationMissing, fmt.Sprintf("publication %s does not exist", cfg.Publication),
			"outboxctl migrate up --side outbox --relay " + relayOf(cfg.Publication) + " (or: " + create + ")"}
	}
	if err != nil {
		return fmt.Errorf("look up publication %s: %w", cfg.Publication, err)
	}
	if !insertOnly || !viaRoot || allTables || covered != 3 {
		return &StartError{CodePublicationContent,
			fmt.Sprintf("publication %s is not what the relay needs (inserts only: %t, through the partition root: %t, for all tables: %t, of its three tables covered without a filter: %d)",
				cfg.Publication, insertOnly, viaRoot, allTables, covered),
			fmt.Sprintf("DROP PUBLICATION %s; %s", cfg.Publication, create)}
	}
	return nil
}

// relayOf returns the relay's name that `outboxctl migrate` derives the
// publication's name from.
func relayOf(publication string) string {
	const prefix = "onceward_"
	if len(publication) > len(prefix) && publication[:len(prefix)] == prefix {
		return publication[len(prefix):]
	}
	return publication
}

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
	var plugin, walStatus string
	var ours bool
	err = conn.QueryRow(ctx, `SELECT coalesce(plugin, 'none: a physical slot'), coalesce(database = current_database(), false), coalesce(wal_status, 'lost')
		FROM pg_catalog.pg_replication_slots WHERE slot_name = $1`, cfg.Slot).Scan(&plugin, &ours, &walStatus)
	if errors.Is(err, pgx.ErrNoRows) {
		return createSlot(ctx, conn, cfg, existed)
	}
	if err != nil {
		return fmt.Errorf("look up slot %s: %w", cfg.Slot, err)
	}
	if plugin != "pgoutput" || !ours {
		return &StartError{CodeSlotForeign, fmt.Sprintf("slot %s exists, but with plugin %s, of this database: %t", cfg.Slot, plugin, ours),
			"give the relay another name, or drop that slot if nothing uses it: " + dropSlot(cfg.Slot)}
	}
	if walStatus == "lost" {
		return &StartError{CodeSlotLost, fmt.Sprintf("slot %s was invalidated: the server has removed log that the relay had not read", cfg.Slot),
			"events of the gap are in onceward.outbox and not all in Kafka; compare before you drop the slot: " + dropSlot(cfg.Slot)}
	}
	return nil
}

func createSlot(ctx context.Context, conn *pgx.Conn, cfg Config, existed bool) error {
	create := createSlotSQL(cfg, conn)
	switch {
	case existed:
		return &StartError{CodeSlotMissing, fmt.Sprintf("slot %s existed and is gone (dropped, or lost in a failover); events written since then are in onceward.outbox and not all in Kafka", cfg.Slot),
			fmt.Sprintf("compare table and topic first; to go on from now and give up on the gap: DELETE FROM onceward.relay_state WHERE slot = '%s';", cfg.Slot)}
	case !cfg.CreateSlot:
		return &StartError{CodeSlotMissing, fmt.Sprintf("slot %s does not exist and slot.create is never", cfg.Slot),
			create + " (or slot.create: auto)"}
	}
	cfg.Logger.InfoContext(ctx, "creating the replication slot; this waits for transactions that are open now", "slot", cfg.Slot)
	if _, err := conn.Exec(ctx, create); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "42710" {
			return nil // another relay of the same name was faster; START_REPLICATION arbitrates
		}
		return fmt.Errorf("create slot %s: %w", cfg.Slot, err)
	}
	return nil
}

// createSlotSQL returns the statement that makes the slot; the names in it were
// validated. Servers before 17 have no failover slots.
func createSlotSQL(cfg Config, conn *pgx.Conn) string {
	if cfg.FailoverSlot && serverMajor(conn) >= 17 {
		return fmt.Sprintf("SELECT pg_catalog.pg_create_logical_replication_slot('%s', 'pgoutput', false, false, true);", cfg.Slot)
	}
	return fmt.Sprintf("SELECT pg_catalog.pg_create_logical_replication_slot('%s', 'pgoutput');", cfg.Slot)
}

func dropSlot(slot string) string {
	return fmt.Sprintf("SELECT pg_drop_replication_slot('%s');", slot)
}

// serverMajor reads the major version that the server told at login.
func serverMajor(conn *pgx.Conn) int {
	var major int
	if _, err := fmt.Sscanf(conn.PgConn().ParameterStatus("server_version"), "%d", &major); err != nil {
		return 0
	}
	return major
}
