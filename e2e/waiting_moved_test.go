//go:build e2e

package e2e

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWaitingMovedOvertakesLetter: an aggregate is parked by a letter, a later event
// of it waits for a paused route; the publication is toggled, and the slot stands
// before both.
func TestWaitingMovedOvertakesLetter(t *testing.T) {
	t.Parallel()
	r := waitingEnvironment(t, "18", "idempotent")
	r.topicOf(r.name + ".late")
	caughtUp(t, r.environment, r.relay)
	eventually(t, "the slot can be copied", 30*time.Second, func() bool {
		_, err := r.pool.Exec(t.Context(), "SELECT pg_copy_logical_replication_slot($1::text, $2::text)", r.slot(), r.slot()+"_older")
		return err == nil
	})
	bad := r.enqueue("late", "a", make([]byte, 1_200_000))
	r.letters(1)
	r.order(0, "pause", "--route", r.name+".late")
	eventually(t, "it is heard", 30*time.Second, func() bool {
		r.enqueue("late", "z", []byte("{}"))
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) > 0
	})
	before := scalar[int](r.environment, `SELECT count(*) FROM onceward.outbox WHERE aggregate_id = 'z'`)
	next := r.enqueue("late", "a", []byte("{}"))
	eventually(t, "it waits", 30*time.Second, func() bool { return account(t, r.environment)[next] == "waiting" })
	caughtUp(t, r.environment, r.relay)
	r.relay.kill()
	r.slotFree()
	r.execute(`SELECT pg_drop_replication_slot($1)`, r.slot())
	r.execute("SELECT pg_copy_logical_replication_slot($1::text, $2::text)", r.slot()+"_older", r.slot())
	r.execute("SELECT pg_drop_replication_slot($1)", r.slot()+"_older")
	r.execute("ALTER PUBLICATION " + r.slot() + " SET (publish = 'update')")
	r.execute("ALTER PUBLICATION " + r.slot() + " SET (publish = 'insert')")
	r.relay.start()
	eventually(t, "the gap is found", 30*time.Second, func() bool { return scalar[int](r.environment, `SELECT count(*) FROM onceward.gaps`) == 2 })
	r.order(0, "resume", "--route", r.name+".late")
	r.settleAll()
	t.Logf("bad %s next %s (z: %d); letters: %s; topic: %v; gaps %s", bad, next, before,
		scalar[string](r.environment, `SELECT coalesce(string_agg(letter_id || ' ' || state || ' ' || position || ' ' || error_class, ', ' ORDER BY seq), 'none') FROM onceward.dead_letters`), r.keys(r.name+".late", "a"),
		scalar[string](r.environment, `SELECT string_agg(cause || ' ' || state || ' ' || events, ', ') FROM onceward.gaps`))
	require.Empty(t, r.keys(r.name+".late", "a"), "the aggregate is parked behind %s", bad)
	r.relay.stop()
}

// TestWaitingInADetachedDay: today's partition is detached by hand while events of it
// wait for their topic. What is printed, one command after another, brings it back:
// nothing that waited is given up, and all of it is published once its topic is there.
func TestWaitingInADetachedDay(t *testing.T) {
	t.Parallel()
	for i, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode, func(t *testing.T) {
			const n = 40
			r := waitingEnvironment(t, versions[i], mode)
			r.many("late", "b", n)
			r.waits(n)
			caughtUp(t, r.environment, r.relay)
			day := scalar[string](r.environment, `SELECT DISTINCT relname FROM onceward.outbox o JOIN pg_class c ON c.oid = o.tableoid`)
			r.execute("ALTER TABLE onceward.outbox DETACH PARTITION onceward." + day)
			out, code := asked(t, r.dsn(maintainerLogin), "partitions", "maintain")
			require.Equal(t, 1, code, out)
			attach := regexp.MustCompile(`ALTER TABLE [^;]* ATTACH [^;]*;`).FindString(out)
			require.Contains(t, attach, day, out)
			r.execute(attach)
			log := r.relay.wait(time.Minute)
			adopt := regexp.MustCompile("outboxctl (partitions adopt " + day + ") --reason").FindStringSubmatch(log)
			require.NotNil(t, adopt, log)
			outboxctl(t, r.dsn(maintainerLogin), append(strings.Fields(adopt[1]), "--reason", "detached by mistake", "--yes")...)
			r.relay.start()
			seenBy(r.environment, r.name)
			r.waits(n)
			r.topicOf(r.name + ".late")
			eventually(t, "nothing waits", time.Minute, func() bool {
				return owed(r.environment) == 0 && scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) == 0
			})
			r.relay.stop()
			states, lies := r.truth()
			require.Zero(t, lies)
			require.Equal(t, map[string]int{"published": scalar[int](r.environment, `SELECT count(*) FROM onceward.outbox`)}, states)
			late := r.inTopic(r.name + ".late")
			require.Len(t, late, n)
			for key, copies := range late {
				require.Equal(t, 1, copies, key)
			}
		})
	}
}
