//go:build e2e

package retention_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/internal/claimstest"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// model is what retention promises, in a few lines: a claim at or above the floor
// of its group is there, whatever was dropped, and by whomever it was interrupted.
type model struct {
	*kept
	r      *rand.Rand
	clock  time.Time
	claims map[uuid.UUID]string // by id, the group that made it
	groups []string
	made   int // claims
	names  int // groups that ever were
}

// TestRetentionKeepsWhatItPromises runs a random life of groups, claims, letters,
// crashes and clocks, and looks after each run of the maintainer. SEED repeats one.
func TestRetentionKeepsWhatItPromises(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SEED=%d", seed)
	onBoth(t, func(k *kept) {
		m := &model{kept: k, r: rand.New(rand.NewPCG(seed, 0)), clock: time.Now(), claims: make(map[uuid.UUID]string), groups: []string{"billing"}}
		for range 120 {
			m.step()
		}
		k.T.Logf("%d claims made, %d of them still promised; %s partitions left; horizon %s", m.made, len(m.claims),
			k.Text("SELECT count(*)::text FROM pg_inherits WHERE inhparent = 'onceward.processed_events'::regclass"),
			k.Text("SELECT COALESCE(max(dropped_before)::text, 'none') FROM onceward.dedup_horizon"))
		require.Greater(k.T, m.made, len(m.claims), "some went below their floor")
	})
}

func (m *model) step() {
	m.T.Helper()
	group := m.groups[m.r.IntN(len(m.groups))]
	switch n := m.r.IntN(20); {
	case n < 2:
		m.clock = m.clock.Add(time.Duration(m.r.IntN(48)) * time.Hour)
	case n < 6:
		m.finish(group)
	case n < 12:
		m.claimSome(group)
	case n < 13:
		m.register()
	case n < 14 && len(m.groups) > 1:
		m.retire(group)
	case n < 15:
		id := claimstest.IDAt(m.clock.Add(-time.Duration(m.r.IntN(12*24)) * time.Hour))
		m.Exec(`INSERT INTO onceward.fences (event_id, consumer_group, name, owner, lease_until, request_fingerprint) VALUES ($1, $2, 'charge', 'me', now(), '\x00')`, id, group)
	case n < 16:
		m.Exec("UPDATE onceward.fences SET status = 'COMPLETE'")
	default:
		m.maintainSomehow()
	}
}

func (m *model) finish(group string) {
	m.T.Helper()
	m.Exec(`INSERT INTO onceward.progress AS p (consumer_group, topic, kafka_partition, low_offset, high_offset, finished_time) VALUES ($1, 'orders', $2, 0, 9, $3)
		ON CONFLICT (consumer_group, topic, kafka_partition, topic_id) DO UPDATE SET finished_time = GREATEST(p.finished_time, excluded.finished_time)`,
		group, m.r.IntN(2), m.clock.Add(-time.Duration(m.r.IntN(72))*time.Hour))
}

func (m *model) floorOf(group string) time.Time {
	m.T.Helper()
	var floor time.Time
	require.NoError(m.T, m.Admin.QueryRow(m.T.Context(), "SELECT floor FROM onceward.dedup_windows WHERE consumer_group = $1", group).Scan(&floor))
	return floor
}

// claimSome claims events from the floor on, which must be possible; a day ahead
// is made only by a run.
func (m *model) claimSome(group string) {
	m.T.Helper()
	m.maintainFor(m.clock)
	floor := m.floorOf(group)
	span := m.clock.Sub(floor)
	for range 5 {
		id := claimstest.IDAt(floor.Add(time.Duration(m.r.Int64N(int64(span)))))
		m.Claim(id, group, "p", time.Now())
		m.claims[id] = group
		m.made++
	}
}

// register does what consumer.New does for a new group.
func (m *model) register() {
	m.T.Helper()
	m.names++
	group := fmt.Sprintf("group%d", m.names)
	window := time.Duration(1+m.r.IntN(10*24)) * time.Hour
	tx := m.holding(migrations.RoleConsumer, "LOCK TABLE onceward.dedup_windows IN SHARE ROW EXCLUSIVE MODE")
	leaves, err := partition.List(m.T.Context(), tx, claims.Table)
	require.NoError(m.T, err)
	oldest, _, _ := partition.Extent(leaves)
	_, err = tx.Exec(m.T.Context(), `INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor)
		SELECT $1, '*', $2, GREATEST($3, $4, (SELECT dropped_before FROM onceward.dedup_horizon))`, group, window, partition.Day(m.clock.Add(-window)), oldest)
	require.NoError(m.T, err)
	require.NoError(m.T, tx.Commit(m.T.Context()))
	m.groups = append(m.groups, group)
}

// retire ends what is promised to a group.
func (m *model) retire(group string) {
	m.T.Helper()
	m.Exec("DELETE FROM onceward.progress WHERE consumer_group = $1", group)
	m.Exec("UPDATE onceward.dedup_windows SET retired_at = now() WHERE consumer_group = $1", group)
	for id, of := range m.claims {
		if of == group {
			delete(m.claims, id)
		}
	}
	for i, g := range m.groups {
		if g == group {
			m.groups = append(m.groups[:i], m.groups[i+1:]...)
			return
		}
	}
}

// maintainFor is a run at a time of the model.
func (m *model) maintainFor(at time.Time) {
	m.T.Helper()
	m.Maintain(func(c *retention.Config) {
		*c = c.With(func(time.Time) time.Time { return at }, nil)
		c.LockTimeout = 50 * time.Millisecond
	})
	m.check()
}

// maintainSomehow is a run that is cut, or meets a reader, or a clock that jumps.
func (m *model) maintainSomehow() {
	m.T.Helper()
	switch m.r.IntN(4) {
	case 0:
		point := []string{"floors", "horizon", "detached"}[m.r.IntN(3)]
		_, _ = m.Run(func(c *retention.Config) { // a run that has nothing to drop does not come to the point
			*c = c.With(func(time.Time) time.Time { return m.clock }, func(at string) {
				if at == point {
					m.kill()
				}
			})
		})
		m.check()
	case 1:
		reader := m.reader()
		m.maintainFor(m.clock)
		m.end(reader)
	case 2:
		m.maintainFor(m.clock.AddDate(0, m.r.IntN(3)-1, 0))
	default:
		m.maintainFor(m.clock)
	}
}

// check looks for each claim that is promised, and for what an audit finds.
func (m *model) check() {
	m.T.Helper()
	for _, group := range m.groups {
		floor := m.floorOf(group)
		var ids []uuid.UUID
		for id, of := range m.claims {
			if of != group {
				continue
			}
			if outbox.IDTime(id).Before(floor) {
				delete(m.claims, id)
				continue
			}
			ids = append(ids, id)
		}
		var there int
		require.NoError(m.T, m.Admin.QueryRow(m.T.Context(), "SELECT count(*) FROM onceward.processed_events WHERE consumer_group = $1 AND event_id = ANY($2)", group, ids).Scan(&there))
		require.Equal(m.T, len(ids), there, "claims of %s at or above %s", group, floor)
	}
	report, err := audit.Check(m.T.Context(), m.Admin, audit.Config{Catalog: true})
	require.NoError(m.T, err)
	for _, f := range report.Findings {
		require.Equal(m.T, "hole", f.Check, f.What)
		require.Greater(m.T, f.Subject, m.clock.UTC().Format(time.RFC3339), "a hole after a clock that was ahead")
	}
}
