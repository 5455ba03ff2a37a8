//go:build e2e

package e2e

import (
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// job says how the main job is run.
type job struct {
	version string
	events  int64
	kills   int
	// defect of the relay, or enqueueOutside; empty in the real job.
	defect string
}

// enqueueOutside is a defect of the producing service: the event is enqueued in
// a transaction of its own.
const enqueueOutside = "enqueue-outside"

// outcome is what the job left behind.
type outcome struct {
	w       *environment
	truth   map[string]truth
	ghosts  map[string]string
	records []*sarama.ConsumerMessage
	found   []violation
	copies  int
}

// TestMainJob: events of interleaved writers arrive complete, none invented, in
// order per key, through hard kills of the relay, and each has one effect.
func TestMainJob(t *testing.T) {
	for _, version := range versions {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			o := runJob(t, job{version: version, events: 10_000, kills: 3})
			require.Empty(t, summary(o.found))
			t.Logf("PostgreSQL %s: %d events committed, %d rolled back, %d records, %d extra copies, 3 kills, 0 violations",
				version, len(o.truth), len(o.ghosts), len(o.records), o.copies)
			require.GreaterOrEqual(t, len(o.truth), 10_000)
			require.Greater(t, len(o.ghosts), 1000)
			effects(t, o)
		})
	}
}

// TestMainJobCatchesDefects breaks each promise once, and demands that the
// checks of TestMainJob name it.
func TestMainJobCatchesDefects(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ defect, statement string }{
		{"confirm-early", noLoss},
		{"reorder", order},
		{"alter", noInvention},
		{enqueueOutside, noInvention},
	} {
		t.Run(tc.defect, func(t *testing.T) {
			o := runJob(t, job{version: versions[0], events: 3000, kills: 2, defect: tc.defect})
			t.Log(summary(o.found))
			for _, v := range o.found {
				if v.statement == tc.statement {
					return
				}
			}
			t.Errorf("nobody noticed: want a violation of %q", tc.statement)
		})
	}
}

// runJob writes, publishes and kills, waits until the relay has caught up, and
// verifies the topic against the table.
func runJob(t *testing.T, j job) outcome {
	w := newEnvironment(t, j.version)
	w.install()
	w.createTopic(nil)
	relayDefect := j.defect
	load := &writers{pool: w.app, seed: 1, count: 8, aggregates: 40, target: math.MaxInt64, namespace: w.name}
	if j.defect == enqueueOutside {
		load.outside, relayDefect = true, ""
	}
	r := w.newRelay(w.config("checkpoint_interval: 20ms", "admin: {listen: \"off\"}"), relayDefect)
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	written := make(chan error, 1)
	go func() { written <- load.run(t.Context()) }()
	for i := range j.kills {
		mark := j.events * int64(i+1) / int64(j.kills+1)
		eventually(t, "the writers go on", time.Minute, func() bool { return load.committed.Load() >= mark })
		killInFlight(t, w, r, load)
		r.start()
	}
	eventually(t, "the writers have written enough", time.Minute, func() bool { return load.committed.Load() >= j.events })
	load.enough.Store(true)
	require.NoError(t, <-written)
	caughtUp(t, w, r)
	r.stop()
	o := outcome{w: w, ghosts: load.ghosts, records: w.records()}
	var err error
	o.truth, err = readTruth(t.Context(), w.pool)
	require.NoError(t, err)
	o.found, o.copies = verify(o.records, o.truth, o.ghosts, w.partitions)
	if load.outside { // the table itself holds the ghosts: compare with the business rows
		o.found = append(o.found, ghostsOf(t, w)...)
	}
	return o
}

// killInFlight kills the relay while Kafka is stopped, so that events are read
// and not acknowledged: what was confirmed too early is lost by it.
func killInFlight(t *testing.T, w *environment, r *relayProcess, load *writers) {
	// A relay that has just started has no producer yet, and cannot get one
	// without Kafka: wait until this one publishes.
	checkpoint := scalar[string](w, `SELECT confirmed_lsn::text FROM onceward.relay_state`)
	eventually(t, "the relay publishes", time.Minute, func() bool {
		return scalar[bool](w, `SELECT confirmed_lsn > $1::pg_lsn FROM onceward.relay_state`, checkpoint)
	})
	broker := kafka(t).PID(0)
	require.NoError(t, syscall.Kill(broker, syscall.SIGSTOP))
	defer func() { require.NoError(t, syscall.Kill(broker, syscall.SIGCONT)) }()
	readOn(t, w, load)
	r.kill()
}

// readOn waits, with Kafka stopped, until the relay has read events that are not
// acknowledged.
func readOn(t *testing.T, w *environment, load *writers) {
	t.Helper()
	before := load.committed.Load()
	eventually(t, "the writers go on without Kafka", time.Minute, func() bool { return load.committed.Load() >= before+300 })
	// The relay has read what was committed by now: its walsender has sent it.
	sent := scalar[string](w, `SELECT pg_current_wal_lsn()::text`)
	eventually(t, "the relay reads on without Kafka", 30*time.Second, func() bool {
		return scalar[bool](w, `SELECT coalesce(bool_or(sent_lsn >= $1::pg_lsn), false) FROM pg_stat_replication`, sent)
	})
}

// caughtUp waits until the checkpoint has passed the last commit.
func caughtUp(t *testing.T, w *environment, r *relayProcess) {
	t.Helper()
	caughtUpWithin(t, w, r, 2*time.Minute)
}

// caughtUpWithin is the same behind what takes a server long to decode.
func caughtUpWithin(t *testing.T, w *environment, r *relayProcess, limit time.Duration) {
	t.Helper()
	last := scalar[string](w, `SELECT pg_current_wal_insert_lsn()::text`)
	writeOne(t, w) // moves the checkpoint past everything before it
	ended := false
	eventually(t, "the relay catches up", limit, func() bool {
		select {
		case <-r.process.Done():
			ended = true
		default:
		}
		return ended || scalar[bool](w, `SELECT confirmed_lsn > $1::pg_lsn FROM onceward.relay_state`, last)
	})
	require.False(t, ended, "the relay ended by itself")
}

// ghostsOf finds events whose business row was rolled back.
func ghostsOf(t *testing.T, w *environment) []violation {
	var n int
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT count(*) FROM onceward.outbox o
		WHERE NOT EXISTS (SELECT FROM business b WHERE b.key = o.namespace || ':' || o.id)`).Scan(&n))
	if n == 0 {
		return nil
	}
	return []violation{{noInvention, "events were published whose business rows were rolled back"}}
}

// redeliver sends a record again, byte for byte.
func redeliver(t *testing.T, w *environment, m *sarama.ConsumerMessage, times int) {
	producer, err := sarama.NewSyncProducer(w.brokers, kafkaConfig())
	require.NoError(t, err)
	defer producer.Close()
	again := &sarama.ProducerMessage{Topic: m.Topic, Partition: m.Partition, Key: sarama.ByteEncoder(m.Key), Value: sarama.ByteEncoder(m.Value)}
	for _, h := range m.Headers {
		again.Headers = append(again.Headers, *h)
	}
	for range times {
		_, _, err := producer.SendMessage(again)
		require.NoError(t, err)
	}
}

// oneAggregate makes the tables that writeOne needs.
const oneAggregate = `CREATE TABLE counters (aggregate text PRIMARY KEY, n int NOT NULL); CREATE TABLE business (key text PRIMARY KEY); INSERT INTO counters VALUES ('a-0', 0)`

// writeOne commits one event, and returns its key.
func writeOne(t *testing.T, w *environment) string {
	var key string
	require.NoError(t, pgx.BeginFunc(t.Context(), w.app, func(tx pgx.Tx) error {
		k, err := (&writers{namespace: w.name}).row(t.Context(), tx, 0, "a-0")
		key = k.String()
		return err
	}))
	return key
}
