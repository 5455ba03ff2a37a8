//go:build e2e

package retention_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/internal/claimstest"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

// The session is killed between two steps; the next run goes on.
func TestRetentionCrashes(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.crashAt("floors")
		require.Equal(k.T, k.Date(-7), k.Floor("billing"), "committed")
		require.Equal(k.T, "true", k.Text("SELECT relispartition::text FROM pg_class WHERE relname = $1", k.Leaf))

		k.crashAt("horizon")
		require.Equal(k.T, k.Date(-7), k.Text("SELECT to_char(dropped_before AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM onceward.dedup_horizon"))
		require.Equal(k.T, "true", k.Text("SELECT relispartition::text FROM pg_class WHERE relname = $1", k.Leaf))

		k.crashAt("detached")
		require.Equal(k.T, "false", k.Text("SELECT relispartition::text FROM pg_class WHERE relname = $1", k.Leaf))
		k.Became(retention.LeafDropped, "")
		require.False(k.T, k.Exists(k.Leaf))
		require.Empty(k.T, k.Maintain().Made)
	})
}

// The session is killed while the detach waits for an older transaction.
func TestRetentionDetachInterrupted(t *testing.T) {
	onBoth(t, func(k *kept) {
		reader := k.reader()
		pid := int32(k.Conn.PgConn().PID())
		cut := make(chan error, 1)
		go func() {
			_, err := k.Run(func(c *retention.Config) { c.LockTimeout = time.Minute })
			cut <- err
		}()
		require.Eventually(k.T, k.detachPending, 10*time.Second, 5*time.Millisecond)
		k.Exec("SELECT pg_terminate_backend($1)", pid)
		require.Error(k.T, <-cut)
		k.kill()
		require.True(k.T, k.detachPending())

		k.Became(retention.LeafDetaching, "waits for transactions that are older than the detach (pid ")
		k.Became(retention.LeafDetaching, "decided; the next run goes on with it", dry)
		second := k.Day(-9)
		report := k.Maintain(ahead(65))
		require.Len(k.T, report.Made, 1, "partitions are made while a detach is pending")
		require.Contains(k.T, claimstest.Find(report, second).Why, "nothing needs it; waits for the detach of "+k.Leaf)
		k.Claim(claimstest.IDAt(k.Today), "billing", "p", time.Now())
		k.end(reader)
		report = k.Maintain()
		require.Equal(k.T, retention.LeafDropped, claimstest.Find(report, k.Leaf).State)
		require.Equal(k.T, retention.LeafDropped, claimstest.Find(report, second).State)
	})
}

// A fence that begins until the detach is seen before the drop.
func TestRetentionLooksAgainBeforeTheDrop(t *testing.T) {
	onBoth(t, func(k *kept) {
		report, err := k.Run(func(c *retention.Config) {
			*c = c.With(nil, func(point string) {
				if point == "detached" {
					k.Fence(claimstest.IDAt(k.Today.AddDate(0, 0, -8)), "PENDING", 0)
				}
			})
		})
		require.NoError(k.T, err)
		require.Contains(k.T, claimstest.Find(report, k.Leaf).Why, "detached and kept: 1 of its events is open")
		require.True(k.T, k.Exists(k.Leaf))
		require.Contains(k.T, k.Became(retention.LeafWaiting, "detached and kept").Why, "open")
		k.Exec("UPDATE onceward.fences SET status = 'COMPLETE', expires_at = now()")
		k.Became(retention.LeafDropped, "")
	})
}

func TestRetentionOfWhatSomebodyDetached(t *testing.T) {
	k := newKept(t, "15")
	young := k.Day(-3)
	k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + young)
	report, err := k.Run()
	require.ErrorContains(t, err, "name of a partition is taken", "its day is not made again beside it")
	l := claimstest.Find(report, young)
	require.True(t, l.Wrong)
	require.Contains(t, l.Why, `attach it again (as a member of the role onceward_owner: ALTER TABLE "onceward"."processed_events" ATTACH PARTITION "onceward"."`+young)
	require.True(t, k.Exists(young))
	require.Equal(t, retention.LeafDropped, claimstest.Find(report, k.Leaf).State, "the others go on")
	attach := func() {
		t.Helper()
		_, err := k.Conn.Exec(t.Context(), regexp.MustCompile(`(SET|ALTER) .*\) TO \('[^)]*\)`).FindString(l.Why))
		require.NoError(t, err, l.Why)
	}
	attach()
	require.Empty(t, claimstest.Find(k.Maintain(), young).Why)

	reader := k.reader()
	hand := k.Dial(migrations.RoleConsumerMaintainer)
	_, err = hand.Exec(t.Context(), "SET lock_timeout = '100ms'")
	require.NoError(t, err)
	_, err = hand.Exec(t.Context(), "ALTER TABLE onceward.processed_events DETACH PARTITION onceward."+young+" CONCURRENTLY")
	require.ErrorContains(t, err, "lock timeout")
	k.end(reader)
	l = claimstest.Find(k.Maintain(), young)
	require.True(t, l.Wrong)
	require.Contains(t, l.Why, "somebody began to detach it, although its claims are needed")
	require.Contains(t, l.Why, `: SET lock_timeout = '2s'; ALTER TABLE "onceward"."processed_events" DETACH PARTITION "onceward"."`+young+`" FINALIZE; ALTER `)
	require.True(t, k.Exists(young))
	attach()
	require.Empty(t, claimstest.Find(k.Maintain(), young).Why)
}

// A leaf that somebody detached before it was decided about goes as any other:
// when what is in it is settled, and with the horizon raised.
func TestRetentionDecidesAboutWhatSomebodyDetached(t *testing.T) {
	k := newKept(t, "15")
	k.Fence(claimstest.IDAt(k.Today.AddDate(0, 0, -8)), "PENDING", 0)
	k.Exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + k.Leaf)
	k.Became(retention.LeafWaiting, "1 of its events is open")
	require.Zero(t, k.Maintain().Horizon, "nobody has decided")
	k.Exec("DELETE FROM onceward.fences")
	report := k.Maintain()
	require.Equal(t, retention.LeafDropped, claimstest.Find(report, k.Leaf).State)
	require.Equal(t, k.Today.AddDate(0, 0, -7), report.Horizon.UTC())
}

// registration does what consumer.New does: it reads the horizon and sets a
// floor, under the lock.
func (k *kept) registration(group string) (tx pgx.Tx, floor time.Time) {
	k.T.Helper()
	tx = k.holding(migrations.RoleConsumer, "LOCK TABLE onceward.dedup_windows IN SHARE ROW EXCLUSIVE MODE")
	require.NoError(k.T, tx.QueryRow(k.T.Context(), "SELECT COALESCE(max(dropped_before), '2015-01-01') FROM onceward.dedup_horizon").Scan(&floor))
	if oldest := k.Today.AddDate(0, 0, -8); floor.Before(oldest) {
		floor = oldest
	}
	_, err := tx.Exec(k.T.Context(), "INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor) VALUES ($1, '*', '7 days', $2)", group, floor)
	require.NoError(k.T, err)
	return tx, floor
}

// A group that registers keeps what it may need, or finds out what is gone: there
// is no moment between.
func TestRetentionAndANewGroup(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Exec("UPDATE onceward.dedup_windows SET floor = $1", k.Today.AddDate(0, 0, -7)) // passed long ago
		early, floor := k.registration("early")
		require.Equal(k.T, k.Today.AddDate(0, 0, -8), floor.UTC())
		k.Became(retention.LeafClosed, "another session changes windows")
		require.NoError(k.T, early.Commit(k.T.Context()))
		k.Became(retention.LeafOpen, `class "*" of group early needs it`)
		k.Exec("DELETE FROM onceward.dedup_windows WHERE consumer_group = 'early'")

		// It registers when the leaf was judged and the lock is not taken yet.
		committed := make(chan error, 1)
		report, err := k.Run(func(c *retention.Config) {
			c.LockTimeout = 10 * time.Second
			*c = c.With(nil, func(point string) {
				if point != "floors" {
					return
				}
				between, _ := k.registration("between")
				go func() { committed <- k.whenWaitedFor(between) }()
			})
		})
		require.NoError(k.T, err)
		require.NoError(k.T, <-committed)
		require.Contains(k.T, claimstest.Find(report, k.Leaf).Why, "of group between needs it")
		require.True(k.T, k.Exists(k.Leaf))
		k.Exec("DELETE FROM onceward.dedup_windows WHERE consumer_group = 'between'")

		report, err = k.Run(func(c *retention.Config) {
			*c = c.With(nil, func(point string) {
				if point != "horizon" {
					return
				}
				late, floor := k.registration("late")
				require.Equal(k.T, k.Today.AddDate(0, 0, -7), floor.UTC(), "decided, and not detached yet")
				require.NoError(k.T, late.Commit(k.T.Context()))
			})
		})
		require.NoError(k.T, err)
		require.Equal(k.T, retention.LeafDropped, claimstest.Find(report, k.Leaf).State)
	})
}

// whenWaitedFor commits a transaction as soon as a session waits for a lock.
func (k *kept) whenWaitedFor(tx pgx.Tx) error {
	for {
		var waiting int
		err := k.Admin.QueryRow(k.T.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting)
		if err != nil {
			return err
		}
		if waiting > 0 {
			return tx.Commit(k.T.Context())
		}
	}
}

func TestRetentionOfRows(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.Exec(`INSERT INTO onceward.attempts (event_id, consumer_group, last_error, expires_at)
			SELECT gen_random_uuid(), 'billing', 'e', now() + (CASE WHEN n <= 2500 THEN '-1 hour' ELSE '1 hour' END)::interval FROM generate_series(1, 2510) n`)
		low, high := k.Today.AddDate(0, 0, -9), k.Today
		for i, f := range []struct {
			at            time.Time
			group, status string
			expires       string
		}{
			{low, "billing", "COMPLETE", "-1 day"},
			{low, "billing", "COMPLETE", "1 day"},
			{high, "billing", "COMPLETE", "-2 days"}, // can still be delivered
			{low, "billing", "PENDING", "infinity"},  // open: nothing has ended its event
			{low, "stranger", "COMPLETE", "-1 day"},  // of no group that is known
		} {
			k.Exec(`INSERT INTO onceward.fences (event_id, consumer_group, name, status, owner, lease_until, request_fingerprint, expires_at)
				VALUES ($1, $2, $3, $4, 'me', now(), '\x00', now() + NULLIF($5, 'infinity')::interval)`, claimstest.IDAt(f.at), f.group, string(rune('a'+i)), f.status, f.expires)
		}
		dead := claimstest.IDAt(k.Today)
		k.Claim(dead, "billing", "d", time.Now())
		for i, state := range []string{"open", "requested", "redriven", "discarded", "discarded"} {
			k.Letter(claimstest.IDAt(k.Today), i, "handler", state)
		}
		k.Exec("UPDATE onceward.consumer_dead_letters SET expires_at = now() - interval '3 hours'")
		k.Exec("UPDATE onceward.consumer_dead_letters SET event_id = $1, claim_id = $1 WHERE kafka_offset = 4", dead)

		holder := k.holding(migrations.RoleConsumer, "SELECT FROM onceward.attempts WHERE expires_at < now() LIMIT 10 FOR UPDATE")
		rows := k.Maintain().Rows
		require.EqualValues(k.T, 2490, rows[0].Removed, "what a delivery has locked is left")
		require.InDelta(k.T, time.Hour, rows[0].Lag, float64(time.Minute))
		require.EqualValues(k.T, 1, rows[1].Removed)
		require.InDelta(k.T, 48*time.Hour, rows[1].Lag, float64(time.Minute))
		require.EqualValues(k.T, 2, rows[2].Removed)
		k.end(holder)
		rows = k.Maintain().Rows
		require.EqualValues(k.T, 10, rows[0].Removed)
		require.Zero(k.T, rows[0].Lag)
		require.Zero(k.T, rows[1].Removed)
		require.Equal(k.T, "bcde", k.Text("SELECT string_agg(name, '' ORDER BY name) FROM onceward.fences"))
		require.Equal(k.T, "0 1 4", k.Text("SELECT string_agg(kafka_offset::text, ' ' ORDER BY kafka_offset) FROM onceward.consumer_dead_letters"))
		k.Exec("UPDATE onceward.processed_events SET outcome = 'p'")
		require.EqualValues(k.T, 1, k.Maintain().Rows[2].Removed)
	})
}

// noLock is for how long an insert that nobody holds back may wait for a lock, which it
// does not at all, however busy the machine is.
const noLock = "10ms"

func patient(c *retention.Config) { c.LockTimeout = time.Second }

// inserts runs work and meanwhile claims events of today, one after the other, in a
// session that waits for no lock. It returns how many were made and how many were held
// back by one.
func (k *kept) inserts(conn *pgx.Conn, work func()) (made, heldBack int) {
	k.T.Helper()
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			_, err := conn.Exec(k.T.Context(), claimstest.InsertClaim, claimstest.IDAt(k.Today), "billing", "p", time.Now())
			switch {
			case err == nil:
				made++
			case partition.TimedOut(err):
				heldBack++
			default:
				ended <- err
				return
			}
			select {
			case <-done:
				ended <- nil
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	work()
	close(done)
	require.NoError(k.T, <-ended)
	return made, heldBack
}

// held makes inserts while work runs against a claim that is open in the partition that
// is to go, and says how many were held back.
func (k *kept) held(work func()) (heldBack int) {
	k.T.Helper()
	writer, claimant := k.Dial(migrations.RoleConsumer), k.Dial(migrations.RoleConsumer)
	_, err := writer.Exec(k.T.Context(), "SET lock_timeout = '"+noLock+"'")
	require.NoError(k.T, err)
	open, err := claimant.Begin(k.T.Context())
	require.NoError(k.T, err)
	_, err = open.Exec(k.T.Context(), claimstest.InsertClaim, claimstest.IDAt(k.Today.AddDate(0, 0, -8)), "billing", "p", time.Now())
	require.NoError(k.T, err)
	made, heldBack := k.inserts(writer, work)
	k.T.Logf("inserts beside a claim that is open in the partition that goes: %d made, %d held back", made, heldBack)
	require.Greater(k.T, made+heldBack, 10, "they went on meanwhile")
	require.NoError(k.T, open.Commit(k.T.Context()))
	made, finishing := k.inserts(writer, func() { k.Maintain(patient) })
	require.Positive(k.T, made)
	require.False(k.T, k.Exists(k.Leaf))
	return heldBack + finishing
}

// While a claim is held open in the partition that goes, and when it goes, other inserts
// wait for no lock.
func TestRetentionHoldsBackNoOtherInsert(t *testing.T) {
	onBoth(t, func(k *kept) {
		require.Zero(k.T, k.held(func() {
			k.Became(retention.LeafDetaching, "waits for transactions that are older", patient)
		}))
	})
}

// A plain DROP, as the defect, fails the same measurement.
func TestAPlainDropHoldsBackOtherInserts(t *testing.T) {
	k := newKept(t, "15")
	require.Positive(t, k.held(func() {
		_, err := k.Conn.Exec(t.Context(), "SET lock_timeout = '1s'")
		require.NoError(t, err)
		_, err = k.Conn.Exec(t.Context(), "DROP TABLE onceward."+k.Leaf)
		require.True(t, partition.TimedOut(err), "the claim was not waited for: %v", err)
	}))
}

// An adopted group has its floor below the horizon: what was opened again for it
// stays until it has caught up, and nobody else is touched.
func TestRetentionAndAnAdoptedGroup(t *testing.T) {
	k := newKept(t, "15")
	blocked := k.Day(-10)
	dead := claimstest.IDAt(k.Today.AddDate(0, 0, -10))
	k.Claim(dead, "billing", "d", k.Today.AddDate(0, 0, -10))
	k.Letter(dead, 1, "handler", "open")
	k.Fence(dead, "PENDING", 0)
	k.Day(-9)
	k.Maintain() // drops the days -9 and -8, and keeps the day -10
	require.Equal(t, "1", k.Text("SELECT count(*)::text FROM pg_inherits WHERE inhparent = 'onceward.processed_events'::regclass AND inhrelid::regclass::text < 'onceward.'||$1",
		partition.OfDay("processed_events", k.Today.AddDate(0, 0, -7)).Name))
	report, err := retention.Adopt(t.Context(), k.Conn, retention.AdoptConfig{Group: "fresh", From: k.Today.AddDate(0, 0, -20), Reason: "a new view"})
	require.NoError(t, err)
	require.Len(t, report.Made, 12, "the hole too")
	for n := -20; n <= 0; n++ {
		k.Claim(claimstest.IDAt(k.Today.AddDate(0, 0, n)), "fresh", "p", time.Now())
	}
	require.Empty(t, k.Audit())
	found, err := audit.Check(t.Context(), k.Dial(migrations.RoleConsumer), audit.Config{Group: "fresh"})
	require.NoError(t, err)
	require.Empty(t, found)

	k.Became(retention.LeafOpen, `class "*" of group fresh needs it; its floor is `+k.Date(-20))
	k.Progress("fresh", 0, k.Today)
	k.Exec("UPDATE onceward.consumer_dead_letters SET state = 'discarded'")
	k.Exec("UPDATE onceward.fences SET status = 'COMPLETE', expires_at = now()")
	for n := -18; n < -7; n += 2 {
		k.Maintain()
		require.Equal(t, k.Date(n), k.Floor("fresh"))
	}
	k.Became(retention.LeafDropped, "")
	require.False(t, k.Exists(blocked))
	require.Equal(t, k.Date(-7), k.Floor("billing"))
	require.Equal(t, k.Date(-7), k.Text("SELECT to_char(dropped_before AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM onceward.dedup_horizon"))
}
