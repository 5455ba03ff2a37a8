package migrations

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/pgconf"
)

// Errors that callers branch on.
var (
	// ErrOldServer: PostgreSQL is older than the oldest that is supported, 15.
	ErrOldServer = errors.New("server is too old")
	// ErrEncoding: the database is not encoded in UTF8.
	ErrEncoding = errors.New("the database has another encoding than UTF8")
	// ErrNewerSchema: the database was migrated by a newer release.
	ErrNewerSchema = errors.New("schema is newer than this binary")
	// ErrOlderSchema: the database lacks a migration that this binary needs.
	ErrOlderSchema = errors.New("schema is older than this binary needs")
	// ErrPublication: a publication of the right name has other content.
	ErrPublication = errors.New("publication is not what the relay needs")
	// ErrHostileDependency: something in schema onceward leans on a function that is
	// neither PostgreSQL's nor Onceward's.
	ErrHostileDependency = errors.New("schema onceward leans on foreign functions")
	// ErrSlotExists: a relay's replication slot still exists.
	ErrSlotExists = errors.New("a relay's slot still exists")
	// ErrLocked: another migration held the lock for too long.
	ErrLocked = errors.New("another migration is running")
)

// schemaName is the schema of everything that Onceward makes in a database.
const schemaName = "onceward"

// Partitions that Up makes, in days around today (UTC). Claims by arrival lie up to
// two buckets of 31 days ahead, and a class that is registered claims at once.
const (
	daysBack        = 7
	daysAhead       = 14
	claimsDaysAhead = 64
)

// Config configures a [Migrator].
type Config struct {
	// Pool reaches the database as the owner of the schema or a member of it
	// ([RoleMaintainer]); a member becomes the owner, in sessions of its own.
	// Required. One session is taken out of it per Up or Down to hold the lock.
	// PgBouncer in transaction mode cannot hold it: connect directly for all but
	// [Migrator.Status]. The sessions that do the work are the Migrator's own, with
	// the pool's settings and a search_path that ends at PostgreSQL's own schema.
	Pool *pgxpool.Pool
	// Side is what to install. Required.
	Side Side
	// Relay is the relay whose publication Up makes; only on the outbox side.
	// [a-z0-9_]{1,54}. Empty: no publication is made.
	Relay string
	// LockTimeout is how long to wait for another migration. 0 means 1 minute.
	LockTimeout time.Duration
	// Now is the clock that says what today is. nil means time.Now.
	Now func() time.Time
}

// Migrator installs, checks and removes one side. It owns no connection but
// those of the pool and starts no goroutine; its methods may run concurrently.
type Migrator struct {
	cfg Config
}

var relayName = regexp.MustCompile(`^[a-z0-9_]{1,54}$`)

// New returns a Migrator. It does not touch the database.
func New(cfg Config) (*Migrator, error) {
	if cfg.Pool == nil {
		return nil, errors.New("migrations: Pool is not set")
	}
	if _, err := ParseSide(string(cfg.Side)); err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	if cfg.Relay != "" {
		if cfg.Side != Outbox {
			return nil, fmt.Errorf("migrations: Relay %q: only the outbox side has a publication", cfg.Relay)
		}
		if err := ValidateRelay(cfg.Relay); err != nil {
			return nil, fmt.Errorf("migrations: %w", err)
		}
	}
	if cfg.LockTimeout < 0 {
		return nil, fmt.Errorf("migrations: LockTimeout %s: must not be negative", cfg.LockTimeout)
	}
	if cfg.LockTimeout == 0 {
		cfg.LockTimeout = time.Minute
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Migrator{cfg: cfg}, nil
}

// ValidateRelay checks a relay's name, from which slot and publication get
// theirs: [a-z0-9_]{1,54}, so that both fit in PostgreSQL's 63 bytes.
func ValidateRelay(name string) error {
	if !relayName.MatchString(name) {
		return fmt.Errorf("relay name %q: want 1 to 54 of a-z, 0-9 and _", name)
	}
	return nil
}

// PublicationName returns the name of a relay's publication.
func PublicationName(relay string) string { return "onceward_" + relay }

// Result says what Up or Down did. Empty fields: nothing of that kind.
type Result struct {
	From, To    int64    // versions before and after; 0 is not installed
	Partitions  []string // made
	Publication string   // made
	Dropped     []string // by Down, besides the tables: publications, the schema
	Kept        []string // by Down, with the reason
	NotValid    []string // rules of onceward.outbox that older rows break; they hold for new ones
}

// Up installs the side or brings it up to date. It may be repeated at any time
// and does nothing where nothing is missing. After a migration the [Roles] that
// are there get their rights on what is new. It blocks while another migration
// of this database runs.
func (m *Migrator) Up(ctx context.Context) (Result, error) {
	var res Result
	err := m.working(ctx, func(ctx context.Context, m *Migrator) (err error) {
		res, err = m.up(ctx)
		return err
	})
	if err != nil {
		return res, fmt.Errorf("migrate up, side %s: %w", m.cfg.Side, err)
	}
	return res, nil
}

// Down removes the side with everything in it: every event, claim and dead
// letter. There is no way back but a backup. It blocks while another migration
// of this database runs.
func (m *Migrator) Down(ctx context.Context) (Result, error) {
	var res Result
	err := m.working(ctx, func(ctx context.Context, m *Migrator) (err error) {
		res, err = m.down(ctx)
		return err
	})
	if err != nil {
		return res, fmt.Errorf("migrate down, side %s: %w", m.cfg.Side, err)
	}
	return res, nil
}

// UpSQL returns the statements that [Migrator.Up] would run now, without
// running any. Lines that start with -- say what goose does by itself.
func (m *Migrator) UpSQL(ctx context.Context) ([]string, error) {
	var out []string
	err := m.pinned(ctx, func(m *Migrator) (err error) {
		out, err = m.upSQL(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("plan migrate up, side %s: %w", m.cfg.Side, err)
	}
	return out, nil
}

// DownSQL returns the statements that [Migrator.Down] would run now, without
// running any.
func (m *Migrator) DownSQL(ctx context.Context) ([]string, error) {
	var out []string
	err := m.pinned(ctx, func(m *Migrator) (err error) {
		out, err = m.downSQL(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("plan migrate down, side %s: %w", m.cfg.Side, err)
	}
	return out, nil
}

// Status reads what is installed, in one read-only transaction of the pool, which
// may lead through PgBouncer in transaction mode. It waits for no lock.
func (m *Migrator) Status(ctx context.Context) (Status, error) {
	var st Status
	err := pgx.BeginTxFunc(ctx, m.cfg.Pool, pgx.TxOptions{BeginQuery: pgconf.BeginReadOnly},
		func(tx pgx.Tx) (err error) {
			st, err = m.status(ctx, tx)
			return err
		})
	if err != nil {
		return Status{}, fmt.Errorf("migrate status, side %s: %w", m.cfg.Side, err)
	}
	return st, nil
}
