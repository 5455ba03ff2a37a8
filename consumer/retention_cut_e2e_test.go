//go:build e2e

package consumer_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

// The session is killed between two steps; the next run goes on.
func TestRetentionCrashes(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.crashAt("floors")
		require.Equal(k.t, k.date(-7), k.floor("billing"), "committed")
		require.Equal(k.t, "true", k.text("SELECT relispartition::text FROM pg_class WHERE relname = $1", k.leaf))

		k.crashAt("horizon")
		require.Equal(k.t, k.date(-7), k.text("SELECT to_char(dropped_before AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM onceward.dedup_horizon"))
		require.Equal(k.t, "true", k.text("SELECT relispartition::text FROM pg_class WHERE relname = $1", k.leaf))

		k.crashAt("detached")
		require.Equal(k.t, "false", k.text("SELECT relispartition::text FROM pg_class WHERE relname = $1", k.leaf))
		k.became(consumer.LeafDropped, "")
		require.False(k.t, k.exists(k.leaf))
		require.Empty(k.t, k.maintain().Made)
	})
}

// The session is killed while the detach waits for an older transaction.
func TestRetentionDetachInterrupted(t *testing.T) {
	onBoth(t, func(k *kept) {
		reader := k.reader()
		pid := int32(k.conn.PgConn().PID())
		cut := make(chan error, 1)
		go func() {
			_, err := k.run(func(c *consumer.MaintainConfig) { c.LockTimeout = time.Minute })
			cut <- err
		}()
		require.Eventually(k.t, k.detachPending, 10*time.Second, 5*time.Millisecond)
		k.exec("SELECT pg_terminate_backend($1)", pid)
		require.Error(k.t, <-cut)
		k.kill()
		require.True(k.t, k.detachPending())

		k.became(consumer.LeafDetaching, "waits for transactions that are older than the detach (pid ")
		k.became(consumer.LeafDetaching, "decided; the next run goes on with it", dry)
		second := k.day(-9)
		report := k.maintain(ahead(65))
		require.Len(k.t, report.Made, 1, "partitions are made while a detach is pending")
		require.Contains(k.t, find(report, second).Why, "nothing needs it; waits for the detach of "+k.leaf)
		k.claim(idAt(k.today), "billing", "p", time.Now())
		k.end(reader)
		report = k.maintain()
		require.Equal(k.t, consumer.LeafDropped, find(report, k.leaf).State)
		require.Equal(k.t, consumer.LeafDropped, find(report, second).State)
	})
}

// A fence that begins until the detach is seen before the drop.
func TestRetentionLooksAgainBeforeTheDrop(t *testing.T) {
	onBoth(t, func(k *kept) {
		report, err := k.run(func(c *consumer.MaintainConfig) {
			*c = c.With(nil, func(point string) {
				if point == "detached" {
					k.fence(idAt(k.today.AddDate(0, 0, -8)), "PENDING", 0)
				}
			})
		})
		require.NoError(k.t, err)
		require.Contains(k.t, find(report, k.leaf).Why, "detached and kept: 1 of its events are open")
		require.True(k.t, k.exists(k.leaf))
		require.Contains(k.t, k.became(consumer.LeafWaiting, "detached and kept").Why, "open")
		k.exec("UPDATE onceward.fences SET status = 'COMPLETE', expires_at = now()")
		k.became(consumer.LeafDropped, "")
	})
}

func TestRetentionOfWhatSomebodyDetached(t *testing.T) {
	k := newKept(t, "15")
	young := k.day(-3)
	k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + young)
	report, err := k.run()
	require.ErrorContains(t, err, "name of a partition is taken", "its day is not made again beside it")
	l := find(report, young)
	require.True(t, l.Wrong)
	require.Contains(t, l.Why, `attach it again (as a member of the role onceward_owner: ALTER TABLE "onceward"."processed_events" ATTACH PARTITION "onceward"."`+young)
	require.True(t, k.exists(young))
	require.Equal(t, consumer.LeafDropped, find(report, k.leaf).State, "the others go on")
	attach := func() {
		t.Helper()
		_, err := k.conn.Exec(t.Context(), regexp.MustCompile(`ALTER TABLE .*\) TO \('[^)]*\)`).FindString(l.Why))
		require.NoError(t, err, l.Why)
	}
	attach()
	require.Empty(t, find(k.maintain(), young).Why)

	reader := k.reader()
	hand := k.dial(migrations.RoleConsumerMaintainer)
	_, err = hand.Exec(t.Context(), "SET lock_timeout = '100ms'")
	require.NoError(t, err)
	_, err = hand.Exec(t.Context(), "ALTER TABLE onceward.processed_events DETACH PARTITION onceward."+young+" CONCURRENTLY")
	require.ErrorContains(t, err, "lock timeout")
	k.end(reader)
	l = find(k.maintain(), young)
	require.True(t, l.Wrong)
	require.Contains(t, l.Why, "somebody began to detach it, although its claims are needed")
	require.True(t, k.exists(young))
	attach()
	require.Empty(t, find(k.maintain(), young).Why)
}

// A leaf that somebody detached before it was decided about goes as any other:
// when what is in it is settled, and with the horizon raised.
func TestRetentionDecidesAboutWhatSomebodyDetached(t *testing.T) {
	k := newKept(t, "15")
	k.fence(idAt(k.today.AddDate(0, 0, -8)), "PENDING", 0)
	k.exec("ALTER TABLE onceward.processed_events DETACH PARTITION onceward." + k.leaf)
	k.became(consumer.LeafWaiting, "1 of its events are open")
	require.Zero(t, k.maintain().Horizon, "nobody has decided")
	k.exec("DELETE FROM onceward.fences")
	report := k.maintain()
	require.Equal(t, consumer.LeafDropped, find(report, k.leaf).State)
	require.Equal(t, k.today.AddDate(0, 0, -7), report.Horizon.UTC())
}

// registration does what consumer.New does: it reads the horizon and sets a
// floor, under the lock.
func (k *kept) registration(group string) (tx pgx.Tx, floor time.Time) {
	k.t.Helper()
	tx = k.holding(migrations.RoleConsumer, "LOCK TABLE onceward.dedup_windows IN SHARE ROW EXCLUSIVE MODE")
	require.NoError(k.t, tx.QueryRow(k.t.Context(), "SELECT COALESCE(max(dropped_before), '2015-01-01') FROM onceward.dedup_horizon").Scan(&floor))
	if oldest := k.today.AddDate(0, 0, -8); floor.Before(oldest) {
		floor = oldest
	}
	_, err := tx.Exec(k.t.Context(), "INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor) VALUES ($1, '*', '7 days', $2)", group, floor)
	require.NoError(k.t, err)
	return tx, floor
}

// A group that registers keeps what it may need, or finds out what is gone: there
// is no moment between.
func TestRetentionAndANewGroup(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.exec("UPDATE onceward.dedup_windows SET floor = $1", k.today.AddDate(0, 0, -7)) // passed long ago
		early, floor := k.registration("early")
		require.Equal(k.t, k.today.AddDate(0, 0, -8), floor.UTC())
		k.became(consumer.LeafClosed, "another session changes windows")
		require.NoError(k.t, early.Commit(k.t.Context()))
		k.became(consumer.LeafOpen, `class "*" of group early needs it`)
		k.exec("DELETE FROM onceward.dedup_windows WHERE consumer_group = 'early'")

		// It registers when the leaf was judged and the lock is not taken yet.
		committed := make(chan error, 1)
		report, err := k.run(func(c *consumer.MaintainConfig) {
			c.LockTimeout = 10 * time.Second
			*c = c.With(nil, func(point string) {
				if point != "floors" {
					return
				}
				between, _ := k.registration("between")
				go func() { committed <- k.whenWaitedFor(between) }()
			})
		})
		require.NoError(k.t, err)
		require.NoError(k.t, <-committed)
		require.Contains(k.t, find(report, k.leaf).Why, "of group between needs it")
		require.True(k.t, k.exists(k.leaf))
		k.exec("DELETE FROM onceward.dedup_windows WHERE consumer_group = 'between'")

		report, err = k.run(func(c *consumer.MaintainConfig) {
			*c = c.With(nil, func(point string) {
				if point != "horizon" {
					return
				}
				late, floor := k.registration("late")
				require.Equal(k.t, k.today.AddDate(0, 0, -7), floor.UTC(), "decided, and not detached yet")
				require.NoError(k.t, late.Commit(k.t.Context()))
			})
		})
		require.NoError(k.t, err)
		require.Equal(k.t, consumer.LeafDropped, find(report, k.leaf).State)
	})
}

// whenWaitedFor commits a transaction as soon as a session waits for a lock.
func (k *kept) whenWaitedFor(tx pgx.Tx) error {
	for {
		var waiting int
		err := k.admin.QueryRow(k.t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting)
		if err != nil {
			return err
		}
		if waiting > 0 {
			return tx.Commit(k.t.Context())
		}
	}
}

func TestRetentionOfRows(t *testing.T) {
	onBoth(t, func(k *kept) {
		k.exec(`INSERT INTO onceward.attempts (event_id, consumer_group, last_error, expires_at)
			SELECT gen_random_uuid(), 'billing', 'e', now() + (CASE WHEN n <= 2500 THEN '-1 hour' ELSE '1 hour' END)::interval FROM generate_series(1, 2510) n`)
		low, high := k.today.AddDate(0, 0, -9), k.today
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
			k.exec(`INSERT INTO onceward.fences (event_id, consumer_group, name, status, owner, lease_until, request_fingerprint, expires_at)
				VALUES ($1, $2, $3, $4, 'me', now(), '\x00', now() + NULLIF($5, 'infinity')::interval)`, idAt(f.at), f.group, string(rune('a'+i)), f.status, f.expires)
		}
		dead := idAt(k.today)
		k.claim(dead, "billing", "d", time.Now())
		for i, state := range []string{"open", "requested", "redriven", "discarded", "discarded"} {
			k.letter(idAt(k.today), i, "handler", state)
		}
		k.exec("UPDATE onceward.consumer_dead_letters SET expires_at = now() - interval '3 hours'")
		k.exec("UPDATE onceward.consumer_dead_letters SET event_id = $1, claim_id = $1 WHERE kafka_offset = 4", dead)

		holder := k.holding(migrations.RoleConsumer, "SELECT FROM onceward.attempts WHERE expires_at < now() LIMIT 10 FOR UPDATE")
		rows := k.maintain().Rows
		require.EqualValues(k.t, 2490, rows[0].Removed, "what a delivery has locked is left")
		require.InDelta(k.t, time.Hour, rows[0].Lag, float64(time.Minute))
		require.EqualValues(k.t, 1, rows[1].Removed)
		require.InDelta(k.t, 48*time.Hour, rows[1].Lag, float64(time.Minute))
		require.EqualValues(k.t, 2, rows[2].Removed)
		k.end(holder)
		rows = k.maintain().Rows
		require.EqualValues(k.t, 10, rows[0].Removed)
		require.Zero(k.t, rows[0].Lag)
		require.Zero(k.t, rows[1].Removed)
		require.Equal(k.t, "bcde", k.text("SELECT string_agg(name, '' ORDER BY name) FROM onceward.fences"))
		require.Equal(k.t, "0 1 4", k.text("SELECT string_agg(kafka_offset::text, ' ' ORDER BY kafka_offset) FROM onceward.consumer_dead_letters"))
		k.exec("UPDATE onceward.processed_events SET outcome = 'p'")
		require.EqualValues(k.t, 1, k.maintain().Rows[2].Removed)
	})
}

// noLock is for how long an insert that nobody holds back may wait for a lock, which it
// does not at all, however busy the machine is.
const noLock = "10ms"

func patient(c *consumer.MaintainConfig) { c.LockTimeout = time.Second }

// inserts runs work and meanwhile claims events of today, one after the other, in a
// session that waits for no lock. It returns how many were made and how many were held
// back by one.
func (k *kept) inserts(conn *pgx.Conn, work func()) (made, heldBack int) {
	k.t.Helper()
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			_, err := conn.Exec(k.t.Context(), insertClaim, idAt(k.today), "billing", "p", time.Now())
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
	require.NoError(k.t, <-ended)
	return made, heldBack
}

// held makes inserts while work runs against a claim that is open in the partition that
// is to go, and says how many were held back.
func (k *kept) held(work func()) (heldBack int) {
	k.t.Helper()
	writer, claimant := k.dial(migrations.RoleConsumer), k.dial(migrations.RoleConsumer)
	_, err := writer.Exec(k.t.Context(), "SET lock_timeout = '"+noLock+"'")
	require.NoError(k.t, err)
	open, err := claimant.Begin(k.t.Context())
	require.NoError(k.t, err)
	_, err = open.Exec(k.t.Context(), insertClaim, idAt(k.today.AddDate(0, 0, -8)), "billing", "p", time.Now())
	require.NoError(k.t, err)
	made, heldBack := k.inserts(writer, work)
	k.t.Logf("inserts beside a claim that is open in the partition that goes: %d made, %d held back", made, heldBack)
	require.Greater(k.t, made+heldBack, 10, "they went on meanwhile")
	require.NoError(k.t, open.Commit(k.t.Context()))
	made, finishing := k.inserts(writer, func() { k.maintain(patient) })
	require.Positive(k.t, made)
	require.False(k.t, k.exists(k.leaf))
	return heldBack + finishing
}

// While a claim is held open in the partition that goes, and when it goes, other inserts
// wait for no lock.
func TestRetentionHoldsBackNoOtherInsert(t *testing.T) {
	onBoth(t, func(k *kept) {
		require.Zero(k.t, k.held(func() {
			k.became(consumer.LeafDetaching, "waits for transactions that are older", patient)
		}))
	})
}

// A plain DROP, as the defect, fails the same measurement.
func TestAPlainDropHoldsBackOtherInserts(t *testing.T) {
	k := newKept(t, "15")
	require.Positive(t, k.held(func() {
		_, err := k.conn.Exec(t.Context(), "SET lock_timeout = '1s'")
		require.NoError(t, err)
		_, err = k.conn.Exec(t.Context(), "DROP TABLE onceward."+k.leaf)
		require.True(t, partition.TimedOut(err), "the claim was not waited for: %v", err)
	}))
}

// An adopted group has its floor below the horizon: what was opened again for it
// stays until it has caught up, and nobody else is touched.
func TestRetentionAndAnAdoptedGroup(t *testing.T) {
	k := newKept(t, "15")
	blocked := k.day(-10)
	dead := idAt(k.today.AddDate(0, 0, -10))
	k.claim(dead, "billing", "d", k.today.AddDate(0, 0, -10))
	k.letter(dead, 1, "handler", "open")
	k.fence(dead, "PENDING", 0)
	k.day(-9)
	k.maintain() // drops the days -9 and -8, and keeps the day -10
	require.Equal(t, "1", k.text("SELECT count(*)::text FROM pg_inherits WHERE inhparent = 'onceward.processed_events'::regclass AND inhrelid::regclass::text < 'onceward.'||$1",
		partition.OfDay("processed_events", k.today.AddDate(0, 0, -7)).Name))
	report, err := consumer.Adopt(t.Context(), k.conn, consumer.AdoptConfig{Group: "fresh", From: k.today.AddDate(0, 0, -20), Reason: "a new view"})
	require.NoError(t, err)
	require.Len(t, report.Made, 12, "the hole too")
	for n := -20; n <= 0; n++ {
		k.claim(idAt(k.today.AddDate(0, 0, n)), "fresh", "p", time.Now())
	}
	require.Empty(t, k.audit())
	found, err := consumer.Audit(t.Context(), k.dial(migrations.RoleConsumer), consumer.AuditConfig{Group: "fresh"})
	require.NoError(t, err)
	require.Empty(t, found)

	k.became(consumer.LeafOpen, `class "*" of group fresh needs it; its floor is `+k.date(-20))
	k.progress("fresh", 0, k.today)
	k.exec("UPDATE onceward.consumer_dead_letters SET state = 'discarded'")
	k.exec("UPDATE onceward.fences SET status = 'COMPLETE', expires_at = now()")
	for n := -18; n < -7; n += 2 {
		k.maintain()
		require.Equal(t, k.date(n), k.floor("fresh"))
	}
	k.became(consumer.LeafDropped, "")
	require.False(t, k.exists(blocked))
	require.Equal(t, k.date(-7), k.floor("billing"))
	require.Equal(t, k.date(-7), k.text("SELECT to_char(dropped_before AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM onceward.dedup_horizon"))
}
