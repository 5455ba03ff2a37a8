package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/partition"
)

// ErrMaintained: another session maintains the partitions of this outbox.
var ErrMaintained = errors.New("another session is maintaining the partitions of the outbox")

// Defaults of [Config].
const (
	DefaultAhead       = 14
	DefaultKeep        = 7
	defaultLockTimeout = 3 * time.Second
)

// MaxDays bounds both directions: ten years of daily partitions are more
// than PostgreSQL plans well with.
const MaxDays = 3660

// Config says what [Maintain] makes and keeps. Days are UTC days of the
// database's clock.
type Config struct {
	// Ahead is how many days after today have a partition. Default 14, at least 1.
	Ahead int
	// Keep is how many days before today are kept. An event whose key is older
	// is refused. Default 7, at least 1.
	Keep int
	// LockTimeout bounds each wait for a lock, after which the step is left for
	// the next run. It is also how long the leaf's writers can be held up by a
	// closing that waits. Default 3 s; more than deadlock_timeout (1 s), so that
	// an autovacuum in the way is cancelled.
	LockTimeout time.Duration
	// DropBefore lets partitions go whose rows are older than a relay that began
	// with outbox.start: now, and were never published. It is the operator's
	// reason, which is written down; empty: they are kept.
	DropBefore string
	// DryRun changes nothing and says what would be done.
	DryRun bool
}

// ConfigError says which field of a [Config] is wrong, and why.
type ConfigError struct {
	Field  string
	Detail string // value and what is wanted
}

// Error implements error.
func (e *ConfigError) Error() string { return "configure retention: " + e.Field + " = " + e.Detail }

// Validate returns a [*ConfigError] for what [Maintain] would refuse.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

func (c Config) withDefaults() (Config, error) {
	c.Ahead = cmp.Or(c.Ahead, DefaultAhead)
	c.Keep = cmp.Or(c.Keep, DefaultKeep)
	c.LockTimeout = cmp.Or(c.LockTimeout, defaultLockTimeout)
	switch {
	case c.Ahead < 1 || c.Ahead > MaxDays:
		return c, &ConfigError{"Ahead", fmt.Sprintf("%d: want 1 to %d days", c.Ahead, MaxDays)}
	case c.Keep < 1 || c.Keep > MaxDays:
		return c, &ConfigError{"Keep", fmt.Sprintf("%d: want 1 to %d days", c.Keep, MaxDays)}
	case c.LockTimeout < time.Millisecond:
		return c, &ConfigError{"LockTimeout", fmt.Sprintf("%s: want at least 1ms", c.LockTimeout)}
	}
	return c, nil
}

// LeafState is how far retention has got with one partition of the outbox.
type LeafState = partition.State

// States of a leaf.
const (
	LeafOpen      = partition.Open      // takes events
	LeafClosed    = partition.Closed    // takes none any more, and may be dropped
	LeafWaiting   = partition.Waiting   // closed, and something in it is not proved published
	LeafDetaching = partition.Detaching // leaving the table, waits for older transactions
	LeafDropped   = partition.Dropped   // gone
)

// LeafReport is what became of one leaf.
type LeafReport struct {
	Name     string    // without its schema
	From, To time.Time // its event times, To excluded
	State    LeafState
	Why      string // what it waits for, or would be done; empty: nothing to say
	Wrong    bool   // it will not mend itself: Why says what an operator does
	Rows     int64  // at the last ANALYZE; -1: there was none
	Bytes    int64  // on disk, with indexes
}

// Report is what [Maintain] did.
type Report struct {
	Made   []string     // partitions made; with DryRun those that would be
	Leaves []LeafReport // oldest first
	Ahead  int          // days after today that are covered without a hole; 0 where today is not
	Today  bool         // events of now have a partition
	// With DryRun: which days cannot be made, because a table has their name, and what mends it; empty: all can.
	Taken string
}

// Maintain makes the partitions that are missing ahead, closes those that are
// older than Keep, and drops those of which everything is published. It is meant
// to be called every few minutes: a leaf is closed by one call and dropped by a
// later one, when the relays have written a snapshot.
//
// The connection belongs to the owner of the table or a member of it, and is the
// caller's alone meanwhile; a pooler in transaction mode will not do. One session
// works at a time, another gets [ErrMaintained]. What waits for a lock or for a
// relay is in the report and no error; an error does not keep the other leaves
// from their turn. Where the table has a DEFAULT partition nothing is changed, the
// report says what would be done, and the error is its [cdc.StartError].
func Maintain(ctx context.Context, conn *pgx.Conn, cfg Config) (Report, error) {
	var report Report
	cfg, err := cfg.withDefaults()
	if err != nil {
		return report, err
	}
	m := &maintenance{conn: conn, cfg: cfg, exit: partition.Exit{Conn: conn, Table: outboxTable}}
	leave, err := m.enter(ctx)
	if err != nil {
		return report, fmt.Errorf("maintain partitions: %w", err)
	}
	defer leave()
	made, err := m.premake(ctx)
	report.Made = made
	if defaultPartition(err) != nil {
		m.cfg.DryRun, err = true, nil // nothing can be made beside it, or detached; PartitionsAhead says it
	}
	var taken *partition.TakenError
	if m.cfg.DryRun && errors.As(err, &taken) {
		report.Taken, err = taken.Error(), nil
	}
	if partition.TimedOut(err) {
		err = nil // somebody alters the table now; Ahead tells when this goes on for days
	}
	errs := []error{err}
	leaves, err := m.leaves(ctx)
	if defaultPartition(err) == nil {
		errs = append(errs, err)
	}
	for i := range leaves {
		step, err := m.advance(ctx, &leaves[i])
		if err != nil {
			err = fmt.Errorf("partition %s: %w", leaves[i].Name, err)
		}
		report.Leaves, errs = append(report.Leaves, LeafReport(step)), append(errs, err)
	}
	errs = append(errs, m.ask(ctx, report.Leaves))
	report.Ahead, report.Today, err = Ahead(ctx, conn)
	if err := errors.Join(append(errs, err)...); err != nil {
		return report, fmt.Errorf("maintain partitions: %w", err)
	}
	return report, nil
}

// Ahead counts the whole UTC days after today, by the database's clock,
// that have a partition, up to the first that has none, and says whether events of
// now have one: where they have none nobody can write, and the count is 0. A DEFAULT
// partition, which takes every event, counts for none: it is told by a
// [cdc.StartError] beside the count. It needs no rights.
func Ahead(ctx context.Context, conn *pgx.Conn) (days int, today bool, err error) {
	existing, err := partition.List(ctx, conn, outboxTable)
	unwanted := defaultPartition(err)
	if err != nil && unwanted == nil {
		return 0, false, err
	}
	now, err := partition.Clock(ctx, conn)
	if err != nil {
		return 0, false, err
	}
	return partition.Ahead(existing, now), partition.Has(existing, now), unwanted
}

// defaultPartition finds, in the error of package partition, the one that names a
// DEFAULT partition; nil: it is none.
func defaultPartition(err error) error {
	var unwanted *partition.DefaultError
	if !errors.As(err, &unwanted) {
		return nil
	}
	return cdc.DefaultPartition(unwanted.Partition)
}

// NoPartitionToday is what is wrong where events of now have no partition. The
// relay goes on: it is producers that fail.
func NoPartitionToday() *cdc.StartError {
	return &cdc.StartError{Code: cdc.CodeNoPartition, What: "onceward.outbox has no partition of today (UTC): every Enqueue fails",
		Cure: "outboxctl partitions maintain --config relay.yaml (or migrate up --side outbox); where that day's table stands there detached, it says how to attach it"}
}

// outboxTable is the partitioned table; its leaves are in the same schema.
const outboxTable = "onceward.outbox"

// maintainLock is the advisory lock of the one maintainer of a database,
// "outboxpt" in ASCII.
const maintainLock int64 = 0x6f7574626f787074

// maintenance is one run of [Maintain].
type maintenance struct {
	conn   *pgx.Conn
	cfg    Config
	cutoff time.Time // leaves that end by then are past keep
	today  time.Time
	exit   partition.Exit
}

// enter takes the lock, bounds waits and reads the clock.
func (m *maintenance) enter(ctx context.Context) (leave func(), err error) {
	lock := maintainLock
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
	m.today = partition.Day(now)
	m.cutoff = m.today.AddDate(0, 0, -m.cfg.Keep)
	return leave, nil
}

// ask has every relay write a published snapshot when a leaf waits for one: a
// relay that has nothing to publish writes none by itself.
func (m *maintenance) ask(ctx context.Context, leaves []LeafReport) error {
	if m.cfg.DryRun || !slices.ContainsFunc(leaves, func(l LeafReport) bool { return l.State == LeafWaiting }) {
		return nil
	}
	// Transactional, so that its commit flushes it at once.
	if _, err := m.conn.Exec(ctx, "SELECT pg_catalog.pg_logical_emit_message(true, $1, ''::pg_catalog.text)", cdc.AskPrefix); err != nil {
		return fmt.Errorf("ask for a published snapshot: %w", err)
	}
	return nil
}

// premake makes the days from keep to ahead that are missing.
func (m *maintenance) premake(ctx context.Context) ([]string, error) {
	days := partition.Span{First: m.cutoff, Last: m.today.AddDate(0, 0, m.cfg.Ahead), Today: m.today}
	if !m.cfg.DryRun {
		return partition.Ensure(ctx, m.conn, outboxTable, "id", days)
	}
	return partition.Missing(ctx, m.conn, outboxTable, days)
}
