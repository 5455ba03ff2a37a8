package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/migrations"
)

// Explain adds what to run when Onceward is not installed, and who may.
func Explain(err error, side migrations.Side) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	var start *cdc.StartError
	if filtered := cdc.ExplainFiltered(err); errors.As(filtered, &start) {
		return filtered
	}
	switch pg.Code {
	case "42P01", "3F000": // undefined_table, invalid_schema_name
		return fmt.Errorf("%w; Onceward's %s side is not in this database, or one of its tables is gone: connect to the database that has it; "+
			"or, if this is to be it, run `outboxctl migrate up --side %s`, which makes it, or says what became of it", err, side, side)
	case "42703", "42883": // undefined_column, undefined_function
		return fmt.Errorf("%w; the schema is of another release: run `outboxctl migrate status --side %s`", err, side)
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w; connect as a member of the role onceward_operator, unless --prefix says otherwise: `outboxctl migrate roles --side %s --print` shows how to make one", err, side)
	}
	return err
}

// ConsumersOnly reports whether an error is one of a database that has the consumer's side and no outbox.
func ConsumersOnly(ctx context.Context, db *Database, err error) (consumers bool) {
	const sides = `SELECT pg_catalog.to_regclass('onceward.outbox') IS NULL AND pg_catalog.to_regclass('onceward.progress') IS NOT NULL`
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "42883") && // undefined_table, undefined_function
		db.QueryRow(ctx, sides).Scan(&consumers) == nil && consumers
}

// ExplainWrite is [Explain] for what only an operator may write.
func ExplainWrite(err error) error { return Explain(err, migrations.Outbox) }

// ExplainMaintainer says who may do this.
func ExplainMaintainer(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" && pg.Routine != "check_enable_rls" { // insufficient_privilege
		return fmt.Errorf("%w; connect as a member of the role onceward_maintainer, unless --prefix says otherwise: `outboxctl migrate roles --side outbox --print` shows how to make one", err)
	}
	return Explain(err, migrations.Outbox)
}

// ExplainMigrator says who may migrate a side, or what the owner of its tables lacks for it.
func ExplainMigrator(ctx context.Context, db *Database, err error, side migrations.Side) error {
	if !Denied(err) {
		return err
	}
	var owner, database string
	const lacks = `SELECT pg_catalog.pg_get_userbyid(nspowner), pg_catalog.current_database() FROM pg_catalog.pg_namespace
		WHERE nspname = 'onceward' AND NOT pg_catalog.has_database_privilege(nspowner, pg_catalog.current_database(), 'CREATE')`
	if db.QueryRow(ctx, lacks).Scan(&owner, &database) == nil {
		return fmt.Errorf("%w; role %s, the owner, has no CREATE on database %s, as after a pg_restore into another one, since a dump has no rights on the database itself: "+
			"`outboxctl migrate roles --side %s --apply%s` as superuser gives it", err, owner, database, side, prefixOf(owner))
	}
	role := migrations.RoleMaintainer
	if side == migrations.Consumer {
		role = migrations.RoleConsumerMaintainer
	}
	const nobody = `SELECT pg_catalog.current_database(), COALESCE((SELECT o.rolname FROM pg_catalog.pg_roles o
			JOIN pg_catalog.pg_roles m ON m.rolname = pg_catalog.regexp_replace(o.rolname, '_owner$', '_' || $1::text) AND pg_catalog.pg_has_role(m.oid, 'MEMBER')
			WHERE o.rolname LIKE '%\_owner' ORDER BY 1 LIMIT 1), '')
		WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'onceward') AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles
			WHERE rolname LIKE '%\_owner' AND NOT rolsuper AND pg_catalog.has_database_privilege(oid, pg_catalog.current_database(), 'CREATE'))`
	if db.QueryRow(ctx, nobody, string(role)).Scan(&database, &owner) == nil {
		return fmt.Errorf("%w; no role of Onceward may make anything in database %s: `outboxctl migrate roles --side %s --apply%s`, as superuser and in it, lets them, also where the roles are there for another database; then run this again",
			err, database, side, prefixOf(owner))
	}
	return fmt.Errorf("%w; connect as a member of the role onceward_%s, unless --prefix says otherwise: `outboxctl migrate roles --side %s --print` shows how to make one", err, role, side)
}

// prefixOf is the flag by which roles of another prefix than the usual are made, told by
// their owner's.
func prefixOf(owner string) string {
	if prefix, ok := strings.CutSuffix(owner, "_owner"); ok && prefix != "onceward" {
		return " --prefix " + prefix
	}
	return ""
}

// OthersThan leaves one of the errors out that were joined; nil: there is no other.
func OthersThan(err, one error) error {
	if !errors.Is(err, one) {
		return err
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return OthersThan(errors.Unwrap(err), one)
	}
	var others []error
	for _, part := range joined.Unwrap() {
		others = append(others, OthersThan(part, one))
	}
	return errors.Join(others...)
}

// Denied reports whether a right was missing.
func Denied(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "42501" // insufficient_privilege
}

// ExplainRoles adds what PostgreSQL hints at and pgx leaves out, and what to do
// about a lock.
func ExplainRoles(err error) error {
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
		return err
	case pg.Code == "55P03": // lock_not_available
		return fmt.Errorf("%w; a transaction that wrote or read events is open for long: nothing was changed, run it again when it has ended", err)
	case pg.Code == "42501": // insufficient_privilege
		return fmt.Errorf("%w; connect as a superuser: roles are the whole cluster's, and no role of ours may make them", err)
	case pg.Hint != "":
		return fmt.Errorf("%w; %s", err, pg.Hint)
	}
	return err
}
