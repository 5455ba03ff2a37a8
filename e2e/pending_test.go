//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// pendingSample is what the published snapshot said at one moment, and how far Kafka
// was just after it.
type pendingSample struct {
	published []uuid.UUID
	ends      map[int32]int64
}

// TestPendingIsTruth: whatever the published snapshot calls published, at any
// moment under load and through a kill, is in Kafka already; and once the relay
// has caught up, nothing is pending.
func TestPendingIsTruth(t *testing.T) {
	for _, version := range versions {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			samples, published := pendingIsTruth(t, version, "")
			require.Empty(t, published.lies)
			t.Logf("PostgreSQL %s: %d samples, %d answers \"published\", none of them wrong", version, samples, published.answers)
			require.Greater(t, published.answers, 1000)
		})
	}
}

// TestPendingCatchesDefects: a relay that counts events as ended when it has
// read them publishes snapshots too early, and that is seen.
func TestPendingCatchesDefects(t *testing.T) {
	_, published := pendingIsTruth(t, versions[0], "confirm-early")
	require.NotEmpty(t, published.lies, "nobody noticed")
}

// answers counts what was said to be published, and what was not.
type answers struct {
	answers int
	lies    []string
}

func pendingIsTruth(t *testing.T, version, defect string) (int, answers) {
	w := newWorld(t, version)
	w.install()
	w.createTopic(nil)
	client, err := sarama.NewClient(w.brokers, kafkaConfig())
	require.NoError(t, err)
	defer client.Close()
	load := &writers{pool: w.app, seed: 3, count: 6, aggregates: 40, target: 6000, namespace: w.name}
	r := w.newRelay(w.config("checkpoint_interval: 20ms", `admin: {listen: "off"}`), defect)
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	written := make(chan error, 1)
	go func() { written <- load.run(t.Context()) }()
	var samples []pendingSample
	for mark := int64(200); mark < load.target; mark += 400 {
		eventually(t, "the writers go on", time.Minute, func() bool { return load.committed.Load() >= mark })
		if len(samples) == 5 {
			killInFlight(t, w, r, load)
			samples = append(samples, takeSample(t, w, client))
			r.start()
		}
		samples = append(samples, takeSample(t, w, client))
	}
	require.NoError(t, <-written)
	if defect == "" {
		caughtUp(t, w, r)
		eventually(t, "nothing is pending", time.Minute, func() bool {
			return scalar[int](w, `SELECT count(*) FROM onceward.outbox o, onceward.relay_state s WHERE NOT pg_visible_in_snapshot(o.tx_id, s.published_snapshot)`) == 0
		})
	}
	r.stop()
	return len(samples), judge(samples, w.records())
}

// takeSample asks the database first and Kafka second: what was published by
// then must be below the ends.
func takeSample(t *testing.T, w *world, client sarama.Client) pendingSample {
	t.Helper()
	s := pendingSample{ends: map[int32]int64{}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s.published = scalarIn[[]uuid.UUID](ctx, w, `SELECT coalesce(array_agg(o.id), '{}') FROM onceward.outbox o, onceward.relay_state s
		WHERE pg_visible_in_snapshot(o.tx_id, s.published_snapshot)`)
	for p := range w.partitions {
		end, err := client.GetOffset(w.topic(), p, sarama.OffsetNewest)
		require.NoError(t, err)
		s.ends[p] = end
	}
	return s
}

func scalarIn[T any](ctx context.Context, w *world, query string) T {
	w.t.Helper()
	var v T
	require.NoError(w.t, w.pool.QueryRow(ctx, query).Scan(&v), query)
	return v
}

// judge looks up what was called published among the records.
func judge(samples []pendingSample, records []*sarama.ConsumerMessage) answers {
	first := map[string]*sarama.ConsumerMessage{} // by the key's UUID
	for _, r := range records {
		_, id, _ := strings.Cut(headerOf(r, outbox.HeaderKey), ":")
		if first[id] == nil {
			first[id] = r
		}
	}
	var a answers
	for i, s := range samples {
		for _, id := range s.published {
			a.answers++
			if r := first[id.String()]; r == nil || r.Offset >= s.ends[r.Partition] {
				a.lies = append(a.lies, fmt.Sprintf("sample %d called %s published", i, id))
			}
		}
	}
	return a
}
