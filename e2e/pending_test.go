//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// pendingSample is what was said at one moment, and how far Kafka was just before
// and just after it.
type pendingSample struct {
	published []uuid.UUID // by the predicate of the published snapshot
	listed    []uuid.UUID // committed before, and not among what `outboxctl list` called pending
	pending   []uuid.UUID // by `outboxctl list`
	known     time.Time   // when the snapshot that it stands on was taken
	ends      map[int32]int64
	at        time.Time // ends were read by then
}

// lateness is how much younger than a record the snapshot must be that says what
// is pending: the log has a commit a moment before snapshots see it.
const lateness = time.Second

// TestPendingIsTruth: whatever `outboxctl list` or the published snapshot itself
// calls published, at any moment under load and through a kill, is in Kafka
// already; what it calls pending was not yet there when the snapshot was taken;
// and once the relay has caught up, nothing is pending.
func TestPendingIsTruth(t *testing.T) {
	t.Parallel()
	moments := 25
	if full() {
		moments = 150
	}
	for _, version := range versionsOf(t.Name()) {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			samples, said := pendingIsTruth(t, version, "", moments)
			require.Empty(t, said.lies)
			t.Logf("PostgreSQL %s: at %d moments, answers of the snapshot's predicate \"published\" %d, of outboxctl list \"published\" %d, \"pending\" %d; none of them wrong",
				version, samples, said.published, said.listed, said.pending)
			require.Greater(t, said.published, 1000)
			require.Greater(t, said.listed, 1000)
			require.Positive(t, said.pending)
		})
	}
}

// TestPendingCatchesDefects: a relay that counts events as ended when it has
// read them publishes snapshots too early, and that is seen.
func TestPendingCatchesDefects(t *testing.T) {
	t.Parallel()
	_, said := pendingIsTruth(t, versions[0], "confirm-early", 12)
	require.True(t, slices.ContainsFunc(said.lies, func(lie string) bool { return strings.Contains(lie, "the snapshot called") }), "nobody noticed")
	require.True(t, slices.ContainsFunc(said.lies, func(lie string) bool { return strings.Contains(lie, "outboxctl did not call") }), "outboxctl tells the truth")
}

// answers counts what was said, and what of it was wrong.
type answers struct {
	published, listed, pending int
	lies                       []string
}

// pendingIsTruth asks at that many random moments under load.
func pendingIsTruth(t *testing.T, version, defect string, moments int) (int, answers) {
	outboxctlBinary(t) // not under load
	w := newEnvironment(t, version)
	w.install()
	w.createTopic(nil)
	client, err := sarama.NewClient(w.brokers, kafkaConfig())
	require.NoError(t, err)
	defer client.Close()
	load := &writers{pool: w.app, seed: 3, count: 6, aggregates: 40, target: math.MaxInt64, namespace: w.name}
	r := w.newRelay(w.config("checkpoint_interval: 20ms", `admin: {listen: "off"}`), defect)
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	written := make(chan error, 1)
	go func() { written <- load.run(t.Context()) }()
	random := rand.New(rand.NewPCG(3, uint64(moments)))
	samples := []pendingSample{takeSample(t, w, client)}
	for len(samples) < moments {
		waitFor(t, load, written, load.committed.Load()+random.Int64N(400))
		if len(samples) == moments/2 {
			killInFlight(t, w, r, load)
			samples = append(samples, takeSample(t, w, client))
			r.start()
		}
		samples = append(samples, takeSample(t, w, client))
	}
	load.enough.Store(true)
	require.NoError(t, <-written)
	if defect == "" {
		caughtUp(t, w, r)
		eventually(t, "nothing is pending", time.Minute, func() bool { return len(list(t, w, "pending").Events) == 0 })
		if all := int(load.committed.Load()) + 1; all <= mostListed {
			require.Len(t, list(t, w, "published").Events, all)
		}
	}
	r.stop()
	return len(samples), judge(samples, w.records())
}

// takeSample asks Kafka between two looks at the database: what was called
// published must be below the ends that are read after it.
func takeSample(t *testing.T, w *environment, client sarama.Client) pendingSample {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var s pendingSample
	before := scalarIn[[]uuid.UUID](ctx, w, `SELECT coalesce(array_agg(id), '{}') FROM onceward.outbox`)
	s.published = scalarIn[[]uuid.UUID](ctx, w, `SELECT coalesce(array_agg(o.id), '{}') FROM onceward.outbox o, onceward.published_snapshots s
		WHERE pg_visible_in_snapshot(o.tx_id, s.snapshot)`)
	answer := list(t, w, "pending")
	s.ends = map[int32]int64{}
	for p := range w.partitions {
		end, err := client.GetOffset(w.topic(), p, sarama.OffsetNewest)
		require.NoError(t, err)
		s.ends[p] = end
	}
	s.at = time.Now()
	if len(answer.Relays) == 0 || !answer.Relays[0].Known {
		return s // nothing is known of any event yet
	}
	s.known = *answer.Relays[0].SnapshotAt
	called := map[uuid.UUID]bool{}
	for _, e := range answer.Events {
		_, text, _ := strings.Cut(e.Key, ":")
		id, err := uuid.Parse(text)
		require.NoError(t, err)
		called[id] = true
		s.pending = append(s.pending, id)
	}
	s.listed = slices.DeleteFunc(before, func(id uuid.UUID) bool { return called[id] })
	return s
}

func scalarIn[T any](ctx context.Context, w *environment, query string) T {
	w.t.Helper()
	var v T
	require.NoError(w.t, w.pool.QueryRow(ctx, query).Scan(&v), query)
	return v
}

// judge looks up what was said among the records.
func judge(samples []pendingSample, records []*sarama.ConsumerMessage) answers {
	first := map[string]*sarama.ConsumerMessage{} // by the key's UUID
	for _, r := range records {
		_, id, _ := strings.Cut(headerOf(r, outbox.HeaderKey), ":")
		if first[id] == nil {
			first[id] = r
		}
	}
	there := func(id uuid.UUID, ends map[int32]int64) bool {
		r := first[id.String()]
		return r != nil && r.Offset < ends[r.Partition]
	}
	var a answers
	for i, s := range samples {
		for _, id := range s.published {
			a.published++
			if !there(id, s.ends) {
				a.lies = append(a.lies, fmt.Sprintf("sample %d: the snapshot called %s published", i, id))
			}
		}
		for _, id := range s.listed {
			a.listed++
			if !there(id, s.ends) {
				a.lies = append(a.lies, fmt.Sprintf("sample %d: outboxctl did not call %s pending", i, id))
			}
		}
		for j := i - 1; j >= 0; j-- {
			if s.known.Sub(samples[j].at) > lateness {
				a.stale(s, i, func(id uuid.UUID) bool { return there(id, samples[j].ends) })
				break
			}
		}
	}
	return a
}

// stale finds what was called pending and had been in Kafka before the snapshot
// was taken.
func (a *answers) stale(s pendingSample, i int, there func(uuid.UUID) bool) {
	for _, id := range s.pending {
		a.pending++
		if there(id) {
			a.lies = append(a.lies, fmt.Sprintf("sample %d: outboxctl called %s pending", i, id))
		}
	}
}

// TestRowOfASlowCommitIsNotPendingForEver: a commit waits for its synchronous
// standby after it was published. Once it returns, its row is not called pending
// any longer, though no other event comes.
func TestRowOfASlowCommitIsNotPendingForEver(t *testing.T) {
	t.Parallel()
	onVersions(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, nil)
		r := streaming(t, w, "checkpoint_interval: 100ms")
		caughtUp(t, w, r)
		pending := func() int {
			return scalar[int](w, `SELECT count(*) FROM onceward.outbox o LEFT JOIN onceward.published_snapshots s ON true WHERE NOT coalesce(pg_visible_in_snapshot(o.tx_id, s.snapshot), false)`)
		}
		eventually(t, "all is published", 30*time.Second, func() bool { return pending() == 0 })
		conn, err := pgx.Connect(t.Context(), w.server.DSN("postgres"))
		require.NoError(t, err)
		defer conn.Close(context.WithoutCancel(t.Context()))
		run := func(sql string) {
			_, err := conn.Exec(t.Context(), sql)
			require.NoError(t, err, sql)
		}
		run("SET synchronous_commit = local")
		run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
		run("SELECT pg_reload_conf()")
		eventually(t, "commits wait", 10*time.Second, func() bool {
			return scalar[string](w, `SELECT current_setting('synchronous_standby_names')`) == "nobody"
		})
		before := len(w.records())
		written := make(chan error, 1)
		go func() { written <- one(t.Context(), w) }()
		eventually(t, "published while its commit waits", 30*time.Second, func() bool { return len(w.records()) == before+1 })
		eventually(t, "its commit waits", 30*time.Second, func() bool {
			return scalar[int](w, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) > 0
		})
		run("ALTER SYSTEM RESET synchronous_standby_names")
		run("SELECT pg_reload_conf()")
		require.NoError(t, <-written)
		require.Equal(t, 1, scalar[int](w, `SELECT count(*) - $1 FROM onceward.outbox`, before))
		eventually(t, "its row is published too", 10*time.Second, func() bool { return pending() == 0 })
		r.stop()
		verifyAll(t, w, nil)
	})
}
