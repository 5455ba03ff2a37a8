//go:build e2e

package e2e

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exactlyOnceFaults are all faults, with those that only transactions can meet
// twice as often.
var exactlyOnceFaults = append(slices.Clone(everything), requestHit, requestHit, lateCommitMeets, commitUnheard)

// transactionTimeout is short, so that relays are stopped past it.
const transactionTimeout = 3 * time.Second

// TestExactlyOnceUnderFaults: in exactly-once mode readers of committed records
// find every event once and each key in commit order, whatever happens to relays,
// brokers, connections, single requests, and PostgreSQL. Three brokers (or
// BROKERS=1), of which one at a time is down. FOR is the length of the faults,
// SEED their plan.
func TestExactlyOnceUnderFaults(t *testing.T) {
	seed := seedOf(t)
	length := lengthOf(t, 20*time.Second, time.Minute)
	s := &siege{
		version: "18", brokers: brokersOf(), relays: 2, seed: seed, steps: plan(seed, length, exactlyOnceFaults, keys),
		config: []string{exactlyOnce(transactionTimeout)}, exactlyOnce: true,
	}
	s.run(t)
	s.verdict(t)
	require.Greater(t, len(s.starts), 1)
}

// brokersOf returns 1 if BROKERS says so, and otherwise 3.
func brokersOf() int {
	if os.Getenv("BROKERS") == "1" {
		return 1
	}
	return 3
}

// TestExactlyOnceUnderFaultsCatchesDefects: the same run and the same checks, with the
// faults that matter at known times, find each relay that is broken on purpose;
// and nothing in the one that is not.
func TestExactlyOnceUnderFaultsCatchesDefects(t *testing.T) {
	for _, tc := range []struct {
		name, defect string
		steps        []step
		statement    string // none: nothing may be found
	}{
		{"nothing in a sound relay", "", slices.Concat(each(lateCommitMeets, 1, 3), each(commitUnheard, 2, 4)), ""},
		{"one epoch for all transactions", "one-epoch", each(lateCommitMeets, 1, 2), once},
		{"recovery without the checkpoint", "no-checkpoint", each(commitUnheard, 1, 2), once},
	} {
		t.Run(tc.name, func(t *testing.T) {
			slices.SortFunc(tc.steps, func(a, b step) int { return int(a.at - b.at) })
			s := &siege{
				version: "15", brokers: 1, relays: 1, seed: 1, steps: tc.steps, defect: tc.defect,
				config: []string{exactlyOnce(transactionTimeout)}, exactlyOnce: true,
				patience: 30 * time.Second,
			}
			s.run(t)
			t.Log(s.report() + "\n" + summary(s.found))
			require.Equal(t, len(tc.steps), s.nemesis.total(), "every fault found its moment")
			if tc.statement == "" {
				require.Empty(t, s.found)
				return
			}
			require.Contains(t, summary(s.found), tc.statement+":")
		})
	}
}

// each is one fault at each of the seconds.
func each(p pack, seconds ...int) (steps []step) {
	for _, at := range seconds {
		steps = append(steps, step{at: time.Duration(at) * time.Second, pack: p, lasting: 500 * time.Millisecond})
	}
	return steps
}
