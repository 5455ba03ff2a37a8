//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// begins starts a relay and waits until it has published something.
func begins(t *testing.T, w *environment, r *relayProcess) {
	t.Helper()
	before := sessionsIn(r)
	r.start()
	eventually(t, "the relay streams", time.Minute, func() bool { return sessionsIn(r) > before })
	caughtUp(t, w, r)
}

// again starts another process of the same relay, with a log of its own.
func again(r *relayProcess) *relayProcess {
	next := r.w.newRelay(r.config, "")
	next.env = r.env
	next.start()
	return next
}

// loseSlot drops the slot once the server has noticed that the relay is gone.
func loseSlot(t *testing.T, w *environment) {
	t.Helper()
	eventually(t, "the slot is free", 10*time.Second, func() bool {
		return !scalar[bool](w, `SELECT bool_or(active) FROM pg_replication_slots WHERE slot_name = $1`, w.slot())
	})
	w.execute(`SELECT pg_drop_replication_slot($1)`, w.slot())
}

// enqueue tries to write an event, and takes it back.
func enqueue(t *testing.T, w *environment) error {
	t.Helper()
	tx, err := w.app.Begin(t.Context())
	require.NoError(t, err)
	_, err = outbox.Enqueue(t.Context(), tx, event(t, w))
	require.NoError(t, tx.Rollback(t.Context()))
	return err
}

func event(t *testing.T, w *environment) outbox.Event {
	t.Helper()
	key, err := outbox.NewKey(w.name)
	require.NoError(t, err)
	return outbox.Event{Key: key, AggregateType: "order", AggregateID: "a-1", Type: "OrderChanged", Payload: []byte("{}")}
}

// hintOf is the hint of the SQL function, for an event of now.
func hintOf(t *testing.T, w *environment) string {
	t.Helper()
	_, err := w.app.Exec(t.Context(), `SELECT onceward.enqueue($1, 'order', 'a-1', 'OrderChanged', '{}')`, event(t, w).Key.String())
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "OW004", pg.Code)
	return pg.Hint
}

// letterCures: what is printed about dead letters, about a relay that has halted
// at an event, and about a kind that has parked as many aggregates as it may.
func letterCures(t *testing.T, c *cures) {
	w := settled(t, versions[0])
	r := &replays{environment: w}
	config := w.config(`admin: {listen: "127.0.0.1:0"}`, "checkpoint_interval: 50ms", "max_parked_aggregates: 2")
	r.relay = w.newRelay(config, "")
	begins(t, w, r.relay)
	operator := w.dsn(operatorLogin)
	do := func(cure, printed string, fill ...string) string {
		t.Helper()
		return c.do(t, w, operatorLogin, cure, printed, fill...)
	}
	say := func(args ...string) string { t.Helper(); out, _ := asked(t, operator, args...); return out }
	state := func(key string) string {
		return scalar[string](w, `SELECT coalesce((SELECT state FROM onceward.dead_letters WHERE namespace || ':' || letter_id = $1), '')`, key)
	}
	is := func(want string, keys ...string) {
		t.Helper()
		for _, key := range keys {
			eventually(t, key+" is "+want, 30*time.Second, func() bool { return state(key) == want })
		}
	}
	file := filepath.Join(t.TempDir(), "payload")
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	edited := func(key string) string {
		t.Helper()
		return say("dead", "edit", key, "--payload-file", file, "--reason", "too large", "--yes", "--wait", "30s")
	}

	bad, good := r.poison("p"), r.small("q")
	is("open", bad)
	r.arrives(w.topic(), good)
	require.Contains(t, do("internal/operator/status/problems.go: outboxctl dead list", say("status")), bad)
	require.Contains(t, do("cmd/outboxctl/dead_list.go: outboxctl dead show KEY", say("dead", "list", bad), "KEY", bad), "open")
	require.Contains(t, do("internal/operator/letters/relay_order.go: outboxctl show {}", say("dead", "retry", good, "--reason", "x", "--yes")), "published")
	require.Contains(t, do("cmd/outboxctl/dead_show.go: outboxctl show {}", say("dead", "show", good)), "published")
	missing := event(t, w).Key.String()
	c.find(t, "internal/operator/replay/plan.go: outboxctl show {}", say("replay", missing, "--unchecked", "--reason", "x", "--yes"))
	do(`internal/operator/relays/skip.go: outboxctl dead discard {} --reason "…"`, say("skip", bad, "--reason", "x", "--yes"))
	is("discarded", bad)
	require.Contains(t, do("internal/operator/letters/relay_order.go: outboxctl dead show {}", say("dead", "retry", bad, "--reason", "x", "--yes")), "discarded")

	require.Contains(t, do("cmd/outboxctl/skip.go: outboxctl dead show {}", say("skip", bad, "--undo")), "discarded")
	c.find(t, "internal/operator/relays/skip.go: outboxctl list --state", say("skip", missing, "--reason", "x", "--yes"))

	bad = r.poison("p")
	is("open", bad)
	do(`internal/operator/letters/relay_await.go: outboxctl dead retry {} --reason "…"`, edited(bad))
	r.arrives(w.topic(), bad)
	bad = r.poison("p")
	is("open", bad)
	edited(bad)
	do(`internal/operator/replay/plan.go: outboxctl dead retry KEY --reason "…"`, say("replay", bad, "--unchecked", "--reason", "x", "--yes"), "KEY", bad)
	r.arrives(w.topic(), bad)

	// A word that waits for a relay that is paused.
	bad = r.poison("p")
	is("open", bad)
	say("pause")
	eventually(t, "the relay rests", 30*time.Second, func() bool { return readyz(t, r.relay).State == "paused" })
	left := r.small("u")
	skipped := say("skip", left, "--reason", "x", "--yes")
	require.Contains(t, do("cmd/outboxctl/skip.go: outboxctl skip {} --undo --relay {}", skipped), "does not leave out")
	c.find(t, "cmd/outboxctl/skip.go: outboxctl status", say("skip", left, "--undo"))
	say("skip", left, "--reason", "x", "--yes")
	require.Contains(t, do("internal/operator/relays/problems.go: outboxctl skip {} --undo --relay {}", say("status")), "does not leave out")
	do("internal/operator/relays/problems.go: outboxctl resume --relay {}", say("dead", "discard", bad, "--reason", "x", "--yes", "--wait", "2s"))
	is("discarded", bad)
	r.arrives(w.topic(), left)
	r.arrives(w.topic(), r.small("p"))

	// The kind is full: giving one up lets the next one be parked, and skipping does.
	first, second, third := r.poison("1"), r.poison("2"), r.poison("3")
	is("open", first, second)
	full := func(key string) (said string) {
		t.Helper()
		eventually(t, "the kind is full", 30*time.Second, func() bool {
			wait := waitsFor(t, r.relay, "route")
			if wait != nil {
				said = wait.Detail
			}
			return strings.Contains(said, key)
		})
		return said
	}
	said := full(third)
	require.Contains(t, do("relay/internal/letters/parked.go: outboxctl dead list", said), first)
	do(`relay/internal/letters/parked.go: outboxctl dead discard KEY --reason "…"`, said, "KEY", first)
	is("discarded", first)
	is("open", third)
	fourth := r.poison("4")
	do(`relay/internal/letters/parked.go: outboxctl skip {} --slot {} --reason "…"`, full(fourth))
	is("discarded", fourth)
	r.arrives(w.topic(), r.small("5"))

	out, _ := asked(t, w.dsn(relayLogin), "dead", "discard", second, "--reason", "x", "--yes")
	do("internal/operator/explain.go: outboxctl migrate roles --side {} --print", out)
	system := scalar[string](w, `SELECT system_identifier FROM onceward.relay_state`)
	r.relay.stop()
	w.execute(`UPDATE onceward.relay_state SET system_identifier = '1'`)
	out = say("adopt", "--by", "copy", "--reason", "x", "--yes")
	do("internal/operator/explain.go: outboxctl migrate roles --side outbox --print", out)
	w.execute(`UPDATE onceward.relay_state SET system_identifier = $1`, system)
	haltCures(t, c, r, config)
}

// haltCures: a relay whose route says halt names the key, and what leaves it out.
func haltCures(t *testing.T, c *cures, r *replays, config string) {
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	const route = `{topic: "{namespace}.{aggregate_type}"`
	require.NoError(t, os.WriteFile(config, []byte(strings.Replace(string(text), route, route+", poison: halt", 1)), 0o600))
	r.relay.start()
	bad, behind := r.poison("h"), r.small("h")
	const mark = "halted: an operator has to decide"
	eventually(t, "the relay halts at the event", 30*time.Second, func() bool { return r.relay.logs(mark) })
	_, said, _ := strings.Cut(r.relay.log(), mark)
	c.find(t, `relay/internal/stream/halt.go: outboxctl skip {} --relay {} --reason "…"`, said)
	var out string
	eventually(t, "check names it, with its cure", 15*time.Second, func() bool {
		out, _ = relayCheck(t, r.relay.config)
		return strings.Contains(out, "is halted since") && strings.Contains(out, "outboxctl skip "+bad)
	})
	eventually(t, "dead retry says where the relay halts", 15*time.Second, func() bool {
		out, _ = asked(t, r.dsn(operatorLogin), "dead", "retry", bad, "--reason", "x", "--yes")
		return strings.Contains(out, "halts at "+bad)
	})
	out = c.do(t, r.environment, operatorLogin, `internal/operator/letters/relay_order.go: outboxctl skip {} --relay {} --reason "…"`, out)
	r.arrives(r.topic(), behind)
	out = c.do(t, r.environment, operatorLogin, "cmd/outboxctl/skip.go: outboxctl dead show {}", out)
	require.Contains(t, out, bad)
	require.Contains(t, out, "has the policy halt")
	require.NotContains(t, out, "mend the cause and start the relay again", "the letter keeps no cure: it is skipped")
	r.relay.stop()
}

// oldEvent commits an event of some days ago.
func oldEvent(t *testing.T, w *environment, daysAgo int) (key string) {
	t.Helper()
	o := &oldDays{t: t, w: w, conn: w.connect(maintainerLogin), day: partition.Day(time.Now()).AddDate(0, 0, -daysAgo), committed: map[string]bool{}}
	if daysAgo > 7 { // migrate up has made none of before
		o.open(daysAgo)
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), w.app, func(tx pgx.Tx) error {
		id, err := o.enqueue(t.Context(), tx)
		key = w.name + ":" + id.String()
		return err
	}))
	return key
}

// retentionCures: what retention waits for is ended by what it says.
func retentionCures(t *testing.T, c *cures) {
	w := settled(t, versions[1])
	writeOne(t, w)
	dropped, repaired := oldEvent(t, w, 20), oldEvent(t, w, 5)
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "")
	r.start()
	c.find(t, `relay/internal/beginning/beginner.go: outboxctl partitions maintain --config relay.yaml --drop-before --reason "…"`, r.wait(30*time.Second))
	r = staying(w, "checkpoint_interval: 50ms", "outbox: {start: now}", "gap: ask")
	begins(t, w, r)
	maintain := func(more ...string) string {
		t.Helper()
		out, _ := asked(t, w.dsn(maintainerLogin), append([]string{"partitions", "maintain"}, more...)...)
		return out
	}
	there := func(daysAgo int) bool {
		return scalar[bool](w, `SELECT to_regclass($1) IS NOT NULL`, "onceward.outbox_"+partition.Day(time.Now()).AddDate(0, 0, -daysAgo).Format("20060102"))
	}
	// says repeats the round until it says why the partition waits.
	says := func(what string, more ...string) (out string) {
		t.Helper()
		eventually(t, "maintenance says: "+what, time.Minute, func() bool {
			caughtUp(t, w, r)
			out = maintain(more...)
			return strings.Contains(out, what)
		})
		return out
	}
	gone := func(daysAgo int, more ...string) {
		t.Helper()
		eventually(t, "the partition is dropped", time.Minute, func() bool { maintain(more...); return !there(daysAgo) })
	}
	const gate = "relay/retention/gate.go: outboxctl "
	c.do(t, w, maintainerLogin, gate+`partitions maintain --config relay.yaml --drop-before --reason "…"`, says("older than relay"), "relay.yaml", r.config)
	gone(20, "--drop-before", "--reason", "told", "--yes")
	require.Zero(t, w.published()[dropped])
	c.do(t, w, operatorLogin, gate+`gap repair {} --reason "…"`, says("older than relay", "--keep", "3"))
	eventually(t, "it is published", 30*time.Second, func() bool { return w.published()[repaired] == 1 })
	caughtUp(t, w, r)
	gone(5, "--keep", "3")

	// A gap over a closed partition; then a relay that is gone for good.
	r.kill()
	lost := oldEvent(t, w, 20)
	maintain()
	loseSlot(t, w)
	r = again(r)
	halted(t, r, "SLOT_MISSING")
	out := maintain()
	require.Contains(t, c.do(t, w, operatorLogin, gate+"gap show {}", out), lost)
	c.find(t, gate+`gap repair {} --reason "…"`, out)
	c.do(t, w, operatorLogin, gate+`gap accept {} --reason "…"`, out)
	gone(20)

	eventually(t, "the relay goes on", 30*time.Second, func() bool { return readyz(t, r).State == "streaming" })
	oldEvent(t, w, 20)
	r.stop()
	loseSlot(t, w)
	maintain()
	c.do(t, w, operatorLogin, gate+`retire --slot {} --reason "…"`, maintain())
	require.Zero(t, scalar[int](w, `SELECT count(*) FROM onceward.relay_state`))
}
