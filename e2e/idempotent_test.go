//go:build e2e

package e2e

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// idempotentKeys are the requests of an idempotent producer.
var idempotentKeys = []kafkaproxy.Key{kafkaproxy.Produce, kafkaproxy.Produce, kafkaproxy.InitProducerID, kafkaproxy.Metadata}

// kafkaOnly are the faults that end neither a producer nor a session: the
// producer rides through them.
var kafkaOnly = []pack{brokerKilled, brokerStopped, leaderMoved, kafkaCut, kafkaRefused, kafkaShaped, requestHit, columnChanged}

// everything is all that can happen to an idempotent relay.
var everything = append([]pack{
	relayKilled, relayTerminated, relayStopped, walsenderEnded, postgresFast, postgresCrashed, postgresCut, postgresShaped,
}, kafkaOnly...)

// TestIdempotentUnderFaults: in idempotent mode no event is lost and none is
// invented, the first occurrences of each key are in commit order, and there are
// no more copies than sessions could have made: none while a single one goes on.
// FOR is the length of the faults, SEED their plan.
func TestIdempotentUnderFaults(t *testing.T) {
	seed := seedOf(t)
	length := lengthOf(t, 15*time.Second, time.Minute)
	t.Run("of Kafka", func(t *testing.T) {
		s := &siege{version: "18", brokers: 1, relays: 1, seed: seed, steps: plan(seed, length*2/3, kafkaOnly, idempotentKeys)}
		s.steps = append(s.steps, lostAnswers(length*2/3)...)
		slices.SortFunc(s.steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
		s.run(t)
		s.verdict(t)
		require.Len(t, s.starts, 1, "the session goes on")
		require.Zero(t, s.copies, "and makes no copy")
	})
	t.Run("of everything", func(t *testing.T) {
		s := &siege{version: "15", brokers: 1, relays: 2, seed: seed, steps: plan(seed, length, everything, idempotentKeys)}
		s.run(t)
		s.verdict(t)
		require.Greater(t, len(s.starts), 1)
	})
}

// TestIdempotentUnderFaultsCatchesResend: the same checks find a relay that gives
// a batch up after one retry and sends its messages again, behind those that were
// sent meanwhile.
func TestIdempotentUnderFaultsCatchesResend(t *testing.T) {
	s := &siege{version: "15", brokers: 1, relays: 1, seed: seedOf(t), steps: breakProduce(8), defect: "resend"}
	s.run(t)
	t.Log(s.report() + "\n" + summary(s.found))
	require.Contains(t, summary(s.found), order)
}

// lostAnswers has a broker do its work in vain every two seconds, as far as the
// producer can know: the fault that copies are made of.
func lostAnswers(length time.Duration) (steps []step) {
	for at := time.Second; at < length; at += 2 * time.Second {
		steps = append(steps, step{at: at, pack: requestHit, lasting: time.Second, key: kafkaproxy.Produce, action: kafkaproxy.DropReply, times: 3})
	}
	return steps
}

// breakProduce loses so many runs of produce requests, each longer than a
// producer with one retry can bear.
func breakProduce(runs int) (steps []step) {
	for i := range runs {
		steps = append(steps, step{
			at: time.Duration(i+1) * 500 * time.Millisecond, pack: requestHit, lasting: 300 * time.Millisecond,
			key: kafkaproxy.Produce, action: kafkaproxy.Break, times: 6,
		})
	}
	return steps
}
