//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// consumerGroup is a topic with events and the consumers of one group.
type consumerGroup struct {
	t         *testing.T
	w         *environment
	outside   *environment // where the provider is: w, unless the database is to lose commits
	dsn       string
	rng       *rand.Rand
	group     string
	types     []string
	window    time.Duration    // of the group's one class; 0 is the default
	times     func() time.Time // of the events that are produced; nil is now
	healthy   bool             // every event can be applied
	forgotten time.Time        // claims of older events are gone: what is redelivered of them is a replay

	consumers         []*consumerProcess
	events, dead      int
	redis             string // address of the Redis in front of the claim; empty: none
	calls             int    // events whose effect is a charge, and that can be applied
	operator          *pgxpool.Pool
	redrives          int // of letters that were asked for
	mended            int // events of dead letters that were mended and redriven
	kills, terminated int
	deadlocks         int64
}

func newConsumerGroup(t *testing.T, version string, seed uint64) *consumerGroup {
	t.Helper()
	w := newEnvironment(t, version)
	return newConsumerGroupIn(w, w, seed)
}

func newConsumerGroupIn(w, outside *environment, seed uint64) *consumerGroup {
	t := w.t
	t.Helper()
	w.install()
	w.createTopic(nil)
	g := &consumerGroup{t: t, w: w, outside: outside, dsn: w.dsn(billingLogin), rng: rand.New(rand.NewPCG(seed, 0)), group: "g-" + w.name, types: []string{"Tx", "Batch", "Set", "Call"}, forgotten: time.Unix(0, 0)}
	_, err := w.as(billingLogin).Exec(t.Context(), `CREATE TABLE effects (key text NOT NULL, pid int NOT NULL, late bool NOT NULL);
		CREATE TABLE slow (key text NOT NULL);
		CREATE TABLE mended (key text PRIMARY KEY);
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.8); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	require.NoError(t, err)
	_, err = outside.as(billingLogin).Exec(t.Context(), `CREATE TABLE provider (key text PRIMARY KEY, calls int NOT NULL DEFAULT 1)`)
	require.NoError(t, err)
	g.operator, g.deadlocks = w.as(operatorLogin), g.deadlocked()
	return g
}

func (g *consumerGroup) task(kafkaGroup string, fail int, crash string) task {
	return task{
		DSN: g.dsn, Provider: g.outside.dsn(billingLogin), Brokers: g.w.brokers, Topic: g.w.topic(), Group: g.group, Kafka: kafkaGroup,
		Seed: g.rng.Uint64(), Fail: fail, Crash: crash, Window: g.window, Redis: g.redis,
	}
}

// produce writes n events, one in ten of them a second time later on, as a relay
// does after a crash.
func (g *consumerGroup) produce(n int) {
	g.t.Helper()
	client, err := sarama.NewClient(g.w.brokers, kafkaConfig())
	require.NoError(g.t, err)
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	require.NoError(g.t, err)
	defer producer.Close()
	var batch []*sarama.ProducerMessage
	for i := range n {
		m := g.message(g.next())
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

// next draws an event, and counts it.
func (g *consumerGroup) next() outbox.Event {
	b := body{N: g.events, Dead: !g.healthy && g.rng.IntN(97) == 0}
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
	return outbox.Event{Key: g.key(), AggregateType: "order", AggregateID: fmt.Sprintf("a-%d", g.rng.IntN(200)), Type: eventType, Payload: value}
}

// key makes a key as outbox.NewKey does, at the time that is wanted.
func (g *consumerGroup) key() outbox.Key {
	key, err := outbox.NewKey(g.w.name)
	require.NoError(g.t, err)
	if g.times == nil {
		return key
	}
	at := g.times()
	id, first := key.UUID(), outbox.FirstID(at)
	copy(id[:6], first[:6])
	key, err = outbox.KeyFrom(g.w.name, id, at, 0)
	require.NoError(g.t, err)
	return key
}

// message is the record of an event, without what nobody reads here.
func (g *consumerGroup) message(ev outbox.Event, more ...sarama.RecordHeader) *sarama.ProducerMessage {
	var aggregate int32
	_, err := fmt.Sscanf(ev.AggregateID, "a-%d", &aggregate)
	require.NoError(g.t, err)
	return &sarama.ProducerMessage{
		Topic: g.w.topic(), Partition: aggregate % g.w.partitions, Key: sarama.StringEncoder(ev.AggregateID), Value: sarama.ByteEncoder(ev.Payload),
		Headers: append([]sarama.RecordHeader{
			{Key: []byte(outbox.HeaderKey), Value: []byte(ev.Key.String())}, {Key: []byte(record.HeaderEventType), Value: []byte(ev.Type)},
		}, more...),
	}
}

// settle ends the faults, and lets one healthy consumer, or those given, finish.
func (g *consumerGroup) settle(crashed ...*consumerProcess) {
	g.t.Helper()
	for _, c := range g.consumers {
		c.kill()
	}
	g.consumers = nil
	for _, c := range crashed {
		c.process = nil
	}
	c := newConsumerProcess(g.t, g.task(g.group, 0, ""))
	c.start()
	g.finish()
	g.finishRedrives()
	c.stop()
}

// finish waits until the consumers that run have worked off the topic.
func (g *consumerGroup) finish() {
	g.t.Helper()
	workedOff(g.t, "events without their effect or their dead letter", func() int64 {
		return max(0, int64(g.events)-scalar[int64](g.w, `SELECT (SELECT count(DISTINCT key) FROM effects) + (SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'handler' AND state <> 'redriven')`))
	})
	// The end of the topic is reached, copies included. After a rewind this is all there is to wait for.
	workedOff(g.t, "records between the offsets and the end", g.lag)
}

// lag is how far the group's offsets are from the end of the topic.
func (g *consumerGroup) lag() (lag int64) {
	client, err := sarama.NewClient(g.w.brokers, kafkaConfig())
	require.NoError(g.t, err)
	defer client.Close()
	for p := range g.w.partitions {
		end, err := client.GetOffset(g.w.topic(), p, sarama.OffsetNewest)
		require.NoError(g.t, err)
		lag += end
	}
	return lag - g.offsets()
}

// offsets is the sum of the group's offsets, which is how many records it has
// put behind itself.
func (g *consumerGroup) offsets() (sum int64) {
	answer := g.committed()
	for p := range g.w.partitions {
		sum += max(0, answer.GetBlock(g.w.topic(), p).Offset)
	}
	return sum
}

// committed asks Kafka for the group's offsets. A coordinator that was stopped reads
// them again, and says so meanwhile.
func (g *consumerGroup) committed() (answer *sarama.OffsetFetchResponse) {
	partitions := make([]int32, g.w.partitions)
	for p := range partitions {
		partitions[p] = int32(p)
	}
	var err error
	eventually(g.t, "the group's coordinator has its offsets", 30*time.Second, func() bool {
		answer, err = g.w.admin.ListConsumerGroupOffsets(g.group, map[string][]int32{g.w.topic(): partitions})
		return !errors.Is(err, sarama.ErrOffsetsLoadInProgress)
	})
	require.NoError(g.t, err)
	return answer
}

func (g *consumerGroup) deadlocked() int64 {
	return scalar[int64](g.w, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
}

// count is how many of something there have to be.
type count struct {
	sql  string
	want int
}

func (c count) check(w *environment, what string) []string {
	if got := scalar[int](w, c.sql); got != c.want {
		return []string{fmt.Sprintf("%s: %d, want %d", what, got, c.want)}
	}
	return nil
}

// violations says what of the promise is broken.
func (g *consumerGroup) violations() (found []string) {
	applied, charged := g.events-g.dead+g.mended, g.calls+g.mendedCalls()
	for what, c := range map[string]count{
		"effects":               {`SELECT count(*) FROM effects`, applied},
		"events with an effect": {`SELECT count(DISTINCT key) FROM effects`, applied},
		"dead letters":          {`SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'handler'`, g.dead},
		"letters redriven":      {`SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'`, g.mended},
		"complete fences":       {`SELECT count(*) FROM onceward.fences WHERE status = 'COMPLETE'`, charged},
	} {
		found = append(found, c.check(g.w, what)...)
	}
	found = append(found, count{`SELECT count(*) FROM provider`, charged}.check(g.outside, "charges")...)
	if n := scalar[int](g.w, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason <> 'handler' AND event_id >= $1`, outbox.FirstID(g.forgotten)); n > 0 {
		found = append(found, fmt.Sprintf("%d letters for other reasons: %v", n, g.letters()))
	}
	if n := g.deadlocked(); n != g.deadlocks {
		found = append(found, fmt.Sprintf("%d deadlocks", n-g.deadlocks))
	}
	return found
}

// mendedCalls is how many of the events that were mended end in a charge.
func (g *consumerGroup) mendedCalls() int {
	return scalar[int](g.w, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven' AND event_type = 'Call'`)
}

// claimViolations is violations and what else is broken, when every event is
// claimed under its own id: none is late.
func (g *consumerGroup) claimViolations() []string {
	found := g.violations()
	for what, c := range map[string]count{
		"claims of applied events":      {`SELECT count(*) FROM onceward.processed_events WHERE outcome = 'p' AND substr(event_id::text, 15, 1) <> '8'`, g.events - g.dead + g.mended},
		"claims of dead events":         {`SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd' AND substr(event_id::text, 15, 1) <> '8'`, g.dead - g.mended},
		"claims without their effect":   {`SELECT count(*) FROM onceward.processed_events p WHERE outcome = 'p' AND substr(event_id::text, 15, 1) <> '8' AND NOT EXISTS (SELECT FROM effects WHERE key = p.namespace || ':' || p.event_id)`, 0},
		"effects of events not claimed": {`SELECT count(*) FROM effects e WHERE NOT EXISTS (SELECT FROM onceward.processed_events p WHERE e.key = p.namespace || ':' || p.event_id)`, 0},
	} {
		found = append(found, c.check(g.w, what)...)
	}
	return found
}
