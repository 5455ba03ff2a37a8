//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// startUpDefect is one thing that is wrong before the relay starts.
type startUpDefect struct {
	name  string
	code  string
	spoil func(t *testing.T, d *defectiveStart)
	// cure mends it by what the relay printed; nil runs the SQL in it as it is.
	cure func(t *testing.T, d *defectiveStart, printed string)
	more string // of relay.yaml
}

// defectiveStart is the environment of one defect: a relay with a role of its own that
// has just the rights it needs.
type defectiveStart struct {
	w    *environment
	role string
	dsn  string // of the relay
}

// sql runs statements as the superuser; {relay} and {role} stand for the names.
func (d *defectiveStart) sql(t *testing.T, statements ...string) {
	t.Helper()
	for _, s := range statements {
		s = strings.NewReplacer("{relay}", d.w.name, "{role}", d.role).Replace(s)
		_, err := d.w.pool.Exec(t.Context(), s)
		require.NoError(t, err, s)
	}
}

func sql(statements ...string) func(*testing.T, *defectiveStart) {
	return func(t *testing.T, d *defectiveStart) { d.sql(t, statements...) }
}

// inPostgres runs a statement in another database of the server.
func inPostgres(statement string) func(*testing.T, *defectiveStart) {
	return func(t *testing.T, d *defectiveStart) {
		conn, err := pgx.Connect(t.Context(), d.w.server.DSN("postgres"))
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), strings.ReplaceAll(statement, "{relay}", d.w.name))
		require.NoError(t, err)
		require.NoError(t, conn.Close(t.Context()))
	}
}

// printedSQL finds the statements in a printed cure.
var printedSQL = regexp.MustCompile(`\b(ALTER|CREATE|DELETE|DROP|GRANT|SELECT|UPDATE)\b.*;`)

func runPrinted(t *testing.T, d *defectiveStart, printed string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	_, cure, ok := strings.Cut(lines[len(lines)-1], "To mend it: ") // for people: the log has it too, quoted
	require.True(t, ok, printed)
	statement := printedSQL.FindString(cure)
	require.NotEmpty(t, statement, cure)
	_, err := d.w.pool.Exec(t.Context(), statement)
	require.NoError(t, err, statement)
}

// runCommand runs the outboxctl command in a printed cure.
func runCommand(t *testing.T, d *defectiveStart, printed string) {
	t.Helper()
	command := printedCommand.FindStringSubmatch(printed)
	require.NotNil(t, command, printed)
	outboxctl(t, d.w.server.DSN(d.w.name), strings.Fields(command[1])...)
	d.grant(t)
}

// renamedTable: migrate up makes no table a second time; it says where it is.
func renamedTable(t *testing.T, d *defectiveStart, printed string) {
	t.Helper()
	command := printedCommand.FindStringSubmatch(printed)
	require.NotNil(t, command, printed)
	for _, args := range [][]string{strings.Fields(command[1]), append(strings.Fields(command[1]), "--dry-run"), {"migrate", "status", "--side", "outbox"}} {
		out, code := asked(t, d.w.server.DSN(d.w.name), args...)
		require.NotZero(t, code)
		printed = out
	}
	runPrinted(t, d, printed)
}

func (d *defectiveStart) grant(t *testing.T) {
	d.sql(t, `GRANT USAGE ON SCHEMA onceward TO {role}`, `GRANT SELECT ON onceward.outbox, onceward.replays, onceward.controls TO {role}`,
		`GRANT SELECT, INSERT, UPDATE ON onceward.relay_state, onceward.published_snapshots, onceward.kafka_topics, onceward.gaps, onceward.dead_letters, onceward.control_results TO {role}`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.waiting, onceward.waiting_copies, onceward.lanes, onceward.releases TO {role}`)
}

var startUpDefects = []startUpDefect{
	{name: "no login", code: "LOGIN_REFUSED", spoil: sql(`ALTER ROLE {role} NOLOGIN`), cure: func(t *testing.T, d *defectiveStart, printed string) {
		require.Contains(t, printed, `ALTER ROLE "`+d.role+`" LOGIN;`)
		d.sql(t, `ALTER ROLE {role} LOGIN`)
	}},
	{name: "no such database", code: "DATABASE_MISSING", spoil: func(_ *testing.T, d *defectiveStart) {
		d.dsn = strings.Replace(d.dsn, "/"+d.w.name+"?", "/nowhere?", 1)
	}, cure: func(t *testing.T, d *defectiveStart, printed string) {
		require.Contains(t, printed, "postgres.dsn")
		d.dsn = strings.Replace(d.dsn, "/nowhere?", "/"+d.w.name+"?", 1)
	}},
	{name: "role without replication", code: "ROLE_WITHOUT_REPLICATION", spoil: sql(`ALTER ROLE {role} NOREPLICATION`)},
	{name: "tables missing", code: "TABLE_MISSING", spoil: sql(`DROP PUBLICATION onceward_{relay}`, `DROP SCHEMA onceward CASCADE`), cure: runCommand},
	{name: "table renamed", code: "TABLE_MISSING", spoil: sql(`ALTER TABLE onceward.waiting RENAME TO "Waiting"`), cure: renamedTable},
	{name: "partition unlogged", code: "TABLE_UNLOGGED", spoil: sql(`DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE %s SET UNLOGGED', inhrelid::regclass) FROM pg_inherits WHERE inhparent = 'onceward.outbox'::regclass LIMIT 1); END $$`)},
	{name: "column renamed", code: "COLUMN", spoil: sql(`ALTER TABLE onceward.outbox RENAME COLUMN payload TO body`), cure: func(t *testing.T, d *defectiveStart, printed string) {
		require.Contains(t, printed, "column payload (bytea) is missing")
		d.sql(t, `ALTER TABLE onceward.outbox RENAME COLUMN body TO payload`)
	}},
	{name: "column retyped", code: "COLUMN", spoil: sql(`ALTER TABLE onceward.outbox DROP CONSTRAINT outbox_headers, ALTER COLUMN headers TYPE json USING headers::json`), cure: func(t *testing.T, d *defectiveStart, printed string) {
		require.Contains(t, printed, "column headers")
		d.sql(t, `ALTER TABLE onceward.outbox ALTER COLUMN headers TYPE jsonb USING headers::jsonb`)
	}},
	{name: "rights revoked", code: "RIGHTS", spoil: sql(`REVOKE UPDATE ON onceward.relay_state FROM {role}`)},
	{name: "rights on the results revoked", code: "RIGHTS", spoil: sql(`REVOKE INSERT ON onceward.control_results FROM {role}`)},
	{name: "schema not usable", code: "RIGHTS", spoil: sql(`REVOKE USAGE ON SCHEMA onceward FROM {role}`)},
	{name: "rows hidden", code: "ROW_SECURITY", spoil: sql(`ALTER TABLE onceward.outbox ENABLE ROW LEVEL SECURITY`), cure: func(t *testing.T, d *defectiveStart, printed string) {
		require.Contains(t, printed, `ALTER ROLE "`+d.role+`" BYPASSRLS;`)
		require.Contains(t, printed, "ALTER TABLE onceward.outbox DISABLE ROW LEVEL SECURITY;")
		d.sql(t, `ALTER ROLE {role} BYPASSRLS`)
	}},
	{name: "no partition", code: "NO_PARTITION", spoil: sql(`DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'onceward.outbox'::regclass LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$`), cure: runCommand},
	{name: "default partition", code: "DEFAULT_PARTITION", spoil: sql(`CREATE TABLE onceward.rest PARTITION OF onceward.outbox DEFAULT`), cure: func(t *testing.T, d *defectiveStart, printed string) {
		runPrinted(t, d, printed)
		d.sql(t, `DROP TABLE onceward.rest`)
	}},
	{name: "publication missing", code: "PUBLICATION_MISSING", spoil: sql(`DROP PUBLICATION onceward_{relay}`)},
	{name: "publication of updates", code: "PUBLICATION_ACTIONS", spoil: sql(`ALTER PUBLICATION onceward_{relay} SET (publish = 'insert, update, delete')`)},
	{name: "publication of partitions", code: "PUBLICATION_ROOT", spoil: sql(`ALTER PUBLICATION onceward_{relay} SET (publish_via_partition_root = false)`)},
	{name: "table not published", code: "PUBLICATION_TABLES", spoil: sql(`ALTER PUBLICATION onceward_{relay} DROP TABLE onceward.controls`)},
	{name: "replays not published", code: "PUBLICATION_TABLES", spoil: sql(`ALTER PUBLICATION onceward_{relay} DROP TABLE onceward.replays`)},
	{name: "rows filtered", code: "PUBLICATION_TABLES", spoil: sql(`ALTER PUBLICATION onceward_{relay} SET TABLE onceward.outbox WHERE (namespace = 'x'), onceward.replays, onceward.controls`)},
	{name: "all tables published", code: "PUBLICATION_TABLES", spoil: sql(`DROP PUBLICATION onceward_{relay}`, `CREATE PUBLICATION onceward_{relay} FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)`)},
	{name: "slot not made", code: "SLOT_MISSING", spoil: func(*testing.T, *defectiveStart) {}, more: "SLOT_NEVER"},
	{name: "slot of another plugin", code: "SLOT_FOREIGN", spoil: sql(`SELECT pg_create_logical_replication_slot('onceward_{relay}', 'test_decoding')`)},
	{name: "slot of two phases", code: "SLOT_FOREIGN", spoil: sql(`SELECT pg_create_logical_replication_slot('onceward_{relay}', 'pgoutput', twophase => true)`)},
	{name: "seq in advance", code: "COLUMN", spoil: sql(`ALTER SEQUENCE onceward.outbox_seq_seq CACHE 50`)},
	{name: "lock of a stranger", code: "LOCK_HELD", spoil: func(t *testing.T, d *defectiveStart) {
		_, err := d.w.as(appLogin).Exec(t.Context(), `SELECT pg_advisory_lock(1870094951, hashtext($1))`, d.w.slot())
		require.NoError(t, err)
	}},
	{name: "slot of another database", code: "SLOT_FOREIGN", spoil: inPostgres(`SELECT pg_create_logical_replication_slot('onceward_{relay}', 'pgoutput')`), cure: func(t *testing.T, d *defectiveStart, printed string) {
		require.Contains(t, printed, `is of database "postgres"`)
		require.Contains(t, printed, "give this relay another name")
		require.NotContains(t, printed, "pg_drop_replication_slot")
		inPostgres(`SELECT pg_drop_replication_slot('onceward_{relay}')`)(t, d)
	}},
	{name: "copy beside its original", code: "SLOT_FOREIGN", spoil: func(t *testing.T, d *defectiveStart) { // before the cure of PARTITION_FILLED, which would end in it
		d.runOnce(t)
		d.sql(t, `SELECT pg_drop_replication_slot('onceward_{relay}')`)
		inPostgres(`SELECT pg_create_logical_replication_slot('onceward_{relay}', 'pgoutput')`)(t, d)
		f := newFilledLeaf(t, d.w, 20)
		fill, _ := f.fill()
		d.sql(t, f.create(), fill, f.attach())
	}, cure: func(t *testing.T, d *defectiveStart, printed string) {
		require.NotContains(t, printed, "PARTITION_FILLED")
		inPostgres(`SELECT pg_drop_replication_slot('onceward_{relay}')`)(t, d)
		d.sql(t, `DROP TABLE onceward.`+newFilledLeaf(t, d.w, 20).name)
		outboxctl(t, d.w.dsn(operatorLogin), "retire", "--slot", d.w.slot(), "--reason", "it is the original's", "--yes")
	}},
	{name: "restored elsewhere", code: "OTHER_SYSTEM", spoil: func(t *testing.T, d *defectiveStart) {
		d.runOnce(t)
		d.sql(t, `UPDATE onceward.relay_state SET system_identifier = '1'`)
	}, cure: func(t *testing.T, d *defectiveStart, printed string) {
		require.Contains(t, printed, "outboxctl adopt --by copy")
		outboxctl(t, d.w.dsn(maintainerLogin), "adopt", "--by", "copy", "--reason", "it is the same", "--yes")
	}},
	{name: "controls unpublished after a run", code: "PUBLICATION_TABLES", spoil: func(t *testing.T, d *defectiveStart) {
		d.runOnce(t)
		d.sql(t, `ALTER PUBLICATION onceward_{relay} DROP TABLE onceward.controls`)
	}},
}

// TestStartUpDefects: each defect names itself, and what is printed mends it.
func TestStartUpDefects(t *testing.T) {
	t.Parallel()
	for _, version := range versionsOf(t.Name()) {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			for _, defect := range startUpDefects {
				t.Run(strings.ReplaceAll(defect.name, " ", "_"), func(t *testing.T) {
					w := newEnvironment(t, version)
					w.install()
					newDefectiveStart(t, w).run(t, defect)
				})
			}
		})
	}
}

func newDefectiveStart(t *testing.T, w *environment) *defectiveStart {
	t.Helper()
	d := &defectiveStart{w: w, role: w.name + "_r"}
	d.dsn = fmt.Sprintf("postgres://%s:secret@127.0.0.1:%d/%s?sslmode=disable", d.role, w.server.Port(), w.name)
	d.sql(t, `CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'secret'`)
	d.grant(t)
	return d
}

// config writes a relay.yaml with the relay's own DSN.
func (d *defectiveStart) config(t *testing.T, more string) string {
	t.Helper()
	path := d.w.config(`admin: {listen: "off"}`)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	postgres := fmt.Sprintf(`postgres: {dsn: %q, insecure: true}`, d.dsn)
	if more == "SLOT_NEVER" {
		postgres = fmt.Sprintf(`postgres: {dsn: %q, insecure: true, slot: {create: never}}`, d.dsn)
	}
	replaced := regexp.MustCompile(`(?m)^postgres: .*$`).ReplaceAllLiteralString(string(text), postgres)
	require.NoError(t, os.WriteFile(path, []byte(replaced), 0o600))
	return path
}

func (d *defectiveStart) runOnce(t *testing.T) {
	t.Helper()
	r := d.w.newRelay(d.config(t, ""), "")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	r.stop()
	eventually(t, "the server has noticed", 10*time.Second, func() bool {
		return !scalar[bool](d.w, `SELECT bool_or(active) FROM pg_replication_slots WHERE slot_name = $1`, d.w.slot())
	})
}

func (d *defectiveStart) dropRole(t *testing.T) {
	_, _ = d.w.pool.Exec(t.Context(), `DROP OWNED BY `+d.role+` CASCADE`)
	_, err := d.w.pool.Exec(t.Context(), `DROP ROLE `+d.role)
	require.NoError(t, err)
}

func (d *defectiveStart) run(t *testing.T, defect startUpDefect) {
	defer d.dropRole(t)
	defect.spoil(t, d)
	broken := d.w.newRelay(d.config(t, defect.more), "")
	broken.start()
	printed := broken.wait(30 * time.Second)
	require.Contains(t, printed, "relay: ", "on its own line")
	require.Contains(t, printed, defect.code+": ")
	require.NotContains(t, printed, "secret", "the password")
	if defect.cure == nil {
		defect.cure = runPrinted
	}
	defect.cure(t, d, printed)
	mended := d.w.newRelay(d.config(t, defect.more), "")
	mended.start()
	eventually(t, "the mended relay streams", 30*time.Second, func() bool { return mended.logs("slot taken") })
	mended.stop()
}

// TestServerSettings: defects of the server itself, each on one of its own.
func TestServerSettings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		code     string
		settings map[string]string
		cure     string // SQL, before a restart
		spoil    string
	}{
		{code: "WAL_LEVEL", settings: map[string]string{"wal_level": "replica"}, cure: `ALTER SYSTEM SET wal_level = 'logical'`},
		{code: "SLOTS_EXHAUSTED", settings: map[string]string{"max_replication_slots": "1"}, cure: `ALTER SYSTEM SET max_replication_slots = 5`,
			spoil: `SELECT pg_create_physical_replication_slot('other')`},
	} {
		t.Run(tc.code, func(t *testing.T) {
			server, err := pgserver.Start(t.Context(), pgserver.Options{Version: versions[0], Settings: tc.settings})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
			w := newEnvironmentOn(t, server)
			w.install()
			if tc.spoil != "" {
				_, err := w.pool.Exec(t.Context(), tc.spoil)
				require.NoError(t, err)
			}
			r := w.newRelay(w.config(`admin: {listen: "off"}`), "")
			r.start()
			require.Contains(t, r.wait(30*time.Second), tc.code+": ")
			conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
			require.NoError(t, err)
			_, err = conn.Exec(t.Context(), tc.cure)
			require.NoError(t, err)
			require.NoError(t, conn.Close(t.Context()))
			require.NoError(t, server.Restart(t.Context(), pgserver.Fast))
			r.start()
			eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
			r.stop()
		})
	}
}

// TestAReadOnlyDatabaseIsNamed: a provider may switch it on while a disk is full,
// so the relay says what it waits for, and goes on by itself.
func TestAReadOnlyDatabaseIsNamed(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		w.install()
		d := newDefectiveStart(t, w)
		defer d.dropRole(t)
		d.sql(t, `ALTER ROLE {role} IN DATABASE {relay} SET default_transaction_read_only = on`)
		d.dsn += "&target_session_attrs=primary" // as is said where there are standbys
		r := w.newRelay(d.config(t, ""), "")
		r.start()
		cure := fmt.Sprintf(`ALTER ROLE \"%s\" IN DATABASE \"%s\" RESET default_transaction_read_only;`, d.role, w.name)
		eventually(t, "the relay says so", 30*time.Second, func() bool { return r.logs("READ_ONLY: ") && r.logs(cure) })
		d.sql(t, strings.ReplaceAll(cure, `\`, ""))
		eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
		r.stop()
	})
}
