//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaserver"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// TestLateBacklog: the consumers, the relay or Kafka are down for the window and
// a day more. What waited meanwhile is applied once, through crashes and
// redeliveries, and none of it is judged as a replay.
func TestLateBacklog(t *testing.T) {
	t.Parallel()
	events, length := 1000, 3*time.Second
	if full() {
		events, length = 10_000, 30*time.Second
	}
	onAVersion(t, func(t *testing.T, version string) {
		t.Run("ConsumerDown", func(t *testing.T) {
			t.Parallel()
			o := newBacklog(t, newEnvironment(t, version))
			middle := o.began.Add(day + 6*time.Hour)
			o.spread(events/2, o.began, middle)
			o.produce(events / 2)
			o.standStill()
			o.workOff(length, func() {
				o.standStillAtMost(middle)
				o.spread(events/2, middle, time.Now())
				o.produce(events / 2)
			})
			o.verify(0)
		})
		t.Run("RelayDown", func(t *testing.T) {
			t.Parallel()
			o := newBacklog(t, newEnvironment(t, version))
			relay := o.relay()
			relay.kill()
			o.spread(events, o.began, time.Now())
			o.enqueue(events)
			late := o.othersGoOn()
			relay.start()
			o.workOff(length, func() {})
			relay.stop()
			o.verify(late)
		})
		t.Run("KafkaDown", func(t *testing.T) {
			t.Parallel()
			cluster, err := kafkaserver.Start(t.Context(), kafkaserver.Options{Settings: map[string]string{"group.min.session.timeout.ms": "1000"}})
			require.NoError(t, err)
			stopAtTheEnd(t, cluster)
			o := newBacklog(t, newEnvironmentBetween(t, postgres(t, version), cluster.Addrs()))
			relay := o.relay()
			o.start(2, 0)
			require.NoError(t, cluster.StopBroker(t.Context(), 0))
			o.spread(events, o.began, time.Now())
			o.enqueue(events)
			o.standStill()
			require.NoError(t, cluster.StartBroker(t.Context(), 0))
			o.reconnect()
			o.workOff(length, func() {})
			relay.stop()
			o.verify(0)
		})
	})
}

// backlog is a consumerGroup whose group had finished everything up to a noon at which
// something broke, more than window and a day ago.
type backlog struct {
	*consumerGroup
	t     *testing.T
	began time.Time
}

func newBacklog(t *testing.T, w *environment) *backlog {
	t.Helper()
	o := &backlog{consumerGroup: newConsumerGroupIn(w, w, 1), t: t}
	o.window = day
	o.began = partition.Day(time.Now()).Add(-o.window - 2*day).Add(12 * time.Hour)
	o.since(o.began.Add(-day - o.window))
	o.spread(200, o.began.Add(-time.Hour), o.began)
	o.healthy = true // a dead letter keeps its partition
	o.produce(200)
	o.healthy = false
	o.start(1, 0)
	o.finish()
	o.stop()
	o.maintain()
	require.Equal(t, partition.Day(o.began.Add(-o.window)), o.floor(), "the floor has followed to where everything broke")
	return o
}

// standStill is the maintainer in the days of the outage: nothing has moved that
// floors follow, and what the backlog needs stays.
func (o *backlog) standStill() {
	o.t.Helper()
	o.maintain()
	o.standStillAtMost(o.began)
}

// standStillAtMost maintains, and demands that the floor is no further than one
// window before the time.
func (o *backlog) standStillAtMost(at time.Time) {
	o.t.Helper()
	o.maintain()
	require.False(o.t, o.floor().After(partition.Day(at.Add(-o.window))), "floor %s", o.floor())
	require.False(o.t, o.oldestClaims().After(o.floor()))
}

// othersGoOn is what happens while one relay of several is down: events of now
// are finished in every partition, floors follow and partitions go. It returns
// how many events of the backlog lie below the floor by now.
func (o *backlog) othersGoOn() (late int) {
	o.t.Helper()
	const others = 200
	o.times, o.healthy = nil, true
	o.produce(others)
	o.start(1, 0)
	workedOff(o.t, "records are not finished", o.lag)
	o.stop()
	o.maintain()
	require.Equal(o.t, partition.Day(time.Now().Add(-o.window)), o.floor())
	require.Equal(o.t, o.floor(), o.oldestClaims(), "what lies below is gone")
	o.forgotten = o.began.Add(time.Millisecond)
	return scalar[int](o.w, `SELECT count(*) FROM onceward.outbox WHERE id < $1`, outbox.FirstID(o.floor()))
}

// workOff lets consumers work off what waited, through kills and lost
// connections; two of four read all of it for themselves. Then all of it is
// delivered once more.
func (o *backlog) workOff(length time.Duration, meanwhile func()) {
	o.t.Helper()
	o.gather()
	o.harm(length / 2)
	meanwhile()
	o.harm(length / 2)
	o.settle()
	o.rewind()
	o.start(1, 0)
	o.finish()
	o.stop()
}

func (o *backlog) verify(late int) {
	o.t.Helper()
	require.Empty(o.t, o.violations(), "none is lost, twice, or judged as a replay")
	floor := o.floor()
	o.maintain()
	require.False(o.t, o.floor().Before(partition.Day(time.Now().Add(-o.window-2*time.Hour))), "the floor follows")
	flagged := scalar[int](o.w, `SELECT count(*) FROM effects WHERE late`)
	if late == 0 {
		require.Zero(o.t, flagged, "floors have stood still, so that nothing is late")
	} else {
		require.Positive(o.t, flagged)
		require.LessOrEqual(o.t, flagged, late)
	}
	o.t.Logf("PostgreSQL %d: %d events, %d that cannot be applied, of %s; floor %s; %d below the floor, %d flagged late; %d kill -9, %d connections terminated; violations: none",
		o.w.server.Version(), o.events, o.dead, time.Since(o.began).Round(time.Hour), floor.Format(time.RFC3339), late, flagged, o.kills, o.terminated)
}

// reconnect makes the admin client anew, after its broker was away.
func (o *backlog) reconnect() {
	o.t.Helper()
	_ = o.w.admin.Close()
	eventually(o.t, "Kafka answers", time.Minute, func() bool {
		admin, err := sarama.NewClusterAdmin(o.w.brokers, kafkaConfig())
		o.w.admin = admin
		return err == nil
	})
}
