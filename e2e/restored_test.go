//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/outbox"
)

// TestSnapshotRestored: the storage of the server is put back to a copy that was
// made before, under a relay that lives. What was written in between is in Kafka and
// not in the database any more. The relay says that the database went back in time,
// and asks; repaired, everything that is in the table is in the topic.
func TestSnapshotRestored(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"idempotent", "exactly-once"} {
		onAVersion(t, func(t *testing.T, version string) {
			t.Run(mode, func(t *testing.T) {
				w := ownEnvironment(t, version, nil)
				w.prepareTables()
				r := staying(w, "checkpoint_interval: 50ms").inMode(mode)
				begins(t, w, r)
				kept := writeOne(t, w)
				caughtUp(t, w, r)
				saved := filepath.Join(t.TempDir(), "data")
				replaceData(t, w, func(data string) { copied(t, data, saved) })
				gone := writeOne(t, w)
				caughtUp(t, w, r)
				eventually(t, "it is published", 30*time.Second, func() bool { return w.published()[gone] > 0 })
				replaceData(t, w, func(data string) {
					require.NoError(t, os.RemoveAll(data))
					copied(t, saved, data)
				})
				later := writeOne(t, w)
				halted(t, r, "WENT_BACK")
				gap := scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
				outboxctl(t, w.dsn(operatorLogin), "gap", "repair", gap, "--reason", "a snapshot was restored", "--yes")
				eventually(t, "the relay goes on by itself", time.Minute, func() bool { return readyz(t, r).State == "streaming" })
				caughtUp(t, w, r)
				eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
				r.stop()
				inTopic := w.published()
				require.Positive(t, inTopic[kept])
				require.Positive(t, inTopic[later])
				require.Positive(t, inTopic[gone])
				said := account(t, w)
				require.NotContains(t, said, gone)
				for key, state := range said {
					require.Equal(t, "published", state)
					require.Positive(t, inTopic[key], "%s is called published and is not in the topic", key)
				}
			})
		})
	}
}

// copied copies a folder with the owners of its files.
func copied(t *testing.T, from, to string) {
	t.Helper()
	out, err := process.Run(t.Context(), process.Spec{Path: "cp", Args: []string{"-a", from, to}})
	require.NoError(t, err, out)
}

// replaceData stops the server, does something to its data, and starts it again.
func replaceData(t *testing.T, w *environment, do func(data string)) {
	t.Helper()
	require.NoError(t, w.server.Halt(t.Context(), pgserver.Fast))
	do(w.server.DataDir())
	require.NoError(t, w.server.Resume(t.Context()))
	w.pool.Reset()
	w.app.Reset()
}

// TestDumpRestoredBesideItsSlot: a dump is restored into another cluster, where a slot
// of the relay's name is there already. The relay says that it is another cluster, and
// not that all is well; adopted, it asks about what the dump held, and publishes it.
func TestDumpRestoredBesideItsSlot(t *testing.T) {
	t.Parallel()
	const version = "15" // the system's, which has pg_dump
	binaries, err := pgserver.Find(t.Context(), 15)
	require.NoError(t, err)
	from, w := ownEnvironment(t, version, nil), ownEnvironment(t, version, nil)
	from.prepareTables()
	r := startRelay(t, from, "checkpoint_interval: 50ms")
	sent := writeOne(t, from)
	caughtUp(t, from, r)
	r.stop()
	waiting := writeOne(t, from)
	dump := filepath.Join(t.TempDir(), "dump.sql")
	run := func(program string, args ...string) {
		t.Helper()
		out, err := process.Run(t.Context(), process.Spec{Path: filepath.Join(binaries.Dir, program), Args: args})
		require.NoError(t, err, out)
	}
	run("pg_dump", "--dbname="+from.server.DSN(from.name), "--file="+dump)
	// The other cluster has the database, the roles and a slot of the same names.
	w.execute(`DROP SCHEMA IF EXISTS onceward CASCADE`)
	name := w.name
	require.NoError(t, w.superuser(t.Context(), "CREATE DATABASE "+from.name))
	w.name = from.name
	w.moveTo(w.server)
	t.Cleanup(func() {
		w.name = name
		require.NoError(t, w.superuser(context.Background(), "DROP DATABASE "+from.name+" WITH (FORCE)"))
	})
	run("psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file="+dump, w.server.DSN(w.name))
	w.makeRoles()
	w.execute(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, w.slot())

	config := w.config(`admin: {listen: "off"}`, "checkpoint_interval: 50ms")
	r = w.newRelay(config, "")
	r.start()
	require.Contains(t, r.wait(30*time.Second), "OTHER_SYSTEM: ")
	for key, state := range account(t, w) {
		require.Equal(t, "pending", state, "%s: snapshots of another system prove nothing", key)
	}
	require.Contains(t, outboxctlAny(t, w.dsn(operatorLogin), "show", sent), "has run on another system")
	w.execute(`DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	said, err := process.Run(t.Context(), process.Spec{
		Path: outboxctlBinary(t), Args: []string{"adopt", "--by", "copy", "--reason", "moved", "--yes"},
		Env: []string{"OUTBOXCTL_DSN=" + w.dsn(maintainerLogin), "OUTBOXCTL_INSECURE=true"},
	})
	require.Error(t, err)
	require.Contains(t, said, "none of the partitions that its relays know")
	outboxctl(t, w.dsn(maintainerLogin), "adopt", "--by", "dump", "--reason", "moved", "--yes")
	inTopic := repairsAll(t, w, r)
	require.Equal(t, 2, inTopic[sent], "it is not proved that it was published")
	require.Equal(t, 1, inTopic[waiting])
	w.execute(`SELECT pg_drop_replication_slot($1)`, w.slot())
}

// repairsAll starts a relay of a database that was adopted by dump: it asks about
// everything, and publishes it once that is said. It returns how often each event is
// in the topic.
func repairsAll(t *testing.T, w *environment, r *relayProcess) map[string]int {
	t.Helper()
	out, code := relayCheck(t, r.config)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "it stops there", "check decides what run decides")
	r.start()
	require.Contains(t, r.wait(30*time.Second), "outboxctl gap repair", "gap: repair, and yet it asks")
	outboxctl(t, w.dsn(operatorLogin), "gap", "repair", scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`), "--reason", "all of it", "--yes")
	begins(t, w, r)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
	r.stop()
	states, _ := requireTrue(t, w)
	require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
	return w.published()
}

// TestUpgraded: pg_upgrade attaches every partition anew, by transactions that no
// relay has looked at. Adopted as a copy, what was published stays published, what
// was pending is published once, and a partition that was filled before the relay
// stopped and attached after it is published whole. So it is where pg_upgrade restores
// the schema in one transaction, as from 17 on.
func TestUpgraded(t *testing.T) {
	t.Parallel()
	const version = "15" // the system's, which has pg_upgrade; to the same version, as it may
	binaries, err := pgserver.Find(t.Context(), 15)
	require.NoError(t, err)
	for _, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode, func(t *testing.T) {
			w := ownEnvironment(t, version, nil)
			if mode == "idempotent" {
				withLargeOids(t, w, binaries.Dir)
			}
			w.prepareTables()
			r := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "").inMode(mode)
			begins(t, w, r)
			sent, old := writeOne(t, w), oldEvent(t, w, 25)
			f := newFilledLeaf(t, w, 20)
			fill, strange := f.fill()
			w.execute(f.create())
			w.execute(fill)
			covered(w, r)
			r.stop()
			w.execute(f.attach())
			w.execute(fmt.Sprintf("ALTER TABLE onceward.outbox ADD CONSTRAINT outbox_old CHECK (seq > %d) NOT VALID", scalar[int64](w, `SELECT max(seq) FROM onceward.outbox`)))
			waiting := writeOne(t, w)
			loseSlot(t, w)
			system := scalar[string](w, `SELECT system_identifier::text FROM pg_control_system()`)
			programs := binaries.Dir
			if mode == "exactly-once" {
				programs = inOneTransaction(t, w, programs)
			}
			upgrade(t, w, programs)
			require.NotEqual(t, system, scalar[string](w, `SELECT system_identifier::text FROM pg_control_system()`))
			r.start()
			require.Contains(t, r.wait(30*time.Second), "OTHER_SYSTEM: ")
			said := outboxctl(t, w.dsn(maintainerLogin), "adopt", "--by", "copy", "--reason", "upgraded", "--yes")
			require.Contains(t, said, "the 1 event of partition "+f.name)
			begins(t, w, r)
			eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
			r.stop()
			requireTrue(t, w)
			inTopic := w.published()
			for _, key := range []string{sent, old, waiting, strange} {
				require.Equal(t, 1, inTopic[key])
			}
		})
	}
}

// withLargeOids makes the server's next oids larger than 31 bits.
func withLargeOids(t *testing.T, w *environment, binaries string) {
	t.Helper()
	owner, err := process.Unprivileged()
	require.NoError(t, err)
	replaceData(t, w, func(data string) {
		out, err := process.Run(t.Context(), process.Spec{Path: filepath.Join(binaries, "pg_resetwal"), Args: []string{"-o", "3000000000", "-D", data}, Dir: data, User: owner})
		require.NoError(t, err, out)
	})
}

// upgrade puts the result of pg_upgrade, to the version that it is of, in the place
// of the server's data.
func upgrade(t *testing.T, w *environment, binaries string) {
	t.Helper()
	owner, err := process.Unprivileged()
	require.NoError(t, err)
	password, err := os.ReadFile(filepath.Join(w.server.Dir(), "password"))
	require.NoError(t, err)
	run := func(dir, program string, args ...string) {
		t.Helper()
		out, err := process.Run(t.Context(), process.Spec{
			Path: filepath.Join(binaries, program), Args: args, Dir: dir, User: owner, Env: []string{"LC_ALL=C", "PGPASSWORD=" + string(password)},
		})
		require.NoError(t, err, out)
	}
	replaceData(t, w, func(data string) {
		fresh := filepath.Join(w.server.Dir(), "fresh")
		for _, dir := range []string{fresh, fresh + "-logs"} {
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, owner.Own(dir))
		}
		run(fresh, "initdb", "--pgdata="+fresh, "--username="+pgserver.Superuser, "--pwfile="+filepath.Join(w.server.Dir(), "password"),
			"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
		run(fresh+"-logs", "pg_upgrade", "--old-bindir="+binaries, "--new-bindir="+binaries, "--old-datadir="+data, "--new-datadir="+fresh,
			"--username="+pgserver.Superuser, "--socketdir="+fresh+"-logs")
		for _, name := range []string{"postgresql.conf", "onceward.conf", "pg_hba.conf"} {
			text, err := os.ReadFile(filepath.Join(data, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(fresh, name), text, 0o600))
			require.NoError(t, owner.Own(filepath.Join(fresh, name)))
		}
		require.NoError(t, os.RemoveAll(data))
		require.NoError(t, os.Rename(fresh, data))
	})
}

// inOneTransaction returns a folder with the programs, of which pg_restore brings a
// database back in one transaction.
func inOneTransaction(t *testing.T, w *environment, binaries string) string {
	t.Helper()
	dir := filepath.Join(w.server.Dir(), "programs") // pg_upgrade's user reaches it
	require.NoError(t, os.Mkdir(dir, 0o755))
	entries, err := os.ReadDir(binaries)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Name() != "pg_restore" {
			require.NoError(t, os.Symlink(filepath.Join(binaries, e.Name()), filepath.Join(dir, e.Name())))
		}
	}
	const program = `#!/bin/bash
# Only the restore of one database is made another: text, between BEGIN and COMMIT.
case "$*" in *--clean*|*--version*|-V) exec "$REAL/pg_restore" "$@" ;; esac
file="${@: -1}"; database=; connection=()
while [ $# -gt 1 ]; do
  case "$1" in
  --dbname) database="$2"; shift ;;
  --create|--exit-on-error|--verbose) ;;
  *) connection+=("$1") ;;
  esac
  shift
done
"$REAL/pg_restore" --create -f - "$file" \
  | awk '/^\\connect/{print; print "BEGIN;"; next} {print} END{print "COMMIT;"}' \
  | "$REAL/psql" -X -q -v ON_ERROR_STOP=1 "${connection[@]}" -d "$database" -f -
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pg_restore"), []byte(strings.ReplaceAll(program, "$REAL", binaries)), 0o755))
	return dir
}

// TestDumpRestoredInPlace: a database is dropped, or its schema beside the slot,
// and restored from a dump on the same server. Its partitions hold rows that no
// log brings; the relay says so, and one command has all of them asked about.
func TestDumpRestoredInPlace(t *testing.T) {
	t.Parallel()
	const version = "15" // the system's, which has pg_dump
	binaries, err := pgserver.Find(t.Context(), 15)
	require.NoError(t, err)
	run := func(t *testing.T, program string, args ...string) {
		t.Helper()
		out, err := process.Run(t.Context(), process.Spec{Path: filepath.Join(binaries.Dir, program), Args: args})
		require.NoError(t, err, out)
	}
	for name, remove := range map[string]func(w *environment){
		"dropped": func(w *environment) {
			loseSlot(w.t, w)
			require.NoError(t, w.superuser(t.Context(), "DROP DATABASE "+w.name+" WITH (FORCE)"))
			require.NoError(t, w.superuser(t.Context(), "CREATE DATABASE "+w.name))
		},
		"beside its slot": func(w *environment) {
			w.execute("DROP PUBLICATION " + w.slot() + "; DROP SCHEMA onceward CASCADE; DROP TABLE counters, business")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := ownEnvironment(t, version, nil)
			w.prepareTables()
			r := startRelay(t, w, "checkpoint_interval: 50ms")
			sent, old := writeOne(t, w), oldEvent(t, w, 25)
			caughtUp(t, w, r)
			r.stop()
			waiting := writeOne(t, w)
			dump := filepath.Join(t.TempDir(), "dump")
			run(t, "pg_dump", "--format=custom", "--dbname="+w.server.DSN(w.name), "--file="+dump)
			remove(w)
			run(t, "pg_restore", "--exit-on-error", "--dbname="+w.server.DSN(w.name), dump)
			w.pool.Reset()
			w.app.Reset()
			r.start()
			require.Contains(t, r.wait(30*time.Second), "outboxctl adopt --by dump")
			outboxctl(t, w.dsn(maintainerLogin), "adopt", "--by", "dump", "--reason", "restored", "--yes")
			inTopic := repairsAll(t, w, r)
			require.Equal(t, []int{2, 2}, []int{inTopic[sent], inTopic[old]}, "it is not proved that they were published")
			require.Positive(t, inTopic[waiting])
		})
	}
}

// TestSnapshotRestoredInARepair: the storage is put back to the beginning of a repair
// of which the checkpoint in Kafka says that it has come further. What became a letter
// meanwhile has none any more: it is repaired again.
func TestSnapshotRestoredInARepair(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"after-gap", "in-repair"} { // the position is in the database; in Kafka
		onAVersion(t, func(t *testing.T, version string) {
			t.Run(place, func(t *testing.T) { restoreInRepair(t, ownEnvironment(t, version, nil), place) })
		})
	}
}

func restoreInRepair(t *testing.T, w *environment, place string) {
	w.prepareTables()
	r := w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), "none").inMode("exactly-once")
	begins(t, w, r)
	r.stop()
	good, bad := writeOne(t, w), event(t, w)
	bad.AggregateType = "no topic!"
	require.NoError(t, pgx.BeginFunc(t.Context(), w.app, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(t.Context(), tx, bad)
		return err
	}))
	loseSlot(t, w)
	plain := r.env
	diesAt := func(place string) {
		t.Helper()
		r.env = append(slices.Clone(plain), "CRASH_AT="+place)
		r.start()
		r.wait(30 * time.Second)
		r.env = plain
	}
	diesAt(place)
	saved := filepath.Join(t.TempDir(), "data")
	replaceData(t, w, func(data string) { copied(t, data, saved) })
	require.Equal(t, "pending", account(t, w)[bad.Key.String()])
	diesAt("before-cursor")
	require.Equal(t, "parked", account(t, w)[bad.Key.String()])
	require.Equal(t, 1, w.published()[good])
	replaceData(t, w, func(data string) {
		require.NoError(t, os.RemoveAll(data))
		copied(t, saved, data)
	})
	r.start()
	eventually(t, "the gap is repaired", 30*time.Second, func() bool {
		return scalar[bool](w, `SELECT coalesce(bool_and(state = 'repaired'), false) FROM onceward.gaps`)
	})
	caughtUp(t, w, r)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
	r.stop()
	require.Equal(t, place == "in-repair", r.logs("WENT_BACK"), "what the checkpoint in Kafka shows")
	require.Equal(t, "parked", account(t, w)[bad.Key.String()])
	requireTrue(t, w)
}
