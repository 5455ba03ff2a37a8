//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// filledLeaf is a table that is filled before it is attached to the outbox.
type filledLeaf struct {
	*oldDays
	name string
}

func newFilledLeaf(t *testing.T, w *environment, daysOld int) *filledLeaf {
	day := partition.Day(time.Now()).AddDate(0, 0, -daysOld)
	return &filledLeaf{oldDays: &oldDays{t: t, w: w, day: day}, name: "outbox_" + day.Format("20060102")}
}

func (f *filledLeaf) create() string {
	return "CREATE TABLE onceward." + f.name + " (LIKE onceward.outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS); ALTER TABLE onceward." + f.name + " OWNER TO onceward_owner"
}

// fill returns the statement that writes an event, and its key.
func (f *filledLeaf) fill() (sql, key string) {
	id := f.id()
	return "INSERT INTO onceward." + f.name + ` (id, namespace, aggregate_type, aggregate_id, event_type, payload, seq)
		VALUES ('` + id.String() + `', '` + f.w.name + `', 'order', 'old', 'T', '{}', nextval(pg_get_serial_sequence('onceward.outbox', 'seq')))`, f.w.name + ":" + id.String()
}

func (f *filledLeaf) attach() string {
	bound := func(day time.Time) string { return outbox.FirstID(day).String() }
	return "ALTER TABLE onceward.outbox ATTACH PARTITION onceward." + f.name + " FOR VALUES FROM ('" + bound(f.day) + "') TO ('" + bound(f.day.AddDate(0, 0, 1)) + "')"
}

func (f *filledLeaf) detach() string {
	return "ALTER TABLE onceward.outbox DETACH PARTITION onceward." + f.name
}

// notPublished: no command calls an event of the partition published, whether the
// published snapshot sees it or not.
func (f *filledLeaf) notPublished(key, problem string) {
	f.t.Helper()
	dsn := f.w.dsn(operatorLogin)
	out, code := asked(f.t, dsn, "status")
	require.Equal(f.t, 3, code)
	require.Contains(f.t, out, problem)
	require.NotContains(f.t, outboxctl(f.t, dsn, "list", "--state", "published", "--limit", "100000"), key)
	listed := ""
	for _, state := range []string{"pending", "gap"} {
		listed += outboxctl(f.t, dsn, "list", "--state", state, "--limit", "100000")
	}
	require.Equal(f.t, 1, strings.Count(listed, key))
	require.Contains(f.t, listed, "! partition "+f.name+" held rows when it was attached")
	state := "pending"
	if account(f.t, f.w)[key] == "published" {
		state = "gap"
		require.Contains(f.t, outboxctl(f.t, dsn, "show", key), "partition "+f.name+" held rows when it was attached, of which relay ")
	}
	require.Contains(f.t, outboxctl(f.t, dsn, "show", key, "--output", "json"), `"state": "`+state+`"`)
}

// TestFilledLeafAttached: nothing of rows that a partition held when it was attached
// reaches the relay. It stops by name, whether it ran meanwhile or not and however
// old the rows are; the printed command has them published, once. A partition that
// was made and attached by maintenance is none of these, and neither is one that is
// detached again.
func TestFilledLeafAttached(t *testing.T) {
	t.Parallel()
	for state, attach := range map[string]func(w *environment, r *relayProcess, f *filledLeaf) (key string){
		"running": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute(f.create())
			w.execute(fill)
			covered(w, r)
			w.execute(f.attach())
			return key
		},
		"in one transaction": func(w *environment, _ *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute(f.create() + "; " + fill + "; " + f.attach())
			return key
		},
		"in a savepoint": func(w *environment, _ *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute("BEGIN; SAVEPOINT a; " + f.create() + "; " + fill + "; " + f.attach() + "; RELEASE a; COMMIT")
			return key
		},
		"in a block": func(w *environment, _ *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute("DO $$ BEGIN " + f.create() + "; " + fill + "; " + f.attach() + "; EXCEPTION WHEN duplicate_table THEN NULL; END $$")
			return key
		},
		"in a savepoint that is open over a snapshot": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute(f.create())
			w.execute(fill)
			covered(w, r)
			attaching, err := w.pool.Begin(w.t.Context())
			require.NoError(w.t, err)
			_, err = attaching.Exec(w.t.Context(), "SELECT pg_current_xact_id(); SAVEPOINT a; "+f.attach()+"; RELEASE a")
			require.NoError(w.t, err)
			covered(w, r)
			require.NoError(w.t, attaching.Commit(w.t.Context()))
			return key
		},
		"without a lower bound": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute(f.create())
			w.execute(fill)
			covered(w, r)
			w.execute(strings.Replace(f.attach(), "('"+outbox.FirstID(f.day).String()+"')", "(MINVALUE)", 1))
			return key
		},
		"to a partition of a partition": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			above := "onceward." + f.name + "_above"
			w.execute("CREATE TABLE " + above + " (LIKE onceward.outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (id); ALTER TABLE " + above + " OWNER TO onceward_owner")
			w.execute(strings.Replace(f.attach(), "onceward."+f.name, above, 1))
			w.execute(f.create())
			w.execute(fill)
			covered(w, r)
			w.execute(strings.Replace(f.attach(), "onceward.outbox ", above+" ", 1))
			return key
		},
		"in one transaction, and a detach was rolled back": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			r.stop()
			w.execute(f.create() + "; " + fill + "; " + f.attach())
			w.execute("BEGIN; ALTER TABLE onceward.outbox DETACH PARTITION onceward." + f.name + "; ROLLBACK")
			r.start()
			return key
		},
		"in one transaction, and a delete was rolled back": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			r.stop()
			w.execute(f.create() + "; " + fill + "; " + f.attach())
			w.execute("BEGIN" + strings.Repeat("; CREATE TEMPORARY TABLE x(); DROP TABLE x", 20) + "; DELETE FROM onceward.outbox WHERE namespace || ':' || id = '" + key + "'; ROLLBACK")
			r.start()
			return key
		},
		"in one transaction, and written anew": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			r.stop()
			w.execute(f.create() + "; " + fill + "; " + f.attach())
			w.execute("BEGIN" + strings.Repeat("; CREATE TEMPORARY TABLE x(); DROP TABLE x", 20) + "; UPDATE onceward.outbox SET payload = 'x' WHERE namespace || ':' || id = '" + key + "'; COMMIT")
			r.start()
			return key
		},
		"of transactions that nobody has begun here": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute(f.create())
			w.execute(fill)
			w.execute("UPDATE onceward." + f.name + " SET tx_id = '999999999999'")
			covered(w, r)
			w.execute(f.attach())
			return key
		},
		"in a savepoint that is open over the last snapshot of an earlier release": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute(f.create())
			w.execute(fill)
			covered(w, r)
			attaching, err := w.pool.Begin(w.t.Context())
			require.NoError(w.t, err)
			_, err = attaching.Exec(w.t.Context(), "SELECT pg_current_xact_id(); SAVEPOINT a; "+f.attach()+"; RELEASE a")
			require.NoError(w.t, err)
			covered(w, r)
			r.stop()
			w.execute("UPDATE onceward.published_snapshots SET attachings = NULL")
			require.NoError(w.t, attaching.Commit(w.t.Context()))
			r.start()
			return key
		},
		"again, within a tick": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute(f.create() + "; " + f.attach())
			covered(w, r)
			w.execute(f.detach() + "; " + fill + "; " + f.attach())
			return key
		},
		"stopped": func(w *environment, r *relayProcess, f *filledLeaf) string {
			fill, key := f.fill()
			w.execute(f.create())
			w.execute(fill)
			covered(w, r)
			r.stop()
			w.execute(f.attach())
			r.start()
			return key
		},
	} {
		t.Run(state, func(t *testing.T) {
			onVersions(t, func(t *testing.T, version string) {
				if !full() && version != versions[len(state)%2] {
					t.Skip("both in the long form")
				}
				w := settled(t, version)
				r := startRelay(t, w, "checkpoint_interval: 50ms")
				caughtUp(t, w, r)
				f := newFilledLeaf(t, w, 20)
				key := attach(w, r, f)
				log := r.wait(30 * time.Second)
				require.Contains(t, log, "PARTITION_FILLED: partition "+f.name)
				out, code := relayCheck(t, r.config)
				require.Equal(t, 3, code)
				require.Contains(t, out, "`outboxctl partitions adopt "+f.name+" --reason ")
				out, code = asked(t, w.dsn(maintainerLogin), "partitions", "status")
				require.Equal(t, 3, code)
				problem := "! " + f.name + " held rows when it was attached, which no relay is sent (PARTITION_FILLED): as the maintainer `outboxctl partitions adopt " + f.name + " --reason "
				require.Contains(t, out, problem)
				f.notPublished(key, problem)
				writeOne(t, w)
				outboxctl(t, w.dsn(maintainerLogin), "partitions", "adopt", f.name, "--reason", "rows of the old shop", "--yes")
				require.NotEqual(t, "published", account(t, w)[key])
				r.start()
				caughtUp(t, w, r)
				eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
				r.stop()
				require.Equal(t, 1, w.published()[key])
				require.Contains(t, scalar[string](w, `SELECT detail FROM onceward.gaps ORDER BY found_at DESC LIMIT 1`), "a partition held rows when it was attached, and was adopted")
				_, code = asked(t, w.dsn(operatorLogin), "partitions", "status")
				require.Zero(t, code)
				states, _ := requireTrue(t, w)
				require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
			})
		})
	}
}

// TestFilledLeafAttachedBeforeABeginning: a transaction that attaches a filled
// partition is open when a relay looks for such ones, and commits while the relay
// waits for its new slot. What is published from then on sees the attaching: it is
// looked at once more.
func TestFilledLeafAttachedBeforeABeginning(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, nil) // a slot waits for the open transactions of its server
		w.prepareTables()
		r := startRelay(t, w, "checkpoint_interval: 50ms")
		f := newFilledLeaf(t, w, 20)
		fill, key := f.fill()
		w.execute(f.create())
		w.execute(fill)
		covered(w, r)
		r.stop()
		loseSlot(t, w)
		attaching, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = attaching.Exec(t.Context(), f.attach())
		require.NoError(t, err)
		r.start()
		eventually(t, "the new slot waits for the attaching", 30*time.Second, func() bool {
			return scalar[bool](w, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted)`)
		})
		require.NoError(t, attaching.Commit(t.Context()))
		require.Contains(t, r.wait(30*time.Second), "PARTITION_FILLED: partition "+f.name)
		outboxctl(t, w.dsn(maintainerLogin), "partitions", "adopt", f.name, "--reason", "rows of the old shop", "--yes")
		begins(t, w, r)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		r.stop()
		require.Equal(t, 1, w.published()[key])
		requireTrue(t, w)
	})
}

// TestLeavesThatWereNotFilled: what maintenance makes, and is written to at once,
// stops nothing; nor does a partition that was detached again.
func TestLeavesThatWereNotFilled(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[0])
	r := startRelay(t, w, "checkpoint_interval: 50ms")
	caughtUp(t, w, r)
	key := oldEvent(t, w, 25)
	caughtUp(t, w, r)
	require.Equal(t, 1, w.published()[key])
	f := newFilledLeaf(t, w, 20)
	fill, _ := f.fill()
	w.execute(f.create())
	w.execute(fill)
	covered(w, r)
	w.execute(f.attach())
	require.Contains(t, r.wait(30*time.Second), "PARTITION_FILLED: ")
	w.execute("ALTER TABLE onceward.outbox DETACH PARTITION onceward." + f.name)
	r.start()
	caughtUp(t, w, r)
	r.stop()
	requireTrue(t, w)
}

// TestAdoptedWhileItStreams: `partitions adopt` gives rows another transaction and
// makes what the relay knows of the publication another, beside a session that
// streams already. No snapshot that sees that transaction is published before the
// session has noticed: the rows are in a gap.
func TestAdoptedWhileItStreams(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[1])
	r := startRelay(t, w, "checkpoint_interval: 50ms")
	key := writeOne(t, w)
	caughtUp(t, w, r)
	require.Equal(t, 1, w.published()[key])
	w.execute(`BEGIN; UPDATE onceward.outbox SET tx_id = pg_current_xact_id() WHERE namespace || ':' || id = '` + key + `';
		UPDATE onceward.relay_state SET publication_catalog = 'filled'; COMMIT`)
	eventually(t, "the gap is repaired", 30*time.Second, func() bool {
		return scalar[int](w, `SELECT count(*) FROM onceward.gaps WHERE cause = 'PUBLICATION_CHANGED' AND state = 'repaired'`) == 1
	})
	require.Equal(t, 2, w.published()[key])
	caughtUp(t, w, r)
	r.stop()
	requireTrue(t, w)
}

// TestDetachWhileTheRelayLooks: the question for partitions that were filled has been
// planned with a partition in it, and sees that it is being detached: that is no
// attaching, though the row of pg_inherits is new.
func TestDetachWhileTheRelayLooks(t *testing.T) {
	onVersions(t, detachWhileTheRelayLooks)
}

func detachWhileTheRelayLooks(t *testing.T, version string) {
	w := settled(t, version)
	r := startRelay(t, w, "checkpoint_interval: 50ms")
	caughtUp(t, w, r)
	key := oldEvent(t, w, 25)
	caughtUp(t, w, r)
	require.Equal(t, 1, w.published()[key])
	leaf := "outbox_" + partition.Day(time.Now()).AddDate(0, 0, -25).Format("20060102")
	empty := newFilledLeaf(t, w, 30)
	w.execute(empty.create())
	ctx := t.Context()
	held, err := w.pool.Begin(ctx)
	require.NoError(t, err)
	_, err = held.Exec(ctx, "LOCK TABLE onceward.outbox_"+partition.Day(time.Now()).AddDate(0, 0, 1).Format("20060102"))
	require.NoError(t, err)
	w.execute(empty.attach()) // which it has to look at
	eventually(t, "the relay looks", 10*time.Second, func() bool {
		return scalar[bool](w, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FilledLeaves%')`)
	})
	detached := make(chan error, 1)
	hand := w.connect(maintainerLogin)
	go func() {
		_, err := hand.Exec(ctx, "ALTER TABLE onceward.outbox DETACH PARTITION onceward."+leaf+" CONCURRENTLY")
		detached <- err
	}()
	eventually(t, "the detach is pending", 10*time.Second, func() bool {
		return scalar[bool](w, "SELECT coalesce(bool_or(inhdetachpending), false) FROM pg_inherits WHERE inhrelid = to_regclass('onceward.' || $1)", leaf)
	})
	require.NoError(t, held.Rollback(ctx))
	require.NoError(t, <-detached)
	covered(w, r)
	r.stop()
	require.False(t, r.logs("PARTITION_FILLED"))
}

// covered waits until the published snapshot sees what was committed before.
func covered(w *environment, r *relayProcess) {
	w.t.Helper()
	xid := scalar[string](w, `SELECT pg_current_xact_id()::text`)
	writeOne(w.t, w)
	eventually(w.t, "the published snapshot sees it", 30*time.Second, func() bool {
		return scalar[bool](w, `SELECT pg_visible_in_snapshot($1::xid8, snapshot) FROM onceward.published_snapshots`, xid)
	})
	caughtUp(w.t, w, r)
}
