//go:build e2e

package e2e

import (
	"context"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// No test can wait for days. What consumers, floors and retention go by is not
// the clock, which only bounds them from above, but event times, and these are
// inside the keys: a group that finishes events of three days ago is in the state
// in which it was three days ago. The tests with a past write such keys, and make
// the two things that only a group of that time could have: its registration,
// with the floor that it was given then, and the partitions.

const day = 24 * time.Hour

// since registers the group as if it had been started when its floor lay there,
// with partitions from there on. Call it once, before any consumer.
func (g *consumerGroup) since(floor time.Time) {
	g.t.Helper()
	floor = partition.Day(floor)
	for login, table := range map[string][2]string{
		maintainerLogin: {"onceward.outbox", "id"}, consumerMaintainerLogin: {"onceward.processed_events", "event_id"},
	} {
		_, err := partition.Ensure(g.t.Context(), g.w.connect(login), table[0], table[1], partition.Span{First: floor, Last: time.Now(), Reopen: true})
		require.NoError(g.t, err)
	}
	g.register(g.group, floor)
}

func (g *consumerGroup) register(group string, floor time.Time) {
	g.w.execute(`INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor, raised_at, registered_at) VALUES ($1, '*', $2, $3, $3, $3)`,
		group, g.window, floor)
}

// spread gives n events times from one to another, evenly, and then those of now.
func (g *consumerGroup) spread(n int, from, to time.Time) {
	step, i := to.Sub(from)/time.Duration(n), 0
	g.times = func() time.Time {
		i++
		if i > n {
			return time.Now()
		}
		return from.Add(time.Duration(i) * step)
	}
}

// relay starts a relay, and waits until it holds its slot.
func (g *consumerGroup) relay() *relayProcess {
	g.t.Helper()
	r := g.w.newRelay(g.w.config(`admin: {listen: "off"}`, "checkpoint_interval: 50ms"), "")
	r.start()
	eventually(g.t, "the relay streams", time.Minute, func() bool { return r.logs("slot taken") })
	return r
}

// enqueue commits n events to the outbox.
func (g *consumerGroup) enqueue(n int) {
	g.t.Helper()
	for n > 0 {
		size := min(n, 50)
		n -= size
		require.NoError(g.t, pgx.BeginFunc(g.t.Context(), g.w.app, func(tx pgx.Tx) error {
			for range size {
				if _, err := outbox.Enqueue(g.t.Context(), tx, g.next()); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

// maintain does what the maintainer does in the course of days, every few
// minutes: until nothing changes any more. The minute for which a floor has to
// stand before a partition goes is taken out of the table.
func (g *consumerGroup) maintain() retention.Report {
	g.t.Helper()
	conn, err := pgx.Connect(g.t.Context(), g.w.dsn(consumerMaintainerLogin))
	require.NoError(g.t, err)
	defer conn.Close(context.Background())
	for {
		g.w.execute(`UPDATE onceward.dedup_windows SET raised_at = raised_at - interval '2 minutes'`)
		report, err := retention.Maintain(g.t.Context(), conn, retention.Config{})
		require.NoError(g.t, err)
		if !changed(report) {
			return report
		}
	}
}

func changed(r retention.Report) bool {
	for _, f := range r.Floors {
		if f.After.After(f.Before) {
			return true
		}
	}
	for _, l := range r.Leaves {
		if l.State == retention.LeafDropped {
			return true
		}
	}
	return len(r.Made) > 0
}

// floor is that of the group.
func (g *consumerGroup) floor() time.Time {
	return scalar[time.Time](g.w, `SELECT floor FROM onceward.dedup_windows WHERE consumer_group = $1`, g.group).UTC()
}

// oldestClaims is where the oldest partition begins.
func (g *consumerGroup) oldestClaims() time.Time {
	g.t.Helper()
	days, err := partition.List(g.t.Context(), g.w.pool, "onceward.processed_events")
	require.NoError(g.t, err)
	oldest, _, ok := partition.Extent(days)
	require.True(g.t, ok)
	return oldest
}

// start starts consumers of the group.
func (g *consumerGroup) start(consumers, fail int) {
	for range consumers {
		c := newConsumerProcess(g.t, g.task(g.group, fail, ""))
		c.start()
		g.consumers = append(g.consumers, c)
	}
}

func (g *consumerGroup) stop() {
	for _, c := range g.consumers {
		c.stop()
	}
	g.consumers = nil
}

// rewind makes the group begin at the earliest offset again, as an operator may,
// or as Kafka does with a group that was away too long. It waits until Kafka has
// missed the members that were killed.
func (g *consumerGroup) rewind() {
	g.t.Helper()
	eventually(g.t, "the group's offsets are deleted", time.Minute, func() bool { return g.w.admin.DeleteConsumerGroup(g.group) == nil })
}

// letters counts dead letters by reason.
func (g *consumerGroup) letters() map[string]int {
	g.t.Helper()
	rows, err := g.w.pool.Query(g.t.Context(), `SELECT reason, count(*)::int FROM onceward.consumer_dead_letters GROUP BY 1`)
	return g.byReason(rows, err)
}

func (g *consumerGroup) byReason(rows pgx.Rows, err error) map[string]int {
	g.t.Helper()
	require.NoError(g.t, err)
	found := map[string]int{}
	var reason string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&reason, &n}, func() error {
		found[reason] = n
		return nil
	})
	require.NoError(g.t, err)
	return found
}

// send writes records as they are.
func (g *consumerGroup) send(messages ...*sarama.ProducerMessage) {
	g.t.Helper()
	producer, err := sarama.NewSyncProducer(g.w.brokers, kafkaConfig())
	require.NoError(g.t, err)
	defer producer.Close()
	require.NoError(g.t, producer.SendMessages(messages))
}
