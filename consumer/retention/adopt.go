package retention

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/internal/terminal"
)

// ErrNotNew: the group has run on this database. To lower its floor would take
// events for new that it has applied, and whose claims are gone.
var ErrNotNew = errors.New("the group is not new")

// maxGroup is the longest name of a group in bytes, as in [consumer.Config].
const maxGroup = 255

// maxAdopted bounds how many days are opened at once: each takes locks until
// the transaction ends.
const maxAdopted = 366

// AdoptConfig is what [Adopt] needs.
type AdoptConfig struct {
	// Group is the new consumer group. Required.
	Group string
	// From is the event time from which on the group applies events: the start
	// of its UTC day counts. In the past, by at most 366 days. Required.
	From time.Time
	// Classes are those of the group's [consumer.Config]. Default: those that are
	// registered or, when there are none, "*" with [consumer.DefaultWindow].
	Classes []consumer.Class
	// Reason is kept in onceward.consumer_actions. Required.
	Reason string
	// DryRun changes nothing and says what would be done. It needs no rights but
	// to read.
	DryRun bool
}

// AdoptReport is what [Adopt] did.
type AdoptReport struct {
	Made    []string             // partitions
	Classes []string             // of the group
	Floors  map[string]time.Time // by class
}

// Adopt prepares a database for a new group on an old topic, whose events lie
// below all partitions: it makes the daily partitions back to From, and
// registers the group with its floor there. Older groups judge by their own
// floors, as before, so that none of them takes a replay for new; and the
// horizon stays, so that a class that one of them adds later, or one that comes
// back from retirement, gets no floor down there.
//
// Without it a new group applies the backlog as well, as Late events.
//
// Everything is one transaction, in which registration and [Maintain] are locked
// out; claiming goes on. The connection belongs to the owner of the tables or a
// member of it. The error is [ErrNotNew] for a group that has marks, claims or
// fences, and [ErrMaintained] while a session maintains partitions.
func Adopt(ctx context.Context, conn *pgx.Conn, cfg AdoptConfig) (AdoptReport, error) {
	report := AdoptReport{Floors: make(map[string]time.Time)}
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: pgconf.Begin}, func(tx pgx.Tx) error {
		a := adoption{tx: tx, q: consumerdb.New(tx), cfg: cfg, report: &report}
		return a.run(ctx)
	})
	if err != nil {
		return AdoptReport{}, fmt.Errorf("adopt group %q: %w", cfg.Group, err)
	}
	return report, nil
}

type adoption struct {
	tx     pgx.Tx
	q      *consumerdb.Queries
	cfg    AdoptConfig
	now    time.Time // by the database's clock
	report *AdoptReport
}

func (a *adoption) run(ctx context.Context) error {
	if err := a.check(ctx); err != nil {
		return err
	}
	if !a.cfg.DryRun {
		if err := a.lock(ctx); err != nil {
			return err
		}
	}
	classes, err := a.classes(ctx)
	if err != nil {
		return err
	}
	if err := a.open(ctx); err != nil || a.cfg.DryRun {
		return err
	}
	for _, c := range classes {
		floor, err := a.q.AdoptWindow(ctx, consumerdb.AdoptWindowParams{
			ConsumerGroup: a.cfg.Group, Class: c.Pattern, TimeWindow: consumerdb.Interval(c.Window),
			Floor: partition.Day(a.cfg.From),
			Late:  string(c.Late), Replay: string(c.Replay), Keyed: string(c.Keyed),
			Bucket: consumerdb.Interval(claims.BucketOf(string(c.Keyed), c.Window)), Reason: a.cfg.Reason,
		})
		if err != nil {
			return err
		}
		a.report.Floors[c.Pattern] = floor
	}
	return nil
}

// check judges what was given. A group that runs for the first time meanwhile
// is registered already, and claims only above its floor what nobody has
// dropped: locks would not make it safer.
func (a *adoption) check(ctx context.Context) error {
	now, err := a.q.DatabaseTime(ctx)
	if err != nil {
		return err
	}
	a.now = now
	switch {
	case a.cfg.Group == "" || len(a.cfg.Group) > maxGroup || !utf8.ValidString(a.cfg.Group) || strings.ContainsRune(a.cfg.Group, 0):
		return fmt.Errorf("config: Group %q: want 1 to %d bytes of text", a.cfg.Group, maxGroup)
	case a.cfg.Reason == "":
		return errors.New("config: Reason is empty")
	case a.cfg.From.After(now) || a.cfg.From.Before(now.AddDate(0, 0, -maxAdopted)):
		return fmt.Errorf("config: From %s: want a time of the last %d days; what is older is applied as Late", rfc(a.cfg.From), maxAdopted)
	}
	traces, err := a.q.GroupTraces(ctx, a.cfg.Group)
	if err != nil {
		return err
	}
	for name, found := range map[string]bool{"marks in onceward.progress": traces.Marks, "claims": traces.Claims, "fences": traces.Fences} {
		if found {
			return fmt.Errorf("%w: it has %s; to make it apply old events again, replay them, in the producer's database: `outboxctl replay --from DAY --reprocess %s --config FILE --reason \"…\"`", ErrNotNew, name, terminal.Word(a.cfg.Group))
		}
	}
	return nil
}

// lock keeps [Maintain] out, which may be between raising the horizon and
// dropping a partition that would be taken for one that stays, and then
// registration.
func (a *adoption) lock(ctx context.Context) error {
	var mine bool
	if err := a.tx.QueryRow(ctx, "SELECT pg_catalog.pg_try_advisory_xact_lock($1)", claims.Lock).Scan(&mine); err != nil {
		return fmt.Errorf("take the maintainer's lock: %w", err)
	}
	if !mine {
		return ErrMaintained
	}
	return a.q.LockWindows(ctx)
}

// classes are those that are to be adopted, each under the name that the report
// has.
func (a *adoption) classes(ctx context.Context) ([]consumer.Class, error) {
	given := a.cfg.Classes
	if len(given) == 0 {
		rows, err := a.q.ListWindows(ctx, a.cfg.Group)
		if err != nil {
			return nil, err
		}
		for _, v := range rows {
			given = append(given, consumer.Class{
				Pattern: v.Class, Window: time.Duration(v.WindowMs) * time.Millisecond,
				Late: consumer.LatePolicy(v.Late), Replay: consumer.ReplayPolicy(v.Replay),
				Keyed: consumer.Keying(v.Keyed),
			})
		}
	}
	classes, err := consumer.CheckClasses(given)
	for _, c := range classes {
		a.report.Classes = append(a.report.Classes, c.Pattern)
	}
	return classes, err
}

// open makes the partitions from the day of From to that of today which are not
// there: retention leaves holes behind where it drops around a day that an open
// letter keeps.
func (a *adoption) open(ctx context.Context) error {
	leaves, err := partition.Leaves(ctx, a.tx, claims.Table)
	if err != nil {
		return err
	}
	horizon, err := claims.Horizon(ctx, a.q)
	if err != nil {
		return err
	}
	for i := range leaves {
		switch l := &leaves[i]; {
		case l.Attached && !l.Pending:
		case l.To().After(horizon):
			return fmt.Errorf("partition %s: %s, and not retention; who did so is not known: %s; then try again", l.Name, detached(l), l.AttachAgain(claims.Table))
		default:
			return fmt.Errorf("partition %s is being removed; run `outboxctl partitions maintain --side consumer`, then try again", l.Name)
		}
	}
	days := partition.Span{First: a.cfg.From, Last: a.now, Reopen: true}
	if !a.cfg.DryRun {
		a.report.Made, err = partition.Ensure(ctx, a.tx, claims.Table, "event_id", days)
		return err
	}
	a.report.Made, err = partition.Missing(ctx, a.tx, claims.Table, days)
	return err
}
