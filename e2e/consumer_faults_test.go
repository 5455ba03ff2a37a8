//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// TestConsumerUnderFaults: four consumers of one group, two of which read the
// whole topic for themselves as zombies would, while handlers fail, panic and
// lose their connections, processes are killed and sessions terminated. Every
// event has one effect, every event that cannot be applied one dead letter, and
// the provider has one charge for each call.
//
// FOR is how long the faults go on, SEED makes a run again.
func TestConsumerUnderFaults(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		length, seed := lengthOf(t, 10*time.Second, time.Minute), seedOf(t)
		began := time.Now()
		g := newCrowd(t, version, seed)
		g.produce(max(2000, 20_000*int(length/time.Second)/60))
		g.faults(length)
		g.settle()
		t.Logf("PostgreSQL %s, seed %d, %s: %d events (%d that cannot be applied), %d kill -9, %d connections terminated; "+
			"%d provider calls for %d charges; violations: %v", version, seed, time.Since(began).Round(time.Second), g.events, g.dead, g.kills, g.terminated,
			scalar[int64](g.w, `SELECT COALESCE(sum(calls), 0) FROM provider`), scalar[int64](g.w, `SELECT count(*) FROM provider`), g.violations())
		require.Empty(t, g.violations())
		require.Positive(t, g.kills)
		require.Positive(t, g.terminated)
	})
}

// TestConsumerCrashMatrix: a process dies at each named point, for each kind of
// handler, and another one goes on: one set of effects, one charge.
func TestConsumerCrashMatrix(t *testing.T) {
	version := versions[len(versions)-1]
	all := []string{"Tx", "Batch", "Set", "Call"}
	var making sync.Mutex // the roles are the server's
	for point, types := range map[string][]string{
		"before claim": all, "after commit": all, "before mark": all, "before offset flush": all,
		"after claim": {"Tx", "Batch", "Set"}, "after handler": {"Tx", "Batch", "Set"}, "commit unknown": {"Tx", "Batch", "Set"},
		"after PENDING": {"Call"}, "after provider": {"Call"}, "before COMPLETE": {"Call"},
	} {
		for _, eventType := range types {
			t.Run(point+" "+eventType, func(t *testing.T) {
				t.Parallel() // most of it is waiting for Kafka to miss the dead
				making.Lock()
				g := newCrowd(t, version, 1)
				making.Unlock()
				g.types = []string{eventType}
				g.produce(20)
				c := newConsumerProcess(t, g.task(g.group, 0, point))
				c.start()
				select {
				case <-c.process.Done():
				case <-time.After(time.Minute):
					t.Fatal("the process does not reach the point at which it dies")
				}
				g.settle(c)
				require.Empty(t, g.violations())
			})
		}
	}
}

// crowd is a topic with events and the consumers of one group.
type crowd struct {
	t     *testing.T
	w     *world
	rng   *rand.Rand
	group string
	types []string

	consumers         []*consumerProcess
	events, dead      int
	calls             int // events whose effect is a charge, and that can be applied
	kills, terminated int
	deadlocks         int64
}

func newCrowd(t *testing.T, version string, seed uint64) *crowd {
	t.Helper()
	w := newWorld(t, version)
	w.install()
	w.createTopic(nil)
	g := &crowd{t: t, w: w, rng: rand.New(rand.NewPCG(seed, 0)), group: "g-" + w.name, types: []string{"Tx", "Batch", "Set", "Call"}}
	_, err := w.as(billingLogin).Exec(t.Context(), `CREATE TABLE effects (key text NOT NULL, pid int NOT NULL);
		CREATE TABLE provider (key text PRIMARY KEY, calls int NOT NULL DEFAULT 1);
		CREATE TABLE slow (key text NOT NULL);
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.8); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	require.NoError(t, err)
	g.deadlocks = g.deadlocked()
	return g
}

func (g *crowd) task(kafkaGroup string, fail int, crash string) task {
	return task{
		DSN: g.w.dsn(billingLogin), Brokers: g.w.brokers, Topic: g.w.topic(), Group: g.group, Kafka: kafkaGroup,
		Seed: g.rng.Uint64(), Fail: fail, Crash: crash,
	}
}

// produce writes n events, one in ten of them a second time later on, as a relay
// does after a crash.
func (g *crowd) produce(n int) {
	g.t.Helper()
	client, err := sarama.NewClient(g.w.brokers, kafkaConfig())
	require.NoError(g.t, err)
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	require.NoError(g.t, err)
	defer producer.Close()
	var batch []*sarama.ProducerMessage
	for i := range n {
		m := g.event(i)
		batch = append(batch, m)
		if g.rng.IntN(10) == 0 {
			again := *m
			batch = append(batch, &again)
		}
		if len(batch) >= 500 || i == n-1 {
			require.NoError(g.t, producer.SendMessages(batch))
			batch = batch[:0]
		}
	}
}

func (g *crowd) event(i int) *sarama.ProducerMessage {
	key, err := outbox.NewKey(g.w.name)
	require.NoError(g.t, err)
	b := body{N: i, Dead: len(g.types) > 1 && g.rng.IntN(97) == 0}
	eventType := g.types[g.rng.IntN(len(g.types))]
	g.events++
	switch {
	case b.Dead:
		g.dead++
	case eventType == "Call":
		g.calls++
	}
	value, err := json.Marshal(b)
	require.NoError(g.t, err)
	aggregate := g.rng.IntN(200)
	return &sarama.ProducerMessage{
		Topic: g.w.topic(), Partition: int32(aggregate) % g.w.partitions, Key: sarama.StringEncoder(fmt.Sprintf("a-%d", aggregate)), Value: sarama.ByteEncoder(value),
		Headers: []sarama.RecordHeader{
			{Key: []byte(outbox.HeaderKey), Value: []byte(key.String())}, {Key: []byte(outbox.HeaderEventType), Value: []byte(eventType)},
		},
	}
}

// faults kills processes and connections at random for the given time.
func (g *crowd) faults(length time.Duration) {
	for i := range 4 {
		kafkaGroup := g.group
		if i > 1 {
			kafkaGroup += fmt.Sprintf("-zombie-%d", i)
		}
		c := newConsumerProcess(g.t, g.task(kafkaGroup, 5, ""))
		c.start()
		g.consumers = append(g.consumers, c)
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), length)
	defer cancel()
	for ctx.Err() == nil {
		select {
		case <-time.After(time.Duration(50+g.rng.IntN(500)) * time.Millisecond): // the faults' own rhythm
		case <-ctx.Done():
			return
		}
		switch g.rng.IntN(3) {
		case 0:
			c := g.consumers[g.rng.IntN(len(g.consumers))]
			c.kill()
			g.kills++
			c.task.Seed = g.rng.Uint64()
			c.start()
		default:
			g.terminated += scalar[int](g.w, `SELECT count(pg_terminate_backend(pid)) FROM
				(SELECT pid FROM pg_stat_activity WHERE usename = $1 AND datname = current_database() ORDER BY random() LIMIT 3) s`, billingLogin)
		}
	}
}

// settle ends the faults, and lets one healthy consumer, or those given, finish.
func (g *crowd) settle(crashed ...*consumerProcess) {
	g.t.Helper()
	for _, c := range g.consumers {
		c.kill()
	}
	for _, c := range crashed {
		c.process = nil
	}
	c := newConsumerProcess(g.t, g.task(g.group, 0, ""))
	c.start()
	eventually(g.t, "every event has its effect or its dead letter", 3*time.Minute, func() bool {
		return scalar[int](g.w, `SELECT count(*) FROM onceward.processed_events`) >= g.events
	})
	// The end of the topic is reached, copies included.
	eventually(g.t, "the offsets reach the end", time.Minute, func() bool { return g.lag() == 0 })
	c.stop()
}

// lag is how far the group's offsets are from the end of the topic.
func (g *crowd) lag() (lag int64) {
	partitions := make([]int32, g.w.partitions)
	for p := range partitions {
		partitions[p] = int32(p)
	}
	answer, err := g.w.admin.ListConsumerGroupOffsets(g.group, map[string][]int32{g.w.topic(): partitions})
	require.NoError(g.t, err)
	client, err := sarama.NewClient(g.w.brokers, kafkaConfig())
	require.NoError(g.t, err)
	defer client.Close()
	for _, p := range partitions {
		end, err := client.GetOffset(g.w.topic(), p, sarama.OffsetNewest)
		require.NoError(g.t, err)
		lag += end - max(0, answer.GetBlock(g.w.topic(), p).Offset)
	}
	return lag
}

func (g *crowd) deadlocked() int64 {
	return scalar[int64](g.w, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
}

// violations says what of the promise is broken.
func (g *crowd) violations() (found []string) {
	for what, c := range map[string]struct {
		sql  string
		want int64
	}{
		"effects":                       {`SELECT count(*) FROM effects`, int64(g.events - g.dead)},
		"events with an effect":         {`SELECT count(DISTINCT key) FROM effects`, int64(g.events - g.dead)},
		"claims of applied events":      {`SELECT count(*) FROM onceward.processed_events WHERE outcome = 'p'`, int64(g.events - g.dead)},
		"claims of dead events":         {`SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd'`, int64(g.dead)},
		"dead letters":                  {`SELECT count(*) FROM onceward.consumer_dead_letters`, int64(g.dead)},
		"charges":                       {`SELECT count(*) FROM provider`, int64(g.calls)},
		"complete fences":               {`SELECT count(*) FROM onceward.fences WHERE status = 'COMPLETE'`, int64(g.calls)},
		"claims without their effect":   {`SELECT count(*) FROM onceward.processed_events p WHERE outcome = 'p' AND NOT EXISTS (SELECT FROM effects WHERE key = p.namespace || ':' || p.event_id)`, 0},
		"effects of events not claimed": {`SELECT count(*) FROM effects e WHERE NOT EXISTS (SELECT FROM onceward.processed_events p WHERE e.key = p.namespace || ':' || p.event_id)`, 0},
	} {
		if got := scalar[int64](g.w, c.sql); got != c.want {
			found = append(found, fmt.Sprintf("%s: %d, want %d", what, got, c.want))
		}
	}
	if n := g.deadlocked(); n != g.deadlocks {
		found = append(found, fmt.Sprintf("%d deadlocks", n-g.deadlocks))
	}
	return found
}
