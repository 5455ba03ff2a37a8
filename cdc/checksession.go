package cdc

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/pgconf"
)

// readOnlyError says where default_transaction_read_only was switched on. It may
// be a provider's answer to a full disk, which ends by itself: so it is tried again.
func readOnlyError(ctx context.Context, conn *pgx.Conn, role string) error {
	const setting = "default_transaction_read_only"
	var source string
	err := conn.QueryRow(ctx, `SELECT source FROM pg_catalog.pg_settings WHERE name = $1`, setting).Scan(&source)
	if err != nil {
		return fmt.Errorf("look up %s: %w", setting, err)
	}
	user, database := pgx.Identifier{role}.Sanitize(), pgx.Identifier{conn.Config().Database}.Sanitize()
	var where, cure string
	switch source {
	case "database":
		where, cure = "for database "+database, fmt.Sprintf("BEGIN READ WRITE; ALTER DATABASE %s RESET %s; COMMIT;", database, setting) // a session there is read-only too
	case "user":
		where, cure = "for role "+user, fmt.Sprintf("ALTER ROLE %s RESET %s;", user, setting)
	case "database user":
		where, cure = fmt.Sprintf("for role %s in database %s", user, database), fmt.Sprintf("ALTER ROLE %s IN DATABASE %s RESET %s;", user, database, setting)
	case "client":
		where, cure = "in the connection string", "take "+setting+" out of the DSN or PGOPTIONS"
	default:
		where, cure = "for the whole server ("+source+")", fmt.Sprintf("ALTER SYSTEM SET %s = off; SELECT pg_catalog.pg_reload_conf();", setting)
	}
	return &StartError{Code: codeReadOnly, What: fmt.Sprintf("%s is on %s, so no checkpoint can be written", setting, where), Cure: cure, Passing: true}
}

// checkRowSecurity refuses a table whose rows are filtered for the relay's role,
// by whatever policy. Every session of ours has row_security = off, so that a statement
// on such a table fails; this says so before the first.
func checkRowSecurity(ctx context.Context, conn *pgx.Conn, _ Config) error {
	var table, role, owner string
	var ours bool
	err := conn.QueryRow(ctx, `SELECT c.relname::text, current_user::text, pg_catalog.pg_get_userbyid(c.relowner)::text,
		EXISTS (SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid AND p.polname = '`+pgconf.EverybodyElse+`') FROM pg_catalog.pg_class c
		WHERE c.relnamespace = 'onceward'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relrowsecurity
		AND pg_catalog.row_security_active(c.oid) ORDER BY c.relname = 'outbox' DESC, c.relname LIMIT 1`).Scan(&table, &role, &owner, &ours)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for row-level security: %w", err)
	}
	filtered := rowSecurityError(table, role, nil)
	if ours {
		filtered.Cure = "as a superuser: outboxctl migrate roles --side outbox --apply"
		if prefix, ok := strings.CutSuffix(owner, "_owner"); ok && prefix != "onceward" {
			filtered.Cure += " --prefix " + prefix
		}
	}
	return filtered
}

// ExplainRefused names what an operator can mend when a statement of the relay was
// refused: the schema is of another release, or [ExplainFiltered]. Every other error
// comes back as it is.
func ExplainRefused(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (pg.Code == "42703" || pg.Code == "42883") { // undefined_column, undefined_function
		return &StartError{Code: codeSchemaOther, Err: err, What: "the schema of this database is of another release than the relay: " + label.Foreign(pg.Message),
			Cure: "`outboxctl migrate status --side outbox` says of which: where migrations are pending, outboxctl migrate up --side outbox; where it is newer than is known, upgrade the relay"}
	}
	return ExplainFiltered(err)
}

// ExplainFiltered names what an operator can mend when a statement was refused because
// row-level security would have hidden rows from it; every other error comes back
// as it is.
func ExplainFiltered(err error) error {
	var pg *pgconn.PgError
	// 42501, insufficient_privilege, has many causes, and the text is translated.
	if !errors.As(err, &pg) || pg.Code != "42501" || pg.Routine != "check_enable_rls" {
		return err
	}
	table := ""
	if m := quoted.FindStringSubmatch(pg.Message); m != nil {
		table = m[1]
	}
	return rowSecurityError(table, "", err)
}

// quoted finds the table in the server's text, whatever its language.
var quoted = regexp.MustCompile(`[„"«»](\w+)[“"«»]`)

func rowSecurityError(table, role string, err error) *StartError {
	name, who, alter := "a table of schema onceward", "the role of this session", "…"
	if table != "" {
		name = "onceward." + table
	}
	if role != "" {
		alter = pgx.Identifier{role}.Sanitize()
		who = "role " + alter
	}
	return &StartError{
		Code: codeRowSecurity, Err: err,
		What: fmt.Sprintf("row-level security of %s would hide rows from %s, and what is not seen would count as published or as not there", name, who),
		Cure: fmt.Sprintf("ALTER ROLE %s BYPASSRLS; or, if nobody needs the policies: ALTER TABLE %s DISABLE ROW LEVEL SECURITY;", alter, name),
	}
}
