package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/internal/sqlstate"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/outbox"
)

// Bounds of the checks that read rows, so that an audit of a big table ends.
const (
	// patience is how long one statement may take, and a check as a whole
	// before it begins another one.
	patience = 10 * time.Second
	// tailPages is how many pages of 8 kB are read at the end of each partition,
	// where its newest rows are: about 8,000. A row that nobody should have made
	// lies there, because old partitions get no others.
	tailPages = 128
	// maxRows is how many suspects a statement returns.
	maxRows = 1000
)

// Config says what [Check] looks at.
type Config struct {
	// Group limits what is said of claims, letters, fences and windows to one
	// consumer group. Default: all.
	Group string
	// Catalog leaves out the checks that read claims and letters.
	Catalog bool

	patience time.Duration // the constant, but in tests
}

// Finding is one thing that should not be.
type Finding struct {
	Check   string // its name, which stays: default-partition, hole, overlap, …
	Group   string // the consumer group; empty: the table
	Subject string // to what it happened; of many, the first
	Count   int    // how many
	What    string // what happened
	Do      string // what to do
}

// Report is what [Check] found. It found nothing wrong when both are empty.
type Report struct {
	Findings []Finding
	// Unfinished names checks that were cut short, and by what bound, and those that
	// could not begin without one of them. What they found until then is among the
	// findings; of the rest nobody knows.
	Unfinished []string
}

// DB is what [Check] reads: a pool or a connection of pgx.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Check checks in a database that is in use what must hold, and only reads:
//
//   - default-partition: there is none. It is a finding, and the error
//     [consumer.ErrDefaultPartition] as well.
//   - hole, overlap, detached, key: each day from the lowest floor to today has one
//     partition; none that is needed was detached by hand; each has a valid unique
//     key.
//   - owner: each partition is the table owner's, so that retention can drop it.
//   - floor, horizon: no floor lies below the oldest partition, nor below the
//     horizon, except that of a group that was let begin there, as `windows adopt` does.
//   - fence: no PENDING fence whose lease ran out more than an hour ago.
//   - below-floor: nothing was claimed below the floor of every class that matches
//     its type a minute after that was raised, except by arrival. Claims from
//     before are right.
//   - twice: no key is there twice.
//   - dead-claim, letter: each claim of a dead event has a letter that stands, and
//     each open letter of a handler that failed has such a claim. A letter whose
//     claim may lie in a day that is not attached is not looked at.
//
// Its time is bounded, whatever the size of the tables: the first checks read the
// catalog; below-floor and twice read the last MB of each partition; the last two
// go by indexes. A statement may take 10 s; what is cut short is in the report. The
// group's right to read its tables is enough. Nearly all judge by what partitions
// reads: where that is cut short they are not made, and are in the report as well.
func Check(ctx context.Context, db DB, cfg Config) (Report, error) {
	a := &audit{db: db, cfg: cfg}
	if a.cfg.patience == 0 {
		a.cfg.patience = patience
	}
	checks := []check{{"partitions", true, a.partitions}, {"key", true, a.keys}, {"floor", false, a.floors}, {"fence", true, a.fences}}
	if !cfg.Catalog {
		checks = append(checks, check{"below-floor", false, a.belowFloors}, check{"twice", false, a.twice},
			check{"dead-claim", false, a.deadClaims}, check{"letter", false, a.letters})
	}
	for _, c := range checks {
		if err := a.run(ctx, c); err != nil {
			return a.report, fmt.Errorf("audit: %s: %w", c.name, err)
		}
	}
	if a.table.rest != nil {
		return a.report, fmt.Errorf("audit: %w", consumer.ErrDefaultPartition)
	}
	return a.report, nil
}

// audit is one run of [Check].
type audit struct {
	db      DB
	cfg     Config
	report  Report
	table   table
	ever    []consumerdb.WindowsRow // of the group
	keyless []string                // partitions without a valid key
	windows []consumerdb.WindowsRow // the same without those that are retired
}

type check struct {
	name  string
	alone bool // it judges by nothing that partitions reads
	work  func(context.Context, pgx.Tx) error
}

// run gives a check a transaction of its own. One that takes too long ends, and
// the others go on.
func (a *audit) run(ctx context.Context, c check) error {
	if !c.alone && !a.table.read {
		a.cut(c.name, "not looked at, because partitions is not finished")
		return nil
	}
	err := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET TRANSACTION READ ONLY; %s; SET LOCAL statement_timeout = %d", pgconf.Local, a.cfg.patience.Milliseconds())); err != nil {
			return err
		}
		return c.work(ctx, tx)
	})
	if sqlstate.Is(err, "57014") && ctx.Err() == nil { // query_canceled
		a.cut(c.name, "a statement took longer than %s; pg_stat_activity shows whether a session holds a lock: end that and look again", a.cfg.patience)
		return nil
	}
	return err
}

func (a *audit) cut(check, why string, args ...any) {
	a.report.Unfinished = append(a.report.Unfinished, check+": "+fmt.Sprintf(why, args...))
}

func (a *audit) found(f Finding) {
	f.Count = max(1, f.Count)
	a.report.Findings = append(a.report.Findings, f)
}

// byGroup adds up findings of one check that are alike, so that a thousand rows
// are one finding; the first is its subject.
type byGroup struct {
	order []string
	of    map[string]*Finding
}

// add also says what to do about the subject.
func (b *byGroup) add(group, subject, do string) {
	if b.of == nil {
		b.of = make(map[string]*Finding)
	}
	f := b.of[group]
	if f == nil {
		f = &Finding{Group: group, Subject: subject, Do: do}
		b.of[group], b.order = f, append(b.order, group)
	}
	f.Count++
}

// report gives them their words.
func (b *byGroup) report(a *audit, check, what string) {
	for _, group := range b.order {
		f := *b.of[group]
		if f.Check, f.What = check, what; f.Count > 1 {
			f.Do += "; then look again, for the others"
		}
		a.found(f)
	}
}

// keyed names an event as outboxctl takes it or, where its key is none, by the UUID.
func keyed(namespace string, id uuid.UUID) string {
	key, err := outbox.KeyFrom(namespace, id, time.Now(), outbox.NoSkewLimit)
	if err != nil {
		return id.String()
	}
	return key.String()
}
