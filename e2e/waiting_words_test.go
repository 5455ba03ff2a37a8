//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// orderWaits is an environment in which an order about the letters of an aggregate waits in
// a lane, between events of the aggregate and of another.
type orderWaits struct {
	*replays
	topic string
	p, q  []string // keys of the two aggregates
}

// newOrderWaits parks aggregate p by its first event, which a
// later one follows.
func newOrderWaits(t *testing.T, version, mode string) *orderWaits {
	t.Helper()
	r := &orderWaits{replays: waitingEnvironment(t, version, mode)}
	r.topic = r.name + ".late"
	r.topicOf(r.topic)
	r.q = append(r.q, r.enqueue("late", "q", []byte("0")))
	r.arrives(r.topic, r.q[0])
	r.p = append(r.p, r.enqueue("late", "p", make([]byte, 1_200_000)), r.enqueue("late", "p", []byte("2")))
	r.letters(2)
	return r
}

// rests pauses the route, and an event of q waits for it.
func (r *orderWaits) rests() {
	r.t.Helper()
	r.order(0, "pause", "--route", r.topic)
	eventually(r.t, "the relay has heard it", 30*time.Second, func() bool {
		r.q = append(r.q, r.enqueue("late", "q", []byte("1")))
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting`) > 0
	})
	caughtUp(r.t, r.environment, r.relay)
}

func (r *orderWaits) write(aggregate *[]string, name string) {
	r.t.Helper()
	*aggregate = append(*aggregate, r.enqueue("late", name, []byte("{}")))
}

// settled demands that everything has ended, and how.
func (r *orderWaits) settled(letters map[string]int, p []string) {
	t := r.t
	t.Helper()
	r.order(0, "resume", "--route", r.topic)
	r.settleAll()
	r.nothingHeld()
	states := map[string]int{}
	for _, state := range scalar[[]string](r.environment, `SELECT coalesce(array_agg(state), '{}') FROM onceward.dead_letters`) {
		states[state]++
	}
	require.Equal(t, letters, states)
	require.Equal(t, p, firsts(r.keys(r.topic, "p")), "order of p")
	require.Equal(t, r.q, firsts(r.keys(r.topic, "q")), "order of q")
	_, lies := r.truth()
	require.Zero(t, lies)
}

// TestRetryWaitsThroughGap: a retry of an aggregate waits in a lane that is held,
// behind events and before others, and the relay begins anew, or the database is
// adopted. It publishes the letters of the events before it, and those behind it
// follow: nothing is left for anybody to say again.
func TestRetryWaitsThroughGap(t *testing.T) {
	t.Parallel()
	for i, move := range []string{"slot dropped", "publication toggled", "mode", "copy", "dump"} {
		for k, mode := range []string{"idempotent", "exactly-once"} {
			if !full() && (i+k)%2 == 1 {
				continue
			}
			t.Run(mode+"/"+move, func(t *testing.T) {
				t.Parallel()
				newOrderWaits(t, versions[(i+k)%2], mode).retryThrough(move)
			})
		}
	}
}

func (r *orderWaits) retryThrough(move string) {
	t := r.t
	r.rests()
	r.write(&r.p, "p")
	r.order(0, "dead", "edit", r.p[0], "--payload-file", r.payload("1"), "--reason", "too large", "--yes", "--wait", "30s")
	outboxctlAny(t, r.dsn(operatorLogin), "dead", "retry", r.p[0], "--reason", "mended", "--yes", "--wait", "1s")
	eventually(t, "the retry waits", time.Minute, func() bool {
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.waiting_copies WHERE kind = 'control'`) == 1
	})
	r.write(&r.p, "p")
	r.write(&r.q, "q")
	caughtUp(t, r.environment, r.relay)
	if move == "slot dropped" {
		r.relay.kill()
	} else {
		r.relay.stop()
	}
	r.slotFree()
	r.write(&r.q, "q")
	r.write(&r.p, "p")
	switch move {
	case "slot dropped":
		r.execute(`SELECT pg_drop_replication_slot($1)`, r.slot())
	case "publication toggled":
		r.execute("ALTER PUBLICATION " + r.slot() + " DROP TABLE onceward.outbox")
		r.execute("ALTER PUBLICATION " + r.slot() + " ADD TABLE onceward.outbox")
	case "mode":
		r.relay.inMode(map[string]string{"idempotent": "exactly-once", "exactly-once": "idempotent"}[r.mode])
	case "copy", "dump":
		r.execute(`SELECT pg_drop_replication_slot($1)`, r.slot())
		r.execute(`UPDATE onceward.relay_state SET system_identifier = '1'`)
		outboxctl(t, r.dsn(maintainerLogin), "adopt", "--by", move, "--reason", "moved", "--yes")
	}
	before := sessions(r.relay)
	r.relay.env = append(r.relay.env, "ONCEWARD_EXIT_ON_HALT=false", "ONCEWARD_TOPICS_CREATE=true")
	r.relay.start()
	if move == "dump" {
		eventually(t, "the gap is asked about", time.Minute, func() bool {
			return scalar[int](r.environment, `SELECT count(*) FROM onceward.gaps WHERE state = 'open'`) == 1
		})
		gap := scalar[string](r.environment, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
		outboxctl(t, r.dsn(operatorLogin), "gap", "repair", gap, "--reason", "all of it", "--yes")
	}
	eventually(t, "the relay streams", time.Minute, func() bool { return sessions(r.relay) > before })
	r.write(&r.q, "q")
	caughtUp(t, r.environment, r.relay)
	r.settled(map[string]int{"replayed": len(r.p) - 2}, r.p)
	r.relay.stop()
}

// TestDiscardWaitsThroughGap: a discard of an aggregate waits, and the relay begins
// anew at a position before it: it ends what came before it, and no event after it.
func TestDiscardWaitsThroughGap(t *testing.T) {
	t.Parallel()
	for i, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newOrderWaits(t, versions[i], mode)
			const older = "SELECT pg_copy_logical_replication_slot($1::text, $2::text)"
			eventually(t, "the slot can be copied", 30*time.Second, func() bool { // it must have been told of a position once
				_, err := r.pool.Exec(t.Context(), older, r.slot(), r.slot()+"_older")
				return err == nil
			})
			r.rests()
			r.execute(`INSERT INTO onceward.controls (control_id, action, namespace, aggregate_type, aggregate_id, reason, requested_by) VALUES ($1, 'discard', $2, 'late', 'p', 'as before', 'me')`,
				uuid.New(), r.name)
			r.write(&r.p, "p")
			caughtUp(t, r.environment, r.relay)
			r.relay.kill()
			r.slotFree()
			r.execute("SELECT pg_drop_replication_slot($1)", r.slot())
			r.execute(older, r.slot()+"_older", r.slot())
			r.execute("SELECT pg_drop_replication_slot($1)", r.slot()+"_older")
			r.execute("ALTER PUBLICATION " + r.slot() + " SET (publish = 'update')")
			r.write(&r.p, "p")
			r.execute("ALTER PUBLICATION " + r.slot() + " SET (publish = 'insert')")
			r.relay.start()
			eventually(t, "the gap is repaired", time.Minute, func() bool {
				return scalar[int](r.environment, `SELECT count(*) FROM onceward.gaps WHERE state = 'repaired' AND cause = 'PUBLICATION_CHANGED'`) == 1
			})
			r.settled(map[string]int{"discarded": 2}, r.p[2:])
			r.relay.stop()
		})
	}
}

// TestReplayLetterHoldsNothing: an aggregate is retried, and with it the letter of a
// replay of its to another topic, which is gone by now. That letter is open again,
// with the reason; the aggregate is out, and others of its type go on.
func TestReplayLetterHoldsNothing(t *testing.T) {
	t.Parallel()
	for _, c := range modesAndVersions() {
		t.Run(c[0]+"/PostgreSQL"+c[1], func(t *testing.T) {
			r := waitingEnvironment(t, c[1], c[0])
			other, small := r.name+".repair", "1000"
			require.NoError(t, r.admin.CreateTopic(other, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: map[string]*string{"max.message.bytes": &small}}, false))
			key := r.enqueue("order", "x", random(3000))
			r.arrives(r.topic(), key)
			caughtUp(t, r.environment, r.relay)
			eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(r.environment) == 0 })
			r.order(0, "replay", key, "--topic", other, "--unchecked", "--reason", "elsewhere", "--yes")
			r.letters(1)
			bad := r.enqueue("order", "x", make([]byte, 1_200_000))
			r.letters(2)
			r.relay.stop() // it knows nothing of topics then
			require.NoError(t, r.admin.DeleteTopic(other))
			r.relay.start()
			r.order(0, "dead", "edit", bad, "--payload-file", r.payload("mended"), "--reason", "too large", "--yes", "--wait", "30s")
			out := r.order(3, "dead", "retry", bad, "--reason", "mended", "--yes", "--wait", "30s")
			require.Contains(t, out, "does not exist")
			r.arrives(r.topic(), r.enqueue("order", "somebody else", []byte("{}")))
			require.Equal(t, []string{key, bad}, r.keys(r.topic(), "x"))
			require.Equal(t, []string{"open route", "replayed record"}, scalar[[]string](r.environment, `SELECT array_agg(state || ' ' || error_class ORDER BY state) FROM onceward.dead_letters`))
			require.Zero(t, scalar[int](r.environment, `SELECT count(*) FROM onceward.lanes`))

			r.makeTopic(other, nil)
			eventually(t, "the letter is out", time.Minute, func() bool {
				outboxctlAny(t, r.dsn(operatorLogin), "dead", "retry", "--all", "--reason", "made again", "--yes", "--wait", "5s")
				return fmt.Sprint(scalar[[]string](r.environment, `SELECT array_agg(DISTINCT state) FROM onceward.dead_letters`)) == "[replayed]"
			})
			require.Len(t, r.committed(other), 1)
			r.relay.stop()
		})
	}
}
