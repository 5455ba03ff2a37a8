//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestConsumerUnderFaults: four consumers of one group, two of which read the
// whole topic for themselves as zombies would, while handlers fail, panic and
// lose their connections, processes are killed and sessions terminated. Every
// event has one effect, every event that cannot be applied one dead letter, and
// the provider has one charge for each call.
//
// FOR is how long the faults go on, SEED makes a run again.
func TestConsumerUnderFaults(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		length, seed := lengthOf(t, 10*time.Second, time.Minute), seedOf(t)
		began := time.Now()
		g := newConsumerGroup(t, version, seed)
		g.produce(max(2000, 20_000*int(length/time.Second)/60))
		g.gather()
		g.harm(length)
		g.settle()
		t.Logf("PostgreSQL %s, seed %d, %s: %d events (%d that cannot be applied), %d kill -9, %d connections terminated; "+
			"%d redrives asked for, %d letters redriven; %d provider calls for %d charges; violations: %v", version, seed, time.Since(began).Round(time.Second), g.events, g.dead, g.kills, g.terminated, g.redrives, g.mended,
			scalar[int64](g.outside, `SELECT COALESCE(sum(calls), 0) FROM provider`), scalar[int64](g.outside, `SELECT count(*) FROM provider`), g.claimViolations())
		require.Empty(t, g.claimViolations())
		require.Positive(t, g.kills)
		require.Positive(t, g.terminated)
		require.Positive(t, g.mended)
	})
}

// TestConsumerCrashMatrix: a process dies at each named point, for each kind of
// handler, and another one goes on: one set of effects, one charge.
func TestConsumerCrashMatrix(t *testing.T) {
	t.Parallel()
	if !full() {
		crashMatrix(t, versions[len(versions)-1])
		return
	}
	onVersions(t, crashMatrix)
}

func crashMatrix(t *testing.T, version string) {
	all := []string{"Tx", "Batch", "Set", "Call"}
	for point, types := range map[string][]string{
		"before claim": all, "after commit": all, "before mark": all, "before offset flush": all,
		"after claim": {"Tx", "Batch", "Set"}, "after handler": {"Tx", "Batch", "Set"}, "commit unknown": {"Tx", "Batch", "Set"},
		"after PENDING": {"Call"}, "after provider": {"Call"}, "before COMPLETE": {"Call"},
	} {
		for _, eventType := range types {
			t.Run(point+" "+eventType, func(t *testing.T) {
				t.Parallel() // most of it is waiting for Kafka to miss the dead
				g := newConsumerGroup(t, version, 1)
				g.types, g.healthy = []string{eventType}, true
				g.produce(20)
				c := newConsumerProcess(t, g.task(g.group, 0, point))
				c.start()
				select {
				case <-c.process.Done():
				case <-time.After(time.Minute):
					t.Fatal("the process does not reach the point at which it dies")
				}
				g.settle(c)
				require.Empty(t, g.claimViolations())
			})
		}
	}
}

// gather starts four consumers, two of which read the whole topic for themselves,
// as zombies would.
func (g *consumerGroup) gather() {
	for i := range 4 {
		kafkaGroup := g.group
		if i > 1 {
			kafkaGroup += fmt.Sprintf("-zombie-%d", i)
		}
		c := newConsumerProcess(g.t, g.task(kafkaGroup, 5, ""))
		c.start()
		g.consumers = append(g.consumers, c)
	}
}

// harm kills processes and connections at random for the given time.
func (g *consumerGroup) harm(length time.Duration) {
	ctx, cancel := context.WithTimeout(g.t.Context(), length)
	defer cancel()
	for ctx.Err() == nil {
		select {
		case <-time.After(time.Duration(50+g.rng.IntN(500)) * time.Millisecond): // the faults' own rhythm
		case <-ctx.Done():
			return
		}
		switch g.rng.IntN(4) {
		case 0:
			c := g.consumers[g.rng.IntN(len(g.consumers))]
			c.kill()
			g.kills++
			c.task.Seed = g.rng.Uint64()
			c.start()
		case 1:
			g.mend()
		default:
			g.terminated += scalar[int](g.w, `SELECT count(pg_terminate_backend(pid)) FROM
				(SELECT pid FROM pg_stat_activity WHERE usename = $1 AND datname = current_database() ORDER BY random() LIMIT 3) s`, billingLogin)
		}
	}
}
