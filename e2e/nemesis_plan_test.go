//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// pack is a kind of fault. A storm is made of a random subset of them.
type pack string

const (
	relayKilled     pack = "relay killed"
	relayTerminated pack = "relay terminated"
	relayStopped    pack = "relay stopped and continued"
	brokerKilled    pack = "broker killed"
	brokerStopped   pack = "broker stopped and continued"
	leaderMoved     pack = "leaders moved"
	kafkaCut        pack = "connections to Kafka cut"
	kafkaRefused    pack = "connections to Kafka refused"
	kafkaShaped     pack = "traffic with Kafka shaped"
	requestHit      pack = "request hit"
	walsenderEnded  pack = "walsender terminated"
	postgresFast    pack = "PostgreSQL restarted fast"
	postgresCrashed pack = "PostgreSQL restarted as after a crash"
	postgresCut     pack = "connections to PostgreSQL cut"
	postgresShaped  pack = "traffic with PostgreSQL shaped"
	columnChanged   pack = "column of the outbox added or dropped"
	lateCommitMeets pack = "late commit meets the next transaction"
	commitUnheard   pack = "commit unheard, and killed"
)

// step is one fault, drawn before the run, so that a seed is a plan. Which of
// its dice matter depends on the pack.
type step struct {
	at      time.Duration // after the start
	pack    pack
	lasting time.Duration
	target  uint64 // which relay or broker, modulo their number
	key     kafkaproxy.Key
	action  kafkaproxy.Action
	times   int
	up      bool // the direction
	shape   int  // of the traffic, see shaped
}

func (s step) String() string {
	name := string(s.pack)
	if s.pack == requestHit {
		name = fmt.Sprintf("request %d: %s ×%d", s.key, s.action, s.times)
	}
	return fmt.Sprintf("%6.2fs %s for %s", s.at.Seconds(), name, s.lasting.Round(time.Millisecond))
}

// Bounds of a storm and of the calm behind it.
const (
	stormMin, stormMax = 3 * time.Second, 6 * time.Second
	calmMin, calmMax   = 500 * time.Millisecond, 2 * time.Second
	gapMax             = 500 * time.Millisecond // between two faults of a storm
)

// keys are the requests that a transactional producer depends on; the idempotent
// one sends the first two.
var keys = []kafkaproxy.Key{
	kafkaproxy.Produce, kafkaproxy.InitProducerID, kafkaproxy.AddPartitionsToTxn,
	kafkaproxy.AddOffsetsToTxn, kafkaproxy.EndTxn, kafkaproxy.TxnOffsetCommit,
}

// plan draws the faults of a run from its seed: storms of a random half of the
// packs, with calm between them. Pure.
func plan(seed uint64, length time.Duration, packs []pack, requests []kafkaproxy.Key) []step {
	random := rand.New(rand.NewPCG(seed, 0x0ccede))
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(random.Int64N(int64(high-low)))
	}
	var steps []step
	for at := between(0, calmMin); at < length; at += between(calmMin, calmMax) {
		subset := slices.Clone(packs)
		random.Shuffle(len(subset), func(i, j int) { subset[i], subset[j] = subset[j], subset[i] })
		subset = subset[:1+len(subset)/2]
		for end := at + between(stormMin, stormMax); at < min(end, length); at += between(0, gapMax) {
			s := step{
				at: at, pack: subset[random.IntN(len(subset))], lasting: between(50*time.Millisecond, 2*time.Second), target: random.Uint64(),
				key: requests[random.IntN(len(requests))], action: kafkaproxy.Action(random.IntN(4)), times: 1 + random.IntN(2),
				up: random.IntN(2) == 0, shape: random.IntN(4),
			}
			if s.pack == relayStopped { // past wal_sender_timeout, and past the transaction's
				s.lasting = between(2*time.Second, 5*time.Second)
			}
			steps = append(steps, s)
		}
	}
	return steps
}

// shaped is the traffic of a step.
func (s step) shaped() kafkaproxy.Traffic {
	return [...]kafkaproxy.Traffic{
		{Stalled: true}, {Delay: 60 * time.Millisecond}, {BytesPerSecond: 100_000}, {Slice: 7},
	}[s.shape]
}

func (s step) direction() kafkaproxy.Direction {
	if s.up {
		return kafkaproxy.Up
	}
	return kafkaproxy.Down
}

// A seed is a plan, and other seeds are other plans.
func TestAPlanIsItsSeed(t *testing.T) {
	hits := map[pack]int{}
	for seed := range uint64(50) {
		steps := plan(seed, time.Minute, everything, keys)
		require.Equal(t, steps, plan(seed, time.Minute, everything, keys))
		require.NotEqual(t, steps, plan(seed+1, time.Minute, everything, keys))
		require.True(t, slices.IsSortedFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) }))
		require.Less(t, steps[len(steps)-1].at, time.Minute)
		for _, s := range steps {
			hits[s.pack]++
		}
	}
	for _, p := range everything {
		require.Greater(t, hits[p], 100, p)
	}
}
