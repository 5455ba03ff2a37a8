//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestReplay: what an operator asks for again is published again, by key, by
// aggregate, by time at a rate and through a kill -9, to its own topic and to
// another; consumers apply it only where it had not been applied, or where it is
// for them to reprocess; and events that are older than their topic keeps records
// are there to be read all the same.
func TestReplay(t *testing.T) {
	t.Parallel()
	cluster, err := kafkaserver.Start(t.Context(), kafkaserver.Options{
		Settings: map[string]string{"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"},
	})
	require.NoError(t, err)
	stopAtTheEnd(t, cluster)
	for _, mode := range []string{"idempotent", "exactly-once"} {
		for _, version := range versionsOf(t.Name() + mode) {
			t.Run(mode+"/PostgreSQL"+version, func(t *testing.T) {
				r := newReplays(t, newEnvironmentBetween(t, postgres(t, version), cluster.Addrs()), mode)
				r.run()
			})
		}
	}
}

// replays is one environment in which events are replayed.
type replays struct {
	*environment
	mode    string
	relay   *relayProcess
	config  string
	events  []string // keys, in the order in which they were written
	groups  []string // of consumers: billing and mail
	repair  string   // another topic
	stopped func()
}

const replayedEvents, replayedAggregates = 40, 4

func newReplays(t *testing.T, w *environment, mode string) *replays {
	t.Helper()
	r := &replays{environment: w, mode: mode, config: w.config(`admin: {listen: "off"}`, "checkpoint_interval: 50ms"), repair: w.name + ".repair"}
	r.groups = []string{"billing-" + w.name, "mail-" + w.name}
	w.install()
	short := map[string]string{"retention.ms": "600000"}
	w.createTopic(short)
	for name, settings := range map[string]map[string]string{r.repair: short, r.probe(): short, w.name + ".state": {"cleanup.policy": "compact"}} {
		r.makeTopic(name, settings)
	}
	w.execute(`CREATE TABLE counters (aggregate text PRIMARY KEY, n int NOT NULL); CREATE TABLE business (key text PRIMARY KEY);
		INSERT INTO counters SELECT 'a-' || i, 0 FROM generate_series(0, 3) i; GRANT ALL ON counters, business TO PUBLIC;
		CREATE TABLE effects (consumer text, key text, replayed bool); GRANT ALL ON effects TO PUBLIC`)
	r.relay = w.newRelay(r.config, "").inMode(mode)
	r.relay.start()
	eventually(t, "the relay streams", time.Minute, func() bool { return r.relay.logs("slot taken") })
	return r
}

func (r *replays) probe() string { return r.name + ".probe" }

func (r *replays) makeTopic(name string, settings map[string]string) {
	r.t.Helper()
	entries := map[string]*string{}
	for k, v := range settings {
		entries[k] = &v
	}
	require.NoError(r.t, r.admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: entries}, false))
	r.t.Cleanup(func() { require.NoError(r.t, r.admin.DeleteTopic(name)) })
}

func (r *replays) run() {
	t := r.t
	r.consume()
	r.write()
	r.refused()
	const old = "2 days"
	r.execute(`UPDATE onceward.outbox SET created_at = created_at - interval '` + old + `'`)

	r.replay("by key", r.events[0])
	r.replay("by aggregate", "--namespace", r.name, "--aggregate-type", "order", "--aggregate", "a-1")
	r.replayThroughAKill("by time", "--from", time.Now().Add(-49*time.Hour).UTC().Format(time.RFC3339), "--to", time.Now().Add(-47*time.Hour).UTC().Format(time.RFC3339), "--rate", "40")
	r.replay("elsewhere", "--aggregate", "a-3", "--topic", r.repair)
	r.replay("reprocess", "--aggregate", "a-2", "--reprocess", r.groups[0])
	r.replayAHole("hole", r.events[5])

	caughtUp(t, r.environment, r.relay)
	r.awaitRetention()
	r.awaitConsumers()
	r.relay.stop()
	r.stopped()
	r.verifyRecords()
	r.verifyEffects()
}

// write commits the events and waits until they are published and applied.
func (r *replays) write() {
	t := r.t
	for i := range replayedEvents {
		require.NoError(t, pgx.BeginFunc(t.Context(), r.app, func(tx pgx.Tx) error {
			key, err := (&writers{namespace: r.name}).row(t.Context(), tx, 0, fmt.Sprintf("a-%d", i%replayedAggregates))
			r.events = append(r.events, key.String())
			return err
		}))
	}
	eventually(t, "a published snapshot covers them", time.Minute, func() bool {
		return scalar[bool](r.environment, `SELECT bool_and(a.state <> 'pending') FROM onceward.outbox o, onceward.account(o.id, o.tx_id, o.seq) a`)
	})
	eventually(t, "both groups have applied them", time.Minute, func() bool {
		return scalar[int](r.environment, `SELECT count(*) FROM effects`) == len(r.groups)*replayedEvents
	})
}

// consume runs the consumers of both groups, of this repository's consumer.
func (r *replays) consume() {
	t := r.t
	ctx, cancel := context.WithCancel(t.Context())
	var running errgroup.Group
	for _, group := range r.groups {
		processor, err := consumer.New(ctx, consumer.Config{Group: group, DB: r.as(billingLogin)})
		require.NoError(t, err)
		router := consumer.NewRouter(processor)
		router.Tx("OrderChanged", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1, $2, $3)`, group, ev.Key.String(), ev.ReplayID != uuid.Nil)
			return err
		})
		running.Go(func() error {
			return saramagroup.Run(ctx, r.brokers, router, saramagroup.Config{Topics: []string{r.topic()}, Insecure: true})
		})
	}
	r.stopped = func() {
		cancel()
		require.NoError(t, running.Wait())
	}
}

// ctl runs outboxctl replay as an operator.
func (r *replays) ctl(reason string, args ...string) (string, error) {
	return process.Run(r.t.Context(), process.Spec{
		Path: outboxctlBinary(r.t), Args: append([]string{"replay", "--config", r.config, "--yes", "--reason", reason}, args...),
		Env: []string{"OUTBOXCTL_DSN=" + r.dsn(operatorLogin), "OUTBOXCTL_INSECURE=true"},
	})
}

func (r *replays) replay(reason string, args ...string) {
	r.t.Helper()
	out, err := r.ctl(reason, args...)
	require.NoError(r.t, err, out)
	require.Contains(r.t, out, "asked for the replay of ")
}

// refused: an old event never overtakes its aggregate on a compacted topic.
func (r *replays) refused() {
	out, err := r.ctl("refused", r.events[0], "--topic", r.name+".state")
	require.ErrorContains(r.t, err, "exit status 3", out)
	require.Contains(r.t, out, "is compacted, and 1 event is not the newest of its aggregate")
	require.Zero(r.t, scalar[int](r.environment, `SELECT count(*) FROM onceward.replays`))
}

func (r *replays) replayThroughAKill(reason string, args ...string) {
	t := r.t
	outboxctlBinary(t)
	var asking errgroup.Group
	asking.Go(func() error {
		out, err := r.ctl(reason, args...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	eventually(t, "some are asked for", time.Minute, func() bool {
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.replays WHERE reason = $1`, reason) >= 10
	})
	r.relay.kill()
	require.NoError(t, asking.Wait())
	r.relay.start()
	require.Greater(t, scalar[float64](r.environment, `SELECT extract(epoch FROM max(requested_at) - min(requested_at))::float8 FROM onceward.replays WHERE reason = $1`, reason),
		0.8, "%d events at 40 a second", replayedEvents)
}

// replayAHole takes a group's effect and claim away, as a restored consumer
// database would have.
func (r *replays) replayAHole(reason, key string) {
	k, err := outbox.ParseKey(key)
	require.NoError(r.t, err)
	r.awaitConsumers()
	r.execute(`DELETE FROM effects WHERE consumer = $1 AND key = $2`, r.groups[1], key)
	r.execute(`DELETE FROM onceward.processed_events WHERE consumer_group = $1 AND event_id = $2`, r.groups[1], k.UUID())
	r.replay(reason, key)
}

// awaitRetention waits until the broker has looked at every partition once more
// and deleted what is stamped older than the retention: twice, because the first
// look may have been under way.
func (r *replays) awaitRetention() {
	t := r.t
	producer, err := sarama.NewSyncProducer(r.brokers, kafkaConfig())
	require.NoError(t, err)
	defer producer.Close()
	client, err := sarama.NewClient(r.brokers, kafkaConfig())
	require.NoError(t, err)
	defer client.Close()
	for range 2 {
		_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: r.probe(), Timestamp: time.Now().Add(-48 * time.Hour), Value: sarama.StringEncoder("old")})
		require.NoError(t, err)
		eventually(t, "the broker deletes what is old", time.Minute, func() bool {
			oldest, err := client.GetOffset(r.probe(), 0, sarama.OffsetOldest)
			return err == nil && oldest > offset
		})
	}
}

// awaitConsumers waits until both groups have committed everything that is in
// the topic.
func (r *replays) awaitConsumers() {
	eventually(r.t, "the replays are in the topic", time.Minute, func() bool {
		seen := map[string]bool{}
		for _, m := range r.committed(r.topic()) {
			seen[headerOf(m, record.HeaderReplayID)] = true
		}
		for _, v := range r.orders() {
			if v.Topic == nil && !seen[v.ID.String()] {
				return false
			}
		}
		return true
	})
	last := map[int32]int64{}
	for _, m := range r.committed(r.topic()) {
		last[m.Partition] = m.Offset
	}
	for _, group := range r.groups {
		eventually(r.t, "the group has read everything", time.Minute, func() bool {
			offsets, err := r.admin.ListConsumerGroupOffsets(group, map[string][]int32{r.topic(): {0, 1, 2, 3, 4, 5}})
			if err != nil {
				return false
			}
			for partition, offset := range last {
				if b := offsets.GetBlock(r.topic(), partition); b == nil || b.Offset <= offset {
					return false
				}
			}
			return true
		})
	}
}

// askedAgain is a row of onceward.replays.
type askedAgain struct {
	ID          uuid.UUID
	Key         string
	Aggregate   string
	Payload     []byte
	CreatedAt   time.Time
	Mode        string
	Group       *string
	Topic       *string
	Reason      string
	RequestedBy string
}

func (r *replays) orders() []askedAgain {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `SELECT r.replay_id, r.namespace || ':' || r.id, r.aggregate_id, o.payload, o.created_at, r.mode, r.replay_group, r.topic, r.reason, r.requested_by
		FROM onceward.replays r JOIN onceward.outbox o USING (id) ORDER BY r.seq`)
	require.NoError(r.t, err)
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[askedAgain])
	require.NoError(r.t, err)
	return out
}

// verifyRecords: each order has its record, with the event's key, bytes and
// headers, and who asked for it is known.
func (r *replays) verifyRecords() {
	t := r.t
	byReplay := map[string][]*sarama.ConsumerMessage{}
	for _, m := range append(r.committed(r.topic()), r.committed(r.repair)...) {
		id := headerOf(m, record.HeaderReplayID)
		byReplay[id] = append(byReplay[id], m)
	}
	orders := r.orders()
	counts := map[string]int{}
	for _, v := range orders {
		counts[v.Reason]++
		found := byReplay[v.ID.String()]
		require.NotEmpty(t, found, "replay %s of %s (%s) is missing", v.ID, v.Key, v.Reason)
		if r.mode == "exactly-once" {
			require.Len(t, found, 1, "replay %s of %s (%s)", v.ID, v.Key, v.Reason)
		}
		for _, m := range found {
			require.Equal(t, v.Key, headerOf(m, outbox.HeaderKey))
			require.Equal(t, v.Aggregate, string(m.Key))
			require.Equal(t, string(v.Payload), string(m.Value))
			require.Equal(t, v.Mode, headerOf(m, record.HeaderReplayMode))
			require.Equal(t, text(v.Group), headerOf(m, record.HeaderReplayGroup))
			require.Equal(t, v.Topic != nil, m.Topic == r.repair)
			occurred, err := time.Parse(time.RFC3339Nano, headerOf(m, record.HeaderOccurredAt))
			require.NoError(t, err)
			require.True(t, occurred.Equal(v.CreatedAt.Truncate(time.Microsecond)), "the record says when the event occurred")
			require.Less(t, time.Since(m.Timestamp), 5*time.Minute, "and is stamped when it was published")
		}
		require.Equal(t, operatorLogin, v.RequestedBy)
	}
	// caughtUp has added one more event in the meantime.
	require.Equal(t, map[string]int{"by key": 1, "by aggregate": 10, "by time": 40, "elsewhere": 10, "reprocess": 10, "hole": 1}, counts)
	delete(byReplay, "")
	require.Len(t, byReplay, len(orders), "nothing else is a replay")
	t.Logf("%s: %d replays of %d events", r.mode, len(orders), replayedEvents)
}

// verifyEffects: one effect per event and group, the hole filled by the replay,
// and one more for the group that was to reprocess.
func (r *replays) verifyEffects() {
	rows, err := r.pool.Query(r.t.Context(), `SELECT consumer || ' ' || count(*) || ' x ' || n || ', ' || sum(replayed) || ' by replay' FROM (
		SELECT consumer, key, count(*) AS n, count(*) FILTER (WHERE replayed) AS replayed FROM effects WHERE key = ANY($1) GROUP BY 1, 2) e GROUP BY consumer, n ORDER BY 1`, r.events)
	require.NoError(r.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(r.t, err)
	billing, mail := r.groups[0], r.groups[1]
	require.Equal(r.t, []string{billing + " 10 x 2, 10 by replay", billing + " 30 x 1, 0 by replay", mail + " 40 x 1, 1 by replay"}, found)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
