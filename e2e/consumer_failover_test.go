//go:build e2e

package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// TestConsumerFailover: the consumers' PostgreSQL dies and a standby is promoted
// that lacks its last commits, among them effects and the marks of offsets that
// Kafka has. What was lost is made again, because the offsets go back to where
// the new primary knows the group to be; every effect is there once; and the
// provider outside is asked again with the same key.
func TestConsumerFailover(t *testing.T) {
	t.Parallel()
	events := 1500
	if full() {
		events = 20_000
	}
	onAVersion(t, func(t *testing.T, version string) {
		// The consumers are at work when it happens, one of them dies in it, and
		// handlers fail all the time.
		t.Run("AtWork", func(t *testing.T) {
			t.Parallel()
			f := newFailover(t, version)
			f.produce(events)
			f.start(3, 5)
			f.untilHalf()
			f.awaitStandby(f.w)
			f.hold()
			f.produce(events / 2)
			f.untilAhead(events / 4)
			f.consumers[0].kill()
			f.failover()
			f.produce(events / 2)
			f.consumers[0].start()
			f.verify()
		})
		// Everything is finished when it happens, and nothing new arrives after it.
		t.Run("Idle", func(t *testing.T) {
			t.Parallel()
			f := newFailover(t, version)
			f.produce(200)
			f.start(2, 0)
			f.finish()
			f.hold()
			f.produce(200)
			f.finish()
			f.failover()
			f.verify()
		})
		// The consumers are down when it happens. The standby knows nothing of the
		// group: it was held behind before that began.
		t.Run("Down", func(t *testing.T) {
			t.Parallel()
			f := newFailover(t, version)
			f.produce(200)
			f.awaitStandby(f.w)
			f.hold()
			f.start(2, 0)
			f.finish()
			f.stop()
			f.failover()
			f.start(2, 0)
			f.verify()
		})
	})
}

// failover is a consumerGroup whose database has a standby.
type failover struct {
	*consumerGroup
	*replicated
	t       *testing.T
	version string
	before  []string // keys that had an effect on the primary when it died
}

func newFailover(t *testing.T, version string) *failover {
	t.Helper()
	r := newReplicated(t, version)
	f := &failover{consumerGroup: newConsumerGroupIn(newEnvironmentOn(t, r.primary), newEnvironment(t, version), 1), replicated: r, t: t, version: version}
	f.dsn = r.eitherDSN(f.w, billingLogin)
	// Each effect says in which history it was made: 00000001 before the failover.
	f.w.execute(`ALTER TABLE effects ADD COLUMN timeline text NOT NULL DEFAULT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)`)
	f.awaitStandby(f.w)
	return f
}

// untilHalf waits until about half of the events are finished, and their marks
// saved.
func (f *failover) untilHalf() {
	f.t.Helper()
	eventually(f.t, "half of the events are finished", 2*time.Minute, func() bool { return f.offsets() >= int64(f.events/2) })
}

// untilAhead waits until Kafka's offsets are ahead of what the standby knows by
// the given number of records.
func (f *failover) untilAhead(records int) {
	f.t.Helper()
	known := f.marksOnStandby()
	require.Positive(f.t, known, "the standby knows of the group's progress")
	eventually(f.t, "Kafka's offsets run ahead of the standby", time.Minute, func() bool { return f.offsets() >= known+int64(records) })
}

// marksOnStandby is what the group's offsets would be by the standby's marks.
func (f *failover) marksOnStandby() (sum int64) {
	conn := f.onStandby(f.w)
	defer conn.Close(f.t.Context())
	require.NoError(f.t, conn.QueryRow(f.t.Context(), `SELECT COALESCE(sum(high_offset + 1), 0) FROM onceward.progress WHERE consumer_group = $1`, f.group).Scan(&sum))
	return sum
}

// failover ends the primary, as a crash does, and promotes the standby.
func (f *failover) failover() {
	f.t.Helper()
	ctx := f.t.Context()
	rows, err := f.w.pool.Query(ctx, `SELECT key FROM effects`)
	require.NoError(f.t, err)
	f.before, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)
	ahead := f.offsets() - f.marksOnStandby()
	require.Positive(f.t, ahead, "Kafka's offsets are ahead of the standby")
	require.NoError(f.t, f.primary.Halt(ctx, pgserver.Immediate))
	f.promote(f.w)
	f.deadlocks = f.deadlocked()
	f.t.Logf("PostgreSQL %s: promoted; %d effects on the old primary, Kafka's offsets ahead of the standby by %d records", f.version, len(f.before), ahead)
}

// verify waits until the topic is worked off, and compares.
func (f *failover) verify() {
	f.t.Helper()
	f.finish()
	consumers := f.consumers
	f.stop()
	require.Empty(f.t, f.claimViolations())
	again := scalar[int](f.w, `SELECT count(*) FROM effects WHERE key = ANY($1) AND timeline > '00000001'`, f.before)
	require.Positive(f.t, again, "effects that were lost are made again")
	rewound := slices.ContainsFunc(consumers, func(c *consumerProcess) bool {
		return c.says("the database has lost commits") || c.says("this database knows nothing of it") // not one mark had reached the standby
	})
	require.True(f.t, rewound, "an operator can see it")
	f.t.Logf("PostgreSQL %s: %d events (%d that cannot be applied); %d of the effects of before were lost and made again; provider: %d calls for %d charges; violations: none",
		f.version, f.events, f.dead, again, scalar[int](f.outside, `SELECT sum(calls) FROM provider`), f.calls)
}
