package cdc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/pgconf"
)

// StartCheck is one precondition of streaming.
type StartCheck struct {
	Name string // in words, e.g. "wal_level"
	// Run returns a [*StartError], or what the connection gave.
	Run func(context.Context, *pgx.Conn, Config) error
}

// StartChecks returns the preconditions, in the order in which they depend on
// one another. The slot comes after them: [EnsureSlot].
func StartChecks() []StartCheck {
	return []StartCheck{
		{"server version, wal_level, encoding, role", checkServer},
		{"schema", checkSchema},
		{"outbox table", checkTable},
		{"outbox columns", checkColumns},
		{"rights of the relay's role", checkRights},
		{"row-level security", checkRowSecurity},
		{"partitions of the outbox", checkPartitions},
		{"publication", checkPublication},
	}
}

// Check runs [StartChecks] up to the first that fails.
func Check(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	for _, check := range StartChecks() {
		if err := check.Run(ctx, conn, cfg); err != nil {
			return err
		}
	}
	return nil
}

// Pace is what a session goes by of the server's settings.
type Pace struct {
	SenderTimeout time.Duration // wal_sender_timeout: how long it waits for a status update; 0 means for ever
	Segment       pglogrepl.LSN // wal_segment_size, in bytes
}

// ReadPace reads the settings that a session goes by.
func ReadPace(ctx context.Context, conn *pgx.Conn) (Pace, error) {
	var ms, segment int64
	err := conn.QueryRow(ctx, `SELECT (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'),
		(SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'wal_segment_size')`).Scan(&ms, &segment)
	if err != nil {
		return Pace{}, fmt.Errorf("read the server's wal_sender_timeout and wal_segment_size: %w", err)
	}
	return Pace{SenderTimeout: time.Duration(ms) * time.Millisecond, Segment: pglogrepl.LSN(segment)}, nil
}

func checkServer(ctx context.Context, conn *pgx.Conn, _ Config) error {
	var version int
	var walLevel, encoding, role string
	var replication, standby, readOnly, pooled bool
	err := conn.QueryRow(ctx, `SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.current_setting('wal_level'),
		pg_catalog.current_setting('server_encoding'), rolname, rolreplication OR rolsuper, pg_catalog.pg_is_in_recovery(),
		pg_catalog.current_setting('transaction_read_only') = 'on', pg_catalog.pg_backend_pid() <> $1
		FROM pg_catalog.pg_roles WHERE rolname = current_user`, int32(conn.PgConn().PID())).
		Scan(&version, &walLevel, &encoding, &role, &replication, &standby, &readOnly, &pooled)
	if err != nil {
		return fmt.Errorf("read server settings: %w", err)
	}
	switch {
	case pooled:
		return poolerError(nil)
	case version < pgconf.OldestServer:
		return &StartError{Code: codeVersion, What: fmt.Sprintf("the server has version %d, %d is the oldest supported", version/10000, pgconf.OldestServer/10000), Cure: "upgrade PostgreSQL"}
	case standby:
		return &StartError{Code: codeStandby, What: "the server is a standby; checkpoints cannot be written there", Passing: true,
			Cure: "put the primary into the DSN, or target_session_attrs=primary with all of them: " + DSNPlace}
	case readOnly:
		return readOnlyError(ctx, conn, role)
	case walLevel != "logical":
		return &StartError{Code: codeWALLevel, What: fmt.Sprintf("wal_level is %s, logical decoding needs logical", walLevel),
			Cure: "ALTER SYSTEM SET wal_level = 'logical'; and restart the server"}
	case encoding != "UTF8":
		return &StartError{Code: codeEncoding, What: fmt.Sprintf("the database is encoded in %s; a character that UTF-8 lacks would stop the stream for ever", encoding),
			Cure: "move the outbox into a database with encoding UTF8"}
	case !replication:
		return &StartError{Code: codeRole, What: fmt.Sprintf("role %q has no REPLICATION", role),
			Cure: fmt.Sprintf("ALTER ROLE %s REPLICATION;", pgx.Identifier{role}.Sanitize())}
	}
	return nil
}

// checkSchema refuses the schema of an earlier release, also where only a function of
// it is another. Where no migration was written down, or the role may not read it, the
// tables and columns are what there is to look at.
func checkSchema(ctx context.Context, conn *pgx.Conn, _ Config) error {
	version, err := migrated(ctx, conn)
	if err != nil || version == 0 || version >= pgconf.OutboxSchema {
		return err
	}
	return &StartError{Code: codeSchemaBehind,
		What: fmt.Sprintf("the schema of this database is of an earlier release than the relay: its migration is %d, %d is needed", version, pgconf.OutboxSchema),
		Cure: "outboxctl migrate up --side outbox"}
}

// migrated is the schema's migration; 0: none was written down, or the role may not read it.
func migrated(ctx context.Context, conn *pgx.Conn) (version int64, err error) {
	err = conn.QueryRow(ctx, `SELECT coalesce(pg_catalog.max(version_id), 0) FROM onceward.outbox_migrations WHERE is_applied`).Scan(&version)
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42501"): // undefined_table, invalid_schema_name, insufficient_privilege
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read onceward.outbox_migrations: %w", err)
	}
	return version, nil
}

// CheckNotAhead says that the schema is of a later release than the relay. It runs all the
// same, unless what it uses is no longer there: whoever migrates first upgrades it next.
func CheckNotAhead(ctx context.Context, conn *pgx.Conn) error {
	version, err := migrated(ctx, conn)
	if err != nil || version <= pgconf.OutboxSchema {
		return err
	}
	return &StartError{Code: codeSchemaAhead,
		What: fmt.Sprintf("the schema of this database is of a later release than the relay: its migration is %d, the relay knows %d", version, pgconf.OutboxSchema),
		Cure: "upgrade the relay to the release that migrated the database, or a later one"}
}

// checkTable demands the tables of the publication, logged down to the last
// partition.
func checkTable(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	for _, t := range publishedTables {
		if err := checkOneTable(ctx, conn, cfg, t.name); err != nil {
			return err
		}
	}
	return nil
}

func checkOneTable(ctx context.Context, conn *pgx.Conn, cfg Config, table string) error {
	var unlogged *string
	var usable bool
	err := conn.QueryRow(ctx, `SELECT (SELECT l.relname::text FROM pg_catalog.pg_class l
		WHERE l.relpersistence <> 'p' AND (l.oid = c.oid OR l.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(c.oid))) LIMIT 1),
		pg_catalog.has_schema_privilege(n.oid, 'USAGE')
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'onceward' AND c.relname = $1`, table).Scan(&unlogged, &usable)
	if errors.Is(err, pgx.ErrNoRows) {
		return &StartError{Code: codeTableMissing, What: fmt.Sprintf("table onceward.%s does not exist in database %q", table, conn.Config().Database),
			Cure: "name the right database in the DSN, or, if this is the one: outboxctl migrate up --side outbox --relay " + relayOf(cfg.Publication) + " (it makes the table, or says what became of it)"}
	}
	if err != nil {
		return fmt.Errorf("look up onceward.%s: %w", table, err)
	}
	if !usable {
		return rightsError(ctx, conn, "USAGE", "schema onceward")
	}
	if unlogged != nil {
		return &StartError{Code: CodeTableUnlogged, What: fmt.Sprintf("table onceward.%s is not logged, so its rows never reach the log", *unlogged),
			Cure: fmt.Sprintf("ALTER TABLE onceward.%s SET LOGGED;", pgx.Identifier{*unlogged}.Sanitize())}
	}
	return nil
}

// CheckColumns compares the tables, as they are now, with what the relay needs. A
// table that lacks a column, or has it with another type, is a [*StartError] with
// its name.
func CheckColumns(ctx context.Context, conn *pgx.Conn) error {
	return checkColumns(ctx, conn, Config{})
}

// checkColumns is done before the first row comes.
func checkColumns(ctx context.Context, conn *pgx.Conn, _ Config) error {
	for _, t := range publishedTables {
		if err := checkLayout(ctx, conn, t); err != nil {
			return err
		}
	}
	return checkSequence(ctx, conn)
}

// checkSequence demands that sessions take each seq as they need it. It is the order
// of an aggregate's events wherever the table is read: in a repair, in replays.
func checkSequence(ctx context.Context, conn *pgx.Conn) error {
	var name string
	err := conn.QueryRow(ctx, `SELECT s.seqrelid::regclass::text FROM pg_catalog.pg_sequence s
		WHERE s.seqrelid = pg_catalog.pg_get_serial_sequence('onceward.outbox', 'seq')::regclass AND (s.seqcache <> 1 OR s.seqincrement <> 1 OR s.seqcycle)`).Scan(&name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("read the sequence of onceward.outbox: %w", err)
	}
	return &StartError{Code: codeColumn, What: "sequence " + name + " gives out numbers in advance, in steps or again from its beginning: seq is no order of events",
		Cure: "ALTER SEQUENCE " + name + " CACHE 1 INCREMENT 1 NO CYCLE; as its owner, then end the sessions" +
			" of producers, which keep numbers that they have drawn. What was written meanwhile has its order in the stream alone, not in a repair or a replay"}
}

func checkLayout(ctx context.Context, conn *pgx.Conn, t *table) error {
	rows, err := conn.Query(ctx, `SELECT attname::text, atttypid::oid FROM pg_catalog.pg_attribute
		WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, "onceward."+t.name)
	if err != nil {
		return fmt.Errorf("read columns of onceward.%s: %w", t.name, err)
	}
	r := relation{namespace: "onceward", name: t.name}
	r.columns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c column, err error) {
		return c, row.Scan(&c.name, &c.oid)
	})
	if err != nil {
		return fmt.Errorf("read columns of onceward.%s: %w", t.name, err)
	}
	if wrong := t.layout(r).wrong; wrong != nil {
		return &StartError{Code: codeColumn, What: wrong.Error(), Cure: "restore the column as docs/contract.md has it; ALTER TABLE … RENAME COLUMN … if it was renamed"}
	}
	return nil
}

// needed are the rights of the relay's role on tables of schema onceward.
var needed = []struct {
	privileges string
	tables     []string
	optional   bool // it runs without, and others know less of it
}{
	{privileges: "SELECT", tables: []string{"outbox", "replays", "controls"}},
	{privileges: "SELECT, INSERT, UPDATE", tables: []string{"relay_state", "published_snapshots", "kafka_topics", "gaps", "dead_letters", "control_results"}},
	{privileges: "SELECT, INSERT, UPDATE, DELETE", tables: []string{"waiting", "waiting_copies", "lanes", "releases"}},
	{privileges: "SELECT, INSERT, UPDATE, DELETE", tables: []string{"relay_health"}, optional: true},
	{privileges: "SELECT", tables: []string{"outbox_migrations"}, optional: true},
}

// CheckOptional says which table is missing that the relay runs without, and others
// know less of it.
func CheckOptional(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	err := checkNeeded(ctx, conn, cfg, true)
	var start *StartError
	if errors.As(err, &start) && start.Code == codeRights {
		return nil
	}
	return err
}

func checkRights(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	return checkNeeded(ctx, conn, cfg, false)
}

// checkNeeded looks first for a table that is missing, then for a right.
func checkNeeded(ctx context.Context, conn *pgx.Conn, cfg Config, optional bool) error {
	var tables, privileges []string
	for _, n := range needed {
		if n.optional != optional {
			continue
		}
		for _, table := range n.tables {
			for privilege := range strings.SplitSeq(n.privileges, ", ") {
				tables, privileges = append(tables, "onceward."+table), append(privileges, privilege)
			}
		}
	}
	var table, privilege string
	var there bool
	err := conn.QueryRow(ctx, `SELECT t, p, pg_catalog.to_regclass(t) IS NOT NULL FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) need(t, p)
		WHERE pg_catalog.to_regclass(t) IS NULL OR NOT pg_catalog.has_table_privilege(t, p) ORDER BY 3 LIMIT 1`, tables, privileges).Scan(&table, &privilege, &there)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read rights of the role: %w", err)
	}
	if !there {
		return &StartError{Code: codeTableMissing, What: fmt.Sprintf("table %s does not exist: the schema is older than this relay, or somebody removed the table", table),
			Cure: "outboxctl migrate up --side outbox --relay " + relayOf(cfg.Publication) + " (it makes the table, or says what became of it)"}
	}
	return rightsError(ctx, conn, privilege, table)
}

// rightsError names all rights that the relay needs, so that one cure is enough.
func rightsError(ctx context.Context, conn *pgx.Conn, privilege, object string) error {
	var role string
	if err := conn.QueryRow(ctx, `SELECT current_user::text`).Scan(&role); err != nil {
		return fmt.Errorf("read the name of the role: %w", err)
	}
	name := pgx.Identifier{role}.Sanitize()
	var grants []string
	for _, n := range needed {
		grants = append(grants, fmt.Sprintf("GRANT %s ON onceward.%s TO %s;", n.privileges, strings.Join(n.tables, ", onceward."), name))
	}
	return &StartError{Code: codeRights, What: fmt.Sprintf("role %q has no %s on %s", role, privilege, object),
		Cure: fmt.Sprintf("outboxctl migrate roles --side outbox --apply, if the role is a member of the relay's (onceward_relay, unless --prefix says otherwise); "+
			"who manages roles by hand: GRANT USAGE ON SCHEMA onceward TO %s; %s", name, strings.Join(grants, " "))}
}

// checkPartitions refuses to begin where producers cannot write: without a
// partition of today every Enqueue fails; a DEFAULT partition would keep the
// others from being made.
func checkPartitions(ctx context.Context, conn *pgx.Conn, _ Config) error {
	var unwanted string
	var partitions bool
	err := conn.QueryRow(ctx, `SELECT coalesce((SELECT pg_catalog.format('%I.%I', n.nspname, d.relname) FROM pg_catalog.pg_class d
		JOIN pg_catalog.pg_namespace n ON n.oid = d.relnamespace WHERE d.oid = p.partdefid), ''),
		EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)
		FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = c.oid
		WHERE c.oid = 'onceward.outbox'::regclass`).Scan(&unwanted, &partitions)
	if err != nil {
		return fmt.Errorf("read partitions of onceward.outbox: %w", err)
	}
	if unwanted != "" {
		return DefaultPartition(unwanted)
	}
	if !partitions {
		return &StartError{Code: CodeNoPartition, What: "onceward.outbox has no partition: every Enqueue fails", Cure: "outboxctl migrate up --side outbox"}
	}
	return nil
}

// DefaultPartition is what is wrong with a DEFAULT partition of the outbox, whose
// name is quoted for SQL.
func DefaultPartition(name string) *StartError {
	return &StartError{
		Code: CodeDefaultPartition, What: fmt.Sprintf("onceward.outbox has a DEFAULT partition, %s; no partition can be made beside its rows, and none goes", name),
		Cure: partition.DetachCure(name),
	}
}
