//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// longOnly leaves a test to the long form.
func longOnly(t *testing.T) {
	t.Helper()
	if !full() {
		t.Skip("long form: E2E_FULL=1")
	}
}

// waitingEnvironment is an environment whose relay makes no topics, and that relay.
func waitingEnvironment(t *testing.T, version, mode string) *replays {
	t.Helper()
	w := settled(t, version)
	r := &replays{environment: w, mode: mode, config: w.config(`admin: {listen: "off"}`, "checkpoint_interval: 50ms")}
	r.relay = w.newRelay(r.config, "none").inMode(mode)
	want := 1
	if mode == "exactly-once" { // it makes the checkpoint's topic
		r.relay.start()
		eventually(t, "the relay streams", time.Minute, func() bool { return r.relay.logs("slot taken") })
		r.relay.stop()
		want++
	}
	r.relay.env = append(r.relay.env, "ONCEWARD_TOPICS_CREATE=false", "ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=3s")
	r.relay.start()
	eventually(t, "the relay streams", time.Minute, func() bool { return sessions(r.relay) == want })
	return r
}

func (r *replays) slotFree() {
	r.t.Helper()
	eventually(r.t, "the slot is free", 20*time.Second, func() bool {
		return !scalar[bool](r.environment, `SELECT coalesce(bool_or(active), false) FROM pg_replication_slots WHERE slot_name = $1`, r.slot())
	})
}

func (r *replays) waits(n int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%d wait", n), time.Minute, func() bool { return scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) == n })
}

func (r *replays) many(kind, aggregate string, n int) {
	r.execute(`INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
		SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '70008c00' || lpad(to_hex(i), 12, '0'))::uuid, $1, $2, $4, 'Changed', convert_to(i::text, 'UTF8')
		FROM generate_series(1, $3) i`, r.name, kind, n, aggregate)
}

func (r *replays) states() map[string]int {
	n := map[string]int{}
	for _, s := range account(r.t, r.environment) {
		n[s]++
	}
	return n
}

// TestWaitingMendedPoisonOvertaken: the repair of a gap meets an event for a topic
// that is missing; the event turns out to be poison after a restart.
func TestWaitingMendedPoisonOvertaken(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%t", restart), func(t *testing.T) {
			r := waitingEnvironment(t, "18", "idempotent")
			r.arrives(r.topic(), r.small("x"))
			r.relay.kill()
			r.slotFree()
			bad := r.enqueue("late", "a", make([]byte, 1_200_000))
			r.execute(`SELECT pg_drop_replication_slot($1)`, r.slot())
			r.relay.start()
			r.waits(1)
			next := r.enqueue("late", "a", []byte("{}"))
			r.waits(2)
			caughtUp(t, r.environment, r.relay)
			if restart {
				r.relay.stop()
				r.relay.start()
			}
			r.makeTopic(r.name+".late", nil)
			r.waits(0)
			caughtUp(t, r.environment, r.relay)
			t.Logf("bad %s next %s; letters: %s; topic: %v", bad, next,
				scalar[string](r.environment, `SELECT coalesce(string_agg(letter_id || ' ' || state || ' ' || position || ' ' || error_class, ', '), 'none') FROM onceward.dead_letters`), r.keys(r.name+".late", "a"))
			require.Empty(t, r.keys(r.name+".late", "a"), "while %s is an open letter that holds its aggregate, nothing later is published", bad)
			r.relay.stop()
		})
	}
}

// TestWaitingAdvancedALittle: events are written down, no checkpoint is beyond them,
// the relay dies; the slot is advanced to a place before them.
func TestWaitingAdvancedALittle(t *testing.T) {
	t.Parallel()
	longOnly(t)
	r := waitingEnvironment(t, "18", "idempotent")
	caughtUp(t, r.environment, r.relay)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(r.environment) == 0 })
	r.relay.stop()
	plain := r.relay.env
	r.relay.env = append(append([]string{}, plain...), "CRASH_AT=after-waiting", "ONCEWARD_CHECKPOINT_INTERVAL=10s")
	r.relay.start()
	eventually(t, "the relay streams", time.Minute, func() bool { return sessions(r.relay) == 2 })
	r.execute(`UPDATE counters SET n = n`) // beyond the checkpoint, until the next one
	at := scalar[string](r.environment, `SELECT pg_current_wal_insert_lsn()::text`)
	key := r.enqueue("late", "a", []byte("{}"))
	<-r.relay.process.Done()
	r.relay.env = plain
	r.slotFree()
	t.Logf("checkpoint %s, advance to %s, waits at %s", scalar[string](r.environment, `SELECT confirmed_lsn::text FROM onceward.relay_state`), at,
		scalar[string](r.environment, `SELECT string_agg(position::text, ' ') FROM onceward.waiting`))
	r.execute(`SELECT pg_replication_slot_advance($1, $2::pg_lsn)`, r.slot(), at)
	r.relay.start()
	eventually(t, "the gap is found", 30*time.Second, func() bool {
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.gaps`) == 2 && sessions(r.relay) == 3
	})
	caughtUp(t, r.environment, r.relay)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(r.environment) == 0 })
	t.Logf("waiting table: %d; topic exists not; state %s", scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`), account(t, r.environment)[key])
	t.Logf("gaps: %s", scalar[string](r.environment, `SELECT string_agg(cause || ' ' || state || ' ' || events, ', ') FROM onceward.gaps`))
	require.Equal(t, "waiting", account(t, r.environment)[key])
	r.relay.stop()
}
