package cdc

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/internal/secret"
)

// StartError is a precondition that the server does not meet. Nothing was read
// and nothing is lost by it.
type StartError struct {
	Code string // stable name, e.g. PUBLICATION_MISSING
	What string // what is wrong, with the names concerned
	Cure string // the command or SQL that mends it
	// Passing says that it can mend itself, so that trying again makes sense.
	Passing bool
	Err     error // what the server said, or nil
}

// Error implements error.
func (e *StartError) Error() string {
	text := fmt.Sprintf("%s: %s. To mend it: %s", e.Code, e.What, e.Cure)
	if e.Err != nil {
		text += fmt.Sprintf(" (%v)", e.Err)
	}
	return text
}

// Unwrap returns what the server said.
func (e *StartError) Unwrap() error { return e.Err }

// Codes of [StartError] that a relay acts on; docs/troubleshooting.md has all of them.
const (
	CodeTableUnlogged      = "TABLE_UNLOGGED"
	CodeNoPartition        = "NO_PARTITION"
	CodeDefaultPartition   = "DEFAULT_PARTITION"
	CodePublicationMissing = "PUBLICATION_MISSING"
	CodeSlotMissing        = "SLOT_MISSING"
	CodeSlotLost           = "SLOT_LOST"
	CodeLockHeld           = "LOCK_HELD"
	CodeSlotTaken          = "SLOT_TAKEN"
)

// The other codes, for whoever reads them.
const (
	codeLogin              = "LOGIN_REFUSED"
	codeHBA                = "HOST_NOT_ALLOWED"
	codeDatabaseMissing    = "DATABASE_MISSING"
	codePooler             = "POOLER"
	codeConnections        = "TOO_MANY_CONNECTIONS"
	codeVersion            = "VERSION_TOO_OLD"
	codeWALLevel           = "WAL_LEVEL"
	codeEncoding           = "ENCODING"
	codeRole               = "ROLE_WITHOUT_REPLICATION"
	codeStandby            = "SERVER_IS_STANDBY"
	codeReadOnly           = "READ_ONLY"
	codeTableMissing       = "TABLE_MISSING"
	codeColumn             = "COLUMN"
	codeRights             = "RIGHTS"
	codeRowSecurity        = "ROW_SECURITY"
	codeSchemaBehind       = "SCHEMA_BEHIND"
	codeSchemaAhead        = "SCHEMA_AHEAD"
	codeSchemaOther        = "SCHEMA_OTHER"
	codePublicationActions = "PUBLICATION_ACTIONS"
	codePublicationRoot    = "PUBLICATION_ROOT"
	codePublicationTables  = "PUBLICATION_TABLES"
	codeSlotForeign        = "SLOT_FOREIGN"
	codeSlotsExhausted     = "SLOTS_EXHAUSTED"
)

// SlotTaken says that a session which is of no relay holds a slot. It may end, and the
// relay goes on then.
func SlotTaken(slot string, pid int32, application, role string) *StartError {
	return &StartError{Code: CodeSlotTaken, Passing: true,
		What: fmt.Sprintf("slot %s is held by PID %d (application_name %q, role %q), which is no process of this relay: nothing is published, and what that session confirms is kept for the relay no more",
			slot, pid, label.Short(application), label.Short(role)),
		Cure: fmt.Sprintf("stop the program that runs there; where only its session is left, end that, as its role, as a superuser or with pg_signal_backend: SELECT pg_catalog.pg_terminate_backend(%d, 5000);", pid)}
}

// hbaType is the kind of line of pg_hba.conf that lets such a connection in.
func hbaType(conf *pgconn.Config) string {
	if conf.TLSConfig == nil {
		return "host"
	}
	return "hostssl"
}

// DSNPlace says where a relay has its DSN from, and when it reads it.
const DSNPlace = "the file of postgres.dsn_file (read at every connect), postgres.dsn or ONCEWARD_POSTGRES_DSN (read at the start)"

// DSNAt has the cure of an error of [ExplainConnect] name another place of the DSN than the relay's.
func DSNAt(err error, place string) error {
	var start *StartError
	if !errors.As(err, &start) {
		return err
	}
	of := *start
	of.Cure = strings.ReplaceAll(of.Cure, DSNPlace, place)
	return &of
}

// ExplainConnect names what an operator can mend when a connection by conf fails.
// No text that it returns holds the password, nor any part of a DSN that looks like
// a piece of one.
func ExplainConnect(err error, conf *pgconn.Config) error {
	err = secret.ConnectError(err, conf)
	user, database := secret.Name(conf.User), secret.Name(conf.Database)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return pgconf.Unreached(err)
	}
	switch {
	case pg.Code == "28P01":
		return &StartError{Code: codeLogin, What: fmt.Sprintf("the server refused the password of role %q", user),
			Cure: fmt.Sprintf("ALTER ROLE %q PASSWORD … (or CREATE ROLE, where there is none of that name), or put the right one into the DSN: "+DSNPlace, user), Err: err}
	case pg.Code == "28000" && strings.Contains(pg.Message, "pg_hba.conf"):
		return &StartError{Code: codeHBA, What: fmt.Sprintf("pg_hba.conf lets role %q not connect to database %q from here", user, database),
			Cure: fmt.Sprintf("add a line `%s %s %s ADDRESS scram-sha-256` to pg_hba.conf, above any line that rejects it, for the first that fits counts, and SELECT pg_catalog.pg_reload_conf();", hbaType(conf), database, user), Err: err}
	case pg.Code == "28000":
		return &StartError{Code: codeLogin, What: fmt.Sprintf("role %q may not log in", user),
			Cure: fmt.Sprintf("CREATE ROLE %[1]q LOGIN REPLICATION …; or ALTER ROLE %[1]q LOGIN;", user), Err: err}
	case pg.Code == "3D000":
		return &StartError{Code: codeDatabaseMissing, What: fmt.Sprintf("database %q does not exist", database),
			Cure: "name the database of the outbox in the DSN: " + DSNPlace, Err: err}
	case pg.Code == "42501" && strings.Contains(pg.Message, "replication"), pg.Code == "42501" && strings.Contains(pg.Message, "WAL sender"):
		return &StartError{Code: codeRole, What: fmt.Sprintf("role %q has no REPLICATION", user),
			Cure: fmt.Sprintf("ALTER ROLE %q REPLICATION;", user), Err: err}
	case pg.Code == "08P01" && (strings.Contains(pg.Message, "replication") || strings.Contains(pg.Message, "startup parameter")):
		return poolerError(err)
	case pg.Code == "53300" && strings.Contains(pg.Message, "for role"):
		return &StartError{Code: codeConnections, What: fmt.Sprintf("role %q has no connection left of its own limit", user), Passing: true,
			Cure: fmt.Sprintf("ALTER ROLE %q CONNECTION LIMIT -1;", user), Err: err}
	case pg.Code == "53300" && strings.Contains(pg.Message, "for database"):
		return &StartError{Code: codeConnections, What: fmt.Sprintf("database %q has no connection left of its own limit", database), Passing: true,
			Cure: "raise the CONNECTION LIMIT of the database", Err: err}
	case pg.Code == "53300":
		return &StartError{Code: codeConnections, What: "the server has no connection or walsender left", Passing: true,
			Cure: "end sessions that nobody needs (SELECT * FROM pg_catalog.pg_stat_replication;), or raise max_wal_senders or max_connections and restart the server", Err: err}
	}
	return err
}

// poolerError is of a way to the server on which a session is not the relay's own.
func poolerError(err error) *StartError {
	return &StartError{Code: codePooler, What: "what answers is a connection pooler; the replication, the locks and the settings of a relay want sessions of PostgreSQL's own",
		Cure: "put the address of PostgreSQL itself into the relay's DSN; the producers may keep the pooler: " + DSNPlace, Err: err}
}
