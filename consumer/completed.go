package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer/internal/completed"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/outbox"
)

// Completed is a memory of events that the group has applied, in front of the database, which
// saves a transaction for each duplicate that it knows; package redisfast has one in Redis. It
// decides nothing: what it does not know, the database does, or of [Remembered] is handled again. So it
// may forget what it likes, and be away; what it must not do is make entries up. It is called by every
// delivery, so it must return soon, and be safe for concurrent use.
type Completed interface {
	// Known reports of each entry whether its key is there with its very value. What cannot be
	// told is not known.
	Known(ctx context.Context, entries []CompletedEntry) []bool
	// Remember keeps the values of keys, in place of earlier ones, each for no longer than its
	// Keep. It is called after the commit, or after the return of a handler without one.
	Remember(ctx context.Context, entries []CompletedEntry)
}

// CompletedEntry is an event that was applied, or handled without a claim, which is another Value. So it
// is for an event of other content, another history of the database, and a class that was retired and
// registered again.
type CompletedEntry struct {
	Key   string        // GROUP:ID, of the id under which the event is claimed
	Value string        // 32 bytes that mean nothing to a Completed
	Keep  time.Duration // what is left of the class's window; means nothing to Known
}

// CompletedStats counts what a [Completed] was asked and told.
type CompletedStats struct {
	Hits   int64 // known: these duplicates did not reach the database
	Misses int64
	Stale  int64 // there, but of another content, history or registration
	Errors int64 // not told, because the question failed
	// Unasked were not asked for, because questions had failed before.
	Unasked int64
	// Remembered were kept, Forgone were not, for either of the reasons above.
	Remembered, Forgone int64
}

// memorized asks Config.Completed, of records of a session's partitions only: between the answer
// and the offset stands SaveProgress, which fails on another history than that with which the
// session has begun. Without a session, or between two, nobody is asked, and nothing is kept.
type memorized struct {
	*member
	windows *windows
	marks   *marks
	of      Completed // nil: none
}

// deliver delivers items that are not known to have been applied. What an entry is bound to is
// found out before: an effect that was committed on an earlier history, and is lost, must not be
// remembered of this one.
func (m *memorized) deliver(ctx context.Context, items []*item, deliver func(context.Context, []*item)) {
	bound := m.bound(ctx, items)
	if bound == nil {
		deliver(ctx, items)
		return
	}
	rest := m.unknown(ctx, bound, items)
	deliver(ctx, rest)
	m.remember(ctx, bound, rest)
}

// bound returns what entries are bound to now; nil where nobody is to be asked, and not the database either.
func (m *memorized) bound(ctx context.Context, items []*item) *completed.Binding {
	session := m.marks.session.Load()
	if m.of == nil || session == nil ||
		!slices.ContainsFunc(items, func(it *item) bool { return it.handler.memorable() }) {
		return nil
	}
	return session.Bind(ctx, consumerdb.New(m.db), m.group)
}

// entry is what an item is remembered by. Not ok: nothing may be said of it. It is of no partition of the
// session, an operator has had it published again, or its handler wants to be called again; or
// its claim is not, or may not be, that of its id (by arrival, below the floor or close to it, from the
// future), so that the database has to look.
func (m *memorized) entry(bound *completed.Binding, it *item) (entry CompletedEntry, ok bool) {
	ev, class := &it.ev, m.windows.index(it.ev.Type)
	switch {
	case !it.handler.memorable() || ev.RepairID != uuid.Nil || ev.ReplayID != uuid.Nil || class < 0,
		!it.handler.again && (m.windows.classes[class].Keyed != ByEventTime || m.marks.behind(ev) ||
			!m.windows.obvious(class, outbox.IDTime(it.id))):
		return CompletedEntry{}, false
	}
	life, ok := bound.Life(ev.Source.Topic, ev.Source.Partition, m.windows.classes[class].Pattern)
	life.Unclaimed = it.handler.again
	value := life.Value(it.id, it.fingerprint)
	return CompletedEntry{Key: completed.Key(m.group, it.id), Value: value, Keep: life.Window}, ok
}

// unknown settles the items that are known, and returns the others.
func (m *memorized) unknown(ctx context.Context, bound *completed.Binding, items []*item) []*item {
	var asked []*item
	var entries []CompletedEntry
	for _, it := range items {
		if entry, ok := m.entry(bound, it); ok {
			asked, entries = append(asked, it), append(entries, entry)
		}
	}
	if len(asked) == 0 {
		return items
	}
	known := m.of.Known(ctx, entries)
	for i, it := range asked {
		if i < len(known) && known[i] {
			it.delivery = Delivery{Outcome: Duplicate}
			if !m.windows.byArrival(it.ev.Type) { // when the first one came is not known
				m.marks.ages.Add(it.ev.Type, m.marks.age(&it.ev, time.Time{}))
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(items), func(it *item) bool { return it.delivery.Outcome == Duplicate })
}

// remember keeps the items that were applied, now or, as their claims say, before; without
// claims those whose handler has returned well, and no others.
func (m *memorized) remember(ctx context.Context, bound *completed.Binding, items []*item) {
	var entries []CompletedEntry
	for _, it := range items {
		before := it.delivery.Outcome == Duplicate && !it.claim.AppliedAt.IsZero() && !it.handler.again
		if it.delivery.Err != nil || it.delivery.Outcome != Processed && !before || it.byArrival() {
			continue
		}
		entry, ok := m.entry(bound, it)
		if before {
			entry.Keep -= max(0, m.windows.now().Sub(it.claim.AppliedAt))
		}
		if ok && entry.Keep > 0 {
			entries = append(entries, entry)
		}
	}
	if len(entries) > 0 {
		m.of.Remember(ctx, entries)
	}
}
