package migrations

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/outbox"
)

// Producer is a role that writes events of one namespace and sees no others. What
// keeps it there is row-level security on onceward.outbox, which is enabled with the
// first one and disabled with the last. Make one with [Roles.Producer].
type Producer struct {
	roles           Roles
	name, namespace string
}

// producerName leaves room for the names of the policies in PostgreSQL's 63 bytes.
var producerName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,47}$`)

// The policies. What a role may see and write is the union of those that are to it.
const (
	insertPolicy = "onceward_insert_" // and the producer's name
	selectPolicy = "onceward_select_"
	elsePolicy   = pgconf.EverybodyElse
)

// Producer checks the names: 1 to 47 of a-z, A-Z, 0-9, _, . and - for the role,
// which is none of [Roles.All]; that of a key for the namespace, which may be empty
// for [Producer.Remove].
func (r Roles) Producer(name, namespace string) (Producer, error) {
	if r.side != Outbox {
		return Producer{}, errors.New("only the outbox side has producers")
	}
	ours := slices.ContainsFunc(r.All(), func(role Role) bool { return r.Name(role) == name })
	if !producerName.MatchString(name) || ours {
		return Producer{}, fmt.Errorf("producer %q: want 1 to 47 of a-z, A-Z, 0-9, _, . and -, and none of the roles %s_*", name, r.prefix)
	}
	if _, err := outbox.NewKey(namespace); err != nil && namespace != "" {
		return Producer{}, fmt.Errorf("producer %s: %w", name, err)
	}
	return Producer{roles: r, name: name, namespace: namespace}, nil
}

// SQL returns the statements that [Producer.Apply] runs, in order, for a session of
// their own. Each is atomic: at no moment does anybody else lose what he may. It is pure.
func (p Producer) SQL() []string { return append([]string{pinPath}, p.statements()...) }

func (p Producer) statements() []string { return []string{p.create(), p.refuse(), p.bind()} }

// Apply makes the role, if it is not there, and binds it to the namespace, in one
// transaction. The session needs what [Roles.Apply] needs, and BYPASSRLS to give it
// to the relay's role. It waits for a running migration, and gives way to open
// transactions that wrote events: then it fails with SQLSTATE 55P03.
func (p Producer) Apply(ctx context.Context, conn Beginner) error {
	if err := applyAll(ctx, conn, p.statements()); err != nil {
		return fmt.Errorf("bind role %s to namespace %s: %w", p.name, p.namespace, err)
	}
	return nil
}

// RemoveSQL returns the statements that [Producer.Remove] runs. It is pure.
func (p Producer) RemoveSQL() []string { return []string{pinPath, p.remove()} }

// Remove takes the role's policies and rights away, and row-level security with the
// last one's. The role stays, and so does BYPASSRLS of the relay's role, which may
// need it in another database.
func (p Producer) Remove(ctx context.Context, conn Beginner) error {
	if err := applyAll(ctx, conn, []string{p.remove()}); err != nil {
		return fmt.Errorf("take the rights of role %s away: %w", p.name, err)
	}
	return nil
}

// Logins returns an example of the statement that only the DBA can complete.
func (p Producer) Logins() []string {
	return []string{fmt.Sprintf("ALTER ROLE %s LOGIN PASSWORD '…'", p.quoted())}
}

func (p Producer) quoted() string { return pgx.Identifier{p.name}.Sanitize() }

func (p Producer) policy(kind string) string { return pgx.Identifier{kind + p.name}.Sanitize() }

func (p Producer) create() string {
	return do("", fmt.Sprintf("  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = %s) THEN\n    CREATE ROLE %s NOLOGIN;\n  END IF;",
		literal(p.name), p.quoted()))
}

// bound are the oids of the roles that have a policy of ours to write.
const bound = `SELECT pg_catalog.unnest(p.polroles) FROM pg_catalog.pg_policy AS p
      WHERE p.polrelid = pg_catalog.to_regclass('onceward.outbox') AND pg_catalog.starts_with(p.polname::text, '` + insertPolicy + `')`

// holders are the oids of the roles with a right on the outbox or a column of it;
// 0 is everybody. The owner, to whom no policy applies, is among them.
const holders = `SELECT (pg_catalog.aclexplode(c.relacl)).grantee FROM pg_catalog.pg_class AS c WHERE c.oid = pg_catalog.to_regclass('onceward.outbox')
      UNION SELECT (pg_catalog.aclexplode(a.attacl)).grantee FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = pg_catalog.to_regclass('onceward.outbox')
      UNION SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE c.oid = pg_catalog.to_regclass('onceward.outbox')`

// refuse is about roles that no policy of ours would bind.
func (p Producer) refuse() string {
	return do("other text;", fmt.Sprintf(`  IF pg_catalog.to_regclass('onceward.outbox') IS NULL THEN
    RAISE EXCEPTION 'there is no onceward.outbox in database %%', pg_catalog.current_database()
      USING HINT = 'Run outboxctl migrate up --side outbox first.';
  END IF;
  IF (SELECT rolsuper OR rolbypassrls FROM pg_catalog.pg_roles WHERE rolname = %[1]s) THEN
    RAISE EXCEPTION 'role %% is a superuser or has BYPASSRLS: nothing binds it', %[1]s USING HINT = 'Take that away from it, or choose another role.';
  END IF;
  FOR other IN SELECT h.grantee::regrole::text FROM (%[2]s) AS h
    WHERE h.grantee <> 0 AND h.grantee NOT IN (%[3]s) AND h.grantee <> %[4]s::regrole AND pg_catalog.pg_has_role(%[1]s, h.grantee, 'MEMBER')
  LOOP
    RAISE EXCEPTION 'role %% is a member of %%, which may write or read events of every namespace: nothing would bind it', %[1]s, other
      USING HINT = pg_catalog.format('REVOKE %%s FROM %%I', other, %[1]s);
  END LOOP;
  IF EXISTS (SELECT FROM (%[2]s) AS h WHERE h.grantee = 0) THEN
    RAISE EXCEPTION 'everybody (PUBLIC) has rights on onceward.outbox: nothing would bind role %%', %[1]s
      USING HINT = 'REVOKE ALL ON onceward.outbox FROM PUBLIC, and give them to the roles that need them.';
  END IF;`, literal(p.name), holders, bound, literal(p.quoted())))
}

// bind is one statement, so that it is atomic by hand too: between row-level
// security and its policies nobody would see an event. The relay refuses to be
// filtered (row_security = off), for which PostgreSQL wants more than a policy that
// hides nothing; whoever has REPLICATION reads everything in any case.
func (p Producer) bind() string {
	return do("", fmt.Sprintf(`  PERFORM pg_catalog.set_config('lock_timeout', '2s', true); -- behind one who waits for this lock all writers wait
  REVOKE ALL ON onceward.outbox FROM %[1]s; -- what it has is said below
  DROP POLICY IF EXISTS %[2]s ON onceward.outbox;
  DROP POLICY IF EXISTS %[3]s ON onceward.outbox;
  CREATE POLICY %[2]s ON onceward.outbox FOR INSERT TO %[1]s WITH CHECK (namespace OPERATOR(pg_catalog.=) %[4]s);
  CREATE POLICY %[3]s ON onceward.outbox FOR SELECT TO %[1]s USING (namespace OPERATOR(pg_catalog.=) %[4]s);
%[5]s
%[6]s
%[7]s
  IF NOT (SELECT relrowsecurity FROM pg_catalog.pg_class WHERE oid = 'onceward.outbox'::pg_catalog.regclass) THEN
    ALTER TABLE onceward.outbox ENABLE ROW LEVEL SECURITY;
  END IF;`, p.quoted(), p.policy(insertPolicy), p.policy(selectPolicy), literal(p.namespace), producersBody, elseBody, bypassBody))
}

// bypassBody is about those who log in to replicate and have a right on the outbox.
const bypassBody = `  DECLARE
    login name;
  BEGIN
    FOR login IN SELECT r.rolname FROM pg_catalog.pg_roles AS r
      WHERE r.rolreplication AND NOT r.rolsuper AND NOT r.rolbypassrls
        AND EXISTS (SELECT FROM (` + holders + `) AS h WHERE h.grantee <> 0 AND pg_catalog.pg_has_role(r.oid, h.grantee, 'MEMBER'))
    LOOP
      EXECUTE pg_catalog.format('ALTER ROLE %I BYPASSRLS', login);
    END LOOP;
  END;`

// bypass gives it to those who came after the first producer was bound.
func bypass() string {
	return do("", `  IF EXISTS (`+bound+`) AND (SELECT relrowsecurity FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass('onceward.outbox')) THEN
`+bypassBody+`
  END IF;`)
}

// elseBody gives everybody with rights on the outbox but the bound producers a
// policy that hides nothing: who had rights before there were policies, and who got
// them since. It does nothing where no producer is bound.
const elseBody = `  DECLARE
    want oid[] := ARRAY(SELECT h.grantee FROM (` + holders + `) AS h WHERE h.grantee <> 0 AND h.grantee NOT IN (` + bound + `) ORDER BY 1);
    have oid[] := ARRAY(SELECT r FROM pg_catalog.pg_policy AS p, pg_catalog.unnest(p.polroles) AS u (r)
      WHERE p.polrelid = pg_catalog.to_regclass('onceward.outbox') AND p.polname = '` + elsePolicy + `' ORDER BY 1);
  BEGIN
    IF want <> have AND EXISTS (` + bound + `) THEN
      PERFORM pg_catalog.set_config('lock_timeout', '2s', true);
      DROP POLICY IF EXISTS ` + elsePolicy + ` ON onceward.outbox;
      EXECUTE 'CREATE POLICY ` + elsePolicy + ` ON onceward.outbox TO '
        || (SELECT pg_catalog.string_agg(r::regrole::text, ', ') FROM pg_catalog.unnest(want) AS u (r)) || ' USING (true) WITH CHECK (true)';
    END IF;
  END;`

func everybodyElse() string { return do("", elseBody) }

func producersRights() string { return do("", producersBody) }

// producersBody gives each role that is bound the rights of the writer.
const producersBody = `  DECLARE
    producer text;
    function text;
  BEGIN
    FOR producer IN SELECT o.role::regrole::text FROM (` + bound + `) AS o (role) LOOP
      EXECUTE 'GRANT USAGE ON SCHEMA ` + schemaName + ` TO ' || producer;
      EXECUTE 'GRANT INSERT (` + eventColumns + `), SELECT (` + compareColumns + `) ON onceward.outbox TO ' || producer;
      FOR function IN ` + enqueueFunctions + ` LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION ' || function || ' TO ' || producer;
      END LOOP;
    END LOOP;
  END;`

func (p Producer) remove() string {
	return do("function text;", fmt.Sprintf(`  IF pg_catalog.to_regclass('onceward.outbox') IS NULL OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = %[1]s) THEN RETURN; END IF;
  PERFORM pg_catalog.set_config('lock_timeout', '2s', true);
  DROP POLICY IF EXISTS %[2]s ON onceward.outbox;
  DROP POLICY IF EXISTS %[3]s ON onceward.outbox;
  REVOKE ALL ON onceward.outbox FROM %[4]s;
  FOR function IN %[5]s LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || function || ' FROM %[4]s';
  END LOOP;
  REVOKE USAGE ON SCHEMA %[6]s FROM %[4]s;
  IF (SELECT pg_catalog.string_agg(polname::text, ' ') FROM pg_catalog.pg_policy WHERE polrelid = 'onceward.outbox'::pg_catalog.regclass) = '%[7]s' THEN
    DROP POLICY %[7]s ON onceward.outbox;
    ALTER TABLE onceward.outbox DISABLE ROW LEVEL SECURITY;
  END IF;`, literal(p.name), p.policy(insertPolicy), p.policy(selectPolicy), p.quoted(), enqueueFunctions, schemaName, elsePolicy))
}
