package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// floorsKept is for how long floors are trusted that were read before. A floor
// that is too low is safe as long as the partition is there; retention waits
// longer than this between raising a floor and detaching a partition.
const floorsKept = 10 * time.Second

// windows are the classes of a group and what is known of their floors.
type windows struct {
	classes []Class
	skew    time.Duration
	known   atomic.Pointer[floors]
	days    atomic.Pointer[days]
	lost    atomic.Bool // one of the classes is not registered any more
}

// floors is what was read of dedup_windows at one moment.
type floors struct {
	of     []time.Time   // by index of windows.classes
	clock  time.Duration // by how much the database's clock is ahead of ours
	readAt time.Time
}

// index returns the place of the class of an event type, -1 for none.
func (w *windows) index(eventType string) int { return ClassOf(w.classes, eventType) }

// windowOf returns the window of an event type's class; 0 for a type without.
func (p *Processor) windowOf(eventType string) time.Duration {
	i := p.windows.index(eventType)
	if i < 0 {
		return 0
	}
	return p.windows.classes[i].Window
}

// now is the database's clock, as far as it is known.
func (w *windows) now() time.Time { return time.Now().Add(w.known.Load().clock) }

// obvious reports whether an event time is above a floor that is known, and has
// come, so that nothing needs to be asked.
func (w *windows) obvious(class int, at time.Time) bool {
	f := w.known.Load()
	return time.Since(f.readAt) < floorsKept && !at.Before(f.of[class]) && !at.After(time.Now().Add(f.clock+w.skew))
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
	now       time.Time // when the transaction began, by the database's clock
	floors    []time.Time
	attached  []string // nil: not read yet
}

// read reads floors and time, once.
func (l *look) read(ctx context.Context) error {
	if l.floors != nil {
		return nil
	}
	w := &l.processor.windows
	rows, err := l.q.FloorsOfGroup(ctx, l.processor.group)
	if err != nil {
		return fmt.Errorf("read the floors of the group: %w", err)
	}
	of := make([]time.Time, len(w.classes))
	for i, c := range w.classes {
		at := slices.IndexFunc(rows, func(r consumerdb.FloorsOfGroupRow) bool { return r.Class == c.Pattern })
		if at < 0 {
			return l.unregistered(c.Pattern, "is not in onceward.dedup_windows any more")
		}
		if rows[at].RetiredAt != nil {
			return l.unregistered(c.Pattern, "was retired, and holds its claims back no more")
		}
		of[i], l.now = rows[at].Floor, rows[at].TxTime
	}
	l.floors = of
	w.known.Store(&floors{of: of, clock: time.Until(l.now), readAt: time.Now()})
	return nil
}

// unregistered has the next transaction of this process register its classes
// again: an operator took one for unused.
func (l *look) unregistered(class, how string) error {
	l.processor.windows.lost.Store(true)
	l.processor.log.Warn("a class that this program uses "+how+"; it is registered again", "class", class)
	return &infrastructureError{fmt.Errorf("class %q of group %q %s; it is registered again", class, l.processor.group, how)}
}

// isAttached reports whether the partition of an id takes claims.
func (l *look) isAttached(ctx context.Context, id uuid.UUID) (bool, error) {
	if l.attached == nil {
		days, err := l.q.AttachedDays(ctx)
		if err != nil {
			return false, fmt.Errorf("list the partitions of processed_events: %w", err)
		}
		l.attached = append([]string{}, days...)
	}
	return slices.Contains(l.attached, partition.OfDay(processedTable, outbox.IDTime(id)).Name), nil
}

const processedTable = "processed_events"

// evidenceOf asks whether the group has finished the offset of a record.
func (l *look) evidenceOf(ctx context.Context, src Source) (evidence, error) {
	if src.Topic == "" {
		return unknown, nil
	}
	mark, err := l.q.HighMark(ctx, consumerdb.HighMarkParams{ConsumerGroup: l.processor.group, Topic: src.Topic, TopicID: src.TopicID, KafkaPartition: src.Partition})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return notSeen, nil
	case err != nil:
		return unknown, fmt.Errorf("read the mark of %s: %w", src, err)
	case src.Offset > mark.HighOffset:
		return notSeen, nil
	case src.TopicID != uuid.Nil && src.TopicID == mark.TopicID:
		return proven, nil
	}
	return finished, nil
}

// plan is how an event is to be claimed, or why not.
type plan struct {
	ids     []uuid.UUID // in order; none: not at all
	known   []uuid.UUID // under which it may have been claimed, when it is not to be
	outcome Outcome     // Replay or FromFuture when there are no ids
	late    bool
	again   bool // a replay that is applied all the same
}

// plan judges an event.
func (l *look) plan(ctx context.Context, ev *Event) (plan, error) {
	p := l.processor
	class := p.windows.index(ev.Type)
	if class < 0 {
		return plan{}, fmt.Errorf("%w: %q of group %q; add a class to Config.Classes whose pattern matches", ErrNoClass, ev.Type, p.group)
	}
	c, id := &p.windows.classes[class], p.claimID(*ev)
	at := outbox.IDTime(id)
	if c.Keyed == ByEventTime && p.windows.obvious(class, at) {
		return plan{ids: []uuid.UUID{id}}, nil
	}
	if err := l.read(ctx); err != nil {
		return plan{}, err
	}
	if applied, err := l.wasApplied(ctx, ev); err != nil || applied {
		return plan{outcome: Duplicate, known: append([]uuid.UUID{id}, l.arrival(id, c)...)}, err // a claim that is there says more
	}
	if c.Keyed == ByArrival {
		return plan{ids: l.arrival(id, c)}, nil
	}
	q := question{time: at, floor: l.floors[class], now: l.now, skew: p.windows.skew, copied: p.copied(ev)}
	var err error
	if at.Before(q.floor) && !q.copied {
		if q.evidence, err = l.evidenceOf(ctx, ev.Source); err != nil {
			return plan{}, err
		}
	}
	v := q.judge()
	if v == verdictClaim {
		return plan{ids: []uuid.UUID{id}}, nil
	}
	return l.below(ctx, ev, c, v)
}

// below plans what is not to be claimed simply under its id.
func (l *look) below(ctx context.Context, ev *Event, c *Class, v verdict) (plan, error) {
	if v == verdictFuture {
		return plan{outcome: FromFuture}, nil
	}
	late := v == verdictLate
	id := l.processor.claimID(*ev)
	ids := l.arrival(id, c)
	attached, err := l.isAttached(ctx, id)
	if attached {
		ids = append(ids, id)
		slices.SortFunc(ids, compareIDs)
	}
	refused := late && c.Late == LateDeadLetter || !late && c.Replay == ReplayDeadLetter
	if refused && !ev.redriven && !ev.accepted {
		if v == verdictSeen {
			return plan{outcome: Duplicate, known: ids}, err
		}
		return plan{outcome: Replay, late: late, known: ids}, err
	}
	return plan{outcome: Replay, late: late, again: !late, ids: ids}, err
}

// arrival returns the ids by arrival of this transaction.
func (l *look) arrival(id uuid.UUID, c *Class) []uuid.UUID {
	ids := ArrivalIDs(id, c.Window, l.now)
	return ids[:]
}

// copied reports whether the record is a copy that was published later than the
// event: a repair, or a replay that this group claims under the event's own id.
func (p *Processor) copied(ev *Event) bool {
	return ev.RepairID != uuid.Nil || ev.ReplayID != uuid.Nil && p.claimID(*ev) != ev.ReplayID
}

// days are the partitions that a processor has seen.
type days struct {
	attached []string
	readAt   time.Time
}

// covered finds out, before an effect is made outside the database, whether the
// claim can be written after it.
func (p *Processor) covered(ctx context.Context, q queries, it *item) error {
	known := p.windows.days.Load()
	missing := func(id uuid.UUID) bool {
		return !slices.Contains(known.attached, partition.OfDay(processedTable, outbox.IDTime(id)).Name)
	}
	if known == nil || time.Since(known.readAt) > floorsKept || slices.ContainsFunc(it.plan.ids, missing) {
		attached, err := q.AttachedDays(ctx)
		if err != nil {
			return fmt.Errorf("list the partitions of processed_events: %w", err)
		}
		known = &days{attached, time.Now()}
		p.windows.days.Store(known)
	}
	if slices.ContainsFunc(it.plan.ids, missing) {
		p.windows.forget()
		return noPartition(it)
	}
	return nil
}
