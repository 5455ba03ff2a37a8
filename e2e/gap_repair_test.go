//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/outbox"
)

// gapCase makes a gap under load.
type gapCase struct {
	name  string
	cause string
	away  bool // the relay is killed before, and started after
	anew  bool // its slot is made anew
	make  func(w *environment)
}

const remakePublication = ` FOR TABLE onceward.outbox, onceward.replays, onceward.controls WITH (publish = 'insert', publish_via_partition_root = true)`

var gapCases = []gapCase{
	{"SlotDropped", "SLOT_MISSING", true, false, func(w *environment) {
		w.execute(`SELECT pg_drop_replication_slot($1)`, w.slot())
	}},
	{"SlotAdvanced", "SLOT_ADVANCED", true, false, func(w *environment) {
		w.execute(`SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())`, w.slot())
	}},
	{"PublicationRemade", "PUBLICATION_CHANGED", false, false, func(w *environment) {
		w.execute("DROP PUBLICATION " + w.slot())
		writeOne(w.t, w)
		w.execute("CREATE PUBLICATION " + w.slot() + remakePublication)
	}},
	{"PublicationToggled", "PUBLICATION_CHANGED", true, false, func(w *environment) {
		w.execute("ALTER PUBLICATION " + w.slot() + " SET (publish = 'update')")
		writeOne(w.t, w)
		w.execute("ALTER PUBLICATION " + w.slot() + " SET (publish = 'insert')")
	}},
	{"ViaRootToggled", "PUBLICATION_CHANGED", false, false, func(w *environment) {
		w.execute("ALTER PUBLICATION " + w.slot() + " SET (publish_via_partition_root = false)")
		writeOne(w.t, w)
		w.execute("ALTER PUBLICATION " + w.slot() + " SET (publish_via_partition_root = true)")
	}},
	{"SlotMadeAnew", "SLOT_ADVANCED", true, true, func(w *environment) {
		w.execute(`SELECT pg_drop_replication_slot($1)`, w.slot())
	}},
}

// TestGapRepair: the slot is dropped or advanced and the publication made anew or
// toggled, while producers write. The relay finds the gap, publishes from the table
// what is not proved published, and goes on; nothing is lost, and nothing is called
// published that is not in the topic. Killed at every step, from the slot that is made
// anew to the gap that is over but for the word that says so, it goes on from there.
// A relay that finds the gap while it runs is killed in every other case. The short
// form has each case in one of the modes; the long form has all, with kills and without.
func TestGapRepair(t *testing.T) {
	t.Parallel()
	for m, mode := range []string{"idempotent", "exactly-once"} {
		for i, tc := range gapCases {
			g := gapRun{gapCase: tc, mode: mode, killed: tc.away || (i/2+m)%2 == 0}
			version := versions[(i/2+m)%len(versions)]
			if !full() && (i+m)%2 == 1 {
				continue
			}
			t.Run(mode+"/"+tc.name+"/PostgreSQL"+version, func(t *testing.T) { g.run(t, settled(t, version)) })
			if full() && !tc.away {
				g.killed = !g.killed
				t.Run(fmt.Sprintf("%s/%s/PostgreSQL%s/killed=%t", mode, tc.name, version, g.killed), func(t *testing.T) { g.run(t, settled(t, version)) })
			}
		}
	}
}

// gapRun is one run of a case.
type gapRun struct {
	gapCase
	mode   string
	killed bool

	w     *environment
	load  *producer
	plain []string // the environment of a relay that lives
}

// crashes are the places at which the relay dies in a repair, one after the other. A
// gap that is found at once may have one page only.
func (g *gapRun) crashes() []string {
	switch {
	case !g.killed:
		return nil
	case g.anew:
		return []string{"after-slot", "after-gap", "in-repair:2", "before-cursor", "before-repaired"}
	case g.away:
		return []string{"after-gap", "in-repair:2", "before-cursor", "before-repaired"}
	}
	return []string{"after-gap:2", "in-repair", "before-cursor", "before-repaired"} // after that of its first start
}

func (g *gapRun) run(t *testing.T, w *environment) {
	g.w = w
	r := w.newRelay(w.config("checkpoint_interval: 100ms", `admin: {listen: "off"}`), "none").inMode(g.mode)
	g.plain = slices.Clone(r.env)
	if g.killed && !g.away {
		r.env = append(r.env, "CRASH_AT="+g.crashes()[0])
	}
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	g.load = produce(w, 3)
	g.load.atLeast(100)
	if g.away {
		r.kill()
		g.load.atLeast(600) // more than two pages
		eventually(t, "the slot is free", 10*time.Second, func() bool {
			return !scalar[bool](w, `SELECT bool_or(active) FROM pg_replication_slots WHERE slot_name = $1`, w.slot())
		})
	}
	g.make(w)
	g.load.atLeast(50)
	died := g.dies(r)
	eventually(t, "the gap is repaired", time.Minute, func() bool {
		return scalar[bool](w, `SELECT coalesce(bool_and(state = 'repaired'), false) FROM onceward.gaps`)
	})
	g.load.atLeast(50)
	g.load.stop()
	caughtUp(t, w, r)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
	r.stop()
	states, copies := requireTrue(t, w)
	all := scalar[int](w, `SELECT count(*) FROM onceward.outbox`)
	require.Equal(t, map[string]int{"published": all}, states)
	g.requireCause()
	truth, err := readTruth(t.Context(), w.pool)
	require.NoError(t, err)
	found, _ := verify(w.committed(w.topic()), truth, nil, w.partitions)
	if !g.away { // what a tick brought before the change was noticed stands before what it had kept back
		found = slices.DeleteFunc(found, func(v violation) bool { return v.statement == order })
	}
	require.Empty(t, summary(found))
	require.Equal(t, len(g.crashes()), died, "the relay came by every place at which it was to die")
	if g.mode == "exactly-once" {
		require.LessOrEqual(t, copies, 150, "at most what was acknowledged after the last published snapshot")
	} else {
		require.LessOrEqual(t, copies, 150+2*256, "likewise, and the pages that a crash cut off")
	}
	t.Logf("%d events, %d crashes, gap of %d; 0 missing, %d copies", all, died, scalar[int](w, `SELECT sum(events)::int FROM onceward.gaps`), copies)
}

// dies has the relay die at each place, one after the other, and starts it for good.
// One that finds the gap while it runs is to die from its start. It returns how often
// it died.
func (g *gapRun) dies(r *relayProcess) (died int) {
	for i, place := range g.crashes() {
		if g.away || i > 0 {
			r.env = append(slices.Clone(g.plain), "CRASH_AT="+place)
			r.start()
		}
		select {
		case <-r.process.Done():
			died++
		case <-time.After(30 * time.Second):
			g.w.t.Log("did not come by ", place)
			r.kill()
		}
		if g.mode == "idempotent" { // in the other mode Kafka still shows what the dead one left open
			g.load.stop() // what is looked at takes its time
			requireProven(g.w.t, g.w.published(), account(g.w.t, g.w))
			g.load = produce(g.w, 3)
		}
		g.load.atLeast(20)
	}
	if g.killed {
		r.env = g.plain
		r.start()
	}
	return died
}

// requireCause: one that died before it had written the gap down finds that its
// slot is ahead.
func (g *gapRun) requireCause() {
	w := g.w
	w.t.Helper()
	causes := scalar[string](w, `SELECT string_agg(cause, ' ' ORDER BY found_at) FROM onceward.gaps WHERE cause <> 'FIRST_START'`)
	require.Contains(w.t, causes, g.cause)
	if g.anew {
		require.NotContains(w.t, causes, "SLOT_MISSING", "it died when its slot was there again, and had not written down what it had missed")
	}
}

// TestGapAsks: with gap: ask the relay stops by name at every start, the events are
// listed as a gap and kept; accepted they are given up, and the relay goes on;
// repaired later they are published.
func TestGapAsks(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		w := settled(t, version)
		r := startRelay(t, w, "checkpoint_interval: 100ms", "gap: ask")
		caughtUp(t, w, r)
		r.kill()
		lost := []string{writeOne(t, w), writeOne(t, w)}
		loseSlot(t, w)
		for range 2 {
			r.start()
			log := r.wait(30 * time.Second)
			require.Contains(t, log, "SLOT_MISSING: ")
			require.Contains(t, log, "outboxctl gap repair")
		}
		require.Equal(t, 1, scalar[int](w, `SELECT count(*) FROM onceward.gaps WHERE cause = 'SLOT_MISSING'`), "one gap, however often it is met")
		gap := scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE cause = 'SLOT_MISSING'`)
		require.Subset(t, keysOf(list(t, w, "gap")), lost)
		require.Contains(t, outboxctl(t, w.dsn(operatorLogin), "show", lost[0]), "cannot prove that it published it")
		require.Contains(t, outboxctl(t, w.dsn(operatorLogin), "gap", "show", gap), lost[1])
		outboxctl(t, w.dsn(operatorLogin), "gap", "accept", gap, "--reason", "known in Kafka", "--yes")
		r.start()
		caughtUp(t, w, r)
		require.Subset(t, keysOf(list(t, w, "given-up")), lost)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		states, _ := requireTrue(t, w)
		require.Positive(t, states["given-up"])
		outboxctl(t, w.dsn(operatorLogin), "gap", "repair", gap, "--reason", "not in Kafka after all", "--yes")
		eventually(t, "it is repaired without a restart", 30*time.Second, func() bool {
			return scalar[string](w, `SELECT state FROM onceward.gaps WHERE cause = 'SLOT_MISSING'`) == "repaired"
		})
		caughtUp(t, w, r)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		r.stop()
		states, copies := requireTrue(t, w)
		require.Equal(t, scalar[int](w, `SELECT count(*) FROM onceward.outbox`), states["published"])
		require.LessOrEqual(t, copies, 2)
	})
}

func keysOf(l listed) (keys []string) {
	for _, e := range l.Events {
		keys = append(keys, e.Key)
	}
	return keys
}

// TestWentBackIsAsked: of a database that is not the one that the checkpoint was
// made on any more an operator decides, whatever the policy is.
func TestWentBackIsAsked(t *testing.T) {
	t.Parallel()
	for code, spoil := range map[string]string{
		"OTHER_TIMELINE":        `UPDATE onceward.relay_state SET timeline = 99`,
		"CHECKPOINT_BEYOND_LOG": `UPDATE onceward.relay_state SET confirmed_lsn = 'FFFF/0'`,
	} {
		t.Run(code, func(t *testing.T) {
			w := settled(t, versions[0])
			r := startRelay(t, w, "checkpoint_interval: 100ms")
			caughtUp(t, w, r)
			r.stop()
			writeOne(t, w)
			w.execute(spoil)
			r.start()
			require.Contains(t, r.wait(30*time.Second), code+": ")
			require.Len(t, list(t, w, "gap").Events, 1)
			outboxctl(t, w.dsn(operatorLogin), "gap", "repair", scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`), "--reason", "it was a restore", "--yes")
			r.start()
			caughtUp(t, w, r)
			eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
			r.stop()
			states, copies := requireTrue(t, w)
			require.Equal(t, map[string]int{"published": 3}, states)
			require.Zero(t, copies)

			// Where nothing is in doubt there is nothing to ask.
			w.execute(spoil)
			r.start()
			eventually(t, "the gap is over", 30*time.Second, func() bool {
				return scalar[string](w, `SELECT concat_ws(' ', cause, events, state) FROM onceward.gaps ORDER BY found_at DESC LIMIT 1`) == code+" 0 repaired"
			})
			caughtUp(t, w, r)
			r.stop()
		})
	}
}

// TestUnloggedPartition: nothing of a partition that is not logged reaches the
// relay. It stops, and when that is mended publishes from the table what it missed,
// though everything looks as before.
func TestUnloggedPartition(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		w := settled(t, version)
		r := startRelay(t, w, "checkpoint_interval: 100ms")
		caughtUp(t, w, r)
		leaf := "onceward.outbox_" + time.Now().UTC().Format("20060102")
		w.execute("ALTER TABLE " + leaf + " SET UNLOGGED")
		lost := writeOne(t, w)
		require.Contains(t, r.wait(30*time.Second), "TABLE_UNLOGGED: ")
		w.execute("ALTER TABLE " + leaf + " SET LOGGED")
		r.start()
		caughtUp(t, w, r)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		r.stop()
		states, _ := requireTrue(t, w)
		require.Equal(t, map[string]int{"published": 3}, states)
		require.Positive(t, w.published()[lost])
	})
}

// TestAdoptedDump: a database that was restored by pg_dump into another cluster,
// with transaction ids far beyond its own, goes on after one command.
func TestAdoptedDump(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[0])
	r := startRelay(t, w, "checkpoint_interval: 100ms")
	caughtUp(t, w, r)
	r.stop()
	loseSlot(t, w)
	w.execute(`UPDATE onceward.relay_state SET system_identifier = '1'`)
	w.execute(`UPDATE onceward.outbox SET tx_id = '900000000'`)
	detached := detachedLeaf(w)
	rule := fmt.Sprintf("ADD CONSTRAINT outbox_old CHECK (seq > %d) NOT VALID", scalar[int64](w, `SELECT max(seq) FROM onceward.outbox`))
	w.execute("ALTER TABLE onceward.outbox_" + time.Now().UTC().Format("20060102") + " " + rule) // a dump gives the leaf its own
	w.execute("ALTER TABLE onceward.outbox " + rule)
	const rules = `SELECT string_agg(conrelid::regclass || ' ' || pg_get_constraintdef(oid), E'\n' ORDER BY conrelid::regclass::text) FROM pg_constraint WHERE conname = 'outbox_old'`
	before := scalar[string](w, rules)
	require.Contains(t, before, "NOT VALID")
	writeOne(t, w)
	past := "onceward.outbox_" + time.Now().UTC().AddDate(0, 0, -1).Format("20060102")
	w.execute("CREATE TRIGGER onceward_closed BEFORE INSERT ON " + past + " FOR EACH ROW EXECUTE FUNCTION onceward.refuse_insert()")
	w.execute("COMMENT ON TRIGGER onceward_closed ON " + past + " IS 'closed by outbox retention in transaction 900000000 at 2026-01-01T00:00:00Z'")
	r.start()
	require.Contains(t, r.wait(30*time.Second), "OTHER_SYSTEM: ", "and not that its slot is missing")
	printed, err := process.Run(t.Context(), process.Spec{
		Path: outboxctlBinary(t), Args: []string{"adopt", "--by", "copy", "--reason", "moved", "--yes"},
		Env: []string{"OUTBOXCTL_DSN=" + w.dsn(maintainerLogin), "OUTBOXCTL_INSECURE=true"},
	})
	require.Error(t, err)
	require.Contains(t, printed, "run it with --by dump")
	outboxctl(t, w.dsn(maintainerLogin), "adopt", "--by", "dump", "--reason", "moved", "--yes")
	require.Equal(t, before, scalar[string](w, rules), "the rules that old rows break are back")
	require.Less(t, scalar[int64](w, `SELECT max(substring(obj_description(oid, 'pg_trigger') FROM 'transaction ([0-9]+) at ')::bigint) FROM pg_trigger WHERE tgname = 'onceward_closed'`), int64(900000000))
	r.start()
	require.Contains(t, r.wait(30*time.Second), "SLOT_MISSING", "gap: repair, and yet it asks")
	outboxctl(t, w.dsn(operatorLogin), "gap", "repair", scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`), "--reason", "all of it", "--yes")
	r.start()
	caughtUp(t, w, r)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
	r.stop()
	states, copies := requireTrue(t, w)
	require.Equal(t, map[string]int{"published": 3}, states)
	require.Equal(t, 1, copies, "what had been published is published again, and said to be a repair")
	outboxctl(t, w.dsn(maintainerLogin), "partitions", "maintain", "--keep", "1")
	require.True(t, scalar[bool](w, `SELECT to_regclass($1) IS NULL`, detached), "retention takes what it had detached before the dump")
}

// detachedLeaf is a leaf that retention had closed and detached, and not dropped when
// the dump was made.
func detachedLeaf(w *environment) string {
	w.t.Helper()
	leaf := "onceward.outbox_" + time.Now().UTC().AddDate(0, 0, -3).Format("20060102")
	w.execute("ALTER TABLE onceward.outbox DETACH PARTITION " + leaf)
	w.execute("INSERT INTO " + leaf + ` SELECT * FROM onceward.outbox LIMIT 1`)
	w.execute("ALTER TABLE " + leaf + " ADD CONSTRAINT outbox_older CHECK (seq < 0) NOT VALID")
	w.execute("CREATE TRIGGER onceward_closed BEFORE INSERT ON " + leaf + " FOR EACH ROW EXECUTE FUNCTION onceward.refuse_insert()")
	w.execute("ALTER TABLE " + leaf + " ENABLE ALWAYS TRIGGER onceward_closed")
	w.execute("COMMENT ON TRIGGER onceward_closed ON " + leaf + " IS 'closed by outbox retention in transaction 900000000 at 2026-01-01T00:00:00Z, and detached by it'")
	return leaf
}

// mendedLetter has an event become a letter, because it is too large, and edits it:
// a retry can publish it. letter returns its state.
func mendedLetter(w *environment, aggregate string) (key outbox.Key, letter func() string) {
	t := w.t
	t.Helper()
	key, err := outbox.NewKey(w.name)
	require.NoError(t, err)
	_, err = w.app.Exec(t.Context(), `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, 'order', $4, 'OrderChanged', $3)`,
		key.UUID(), w.name, make([]byte, 1_200_000), aggregate)
	require.NoError(t, err)
	letter = func() (state string) {
		_ = w.pool.QueryRow(t.Context(), `SELECT state FROM onceward.dead_letters WHERE letter_id = $1`, key.UUID()).Scan(&state)
		return state
	}
	eventually(t, "it is a dead letter", 30*time.Second, func() bool { return letter() == "open" })
	file := filepath.Join(t.TempDir(), "payload")
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	outboxctl(t, w.dsn(operatorLogin), "dead", "edit", key.String(), "--payload-file", file, "--reason", "too large", "--yes", "--wait", "30s")
	return key, letter
}

// TestGapForgetsWhatHadEnded: a relay stopped in the middle of a transaction, behind an
// order that waited. It begins anew at the same position, where orders that waited are
// read again: what the order releases is published, not taken for what had ended.
func TestGapForgetsWhatHadEnded(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[1])
	r := startRelay(t, w, "checkpoint_interval: 50ms")
	ctl := func(args ...string) { outboxctl(t, w.dsn(operatorLogin), args...) }
	key, letter := mendedLetter(w, "a-9")
	caughtUp(t, w, r)
	r.stop()
	ctl("dead", "retry", key.String(), "--reason", "mended", "--yes", "--wait", "0s")
	w.execute(`UPDATE onceward.relay_state SET checkpoint = regexp_replace(checkpoint, 'upto=[^ ]*', 'upto=' || pg_current_wal_insert_lsn() || ',0,0')`)
	w.execute(`ALTER PUBLICATION ` + w.slot() + ` SET (publish = 'insert, update'); ALTER PUBLICATION ` + w.slot() + ` SET (publish = 'insert')`)
	r.start()
	eventually(t, "the gap is over, and the letter is out", time.Minute, func() bool {
		return scalar[int](w, `SELECT count(*) FROM onceward.gaps WHERE cause = 'PUBLICATION_CHANGED' AND state = 'repaired'`) == 1 && letter() == "replayed"
	})
	require.Equal(t, 1, w.published()[key.String()])
	r.stop()
	requireTrue(t, w)
}

// TestGapTakesRetriesBack: a letter whose retry was under way when the slot was
// lost is open again. The checkpoint passes the retry's order then, and that says
// nothing of the letter.
func TestGapTakesRetriesBack(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[1])
	config := w.config(`admin: {listen: "off"}`, "checkpoint_interval: 50ms")
	dying := w.newRelay(config, "none")
	dying.env = append(dying.env, "CRASH_AT=after-retrying:2") // the edit acts first
	dying.start()
	eventually(t, "the relay streams", time.Minute, func() bool { return dying.logs("slot taken") })
	ctl := func(args ...string) { outboxctl(t, w.dsn(operatorLogin), args...) }
	key, letter := mendedLetter(w, "a-9")
	ctl("dead", "retry", key.String(), "--reason", "mended", "--yes", "--wait", "0s")
	dying.wait(time.Minute)
	require.Equal(t, "retrying", letter())
	loseSlot(t, w)
	writeOne(t, w)
	r := w.newRelay(config, "")
	r.start()
	eventually(t, "the gap is over, and nothing is pending", time.Minute, func() bool {
		return scalar[int](w, `SELECT count(*) FROM onceward.gaps WHERE cause = 'SLOT_MISSING' AND state = 'repaired'`) == 1 && owed(w) == 0
	})
	require.Equal(t, "open", letter())
	requireTrue(t, w)
	ctl("dead", "retry", key.String(), "--reason", "again", "--yes", "--wait", "30s")
	eventually(t, "it is published", 30*time.Second, func() bool { return letter() == "replayed" && w.published()[key.String()] == 1 })
	r.stop()
}

// TestRepairedBeforeNewerLetters: an event that nothing proves published, with newer ones
// of its aggregate behind a dead letter. The repair publishes it at once, before them, and
// makes no letter of it.
func TestRepairedBeforeNewerLetters(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[0])
	r := startRelay(t, w, "checkpoint_interval: 50ms")
	caughtUp(t, w, r)
	before := scalar[string](w, `SELECT snapshot::text FROM onceward.published_snapshots WHERE slot = $1`, w.slot())
	first := writeOne(t, w)
	eventually(t, "it is published", 30*time.Second, func() bool { return w.published()[first] == 1 })
	key, letter := mendedLetter(w, "a-0")
	last := writeOne(t, w)
	caughtUp(t, w, r)
	r.stop()
	loseSlot(t, w)
	w.execute(`UPDATE onceward.published_snapshots SET snapshot = $2::text::pg_snapshot WHERE slot = $1`, w.slot(), before)
	r.start()
	eventually(t, "the gap is over, and nothing is pending", time.Minute, func() bool {
		return scalar[int](w, `SELECT count(*) FROM onceward.gaps WHERE cause = 'SLOT_MISSING' AND state = 'repaired'`) == 1 && owed(w) == 0
	})
	require.False(t, scalar[bool](w, `SELECT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.namespace || ':' || d.letter_id = $1)`, first), "it does not wait behind them")
	outboxctl(t, w.dsn(operatorLogin), "dead", "retry", "--aggregate", "a-0", "--namespace", w.name, "--aggregate-type", "order", "--reason", "mended", "--yes", "--wait", "30s")
	require.Equal(t, "replayed", letter())
	var order []string
	for _, m := range w.committed(w.topic()) {
		if k := headerOf(m, outbox.HeaderKey); k == first || k == key.String() || k == last {
			order = append(order, k)
		}
	}
	require.Equal(t, []string{first, first, key.String(), last}, order)
	r.stop()
	requireTrue(t, w)
}
