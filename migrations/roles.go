package migrations

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/pgconf"
)

// DefaultPrefix begins the names of the roles unless another is asked for.
const DefaultPrefix = "onceward"

// Role is what one kind of session may do. Its name in the cluster is the
// prefix, an underscore and this.
type Role string

// The roles. All are made without LOGIN: either the role itself is given a
// password, or users are made members of it. REPLICATION is an attribute and
// not inherited, so that the relay logs in as [RoleRelay] itself, or as a member
// that has the attribute too.
const (
	// RoleOwner owns the schema and everything in it. Nobody logs in as it.
	RoleOwner Role = "owner"
	// RoleWriter enqueues: INSERT of the columns that are the event's, SELECT of
	// those that tell a duplicate from a reused key. It can neither change nor
	// remove an event, nor choose created_at, tx_id or seq.
	RoleWriter Role = "writer"
	// RoleRelay publishes: REPLICATION (which in PostgreSQL means reading every
	// table of the cluster), pg_monitor, reads the stream's tables, writes
	// relay_state and dead_letters.
	RoleRelay Role = "relay"
	// RoleMaintainer is a member of the owner, for partitions and migrations.
	RoleMaintainer Role = "maintainer"
	// RoleOperator reads everything of Onceward and says the operator's words.
	RoleOperator Role = "operator"
	// RoleConsumer claims events: reads and writes the rows of the consumer's
	// tables.
	RoleConsumer Role = "consumer"
	// RoleConsumerMaintainer is RoleMaintainer of the consumer's side.
	RoleConsumerMaintainer Role = "consumer_maintainer"
)

// Roles makes the roles of one side and gives them their rights. Roles belong to
// the whole cluster, which is why no versioned migration makes them. The zero
// value is useless; make one with [NewRoles].
type Roles struct {
	side   Side
	prefix string
}

// rolePrefix leaves room for the longest role in PostgreSQL's 63 bytes.
var rolePrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,40}$`)

// NewRoles checks the prefix: 1 to 40 of a-z, A-Z, 0-9, _, . and -.
func NewRoles(side Side, prefix string) (Roles, error) {
	if _, err := ParseSide(string(side)); err != nil {
		return Roles{}, err
	}
	if !rolePrefix.MatchString(prefix) || strings.HasPrefix(prefix, "pg_") {
		return Roles{}, fmt.Errorf("role prefix %q: want 1 to 40 of a-z, A-Z, 0-9, _, . and -, not beginning with pg_", prefix)
	}
	return Roles{side: side, prefix: prefix}, nil
}

// Name returns a role's name in the cluster, unquoted.
func (r Roles) Name(role Role) string { return r.prefix + "_" + string(role) }

// All returns the roles of the side.
func (r Roles) All() []Role {
	if r.side == Consumer {
		return []Role{RoleOwner, RoleConsumer, RoleConsumerMaintainer, RoleOperator}
	}
	return []Role{RoleOwner, RoleWriter, RoleRelay, RoleMaintainer, RoleOperator}
}

// maintainer is the side's role that is a member of the owner.
func (r Roles) maintainer() Role {
	if r.side == Consumer {
		return RoleConsumerMaintainer
	}
	return RoleMaintainer
}

// SQL returns the statements that [Roles.Apply] runs, in order, for a session of
// their own. They look at what there is when they run, so that they may be
// repeated, before the first [Migrator.Up] and after any. It is pure.
func (r Roles) SQL() []string { return append([]string{pinPath}, r.statements()...) }

func (r Roles) statements() []string {
	out := []string{r.warn()}
	for _, role := range r.All() {
		out = append(out, r.create(role))
	}
	out = append(out, r.member("pg_monitor", r.Name(RoleOperator)), r.member(r.Name(RoleOwner), r.Name(r.maintainer())))
	if r.side == Outbox {
		out = append(out, r.replication(), r.member("pg_monitor", r.Name(RoleRelay)))
	}
	out = append(out, r.database(), r.schema(), r.adopt())
	out = append(out, r.rights()...)
	if r.side == Outbox {
		out = append(out, bypass())
	}
	return out
}

// Apply makes what is missing, in one transaction. The session needs to be a
// superuser's, or, from PostgreSQL 16 on, one with CREATEROLE, REPLICATION and
// the admin option on pg_monitor that owns the database; where producers are bound,
// BYPASSRLS too, to give it to new roles of relays. It waits for a running migration.
func (r Roles) Apply(ctx context.Context, conn Beginner) error {
	if err := applyAll(ctx, conn, r.statements()); err != nil {
		return fmt.Errorf("make roles %s_*: %w", r.prefix, err)
	}
	return nil
}

// Beginner is what [Roles.Apply] and [Producer.Apply] need of a connection or pool.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// applyAll runs the statements in one transaction, while no migration runs.
func applyAll(ctx context.Context, conn Beginner, statements []string) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_catalog.pg_advisory_xact_lock($1)", lockKey); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if err := refuseServer(ctx, tx); err != nil {
			return err
		}
		for _, sql := range append([]string{pgconf.Local}, statements...) {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// Elsewhere lists the other databases of the cluster in which roles of these names
// have rights or own something: whoever is a member of one has them there too.
func (r Roles) Elsewhere(ctx context.Context, conn interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
},
) ([]string, error) {
	rows, err := conn.Query(ctx, r.elsewhere())
	if err != nil {
		return nil, fmt.Errorf("look for roles %s_* in other databases: %w", r.prefix, err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for roles %s_* in other databases: %w", r.prefix, err)
	}
	return names, nil
}

// elsewhere reads what keeps a role from being dropped: rights and ownership in the
// databases, and rights on the databases themselves.
func (r Roles) elsewhere() string {
	var names []string
	for _, role := range r.All() {
		names = append(names, literal(r.Name(role)))
	}
	return fmt.Sprintf(`SELECT DISTINCT d.datname::text FROM pg_catalog.pg_shdepend AS s
    JOIN pg_catalog.pg_roles AS r ON r.oid = s.refobjid AND s.refclassid = 'pg_catalog.pg_authid'::regclass
    JOIN pg_catalog.pg_database AS d ON d.oid = s.dbid OR (s.classid = 'pg_catalog.pg_database'::regclass AND d.oid = s.objid)
    WHERE r.rolname IN (%s) AND d.datname <> pg_catalog.current_database() ORDER BY 1`, strings.Join(names, ", "))
}

// SharedRoles is what to know about roles that serve other databases too.
func (r Roles) SharedRoles(others []string) string {
	return fmt.Sprintf("roles %s_* have rights in other databases of this cluster too (%s): a writer, relay or operator of one is one of all; "+
		"roles of this database's own have another --prefix", r.prefix, strings.Join(others, ", "))
}

// warn says the same where the SQL is run by hand.
func (r Roles) warn() string {
	return do("others text;", fmt.Sprintf("  SELECT pg_catalog.string_agg(o.name, ', ') INTO others FROM (%s) AS o (name);\n"+
		"  IF others IS NOT NULL THEN\n    RAISE WARNING %s, others;\n  END IF;", r.elsewhere(), literal(r.SharedRoles([]string{"%"}))))
}

// Logins returns examples of the statements that only the DBA can complete: who
// logs in, and with what password.
func (r Roles) Logins() []string {
	if r.side == Consumer {
		return []string{
			fmt.Sprintf("CREATE ROLE billing LOGIN PASSWORD '…' IN ROLE %s", r.quoted(RoleConsumer)),
			fmt.Sprintf("ALTER ROLE %s LOGIN PASSWORD '…'", r.quoted(RoleConsumerMaintainer)),
		}
	}
	return []string{
		fmt.Sprintf("CREATE ROLE shop LOGIN PASSWORD '…' IN ROLE %s", r.quoted(RoleWriter)),
		fmt.Sprintf("ALTER ROLE %s LOGIN PASSWORD '…'", r.quoted(RoleRelay)),
		fmt.Sprintf("ALTER ROLE %s LOGIN PASSWORD '…'", r.quoted(RoleMaintainer)),
		fmt.Sprintf("CREATE ROLE alice LOGIN PASSWORD '…' IN ROLE %s", r.quoted(RoleOperator)),
	}
}

func (r Roles) quoted(roles ...Role) string {
	var out []string
	for _, role := range roles {
		out = append(out, pgx.Identifier{r.Name(role)}.Sanitize())
	}
	return strings.Join(out, ", ")
}

// literal quotes a text; a prefix holds neither quotes nor backslashes.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// do wraps a PL/pgSQL body; declare is empty or a declaration.
func do(declare, body string) string {
	if declare != "" {
		declare = "DECLARE " + declare + "\n"
	}
	return "DO $onceward$\n" + declare + "BEGIN\n" + body + "\nEND\n$onceward$"
}

// The statements below ask before they change: a repeated run then needs no more
// rights than those of looking, and wakes no session by a changed catalog.

func (r Roles) create(role Role) string {
	return do("", fmt.Sprintf("  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = %s) THEN\n    CREATE ROLE %s NOLOGIN;\n  END IF;",
		literal(r.Name(role)), r.quoted(role)))
}

func (r Roles) member(group, member string) string {
	return do("", fmt.Sprintf("  IF NOT pg_catalog.pg_has_role(%s, %s, 'MEMBER') THEN\n    GRANT %s TO %s;\n  END IF;",
		literal(member), literal(group), pgx.Identifier{group}.Sanitize(), pgx.Identifier{member}.Sanitize()))
}

func (r Roles) replication() string {
	return do("", fmt.Sprintf("  IF NOT (SELECT rolreplication FROM pg_catalog.pg_roles WHERE rolname = %s) THEN\n    ALTER ROLE %s REPLICATION;\n  END IF;",
		literal(r.Name(RoleRelay)), r.quoted(RoleRelay)))
}

// database: the owner makes publications, for which it needs CREATE.
func (r Roles) database() string {
	return do("", fmt.Sprintf("  EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %%I TO %s', pg_catalog.current_database());\n"+
		"  EXECUTE pg_catalog.format('GRANT CREATE ON DATABASE %%I TO %s', pg_catalog.current_database());",
		r.quoted(r.All()...), r.quoted(RoleOwner)))
}

func (r Roles) schema() string {
	others := r.All()[1:] // the owner has what it owns
	return do("others text;", fmt.Sprintf(`  IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '%[1]s') THEN
    CREATE SCHEMA %[1]s AUTHORIZATION %[2]s;
    COMMENT ON SCHEMA %[1]s IS '%[3]s';
  ELSIF (SELECT pg_catalog.pg_get_userbyid(nspowner) FROM pg_catalog.pg_namespace WHERE nspname = '%[1]s') <> %[4]s THEN
    SELECT pg_catalog.left(o.rolname, -6) INTO others FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles o ON o.oid = n.nspowner
    WHERE n.nspname = '%[1]s' AND pg_catalog.right(o.rolname, 6) = '_owner'
      AND EXISTS (SELECT FROM pg_catalog.pg_roles p WHERE p.rolname = pg_catalog.left(o.rolname, -6) || '_operator');
    IF others IS NOT NULL THEN
      RAISE EXCEPTION 'this database has roles of its own, and they would lose it: --prefix %%', others
        USING HINT = 'to move it to other roles, first: ALTER SCHEMA %[1]s OWNER TO CURRENT_USER';
    END IF;
    ALTER SCHEMA %[1]s OWNER TO %[2]s;
  END IF;
  GRANT USAGE ON SCHEMA %[1]s TO %[5]s;`,
		schemaName, r.quoted(RoleOwner), madeByUs, literal(r.Name(RoleOwner)), r.quoted(others...)))
}

// adopt gives the owner what was installed before the roles were there: the
// side's tables with their partitions, its functions, and the publications.
func (r Roles) adopt() string {
	var roots []string
	known := append(r.tables(), r.side.versionTable())
	if r.side == Outbox {
		known = slices.Concat(known, []string{resultsTable, healthTable, kafkaTable}, gapTables, waitingTables)
	} else {
		known = append(append(known, laterTables...), aheadTable, parkedTable)
	}
	for _, table := range known {
		roots = append(roots, "pg_catalog.to_regclass("+literal(table)+")")
	}
	root, _ := r.side.partitioned()
	body := fmt.Sprintf(`  FOR thing IN
    SELECT 'TABLE ' || c.oid::regclass::text FROM pg_catalog.pg_class c
    WHERE pg_catalog.pg_get_userbyid(c.relowner) <> %[1]s AND (c.oid IN (%[2]s)
      OR c.oid IN (SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = pg_catalog.to_regclass('%[3]s')))`,
		literal(r.Name(RoleOwner)), strings.Join(roots, ", "), root)
	if r.side == Outbox {
		body += fmt.Sprintf(`
    UNION ALL SELECT 'FUNCTION ' || p.oid::regprocedure::text FROM pg_catalog.pg_proc p
    WHERE pg_catalog.pg_get_userbyid(p.proowner) <> %[1]s AND p.pronamespace = '%[2]s'::regnamespace`, literal(r.Name(RoleOwner)), schemaName)
	}
	body += fmt.Sprintf("\n  LOOP\n    EXECUTE 'ALTER ' || thing || ' OWNER TO %s';\n  END LOOP;", r.quoted(RoleOwner))
	if r.side == Outbox {
		body += r.adoptPublications()
	}
	return do("thing text; publication record;", body)
}

// adoptPublications leaves what relays know of a publication true: a new owner is a
// new xmin of its row, by which they would take it for changed. What was another
// before stays another.
func (r Roles) adoptPublications() string {
	return fmt.Sprintf(`
  FOR publication IN
    SELECT b.oid, b.pubname, b.xmin::text AS was FROM pg_catalog.pg_publication b
    WHERE pg_catalog.pg_get_userbyid(b.pubowner) <> %[1]s AND pg_catalog.obj_description(b.oid, 'pg_publication') = '%[2]s'
  LOOP
    EXECUTE pg_catalog.format('ALTER PUBLICATION %%I OWNER TO %[3]s', publication.pubname);
    IF pg_catalog.to_regclass('onceward.relay_state') IS NOT NULL THEN
      UPDATE onceward.relay_state AS s SET publication_catalog =
          pg_catalog.regexp_replace(s.publication_catalog, ' xmin ' || publication.was || '( unlogged |$)', ' xmin ' || b.xmin::text || E'\\1')
        FROM pg_catalog.pg_publication AS b
        WHERE b.oid = publication.oid AND s.publication = b.pubname AND pg_catalog.starts_with(s.publication_catalog, 'publication ' || b.oid || ' ');
    END IF;
  END LOOP;`, literal(r.Name(RoleOwner)), madeByUs, r.quoted(RoleOwner))
}
