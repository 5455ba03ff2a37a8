package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/consumer/internal/sqlstate"
	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/record"
)

// Processor claims events for one group in one database. Safe for concurrent
// use. Make one with [New]; there is nothing to close.
type Processor struct {
	member
	windows  windows
	marks    marks
	calls    calls
	attempts attempts
	breaks   breaks
	letters  letters
	memory   memorized
}

// member is one process of a group: what its configuration says. Nothing of it changes.
type member struct {
	group          string
	db             *pgxpool.Pool
	lockTimeout    time.Duration
	bounds         string // the statement with which transactions begin
	incarnation    string // tells this Processor from any other one, of this process or another
	handlerTimeout time.Duration
	retry          Retry
	readers        []RecordReader
	handled        func(group, eventType string, took time.Duration)
	log            *slog.Logger
	handling       sync.Map // *running of the events whose FuncHandlers run, by key
}

// ErrNotInstalled: the database has no tables of the consumer's side.
var ErrNotInstalled = errors.New("the consumer's tables are not installed")

// New checks the configuration and that the consumer's tables exist, and registers the group's classes.
// The error names the field and its value, or is [ErrNotInstalled], [ErrInstallation] for a login without
// the rights of the consumer's role, or [ErrPooler] for a pool behind a pooler whose mode is
// cache_statement, pgx's default, or describe_exec.
func New(ctx context.Context, cfg Config) (*Processor, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	classes, err := CheckClasses(cfg.Classes)
	if err != nil {
		return nil, err
	}
	found, err := consumerdb.New(cfg.DB).ConsumerTables(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for the consumer's tables: %w", permitted(cfg.DB, err))
	}
	switch {
	case !found.Installed:
		return nil, fmt.Errorf("%w in database %s; connect to the one that has them; or, if this is to be it, run `outboxctl migrate up --side consumer` there", ErrNotInstalled, found.Database)
	case !found.Current:
		return nil, fmt.Errorf("%w: those in database %s are of an older release; run `outboxctl migrate up --side consumer` there", ErrNotInstalled, found.Database)
	}
	if err := statement.Usable(ctx, cfg.DB, found); err != nil {
		return nil, err
	}
	p := newProcessor(cfg, classes)
	if err := p.windows.register(ctx); err != nil {
		return nil, permitted(cfg.DB, err)
	}
	return p, nil
}

// newProcessor puts one together, of a configuration that was checked.
func newProcessor(cfg Config, classes []Class) *Processor {
	p := &Processor{member: member{
		group:          cfg.Group,
		db:             cfg.DB,
		lockTimeout:    cfg.LockTimeout,
		bounds:         transaction.Bounds(cfg.LockTimeout, max(cfg.SessionTimeout, cfg.HandlerTimeout+sessionSlack)),
		incarnation:    uuid.NewString(),
		handlerTimeout: cfg.HandlerTimeout,
		retry:          cfg.Retry,
		readers:        slices.Clone(cfg.Readers),
		handled:        cfg.Handled,
		log:            cfg.Logger.With("group", cfg.Group),
	}}
	p.windows.member, p.windows.classes, p.windows.skew = &p.member, classes, cfg.Skew
	p.marks.member, p.marks.windows = &p.member, &p.windows
	p.calls.member, p.calls.inTx = &p.member, running{member: &p.member, inTx: true}
	p.attempts.member, p.attempts.windows = &p.member, &p.windows
	p.memory.member, p.memory.windows, p.memory.marks, p.memory.of = &p.member, &p.windows, &p.marks, cfg.Completed
	p.letters.member, p.letters.windows, p.letters.clock = &p.member, &p.windows, time.Now
	p.letters.most, p.letters.mostKeys = maxParkedLetters, maxParkedKeys
	return p
}

// permitted names the role that the login of a program lacks.
func permitted(db *pgxpool.Pool, err error) error {
	if !sqlstate.Is(err, "42501") { // insufficient_privilege
		return err
	}
	login := pgx.Identifier{db.Config().ConnConfig.User}.Sanitize()
	return fmt.Errorf("%w; then, for a program's login: `GRANT onceward_consumer TO %s` (where the roles have another --prefix than onceward, that): %w", ErrInstallation, login, err)
}

// Group returns the name of the consumer group.
func (p *Processor) Group() string { return p.group }

// StuckHandlers counts the handlers of this process that did not return after
// their time was over, and are still running.
func (p *Processor) StuckHandlers() int { return p.calls.watch.Stuck() }

// claimID is the id under which the group claims the event.
func (m *member) claimID(ev Event) uuid.UUID {
	if ev.ReplayMode == record.ReplayReprocess && ev.ReplayGroup == m.group {
		return ev.ReplayID
	}
	return ev.Key.UUID()
}

// copied reports whether the record is a copy that was published later than the
// event: a repair, or a replay that this group claims under the event's own id.
func (m *member) copied(ev *Event) bool {
	return ev.RepairID != uuid.Nil || ev.ReplayID != uuid.Nil && m.claimID(*ev) != ev.ReplayID
}

func (p *Processor) newItem(ev Event) *item {
	it := &item{ev: ev, id: p.claimID(ev), fingerprint: ev.Fingerprint(), content: p.windows.byContent(ev.Type)}
	it.tries = memory.Tries(it.id, it.content, ev.Source)
	return it
}

// effectOf is the item of an effect. Within a delivery that is about its event,
// whatever the handler made of its copy.
func (p *Processor) effectOf(ev Event, run *running) *item {
	if run != nil {
		ev = run.event
	}
	return p.newItem(ev)
}

// Claim claims the event for the group inside the caller's own transaction; [Router.Handle] does it for handlers.
// Apply the effect in it only if the outcome is [Processed], and commit after others, too: a copy's place is kept.
//
// It blocks while another transaction holds the claim, up to Config.LockTimeout, after which the outcome is
// [InProgress] and the transaction is aborted: roll back and try again later. Config.SessionTimeout and
// synchronous_commit = on hold for the rest of the transaction.
//
// Any error aborts the transaction. It matches [ErrNoPartition] when no partition covers the key's time; see
// [IsInfrastructure] for the others. In REPEATABLE READ and SERIALIZABLE a duplicate may be such an error (40001)
// first, and a Duplicate when the transaction is tried again.
//
// A transaction that claims several events must claim them in the order of their UUIDs: two that claim in opposite
// order deadlock.
//
// A replay in the mode [record.ReplayReprocess] for this group is claimed under its replay id, so that it is applied
// once more, and once only; for every other group it is a copy of the original event.
//
// An event whose time lies below the floor of its [Class] is judged by where it came from: late, or a replay. With the
// outcomes [Replay] and [FromFuture] nothing was claimed. A group that applies events without Source only in
// transactions of its own should call [Processor.SaveProgress] now and then, because floors follow its stream time.
func (p *Processor) Claim(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
	if err := ev.validate(); err != nil {
		return Claim{}, err
	}
	if err := transaction.Encoded(tx.Conn()); err != nil {
		return Claim{}, fmt.Errorf("claim %s: %w", ev.Key, err)
	}
	if _, err := tx.Exec(ctx, p.bounds); err != nil {
		return Claim{}, fmt.Errorf("claim %s: bound the transaction: %w", ev.Key, err)
	}
	transaction.Forget(tx.Conn()) // a claim may fail, of which Begin would not know; tx has not ended
	return claimant{p, statement.On(tx)}.claimIn(ctx, ev)
}

// Complete stores a result, JSON, in the claim that [Processor.Claim] made in
// this transaction, for duplicates to get it as Claim.Result. It is optional.
func (p *Processor) Complete(ctx context.Context, tx pgx.Tx, ev Event, result []byte) error {
	return claimant{p, statement.On(tx)}.completeOne(ctx, ev, result)
}

// ClaimSQL is [Processor.Claim] for database/sql and what is built on it, with pgx's stdlib or lib/pq as
// the driver. Of sqlx, bun and gorm give the *sql.Tx inside of their transactions.
func (p *Processor) ClaimSQL(ctx context.Context, tx *sql.Tx, ev Event) (Claim, error) {
	if err := ev.validate(); err != nil {
		return Claim{}, err
	}
	if _, err := tx.ExecContext(ctx, p.bounds); err != nil {
		return Claim{}, fmt.Errorf("claim %s: bound the transaction: %w", ev.Key, err)
	}
	return claimant{p, statement.OnSQL(tx)}.claimIn(ctx, ev)
}

// CompleteSQL is [Processor.Complete] for database/sql.
func (p *Processor) CompleteSQL(ctx context.Context, tx *sql.Tx, ev Event, result []byte) error {
	return claimant{p, statement.OnSQL(tx)}.completeOne(ctx, ev, result)
}

// SaveProgress writes marks, durably, after the effects that they stand for. The write-ahead log keeps the
// order: a database that has a mark has every effect before it, even after a failover that lost commits.
// So Kafka's offsets may follow the marks, never lead them.
//
// History is what [Processor.Progress] said when the work began. On another one nothing is written and the
// error is [ErrHistory], because the marks may stand for effects that are lost. So it is when a mark is
// gone, or lower than this Processor has last read or saved it: higher it may be, by another member.
// Without marks only the history is found out.
func (p *Processor) SaveProgress(ctx context.Context, history string, marks []Mark) error {
	return p.marks.save(ctx, history, marks, false)
}

// Progress reads all marks of the group, and the database's history.
func (p *Processor) Progress(ctx context.Context) (Progress, error) { return p.marks.read(ctx) }
