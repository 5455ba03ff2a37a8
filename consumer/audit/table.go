package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/outbox"
)

// table is what the catalog says of processed_events.
type table struct {
	leaves  []partition.Leaf // attached, oldest first
	loose   []partition.Leaf // detached, or about to be
	horizon time.Time        // zero: nothing was dropped
	needed  time.Time        // some class may claim from here on
	now     time.Time
	ahead   int                     // how many days of it some class needs, when more than [claims.DaysAhead]
	rest    *partition.DefaultError // nil: there is no DEFAULT partition
	read    bool                    // all of this was read
}

// partitions reads the table and checks its days.
func (a *audit) partitions(ctx context.Context, tx pgx.Tx) error {
	q := consumerdb.New(tx)
	var err error
	if a.table.now, err = q.DatabaseTime(ctx); err != nil {
		return err
	}
	if a.table.horizon, err = claims.Horizon(ctx, q); err != nil {
		return err
	}
	if err := a.readWindows(ctx, q); err != nil {
		return err
	}
	leaves, err := partition.Leaves(ctx, tx, claims.Table)
	if err != nil && !errors.As(err, &a.table.rest) {
		return err
	}
	for _, l := range leaves {
		if l.Attached && !l.Pending {
			a.table.leaves = append(a.table.leaves, l)
		} else {
			a.table.loose = append(a.table.loose, l)
		}
	}
	if a.table.rest != nil {
		if err := a.foundDefault(ctx, tx, leaves); err != nil {
			return err
		}
	}
	for _, f := range a.table.judge() {
		a.found(f)
	}
	a.table.read = true
	return nil
}

// keepApplied: where an event was given up and then applied, it was applied, so that
// the redrive of its letter finds that.
const keepApplied = "(event_id, consumer_group) DO UPDATE SET outcome = 'p', result = EXCLUDED.result, processed_at = EXCLUDED.processed_at " +
	"WHERE EXCLUDED.outcome OPERATOR(pg_catalog.=) 'p' AND there.outcome OPERATOR(pg_catalog.=) 'd' AND there.fingerprint OPERATOR(pg_catalog.=) EXCLUDED.fingerprint"

// foundDefault says how to get rid of the DEFAULT partition. What it has of days
// that retention would have dropped goes with it.
func (a *audit) foundDefault(ctx context.Context, tx pgx.Tx, leaves []partition.Leaf) error {
	a.found(Finding{
		Check: "default-partition", Subject: a.table.rest.Partition,
		What: "it is the DEFAULT partition of " + claims.Table + ", and takes the claims of every event whose day has no partition: a replay whose day is gone is taken for new",
		Do:   "move its rows to their days and drop it",
	})
	from := partition.Day(a.table.needed)
	if len(a.table.leaves) > 0 {
		from = earliest(from, a.table.leaves[0].From())
	}
	cure, err := a.table.rest.WithoutDefault(ctx, tx, leaves, partition.Keep{Column: "event_id", From: from, Conflict: keepApplied})
	if err != nil {
		return err
	}
	next := "; then `outboxctl partitions maintain --side consumer`"
	if cure.More {
		next = fmt.Sprintf("; its rows are of too many days for one statement: this moves those of the first %d. Then `outboxctl audit` again, which prints the next", partition.MaxRest)
	}
	a.report.Findings[len(a.report.Findings)-1].Do = "as " + cure.As + ", while the consumers wait: " +
		cure.SQL + next + ". Of the events whose claims it has nobody knows whether they were applied twice"
	return nil
}

func (a *audit) readWindows(ctx context.Context, q *consumerdb.Queries) error {
	windows, err := q.Windows(ctx)
	a.table.needed, a.table.ahead = a.table.horizon, claims.OldBucketDays(windows, a.table.now)
	first := true
	for _, w := range windows {
		ours := a.cfg.Group == "" || a.cfg.Group == w.ConsumerGroup
		if ours {
			a.ever = append(a.ever, w)
		}
		if w.RetiredAt != nil {
			continue
		}
		if first || w.Floor.Before(a.table.needed) {
			a.table.needed, first = w.Floor, false
		}
		if ours {
			a.windows = append(a.windows, w)
		}
	}
	return err
}

const maintain = "`outboxctl partitions maintain --side consumer` makes it"

// refused says what becomes of events whose day has no partition, and what to do: the
// DEFAULT partition goes first.
func (t *table) refused(do string) (what, cure string) {
	if t.rest != nil {
		return "only the DEFAULT partition takes events of ", "do what default-partition says, which makes or attaches it"
	}
	return "their deliveries fail and are tried again, because no partition takes events of ", do
}

// judge checks that each day that is needed has one partition. It is pure.
func (t *table) judge() []Finding {
	var out []Finding
	end := claims.Days(t.now, 0, t.ahead).Last.AddDate(0, 0, 1) // of what maintain makes
	for i := 1; i < len(t.leaves); i++ {
		before, l := &t.leaves[i-1], &t.leaves[i]
		from, to := before.To(), earliest(l.From(), partition.Day(end))
		if t.needed.After(from) {
			from = t.needed // nothing is missing below
		}
		switch {
		case before.To().After(l.From()):
			out = append(out, Finding{
				Check: "overlap", Subject: before.Name + " and " + l.Name, What: "two partitions take the same event times, so that a key may be in both",
				Do: "detach the one that was attached last and insert its rows into the table again",
			})
		case from.Before(to):
			makes := "if somebody dropped it, only a backup has its claims: restore and attach it before " + maintain +
				" empty, and copies of its events are applied again; if it was never there, that makes it"
			if from.Before(t.horizon) {
				makes = "else retention has dropped claims of that time, and makes none anew: raise the floors below it, " +
					"`outboxctl windows raise GROUP CLASS --reason \"…\"`; `outboxctl windows list` names them"
			}
			what, do := t.refused("attach the partition again if somebody detached it; " + makes)
			out = append(out, Finding{Check: "hole", Subject: rfc(from) + " to " + rfc(to), What: what + "these times", Do: do})
		}
	}
	if n := len(t.leaves); n == 0 || !t.leaves[n-1].To().After(t.now) {
		what, do := t.refused(maintain + ", every few minutes, or says what keeps it from that")
		out = append(out, Finding{Check: "hole", Subject: rfc(t.now), What: what + "today", Do: do})
	}
	if f := t.foreign(); f.Count > 0 {
		out = append(out, f)
	}
	for i := range t.loose {
		if l := &t.loose[i]; l.To().After(t.needed) {
			_, do := t.refused("see `outboxctl partitions status --side consumer`, which says how to attach it again")
			out = append(out, Finding{
				Check: "detached", Subject: l.Name, What: "somebody detached it, or began to, although its claims are needed; a key in it may be claimed again",
				Do: do,
			})
		}
	}
	return out
}

// foreign finds days that are attached and are not the table owner's, as of a superuser who
// made or attached them: retention, which is only a member of that role, cannot drop them.
func (t *table) foreign() Finding {
	f := Finding{
		Check: "owner", What: "it has another owner than " + claims.Table + ", so that `outboxctl partitions maintain --side consumer` cannot drop it when its time comes",
		Do: "as a superuser: ",
	}
	for i := range t.leaves {
		for _, give := range t.leaves[i].Give(claims.Table) {
			if f.Count++; f.Count == 1 {
				f.Subject = t.leaves[i].Name
			}
			f.Do += give + "; "
		}
	}
	f.Do = strings.TrimSuffix(f.Do, " ")
	return f
}

// selectKeyless finds partitions without a valid unique index over just the two
// columns: then one key could be there twice.
const selectKeyless = `SELECT c.relname::text FROM pg_catalog.pg_inherits h
JOIN pg_catalog.pg_class c ON c.oid = h.inhrelid
WHERE h.inhparent = 'onceward.processed_events'::regclass AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    AND i.indnkeyatts = 2 AND 2 = (SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute t
      WHERE t.attrelid = c.oid AND t.attname IN ('event_id', 'consumer_group') AND t.attnum = ANY (i.indkey[0:1])))
ORDER BY c.relname`

// keys checks the constraint by which a key can be claimed once. A partition
// holds all claims of its ids, so that the key of each is that of the table.
func (a *audit) keys(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, selectKeyless)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		return err
	}
	a.keyless = names
	a.found(Finding{
		Check: "key", Subject: names[0], Count: len(names), What: "the partition has no valid unique key over event_id and consumer_group, so that an event can be claimed twice",
		Do: "stop the consumers, remove what is there twice, and ALTER TABLE onceward.processed_events ADD PRIMARY KEY (event_id, consumer_group)",
	})
	return nil
}

// floors checks that what a class may claim has a partition, and that no claim
// above a floor was dropped: but for a new group that an operator let begin below.
func (a *audit) floors(ctx context.Context, tx pgx.Tx) error {
	adopted, err := consumerdb.New(tx).AdoptedClasses(ctx)
	if err != nil {
		return err
	}
	for _, w := range a.windows {
		class := fmt.Sprintf("class %q, floor %s", w.Class, rfc(w.Floor))
		raise := fmt.Sprintf("`outboxctl windows raise --reason \"…\" %s`", terminal.Arguments(w.ConsumerGroup, w.Class))
		if len(a.table.leaves) > 0 && w.Floor.Before(a.table.leaves[0].From()) {
			what, do := a.table.refused("attach again what somebody detached; for days that are lost " + raise)
			a.found(Finding{
				Check: "floor", Group: w.ConsumerGroup, Subject: class, What: "it lies below the oldest partition, " + a.table.leaves[0].Name +
					": events between are not judged as late, and " + what + "these times", Do: do,
			})
		}
		if w.Floor.Before(a.table.horizon) && !slices.Contains(adopted,
			consumerdb.AdoptedClassesRow{ConsumerGroup: w.ConsumerGroup, Target: w.Class}) {
			a.found(Finding{
				Check: "horizon", Group: w.ConsumerGroup, Subject: class, What: "it lies below the horizon " + rfc(a.table.horizon) +
					": claims from there on may have been dropped, and a replay taken for new",
				Do: raise + "; find out who lowered it",
			})
		}
	}
	return nil
}

// fences checks that effects outside the database come to an end.
func (a *audit) fences(ctx context.Context, tx pgx.Tx) error {
	loose, err := consumerdb.New(tx).LooseFences(ctx, a.cfg.Group)
	for _, f := range loose {
		a.found(Finding{
			Check: "fence", Group: f.ConsumerGroup, Subject: "since " + rfc(f.Since), Count: int(f.Fences),
			What: fmt.Sprintf("PENDING fences whose lease ran out more than an hour ago, %d of which wait for an operator: nobody knows whether the effect was made", f.Waiting),
			Do:   "see `outboxctl fences list --stale`, which has those that wait for you; a running member of the group recovers the others",
		})
	}
	return err
}

// hidden reports whether the claim of an id may lie where nobody sees it: in a table
// that is detached, or in a hole.
func (t *table) hidden(id uuid.UUID) bool {
	at, n := outbox.IDTime(id), len(t.leaves)
	has := func(l partition.Leaf) bool { return !at.Before(l.From()) && at.Before(l.To()) }
	hole := !at.Before(t.needed) && (n == 0 || at.Before(t.leaves[n-1].To()))
	return slices.ContainsFunc(t.loose, has) || hole && !slices.ContainsFunc(t.leaves, has)
}

// newestFirst returns the leaves that may hold what a check looks for, newest
// first, because a check that is cut short has then seen what matters most.
func (t *table) newestFirst(matters func(*partition.Leaf) bool) []partition.Leaf {
	var out []partition.Leaf
	for i := range t.leaves {
		if l := &t.leaves[i]; l.Heap > 0 && matters(l) {
			out = append(out, *l)
		}
	}
	slices.Reverse(out)
	return out
}

func rfc(t time.Time) string { return t.UTC().Format(time.RFC3339) }
