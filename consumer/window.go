package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/consumer/internal/verdict"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/outbox"
)

// windows are the classes of a group and what is known of their floors.
type windows struct {
	*member
	classes []Class
	skew    time.Duration
	known   atomic.Pointer[floors]
	days    atomic.Pointer[days]
	lost    atomic.Bool // one of the classes is not registered any more
}

// floors is what was read of dedup_windows at one moment.
type floors struct {
	of     []registered  // by index of windows.classes
	clock  time.Duration // by how much the database's clock is ahead of ours
	readAt time.Time
}

// registered is what dedup_windows says of a class. It counts, not what the
// program's configuration says: two versions of a program run beside one another.
type registered struct {
	floor   time.Time
	window  time.Duration
	late    LatePolicy
	replay  ReplayPolicy
	buckets claims.Buckets
}

func registeredOf(row *consumerdb.ClassesOfGroupRow) registered {
	window := consumerdb.Micros(row.WindowUs)
	return registered{
		floor: row.Floor, window: window, late: LatePolicy(row.Late), replay: ReplayPolicy(row.Replay),
		buckets: claims.BucketsOf(row.Keyed, window, consumerdb.Micros(row.BucketUs),
			consumerdb.Micros(row.OldBucketUs), row.OldUntil),
	}
}

// index returns the place of the class of an event type, -1 for none.
func (w *windows) index(eventType string) int { return ClassOf(w.classes, eventType) }

// windowOf returns the window of an event type's class; 0 for a type without.
func (w *windows) windowOf(eventType string) time.Duration {
	i := w.index(eventType)
	if i < 0 {
		return 0
	}
	return w.known.Load().of[i].window
}

// now is the database's clock, as far as it is known.
func (w *windows) now() time.Time { return time.Now().Add(w.known.Load().clock) }

// obvious reports whether an event time is above a floor that is known, and has
// come, so that nothing needs to be asked.
func (w *windows) obvious(class int, at time.Time) bool {
	f := w.known.Load()
	return time.Since(f.readAt) < claims.FloorsKept && !at.Before(f.of[class].floor) &&
		!at.After(time.Now().Add(f.clock+w.skew))
}

// forget makes the next claim read the floors: one that was read may be of
// before a partition was dropped.
func (w *windows) forget() {
	f := *w.known.Load()
	f.readAt = time.Time{}
	w.known.Store(&f)
}

// look is what one transaction has read to judge the events that are not
// obvious. Nothing of it is older than the transaction.
type look struct {
	processor *Processor
	q         *consumerdb.Queries
	now       time.Time // by the database's clock
	began     time.Time // when the transaction did, by the same clock
	classes   []registered
	all       []consumerdb.ClassesOfGroupRow // of the group, whoever has them
	attached  []string                       // nil: not read yet
}

// read reads classes and time, once.
func (l *look) read(ctx context.Context) error {
	if l.classes != nil {
		return nil
	}
	w := &l.processor.windows
	rows, err := l.q.ClassesOfGroup(ctx, l.processor.group)
	if err != nil {
		return fmt.Errorf("read the floors of the group: %w", err)
	}
	of := make([]registered, len(w.classes))
	for i, c := range w.classes {
		at := slices.IndexFunc(rows, func(r consumerdb.ClassesOfGroupRow) bool { return r.Class == c.Pattern })
		if at < 0 {
			return l.unregistered(c.Pattern, "is not in onceward.dedup_windows any more")
		}
		if rows[at].RetiredAt != nil {
			return l.unregistered(c.Pattern, "was retired, and holds its claims back no more")
		}
		of[i], l.now, l.began = registeredOf(&rows[at]), rows[at].Clock, rows[at].TxTime
	}
	l.classes, l.all = of, rows
	// What a caller's transaction sees may be as old as that is.
	w.known.Store(&floors{of: of, clock: time.Until(l.now), readAt: time.Now().Add(l.began.Sub(l.now))})
	return nil
}

// unregistered has the next transaction of this process register its classes
// again: an operator took one for unused.
func (l *look) unregistered(class, how string) error {
	l.processor.windows.lost.Store(true)
	l.processor.log.Warn("a class that this program uses "+how+"; it is registered again", "class", class)
	return &infrastructureError{fmt.Errorf("class %q of group %q %s; it is registered again", class, l.processor.group, how)}
}

// readAttached reads which partitions take claims, once.
func (l *look) readAttached(ctx context.Context) error {
	if l.attached != nil {
		return nil
	}
	days, err := l.q.AttachedDays(ctx)
	if err != nil {
		return fmt.Errorf("list the partitions of processed_events: %w", err)
	}
	l.attached = append([]string{}, days...)
	return nil
}

// evidenceOf asks whether the group has finished the offset of a record.
func (l *look) evidenceOf(ctx context.Context, src Source) (verdict.Evidence, error) {
	if src.Topic == "" {
		return verdict.Unknown, nil
	}
	mark, ok, err := l.processor.marks.highMark(ctx, l.q, src)
	switch {
	case err != nil:
		return verdict.Unknown, err
	case !ok || src.Offset > mark.HighOffset:
		return verdict.NotSeen, nil
	case src.Offset < mark.LowOffset, src.TopicID == uuid.Nil || src.TopicID != mark.TopicID:
		// Before the first that was read of this topic it may have been applied from another one.
		return verdict.Finished, nil
	}
	unread, err := l.processor.marks.unread(ctx, l.q, src)
	switch {
	case err != nil:
		return verdict.Unknown, err
	case unread:
		return verdict.Finished, nil
	}
	return verdict.Proven, nil
}

// plan is how an event is to be claimed, or why not.
type plan struct {
	ids     []uuid.UUID // in order; none: not at all, unless it is bare
	known   []uuid.UUID // under which it may have been claimed, when it is not to be
	outcome Outcome     // what it is when there are no ids
	late    bool
	again   bool           // a replay that is applied all the same
	passed  int64          // how many marks had passed its offset
	other   *MismatchError // goes with the outcome
}

// bare reports whether the event is to be applied without a claim: it is that of a letter
// whose copies are over.
func (pl *plan) bare() bool { return len(pl.ids) == 0 && pl.outcome == 0 }

// refusal is the claim of an event without ids of which none is there.
func (pl *plan) refusal() Claim {
	return Claim{Outcome: pl.outcome, Late: pl.late, Mismatch: pl.other}
}

// plan judges an event.
func (l *look) plan(ctx context.Context, ev *Event) (plan, error) {
	p := l.processor
	class := p.windows.index(ev.Type)
	if class < 0 {
		return plan{}, fmt.Errorf("%w: %q of group %q; add a class to Config.Classes whose pattern matches", ErrNoClass, ev.Type, p.group)
	}
	id := p.claimID(*ev)
	if p.windows.classes[class].Keyed == ByEventTime && !p.marks.behind(ev) &&
		p.windows.obvious(class, outbox.IDTime(id)) {
		return plan{ids: []uuid.UUID{id}}, nil
	}
	if err := l.read(ctx); err != nil {
		return plan{}, err
	}
	at, err := l.stateOf(ctx, ev)
	switch {
	case err != nil:
		return plan{}, err
	case at.Ahead:
		ids, err := l.arrival(ctx, id, ev.Type)
		return plan{outcome: Duplicate, known: append([]uuid.UUID{id}, ids...)}, err // a claim that is there says more
	}
	pl, err := l.judge(ctx, ev, class)
	pl.passed = at.Passed
	return pl, err
}

// judge judges an event that is not obvious.
func (l *look) judge(ctx context.Context, ev *Event, class int) (plan, error) {
	p, id := l.processor, l.processor.claimID(*ev)
	if p.windows.classes[class].Keyed == ByArrival {
		return l.byArrival(ctx, ev)
	}
	at := outbox.IDTime(id)
	q := verdict.Question{Time: at, Floor: l.classes[class].floor, Now: l.now, Skew: p.windows.skew,
		Copied: p.copied(ev) && !ev.unseen}
	var err error
	switch {
	case ev.unseen:
		q.Evidence = verdict.NotSeen // whatever the mark has passed since
	case at.Before(q.Floor) && !q.Copied:
		if q.Evidence, err = l.evidenceOf(ctx, ev.Source); err != nil {
			return plan{}, err
		}
	}
	switch v := q.Judge(); {
	case v != verdict.Claim:
		return l.below(ctx, ev, class, v)
	case !p.marks.behind(ev):
		return plan{ids: []uuid.UUID{id}}, nil
	}
	ids, err := l.arrival(ctx, id, ev.Type)
	return plan{ids: claims.Sorted(append(ids, id))}, err
}

// byArrival plans an event whose claim goes with the clock. At an offset that the
// group's mark proves finished it is a duplicate, however long ago that was.
func (l *look) byArrival(ctx context.Context, ev *Event) (plan, error) {
	if ev.redriven && l.processor.windows.byContent(ev.Type) {
		return l.ofLetter(ctx, ev)
	}
	ids, err := l.arrival(ctx, l.processor.claimID(*ev), ev.Type)
	if err != nil || ev.redriven || ev.accepted || l.processor.copied(ev) {
		return plan{ids: ids}, err
	}
	seen, err := l.evidenceOf(ctx, ev.Source)
	if seen == verdict.Proven {
		return plan{outcome: Duplicate, known: ids}, err
	}
	return plan{ids: ids}, err
}

// below plans what is not to be claimed simply under its id.
func (l *look) below(ctx context.Context, ev *Event, class int, v verdict.Verdict) (plan, error) {
	if v == verdict.Future {
		return plan{outcome: FromFuture}, nil
	}
	late, c := v == verdict.Late, &l.classes[class]
	if err := l.readAttached(ctx); err != nil {
		return plan{}, err
	}
	id := l.processor.claimID(*ev)
	ids, err := l.arrival(ctx, id, ev.Type)
	if slices.Contains(l.attached, claims.PartitionOf(id)) {
		ids = claims.Sorted(append(ids, id))
	}
	refused := late && c.late == LateDeadLetter || !late && c.replay == ReplayDeadLetter
	if refused && !ev.redriven && !ev.accepted {
		if v == verdict.Seen {
			return plan{outcome: Duplicate, known: ids}, err
		}
		return plan{outcome: Replay, late: late, known: ids}, err
	}
	return plan{outcome: Replay, late: late, again: !late, ids: ids}, err
}

// timeOf is the time by which an event counts towards stream time: that of its
// arrival when it is claimed by that; zero for one that has not come yet, which
// must not move stream time.
func (w *windows) timeOf(ev *Event) time.Time {
	now := w.now()
	switch at := ev.Key.Time(); {
	case w.byArrival(ev.Type):
		return now
	case at.After(now.Add(w.skew)):
		return time.Time{}
	default:
		return at
	}
}

func (w *windows) byArrival(eventType string) bool {
	i := w.index(eventType)
	return i >= 0 && w.classes[i].Keyed == ByArrival
}

func (w *windows) byContent(eventType string) bool {
	i := w.index(eventType)
	return i >= 0 && w.classes[i].Content
}

// effectsKept is how long the effects of an event of a type are kept after its end.
func (w *windows) effectsKept(eventType string) pgtype.Interval {
	return consumerdb.Interval(2*w.windowOf(eventType) + 24*time.Hour)
}

// days are the partitions that a processor has seen.
type days struct {
	attached []string
	readAt   time.Time
}

// covered finds out, before an effect is made outside the database, whether the
// claim can be written after it.
func (w *windows) covered(ctx context.Context, q statement.Queries, it *item) error {
	known := w.days.Load()
	missing := func(id uuid.UUID) bool {
		return !slices.Contains(known.attached, claims.PartitionOf(id))
	}
	if known == nil || time.Since(known.readAt) > claims.FloorsKept || slices.ContainsFunc(it.plan.ids, missing) {
		attached, err := q.AttachedDays(ctx)
		if err != nil {
			return fmt.Errorf("list the partitions of processed_events: %w", err)
		}
		known = &days{attached, time.Now()}
		w.days.Store(known)
	}
	if slices.ContainsFunc(it.plan.ids, missing) {
		w.forget()
		return noPartition(it)
	}
	return nil
}
