//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// Moves of TestAccount that change the environment around the relay for a while.

// holds asks a question of the database; false also when it cannot be asked.
func (a *accounting) holds(question string, args ...any) (yes bool) {
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	return a.pool.QueryRow(ctx, question, args...).Scan(&yes) == nil && yes
}

// standsStill says what the last command that failed had said, and who waits in the
// server for whom: what a fault that does not end may hang on.
func (a *accounting) standsStill() string {
	var who string
	err := a.pool.QueryRow(a.t.Context(), `SELECT COALESCE(string_agg(concat_ws(' ', pid, 'of', application_name, state, 'waits for', wait_event_type, wait_event, pg_blocking_pids(pid), left(query, 200)), E'\n'), '')
		FROM pg_stat_activity WHERE datname = current_database() AND (cardinality(pg_blocking_pids(pid)) > 0 OR xact_start IS NOT NULL)`).Scan(&who)
	if err != nil {
		who = err.Error()
	}
	return a.refused + "\n" + who
}

// unlogLeaf takes the log from today's partition until the relay has noticed: within
// one tick it would not, which is a stated limit. What is down comes up meanwhile,
// but no server crashes, which would empty the partition.
func (a *accounting) unlogLeaf(step) bool {
	leaf := "onceward.outbox_" + time.Now().UTC().Format("20060102")
	a.started()
	if !a.streams() || !a.nemesis.sql("ALTER TABLE "+leaf+" SET UNLOGGED") {
		return false
	}
	a.gapOpens()
	for _, done := range []func() bool{
		func() bool {
			return a.holds(`SELECT publication_catalog IN ('changed', 'unlogged') FROM onceward.relay_state WHERE slot = $1`, a.slot())
		},
		func() bool { return a.nemesis.sql("ALTER TABLE " + leaf + " SET LOGGED") },
	} {
		for deadline := time.Now().Add(quietLimit); !done(); {
			require.True(a.t, time.Now().Before(deadline), "the relay notices that %s is unlogged, and it is logged again", leaf)
			a.skipHalts()
			a.nemesis.until(time.Now().Add(50 * time.Millisecond))
		}
	}
	return true
}

// bindProducer binds a producer to a namespace and lets it go: the relay reads
// under row security meanwhile.
func (a *accounting) bindProducer(s step) bool {
	name := a.name + "_bound"
	roles := func(args ...string) bool {
		shared.roles.Lock()
		defer shared.roles.Unlock()
		_, code := a.ctlAs(a.server.DSN(a.name), append([]string{"migrate", "roles", "--apply", "--producer", name}, args...)...)
		return code == 0
	}
	if !roles("--namespace", a.name) {
		return false
	}
	a.undoes(s.lasting, func() bool {
		gone := `SELECT NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '` + name + `')`
		return a.holds(gone) || roles("--remove") && a.nemesis.sql("DROP OWNED BY "+name+"; DROP ROLE "+name)
	})
	return true
}

// attachAnew attaches every partition again, as pg_upgrade does.
const attachAnew = `DO $$ DECLARE l record; BEGIN
	FOR l IN SELECT c.oid::regclass AS leaf, pg_get_expr(c.relpartbound, c.oid) AS bound FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = 'onceward.outbox'::regclass
	LOOP
		EXECUTE format('ALTER TABLE onceward.outbox DETACH PARTITION %s', l.leaf);
		EXECUTE format('ALTER TABLE onceward.outbox ATTACH PARTITION %s %s', l.leaf, l.bound);
	END LOOP;
END $$`

// adoptSystem makes the database look as if it had come from another system, with its
// transaction ids, as by pg_upgrade, or without slot, as by pg_dump, until it is
// adopted.
func (a *accounting) adoptSystem(s step) bool {
	a.nemesis.killRelays(s)
	const left = `UPDATE onceward.relay_state SET system_identifier = '1'`
	by, moved := "copy", left+"; "+attachAnew
	if s.up {
		by, moved = "dump", left+` WHERE slot = '`+a.slot()+`'; SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '`+a.slot()+`'`
	}
	done := false
	for range 20 { // the walsender of a relay that was killed holds the slot for a moment
		if done = a.nemesis.sql(moved); done {
			break
		}
	}
	if !done {
		return false
	}
	a.gapOpens()
	if s.up {
		a.nothingProved()
	}
	a.undoes(s.lasting, func() bool {
		if a.holds(`SELECT count(*) = 0 FROM onceward.relay_state WHERE system_identifier = '1'`) {
			return true
		}
		return a.adopted(a.ctlAs(a.dsn(maintainerLogin), "adopt", "--by", by, "--yes", "--reason", "move"))
	})
	return true
}

// fillLeaf attaches a partition that holds a row, and has the row published.
func (a *accounting) fillLeaf(s step) bool {
	f := newFilledLeaf(a.t, a.environment, 20+a.leaves)
	fill, key := f.fill()
	if !a.nemesis.sql(f.create() + "; " + fill + "; " + f.attach()) {
		return false
	}
	a.leaves++
	a.rows[key] = accountRow{Key: key, Kind: "order", Aggregate: "old"} // retention may be quicker than the next look
	a.gapOpens()
	a.undoes(s.lasting, func() bool { return a.adoptLeaf(f.name) })
	return true
}

// adoptLeaf has the rows of a partition published that came with them.
func (a *accounting) adoptLeaf(name string) bool {
	if a.holds(`SELECT to_regclass('onceward.' || $1) IS NULL`, name) { // dropped, or gone with its history
		return true
	}
	out, code := a.ctlAs(a.dsn(maintainerLogin), "partitions", "adopt", name, "--yes", "--reason", "move")
	return code == 0 || strings.Contains(out, "nothing is to be adopted")
}

// adoptKafka makes Kafka look like another cluster that has everything, until it is
// adopted, by each of the words.
func (a *accounting) adoptKafka(s step) bool {
	a.nemesis.killRelays(s)
	if !a.nemesis.sql(`UPDATE onceward.relay_state SET kafka_cluster = 'mirrored' WHERE kafka_cluster IS NOT NULL AND slot = '` + a.slot() + `'`) {
		return false
	}
	word := []string{"continue", "from-position", "gap"}[s.target%3]
	switch word {
	case "from-position":
		a.gapOpens() // what was acknowledged since the position comes again
	case "gap":
		a.nothingProved()
	}
	a.undoes(s.lasting, func() bool {
		if a.holds(`SELECT count(*) = 0 FROM onceward.relay_state WHERE kafka_cluster = 'mirrored'`) {
			return true
		}
		args := []string{"adopt", "--kafka", word, "--relay", a.name, "--yes", "--reason", "move"}
		if !a.holds(`SELECT kafka_met IS NOT NULL FROM onceward.relay_state WHERE slot = $1`, a.slot()) {
			args = append(args, "--cluster", a.cluster(), "--config", a.relays[0].config) // a gap may wait for a decision, and no relay has met it yet
		}
		if word != "continue" && len(a.over) > 0 {
			a.over[len(a.over)-1].noted = false // the checkpoint in Kafka does not count, nor tell that the database went back
		}
		return a.adopted(a.ctl(args...))
	})
	return true
}

// adopted reports whether it was done. While a partition is detached and not dropped it is refused, and says what is
// to be done first.
func (a *accounting) adopted(out string, code int) bool {
	if strings.Contains(out, "is detached, and not dropped yet") {
		a.maintain(1, false)
	}
	return code == 0
}

// beginSecond has a relay of another name publish the same outbox to a topic of its
// own, and retires it: retention waits for it meanwhile, and no longer.
func (a *accounting) beginSecond(s step) bool {
	name := a.name + "_second"
	if !a.holds(`SELECT NOT EXISTS (SELECT FROM onceward.relay_state WHERE relay = $1) AND NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'onceward_' || $1)`, name) {
		return false
	}
	if _, code := a.ctlAs(a.dsn(maintainerLogin), "migrate", "up", "--side", "outbox", "--relay", name); code != 0 {
		return false
	}
	a.makeTopic(kindSecond)
	r := a.startStaying(name, `routes: [{topic: "`+a.topicOf(kindSecond)+`"}]`,
		fmt.Sprintf("outbox: {start: %s}", map[bool]string{true: "all", false: "now"}[s.up]))
	process := r.process
	a.seconds++
	ended := sync.OnceFunc(func() { r.process, a.seconds = nil, a.seconds-1 })
	a.nemesis.undos = append(a.nemesis.undos, undo{time.Now().Add(s.lasting + 2*time.Second), func() bool {
		_ = process.Signal(syscall.SIGTERM)
		select {
		case <-process.Done():
			ended()
			return a.retireSecond(name)
		default:
			return false
		}
	}})
	return true
}

// toggleTLS has the server speak TLS, or no longer, and ends the relays' sessions that are
// otherwise.
func (a *accounting) toggleTLS(step) bool {
	if !a.answers() {
		return false
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), 10*time.Second)
	defer cancel()
	if pgserver.ServeTLS(ctx, a.server.DSN("postgres"), !a.holds(`SELECT current_setting('ssl')::boolean`)) != nil {
		return false
	}
	return a.nemesis.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
		WHERE usename = '` + relayLogin + `' AND ssl <> current_setting('ssl')::boolean`)
}

// startStaying starts a relay of another name through the faults of the network, which stays
// when it halts.
func (a *accounting) startStaying(name string, more ...string) *relayProcess {
	r := a.staying(a.name, name, more...)
	r.start()
	return r
}

// staying makes such a relay, of some database, that is not started.
func (a *accounting) staying(database, name string, more ...string) *relayProcess {
	path := filepath.Join(a.t.TempDir(), "relay.yaml")
	require.NoError(a.t, os.WriteFile(path, fmt.Appendf(nil, `name: %s
postgres: {dsn: "%s", insecure: true}
kafka: {brokers: ["%s"], insecure: true}
admin: {listen: "off"}
stop_grace: 2s
%s
`, name, a.way(database), strings.Join(a.brokers, `", "`), strings.Join(more, "\n")), 0o600))
	r := a.newRelay(path, "")
	r.env = slices.DeleteFunc(r.env, func(s string) bool { return s == exitOnHalt })
	return r
}

// kindSecond is the last part of the second relay's topic.
const kindSecond = "second"

func (a *accounting) retireSecond(name string) bool {
	slot := "onceward_" + name
	if !a.nemesis.sql(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '` + slot + `'`) {
		return false
	}
	if !a.holds(`SELECT NOT EXISTS (SELECT FROM onceward.relay_state WHERE slot = $1)`, slot) { // or the server is down: then it is tried again
		if _, code := a.ctl("retire", "--relay", name, "--yes", "--reason", "move"); code != 0 {
			return false
		}
	}
	return a.nemesis.sql("DROP PUBLICATION IF EXISTS " + slot)
}
