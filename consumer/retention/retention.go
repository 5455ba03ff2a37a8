package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/pooler"
)

// ErrMaintained: another session maintains the partitions of processed_events.
var ErrMaintained = errors.New("another session is maintaining the partitions of processed_events")

// Defaults of [Config].
const (
	defaultAhead       = claims.DaysAhead
	DefaultLockTimeout = 3 * time.Second
)

// maxDays bounds what is made ahead: ten years of daily partitions are
// more than PostgreSQL plans well with.
const maxDays = 3660

// maxTimeout is the longest timeout that PostgreSQL's settings can hold.
const maxTimeout = (1<<31 - 1) * time.Millisecond

// Config says how [Maintain] works. What is kept is not in it: that is
// each class's window. The zero value is the default.
type Config struct {
	// Ahead is how many days after today have a partition, or 64 when that is more:
	// claims by arrival lie up to two buckets of 31 days ahead, and a class that is
	// registered claims at once. Days are UTC days of the database's clock. Default
	// 64, at least 1.
	Ahead int
	// LockTimeout bounds each wait for a lock, after which the step is left for
	// the next run. Default 3 s; more than deadlock_timeout (1 s), so that an
	// autovacuum in the way is cancelled.
	LockTimeout time.Duration
	// DryRun changes nothing and says what would be done. It needs no rights but
	// to read.
	DryRun bool

	clock  func(time.Time) time.Time // what the database's clock is taken for, in tests
	settle time.Duration             // claims.FloorSettles, or what a test wants
	crash  func(point string)        // called between two steps, in tests
}

func (c Config) withDefaults() (Config, error) {
	if c.Ahead == 0 {
		c.Ahead = defaultAhead
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = DefaultLockTimeout
	}
	if c.clock == nil {
		c.clock = func(t time.Time) time.Time { return t }
	}
	if c.settle == 0 {
		c.settle = claims.FloorSettles
	}
	if c.crash == nil {
		c.crash = func(string) {}
	}
	switch {
	case c.Ahead < 1 || c.Ahead > maxDays:
		return c, fmt.Errorf("config: Ahead %d: want 1 to %d days", c.Ahead, maxDays)
	case c.LockTimeout < time.Millisecond || c.LockTimeout > maxTimeout:
		return c, fmt.Errorf("config: LockTimeout %s: want 1ms to %s", c.LockTimeout, maxTimeout)
	}
	return c, nil
}

// Report is what [Maintain] did and found.
type Report struct {
	Made    []string      // partitions made; with DryRun those that would be
	Blocked string        // why those that are missing could not be made; empty: nothing to say
	Floors  []FloorReport // by group and class
	Leaves  []LeafReport  // oldest first
	Rows    []RowsReport  // what expires row by row, by table
	Ahead   int           // days after today that are covered without a hole
	Horizon time.Time     // claims before it may be gone; zero: none is
	Bytes   int64         // of all partitions that are left, with indexes
	Growing bool          // claims were made of events of today or yesterday
	// Overdue is for how long the oldest partition that every floor has passed is
	// there all the same: the lag of the removal. Zero when there is none. What a group
	// needed that is retired is overdue since then at most, and all since the last
	// class was registered, or floor raised by an operator.
	Overdue time.Duration
}

// Maintain raises the floors of all groups, drops the partitions of
// onceward.processed_events that every floor has passed, makes those that are
// missing ahead, and removes rows of other tables that have expired. Call it every
// few minutes: a floor is raised by one call, and the partition below it dropped
// by one that comes at least a minute later.
//
// A floor follows the group's stream time: the earliest of the event times up to
// which its topic partitions are finished, minus the window, down to the start of
// a UTC day. One call raises it by two days at most. It is never raised by the
// clock alone, so that an idle group, or one that works off a backlog, keeps what
// it needs; only that of a class by arrival is, whose claims lie ahead. A partition
// goes when every floor and the clock have passed its end. It stays while an event
// in it is open: effects of it that nothing has ended. Dead letters do not keep it.
//
// The connection belongs to the owner of the tables or a member of it, and is the
// caller's alone meanwhile; a pooler in transaction mode will not do. One session
// works at a time, another gets [ErrMaintained]. What waits for a lock or for
// older transactions is in the report and no error; an error does not keep the
// other steps from their turn. Beside a DEFAULT partition none is made and none that
// is attached goes, and the error matches [consumer.ErrDefaultPartition] as well.
func Maintain(ctx context.Context, conn *pgx.Conn, cfg Config) (Report, error) {
	var report Report
	cfg, err := cfg.withDefaults()
	if err != nil {
		return report, err
	}
	if err := pooler.Direct(ctx, conn); err != nil {
		return report, fmt.Errorf("maintain partitions: %w", err)
	}
	exit := partition.Exit{Conn: conn, Table: claims.Table, Detached: func() { cfg.crash("detached") }}
	m := &maintenance{conn: conn, q: consumerdb.New(conn), cfg: cfg, report: &report, exit: exit}
	leave, err := m.enter(ctx)
	if err != nil {
		return report, fmt.Errorf("maintain partitions: %w", err)
	}
	defer leave()
	var errs []error
	for _, step := range []func(context.Context) error{m.raiseFloors, m.premake, m.goThroughLeaves, m.expire,
		m.measure} {
		errs = append(errs, step(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return report, fmt.Errorf("maintain partitions: %w", err)
	}
	return report, nil
}

// maintenance is one run of [Maintain].
type maintenance struct {
	conn   *pgx.Conn
	q      *consumerdb.Queries
	cfg    Config
	report *Report
	now    time.Time
	// windows are the classes of all groups, as they were read last.
	windows []consumerdb.WindowsRow
	// rest is the DEFAULT partition; empty: there is none.
	rest string
	exit partition.Exit // of leaves that nothing needs
}

// enter takes the lock, bounds waits and reads the clock.
func (m *maintenance) enter(ctx context.Context) (leave func(), err error) {
	lock := claims.Lock
	if m.cfg.DryRun {
		lock = 0
	}
	now, leave, err := partition.Enter(ctx, m.conn, lock, m.cfg.LockTimeout)
	if errors.Is(err, partition.ErrBusy) {
		err = ErrMaintained
	}
	if err != nil {
		return nil, err
	}
	m.now = m.cfg.clock(now)
	return leave, nil
}

// locked runs work in a transaction that keeps registration and other changes of
// windows out. Who only looks takes no lock, for which it would need rights.
func (m *maintenance) locked(ctx context.Context, work func(q *consumerdb.Queries) error) error {
	return pgx.BeginFunc(ctx, m.conn, func(tx pgx.Tx) error {
		q := consumerdb.New(tx)
		if !m.cfg.DryRun {
			if err := q.LockWindows(ctx); err != nil {
				return err
			}
		}
		return work(q)
	})
}

// premake makes the days from one longest window ago, or from the lowest floor, to as
// far ahead as claims may lie, but none whose claims may be gone.
func (m *maintenance) premake(ctx context.Context) error {
	horizon, err := claims.Horizon(ctx, m.q)
	if err != nil {
		return err
	}
	days := claims.Days(m.now, m.longest(), max(m.cfg.Ahead, claims.OldBucketDays(m.windows, m.now)))
	for _, w := range m.windows {
		if w.RetiredAt == nil {
			days.First = slices.MinFunc([]time.Time{days.First, w.Floor}, time.Time.Compare)
		}
	}
	if first := horizon.Add(24*time.Hour - time.Nanosecond); first.After(days.First) {
		days.First = first
	}
	if m.cfg.DryRun {
		m.report.Made, err = partition.Missing(ctx, m.conn, claims.Table, days)
	} else {
		m.report.Made, err = partition.Ensure(ctx, m.conn, claims.Table, "event_id", days)
	}
	var rest *partition.DefaultError
	switch {
	case errors.As(err, &rest): // measure tells it
		m.report.Blocked = fmt.Sprintf("beside the DEFAULT partition %s none is made", rest.Partition)
		return nil
	case partition.TimedOut(err): // somebody alters the table now; Ahead tells when this goes on for days
		m.report.Blocked = fmt.Sprintf("another session held a lock on %s for %s; the next run tries again", claims.Table, m.cfg.LockTimeout)
		return nil
	}
	return err
}

// longest is for how long the classes that are in use need claims, at most.
func (m *maintenance) longest() time.Duration {
	longest := time.Duration(0)
	for _, w := range m.windows {
		if w.RetiredAt == nil {
			longest = max(longest, behindClock(w, m.now))
		}
	}
	if longest == 0 {
		return consumer.DefaultWindow
	}
	return longest
}

// behindClock is for how long before now a class needs claims: its window or, when
// it claims by arrival, nothing, because its ids lie ahead; but for those of the
// releases that claimed under the starts of buckets. It is pure.
func behindClock(w consumerdb.WindowsRow, now time.Time) time.Duration {
	b := claims.BucketsIn(w)
	switch {
	case w.Keyed != claims.ByArrival:
		return windowOf(w)
	case b.Changing(now):
		return b.Old
	}
	return 0
}

func windowOf(w consumerdb.WindowsRow) time.Duration {
	return consumerdb.Micros(w.WindowUs)
}
