//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// curedBy are the states in which cures are printed.
var curedBy = map[string]func(*testing.T, *cures){
	"not installed":       notInstalled,
	"paused":              pausedCures,
	"gaps":                gapCures,
	"letters":             letterCures,
	"partitions":          partitionCures,
	"retention":           retentionCures,
	"rights":              rightsCures,
	"settings":            settingsCures,
	"publication dropped": publicationCures,
}

// notInstalled: six programs say that the tables are not there, and one command,
// run by the maintainer, ends it for all of them.
func notInstalled(t *testing.T, c *cures) {
	w := newEnvironment(t, versions[0])
	r := staying(w)
	r.start()
	h := halted(t, r, "TABLE_MISSING")
	say, code := asked(t, w.dsn(operatorLogin), "status")
	require.Equal(t, 1, code)
	c.find(t, "internal/operator/explain.go: outboxctl migrate up --side {}", say)
	version := migrations.Check(t.Context(), w.pool, migrations.Outbox)
	require.ErrorIs(t, version, migrations.ErrOlderSchema)
	c.find(t, "migrations/version.go: outboxctl migrate up --side {}", version.Error())
	enqueued := enqueue(t, w)
	c.find(t, "outbox/result.go: outboxctl migrate up --side outbox", enqueued.Error())
	bind := []string{"migrate", "roles", "--producer", w.name + "_p", "--namespace", w.name, "--apply"}
	say, code = asked(t, w.server.DSN(w.name), bind...)
	require.Equal(t, 1, code)
	require.Contains(t, say, "there is no onceward.outbox")
	c.run["migrations/producers.go: outboxctl migrate up --side outbox"] = true // the hint; psql shows it, and it is the command below
	say, _ = asked(t, w.dsn(maintainerLogin), "migrate", "status", "--side", "outbox")
	c.do(t, w, maintainerLogin, "cmd/outboxctl/migrate.go: outboxctl migrate up --side {}", say)
	c.do(t, w, maintainerLogin, "cdc/checks.go: outboxctl migrate up --side outbox --relay {}", h.Error)

	eventually(t, "the relay goes on by itself", time.Minute, func() bool { return sessions(r) == 1 })
	eventually(t, "status is well", 30*time.Second, func() bool { code, _ := statusOf(t, w); return code == 0 })
	require.NoError(t, migrations.Check(t.Context(), w.pool, migrations.Outbox))
	enqueued = enqueue(t, w)
	require.NoError(t, enqueued)
	outboxctl(t, w.server.DSN(w.name), bind...)
	outboxctl(t, w.server.DSN(w.name), "migrate", "roles", "--producer", w.name+"_p", "--remove", "--apply")
	w.execute("DROP ROLE " + w.name + "_p")
	for _, spoilt := range []struct{ spoil, mend string }{
		{`ALTER TABLE onceward.dead_letters RENAME COLUMN error TO why`, `ALTER TABLE onceward.dead_letters RENAME COLUMN why TO error`},
	} {
		w.execute(spoilt.spoil)
		say, _ = asked(t, w.dsn(operatorLogin), "dead", "list")
		c.do(t, w, maintainerLogin, "internal/operator/explain.go: outboxctl migrate status --side {}", say)
		w.execute(spoilt.mend)
	}
	r.stop()
}

// pausedCures: whoever says that something is paused says how to end that, also
// where the database has another relay.
func pausedCures(t *testing.T, c *cures) {
	w := settled(t, versions[1])
	r := staying(w, "checkpoint_interval: 50ms")
	begins(t, w, r)
	w.execute(`CREATE TEMP TABLE another AS TABLE onceward.relay_state`)
	w.execute(`INSERT INTO onceward.relay_state SELECT (jsonb_populate_record(s, '{"slot": "onceward_other", "relay": "other"}')).* FROM onceward.relay_state s`)
	paused := func() bool {
		return scalar[bool](w, `SELECT paused OR cardinality(paused_routes) > 0 FROM onceward.relay_state WHERE relay = $1`, w.name)
	}
	resumed := func(cure, printed string) {
		t.Helper()
		require.True(t, paused())
		c.do(t, w, operatorLogin, cure, printed)
		require.False(t, paused(), cure)
	}
	pause := func(more ...string) string {
		return outboxctl(t, w.dsn(operatorLogin), append([]string{"pause", "--relay", w.name}, more...)...)
	}
	status := func() string { _, out := statusOf(t, w); return out }
	resumed("cmd/outboxctl/pause.go: outboxctl resume --relay {}", pause())
	pause()
	resumed("internal/operator/relays/problems.go: outboxctl resume --relay {}", status())
	pause()
	out, _ := relayCheck(t, r.config)
	resumed("internal/operator/check/words.go: outboxctl resume --relay {}", out)
	pause()
	eventually(t, "the relay rests", 30*time.Second, func() bool { return readyz(t, r).State == "paused" })
	resumed("relay/vitals.go: outboxctl resume --relay {}", readyz(t, r).Waiting[0].Detail)

	pause("--route", w.topic())
	resumed("internal/operator/relays/problems.go: outboxctl resume --relay {} --route {}", status())
	resumed("cmd/outboxctl/pause.go: outboxctl resume --relay {} --route {}", pause("--route", w.topic()))
	pause("--route", w.topic())
	out, _ = relayCheck(t, r.config)
	resumed("internal/operator/check/words.go: outboxctl resume --relay {} --route {}", out)
	pause("--route", w.topic())
	key := ""
	held := func() *healthWait { return waitsFor(t, r, "route") }
	eventually(t, "the route is held", 30*time.Second, func() bool {
		key = writeOne(t, w) // the relay hears the word within a second or two
		return held() != nil
	})
	resumed("relay/internal/stream/routing.go: outboxctl resume --relay {} --route {}", held().Detail)
	eventually(t, "the event arrives", 30*time.Second, func() bool { return w.published()[key] == 1 })
	w.execute(`DELETE FROM onceward.relay_state WHERE relay = 'other'`)
	caughtUp(t, w, r)
	r.stop()
}

// gapCures: each text about a gap leads to the command that ends it.
func gapCures(t *testing.T, c *cures) {
	w := settled(t, versions[0])
	before := writeOne(t, w)
	r := staying(w, "checkpoint_interval: 50ms", "gap: ask", "outbox: {start: now}")
	begins(t, w, r)
	operator := w.dsn(operatorLogin)
	replayed := func(cure, key, printed string) {
		t.Helper()
		n := w.published()[key]
		c.do(t, w, operatorLogin, cure, printed, "FILE", r.config)
		eventually(t, "it is published", 30*time.Second, func() bool { return w.published()[key] == n+1 })
	}
	const verdict = "internal/operator/events/verdict.go: outboxctl "
	replayed(verdict+`replay {} --config FILE --reason "…"`, before, outboxctl(t, operator, "show", before))
	replayed(verdict+`gap repair {} --reason "…"`, before, outboxctl(t, operator, "show", before))

	// lose makes a gap of one event.
	lose := func() (key string, h health) {
		caughtUp(t, w, r)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
		r.kill()
		key = writeOne(t, w)
		loseSlot(t, w)
		out, code := relayCheck(t, r.config)
		require.Equal(t, 3, code)
		c.do(t, w, operatorLogin, "relay/internal/beginning/decision.go: outboxctl gap list", out)
		r = again(r)
		return key, halted(t, r, "SLOT_MISSING")
	}
	over := func(state string) {
		t.Helper()
		eventually(t, "the relay goes on by itself", time.Minute, func() bool { return readyz(t, r).State == "streaming" })
		eventually(t, "the gap is "+state, 30*time.Second, func() bool {
			return scalar[string](w, `SELECT state FROM onceward.gaps ORDER BY found_at DESC LIMIT 1`) == state
		})
	}
	gap := func() string {
		return scalar[string](w, `SELECT gap_id::text FROM onceward.gaps ORDER BY found_at DESC LIMIT 1`)
	}

	key, h := lose()
	require.Contains(t, c.do(t, w, operatorLogin, "relay/internal/beginning/gap.go: outboxctl gap show {}", h.Error), key)
	_, status := statusOf(t, w)
	require.Contains(t, c.do(t, w, operatorLogin, "internal/operator/gaps/list.go: outboxctl gap show {}", status), key)
	c.do(t, w, operatorLogin, `relay/internal/beginning/gap.go: outboxctl gap repair {} --reason "…"`, h.Error)
	over("repaired")
	require.Positive(t, w.published()[key])

	key, h = lose()
	c.do(t, w, operatorLogin, `relay/internal/beginning/gap.go: outboxctl gap accept {} --reason "…"`, h.Error)
	over("accepted")
	replayed(verdict+`replay {} --config FILE --reason "…"`, key, outboxctl(t, operator, "show", key))
	replayed(verdict+`gap repair {} --reason "…"`, key, outboxctl(t, operator, "show", key))
	over("repaired")

	key, _ = lose()
	c.do(t, w, operatorLogin, `cmd/outboxctl/gap.go: outboxctl gap accept {} --reason "…"`, outboxctl(t, operator, "gap", "show", gap()))
	over("accepted")
	require.Zero(t, w.published()[key])
	key, _ = lose()
	c.do(t, w, operatorLogin, `cmd/outboxctl/gap.go: outboxctl gap repair {} --reason "…"`, outboxctl(t, operator, "gap", "show", gap()))
	over("repaired")
	require.Positive(t, w.published()[key])

	nowhere := uuid.NewString()
	out, _ := asked(t, operator, "gap", "show", nowhere)
	require.Contains(t, c.do(t, w, operatorLogin, "internal/operator/gaps/gap.go: outboxctl gap list --all", out), gap())
	out, _ = asked(t, operator, "gap", "show", "x")
	c.do(t, w, operatorLogin, "cmd/outboxctl/gap.go: outboxctl gap list", out)
	out, _ = asked(t, operator, "gap", "list", gap())
	c.do(t, w, operatorLogin, "cmd/outboxctl/gap.go: outboxctl gap show GAP", out, "GAP", gap())
	out, _ = asked(t, operator, "list", key)
	c.do(t, w, operatorLogin, "cmd/outboxctl/list.go: outboxctl show KEY", out, "KEY", key)
	decide := func(gap, seen string) string {
		_, err := w.as(operatorLogin).Exec(t.Context(), `SELECT onceward.decide_gap($1, $2, 'repairing', 'told')`, gap, seen)
		require.Error(t, err)
		return err.Error()
	}
	c.do(t, w, operatorLogin, "migrations/outbox/00009_decisions.sql: outboxctl gap list --all", decide(nowhere, "open"))
	c.do(t, w, operatorLogin, "migrations/outbox/00009_decisions.sql: outboxctl gap show {}", decide(gap(), "accepted"))

	// With slot.create: never a slot that is gone waits for whoever may make it.
	r.stop()
	loseSlot(t, w)
	r.env = append(r.env, "ONCEWARD_POSTGRES_SLOT_CREATE=never")
	r = again(r)
	h = halted(t, r, "SLOT_MISSING")
	c.do(t, w, operatorLogin, "cdc/slot.go: outboxctl gap list", h.Error)
	r.kill()
	r.env = r.env[:len(r.env)-1]
	r = again(r)
	eventually(t, "the relay streams", time.Minute, func() bool { return readyz(t, r).State == "streaming" })
	r.stop()
}

// publicationCures: the publication is dropped, and every program that looks says
// what makes it again.
func publicationCures(t *testing.T, c *cures) {
	w := settled(t, versions[0])
	r := staying(w, "checkpoint_interval: 50ms")
	begins(t, w, r)
	w.execute("DROP PUBLICATION " + w.slot())
	key := writeOne(t, w)
	h := halted(t, r, "PUBLICATION_MISSING")
	status := []string{"migrate", "status", "--side", "outbox"}
	for _, args := range [][]string{status, append(status, "--relay", w.name)} { // it has run, or is named
		out, code := asked(t, w.dsn(maintainerLogin), args...)
		require.Equal(t, 3, code)
		c.find(t, "migrations/status.go: outboxctl migrate up --side outbox --relay {}", out)
	}
	c.do(t, w, maintainerLogin, "cdc/checkpublication.go: outboxctl migrate up --side outbox --relay {}", h.Error)
	eventually(t, "the event is published from the table", time.Minute, func() bool { return w.published()[key] > 0 })
	caughtUp(t, w, r)
	r.stop()
	requireTrue(t, w)
}

// partitionCures: no partitions are left ahead, and one of a past day may not go.
func partitionCures(t *testing.T, c *cures) {
	w := settled(t, versions[1])
	r := staying(w, "checkpoint_interval: 50ms")
	begins(t, w, r)
	today := partition.Day(time.Now())
	for day := range 14 { // all that migrate up has made
		w.execute("DROP TABLE onceward.outbox_" + today.AddDate(0, 0, day+1).Format("20060102"))
	}
	_, status := statusOf(t, w)
	c.find(t, "internal/operator/partitions/extent.go: outboxctl partitions maintain --config relay.yaml", status)
	out, _ := relayCheck(t, r.config)
	c.find(t, "internal/operator/check/partitions.go: outboxctl partitions maintain --config relay.yaml", out)
	c.find(t, "internal/operator/check/partitions.go: outboxctl migrate up --side outbox", out)
	out, _ = asked(t, w.dsn(maintainerLogin), "partitions", "status")
	c.do(t, w, maintainerLogin, "internal/operator/partitions/extent.go: outboxctl partitions maintain --config relay.yaml", out, "relay.yaml", r.config)
	_, status = statusOf(t, w)
	require.NotContains(t, status, "partitions maintain")
	r.stop()
	noPartitionToday(t, c, w, r, "onceward.outbox_"+today.Format("20060102"))
}

// noPartitionToday: the days ahead are there, and nobody can write. The relay goes
// on, and everybody who looks says so.
func noPartitionToday(t *testing.T, c *cures, w *environment, r *relayProcess, leaf string) {
	w.execute("ALTER TABLE onceward.outbox DETACH PARTITION " + leaf)
	err := enqueue(t, w)
	require.ErrorIs(t, err, outbox.ErrOutOfWindow)
	c.find(t, "outbox/result.go: outboxctl partitions maintain --config relay.yaml", err.Error())
	c.find(t, "migrations/outbox/00005_secure.sql: outboxctl partitions maintain --config relay.yaml", hintOf(t, w))
	w.execute("ALTER TABLE " + leaf + " RENAME TO kept")
	w.execute("ALTER TABLE onceward.kept SET SCHEMA public")
	r = again(r)
	eventually(t, "the relay streams, and says it", time.Minute, func() bool {
		return readyz(t, r).State == "streaming" && r.logs("producers cannot write") && r.logs("NO_PARTITION")
	})
	ahead, counted := metric(t, r, "onceward_partitions_ahead_seconds")
	require.True(t, counted)
	require.Zero(t, ahead)
	code, status := statusOf(t, w)
	require.Equal(t, 3, code)
	require.Contains(t, status, "but none of today")
	const cure = "relay/retention/retention.go: outboxctl "
	c.find(t, cure+"partitions maintain --config relay.yaml", status)
	out, code := asked(t, w.dsn(maintainerLogin), "partitions", "status")
	require.Equal(t, 3, code)
	c.do(t, w, maintainerLogin, cure+"partitions maintain --config relay.yaml", out, "relay.yaml", r.config)
	require.NoError(t, enqueue(t, w))
	w.execute("DROP TABLE " + leaf)
	out, code = relayCheck(t, r.config)
	require.Equal(t, 3, code)
	c.do(t, w, maintainerLogin, cure+"migrate up --side outbox", out)
	require.NoError(t, enqueue(t, w))
	defaultPartition(t, w, r)
	r.kill()
}

// defaultPartition: somebody makes one under a relay that streams. It goes on, and
// everybody who looks says so, beside what there is to say.
func defaultPartition(t *testing.T, w *environment, r *relayProcess) {
	w.execute("CREATE TABLE public.rest PARTITION OF onceward.outbox DEFAULT")
	const cure = "SET lock_timeout = '2s'; ALTER TABLE onceward.outbox DETACH PARTITION public.rest"
	eventually(t, "the relay says it", 90*time.Second, func() bool { return r.logs("DEFAULT_PARTITION") && r.logs(cure) })
	require.Equal(t, "streaming", readyz(t, r).State)
	_, counted := metric(t, r, "onceward_partitions_ahead_seconds")
	require.True(t, counted)
	code, status := statusOf(t, w)
	require.Equal(t, 3, code)
	require.Contains(t, status, cure)
	require.Contains(t, status, "days ahead")
	out, code := asked(t, w.dsn(maintainerLogin), "partitions", "status")
	require.Equal(t, 3, code)
	require.Contains(t, out, cure)
	w.execute(cure + "; RESET lock_timeout")
	out, _ = asked(t, w.dsn(maintainerLogin), "partitions", "status")
	require.NotContains(t, out, "DEFAULT_PARTITION")
}

// sql runs statements of a cure as the superuser, on the environment's database.
func (c *cures) sql(t *testing.T, w *environment, cure, printed string, fill ...string) {
	t.Helper()
	w.execute(strings.NewReplacer(fill...).Replace(c.find(t, cure, printed)))
}

// rightsCures: rows that are hidden from the relay's role, a table that it may not
// write, a database where nobody may.
func rightsCures(t *testing.T, c *cures) {
	w := ownEnvironment(t, versions[0], nil)
	w.prepareTables()
	r := staying(w, "checkpoint_interval: 50ms")
	clean := func(code string) {
		t.Helper()
		out, _ := relayCheck(t, r.config)
		require.NotContains(t, out, code)
	}
	check := func(code string) string {
		t.Helper()
		out, status := relayCheck(t, r.config)
		require.Contains(t, out, code)
		require.Equal(t, 3, status)
		return out
	}
	const session = "cdc/checksession.go: "
	w.execute(`ALTER TABLE onceward.outbox ENABLE ROW LEVEL SECURITY`)
	c.sql(t, w, session+"ALTER TABLE {} DISABLE ROW LEVEL SECURITY;", check("ROW_SECURITY"))
	clean("ROW_SECURITY")
	super := w.server.DSN(w.name)
	outboxctl(t, super, "migrate", "roles", "--producer", w.name+"_p", "--namespace", w.name, "--apply")
	w.execute(`ALTER ROLE ` + relayLogin + ` NOBYPASSRLS; DROP POLICY onceward_everybody_else ON onceward.outbox; CREATE POLICY onceward_everybody_else ON onceward.outbox TO shop USING (true)`)
	c.doOn(t, super, session+"outboxctl migrate roles --side outbox --apply", check("ROW_SECURITY"))
	clean("ROW_SECURITY")

	const setting = "default_transaction_read_only"
	for _, tc := range []struct {
		on    string
		cures []string
	}{
		{"ALTER DATABASE " + w.name + " SET " + setting + " = on", []string{"ALTER DATABASE {} RESET {};"}},
		{"ALTER ROLE " + relayLogin + " SET " + setting + " = on", []string{"ALTER ROLE {} RESET {};"}},
		{"ALTER SYSTEM SET " + setting + " = on", []string{"ALTER SYSTEM SET {} = off;", "SELECT pg_catalog.pg_reload_conf();"}},
	} {
		w.execute(tc.on)
		w.execute(`SELECT pg_reload_conf()`)
		eventually(t, "it is read-only", 10*time.Second, func() bool { out, _ := relayCheck(t, r.config); return strings.Contains(out, "READ_ONLY") })
		out := check("READ_ONLY")
		for _, cure := range tc.cures {
			writable(t, w, c.find(t, session+cure, out))
		}
		eventually(t, "it may be written", 10*time.Second, func() bool { out, _ := relayCheck(t, r.config); return !strings.Contains(out, "READ_ONLY") })
	}

	w.execute(`REVOKE ALL ON onceward.relay_health FROM ` + relayLogin)
	r.start()
	eventually(t, "the relay says that it may not write", 30*time.Second, func() bool { return r.logs("may not write onceward.relay_health") })
	c.find(t, "relay/lookout.go: outboxctl status", r.log())
	c.doOn(t, super, "relay/lookout.go: outboxctl migrate roles --side outbox --apply", r.log())
	caughtUp(t, w, r)
	eventually(t, "it writes how it is", time.Minute, func() bool { return scalar[int](w, `SELECT count(*) FROM onceward.relay_health`) == 1 })
	w.execute(`REVOKE INSERT, UPDATE ON ALL TABLES IN SCHEMA onceward FROM ` + relayLogin + `; REVOKE SELECT ON onceward.outbox FROM ` + relayLogin)
	writeOne(t, w)
	var said string
	eventually(t, "its last word, streaming, is not repeated", time.Minute, func() bool {
		said, _ = asked(t, w.dsn(operatorLogin), "status")
		return strings.Contains(said, "nobody reads from slot")
	})
	c.doOn(t, super, "internal/operator/relays/problems.go: outboxctl migrate roles --side outbox --apply", said)
	caughtUp(t, w, r)
	r.stop()
	w.execute("DROP OWNED BY " + w.name + "_p; DROP ROLE " + w.name + "_p")
}

// writable runs a statement in a session that may write, as a superuser can have it.
func writable(t *testing.T, w *environment, statement string) {
	t.Helper()
	conn, err := w.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for _, sql := range []string{"SET default_transaction_read_only = off", statement} {
		_, err = conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
}

// settingsCures: what `relay check` advises about a server.
func settingsCures(t *testing.T, c *cures) {
	w := ownEnvironment(t, versions[1], nil)
	w.prepareTables()
	config := w.config(`admin: {listen: "off"}`)
	const advice = "internal/operator/check/check.go: "
	for _, tc := range []struct {
		spoil, says string
		cures       []string
	}{
		{"ALTER SYSTEM SET max_slot_wal_keep_size = -1", "max_slot_wal_keep_size is unlimited", []string{advice + "ALTER SYSTEM SET max_slot_wal_keep_size = '…';"}},
		{"ALTER SYSTEM SET wal_sender_timeout = 0", "wal_sender_timeout is off", []string{advice + "ALTER SYSTEM SET wal_sender_timeout = '60s';", advice + "SELECT pg_catalog.pg_reload_conf();"}},
		{"ALTER SYSTEM SET idle_replication_slot_timeout = '1h'", "idle_replication_slot_timeout is 3600 s",
			[]string{"internal/operator/check/standbys.go: ALTER SYSTEM SET idle_replication_slot_timeout = 0;", "internal/operator/check/standbys.go: SELECT pg_catalog.pg_reload_conf();"}},
	} {
		w.execute(tc.spoil)
		w.execute(`SELECT pg_reload_conf()`)
		out := ""
		eventually(t, "relay check says: "+tc.says, 10*time.Second, func() bool { out, _ = relayCheck(t, config); return strings.Contains(out, tc.says) })
		for _, cure := range tc.cures {
			c.sql(t, w, cure, out, "…", "1GB")
		}
		w.execute(`SELECT pg_reload_conf()`)
		eventually(t, "it does not any more", 10*time.Second, func() bool { out, _ := relayCheck(t, config); return !strings.Contains(out, tc.says) })
	}
}
