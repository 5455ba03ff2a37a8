//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
)

// TestNewGroupOnOldTopic: a group that is new reads a topic whose events all lie
// below every partition of claims, and is set back to the beginning in between:
// each is applied once, as late ones by themselves, and under their own ids when
// an operator has adopted the group. A group that has been there before takes none
// of them for new, before and after.
func TestNewGroupOnOldTopic(t *testing.T) {
	t.Parallel()
	events := 10_000
	if full() {
		events = 100_000
	}
	onAVersion(t, func(t *testing.T, version string) {
		for _, adopted := range []bool{false, true} {
			name := "Alone"
			if adopted {
				name = "Adopted"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := newConsumerGroup(t, version, 1)
				g.window, g.healthy, g.types = 7*day, true, []string{"Tx", "Batch", "Set", "Batch", "Set"}
				g.spread(events, time.Now().Add(-30*day), time.Now().Add(-10*day))
				g.produce(events)
				older := g.older()
				if adopted {
					outboxctl(t, g.w.dsn(consumerMaintainerLogin), "windows", "adopt", g.group, "--from", time.Now().Add(-31*day).UTC().Format(time.DateOnly),
						"--reason", "test", "--yes")
				}
				began := time.Now()
				g.start(3, 1)
				for part := range 2 {
					eventually(t, "the group goes on", 5*time.Minute, func() bool {
						return scalar[int](g.w, `SELECT count(*) FROM effects`) >= events*(part+1)/3
					})
					for _, c := range g.consumers {
						c.kill()
					}
					g.rewind()
					for _, c := range g.consumers {
						c.start()
					}
				}
				g.finish()
				g.stop()
				took := time.Since(began)
				require.Empty(t, g.violations())
				late := events
				if adopted {
					require.Empty(t, g.claimViolations())
					late = 0
				}
				require.Equal(t, late, scalar[int](g.w, `SELECT count(*) FROM effects WHERE late`))
				again := older()
				require.Empty(t, g.letters())
				require.Equal(t, events, scalar[int](g.w, `SELECT count(*) FROM effects`))
				t.Logf("PostgreSQL %s: %d old events, each once in %s with two rewinds to the beginning, %d late; an older group applied none of %d again",
					version, events, took.Round(time.Second), late, again)
			})
		}
	})
}

// older makes a group that finished the whole topic when it was new, and whose
// claims are gone. What it returns lets it begin again a little before the end, as
// after offsets were set back by hand, and says how many it took again: they are known
// to be finished, and neither applied nor kept as letters.
func (g *consumerGroup) older() func() int {
	g.t.Helper()
	const back = 8
	older := g.group + "-older"
	g.register(older, time.Now().Add(-g.window).Truncate(day))
	client, err := sarama.NewClient(g.w.brokers, kafkaConfig())
	require.NoError(g.t, err)
	defer client.Close()
	offsets, err := sarama.NewOffsetManagerFromClient(older, client)
	require.NoError(g.t, err)
	for p := range g.w.partitions {
		end, err := client.GetOffset(g.w.topic(), p, sarama.OffsetNewest)
		require.NoError(g.t, err)
		g.w.execute(`INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time) VALUES ($1, $2, $3, 0, $4, $5)`,
			older, g.w.topic(), p, end-1, time.Now().Add(-10*day))
		partition, err := offsets.ManagePartition(g.w.topic(), p)
		require.NoError(g.t, err)
		partition.MarkOffset(end-back, "")
		require.NoError(g.t, partition.Close())
	}
	require.NoError(g.t, offsets.Close())
	return func() int {
		of := g.task(older, 0, "")
		of.Group = older
		c := newConsumerProcess(g.t, of)
		c.start()
		want := back * int(g.w.partitions)
		group := g.group
		g.group = older
		workedOff(g.t, "records are not finished", g.lag)
		g.group = group
		c.stop()
		require.Zero(g.t, scalar[int](g.w, `SELECT count(*) FROM onceward.processed_events WHERE consumer_group = $1`, older))
		return want
	}
}
