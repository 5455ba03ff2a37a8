package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/state"
)

// Transactional is a sink that commits what it was handed together with a position.
// [publisher.Transactional] is the one.
type Transactional interface {
	Sink
	// Commit makes everything handed over since the last one visible, and the
	// position durable with it; nil only when that is known.
	Commit(ctx context.Context, pos publisher.Position) error
	// Open describes what was handed over since the last commit.
	Open() (events int, bytes int64, since time.Time)
	// Taken returns when Kafka had taken all that the last commit made visible, and until when a
	// quota has it take nothing more; zero when that was not so.
	Taken() (all, throttled time.Time)
}

// refresh is the longest time between two commits: Kafka forgets the offset of
// an empty group after offsets.retention.minutes, seven days unless it was set.
const refresh = 24 * time.Hour

// exactlyOnce is the mode in which events and checkpoint are one Kafka
// transaction. Nothing has ended before its commit is known, and the progress ends a
// step when it is handed over: their position is what the next commit may say.
// It belongs to the pump's goroutine, but for status.
type exactlyOnce struct {
	*progress
	Transactions
	tx     Transactional
	cut    func() ledger.Checkpoint        // order, reach, repair and letters, once everything handed over has ended
	before func(ctx context.Context) error // what is held is written down before a commit

	idle      ledger.Idle
	committed time.Time // when the last one began
	next      time.Time // before which none begins that the size of the open one does not ask for

	// Guarded by the progress's lock.
	known  Status    // as the last commit left it
	open   int       // records handed over since
	events int       // of them, those that have a tag
	oldest time.Time // commit time of the first of them of which it is known
}

// lasts returns how long the open transaction may last, whose first event was handed over
// at a time. A commit costs the same for few events and for many: a relay that is behind grows
// its transactions to a part of that, which nobody notices beside the rest.
func (m *exactlyOnce) lasts(since time.Time) time.Duration {
	interval := max(m.next.Sub(since), m.Interval/2)
	if m.oldest.IsZero() {
		return interval
	}
	return max(interval, min(since.Sub(m.oldest)/4, m.Longest))
}

// handed ends the step in the progress.
func (m *exactlyOnce) handed(s *step) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open++
	if s.tag == noTag {
		return nil
	}
	if m.oldest.IsZero() {
		m.oldest = s.it.CommitTime
	}
	m.events++
	return m.close(s.tag, ledger.Acknowledged)
}

func (*exactlyOnce) lettersEnded(context.Context) error { return nil }

// ended: the next session reads it in Kafka.
func (*exactlyOnce) ended() (ledger.Checkpoint, error) { return ledger.Checkpoint{}, nil }

func (m *exactlyOnce) durable() ledger.Checkpoint {
	return ledger.Checkpoint{Order: m.known.Position, Reach: m.known.Reach}
}

// settle commits when the open transaction is old or large enough, when the
// stream pauses and the last commit is an interval ago, and when a position
// without events is due.
func (m *exactlyOnce) settle(ctx context.Context, now time.Time, paused bool) error {
	events, bytes, since := m.tx.Open()
	if events == 0 {
		return m.commitPosition(ctx, now)
	}
	late := now.Sub(since) >= m.lasts(since) || paused && !now.Before(m.next)
	if bytes < m.limit() && !late {
		return nil
	}
	return m.commit(ctx)
}

func (m *exactlyOnce) full() bool {
	_, bytes, _ := m.tx.Open()
	return bytes >= m.limit()
}

func (m *exactlyOnce) limit() int64 {
	return min(*m.Room, m.MaxBytes)
}

// leastBytes is what a transaction may have however slowly Kafka takes it.
const leastBytes = 64 << 10

// begins sets what the first transaction of a session may have: what comes in within the timeout at 16 KiB
// a second. It is half of what the session before came to, where that is less: it may have ended by that.
func (t *Transactions) begins() {
	first := max(leastBytes, int64(t.Timeout.Seconds()*(16<<10)))
	if before := *t.Room; before > 0 {
		first = min(first, max(before/2, leastBytes))
	}
	*t.Room = first
}

// long is a part of a transaction's timeout: Kafka should need no more for what one holds.
func (t *Transactions) long() time.Duration { return t.Timeout / 8 }

// learn sets how large a transaction may be by how long Kafka was busy with one. All that was handed over has to be
// there by the commit: what a quota lets in too slowly is aborted by its coordinator, and so would be
// the same one of every session after that. A quota lets in what was saved up first, and the transaction
// beyond that whole; then the next one waits. So it grows by half only.
func (m *exactlyOnce) learn(bytes int64, took time.Duration) {
	switch {
	case took > m.long():
		*m.Room = max(min(*m.Room, bytes)/2, leastBytes)
	case bytes >= m.limit():
		*m.Room = min(*m.Room+*m.Room/2, m.MaxBytes)
	}
}

// busy returns how long Kafka was, or will be, with a transaction that was to be committed at a time: what
// it had not taken by then. The rest of a commit takes as long for one event.
func (m *exactlyOnce) busy(due time.Time) time.Duration {
	all, throttled := m.tx.Taken()
	return max(all.Sub(due), throttled.Sub(due))
}

// commitPosition commits a position that no event of a transaction brings along: of what
// was parked, skipped, waits, or held nothing for us. With nothing open and no
// transaction passed, everything that the progress says has ended is known to. What waits
// is not, before a commit covers it: the next session would read it again, and forgets
// its row first.
func (m *exactlyOnce) commitPosition(ctx context.Context, now time.Time) error {
	live := m.look()
	passed, since := live.Transactions != m.known.Transactions, now.Sub(m.committed)
	at := m.cut().Reach
	released := at.Release != m.known.Reach.Release || at.Cursor != m.known.Reach.Cursor
	if !passed {
		m.mu.Lock()
		m.known.Marked = live.Marked
		m.mu.Unlock()
	}
	if now.Before(m.next) || !released && !m.idle.Due(passed, m.known.Position, live.Position, since) &&
		since < refresh {
		return nil
	}
	return m.commit(ctx)
}

// wake returns when a pause of the stream becomes a commit.
func (m *exactlyOnce) wake(time.Time) time.Time {
	if m.open == 0 && m.ledger.Transactions() == m.known.Transactions {
		return time.Time{}
	}
	return m.next
}

// flush commits what is open, or a position that is ahead of the last commit.
func (m *exactlyOnce) flush(ctx context.Context) error {
	if m.open == 0 && m.ledger.Position() <= m.known.Position && m.cut().Reach == m.known.Reach {
		return nil
	}
	return m.commit(ctx)
}

// commit writes what is open and the checkpoint behind it. The tick is durable
// in the database before the checkpoint that carries it: a database that was put
// back to a time before shows a lower one.
func (m *exactlyOnce) commit(ctx context.Context) error {
	began := time.Now()
	tick, err := m.prepare(ctx)
	if err != nil {
		return err
	}
	c := m.cut()
	c.Timeline, c.Session, c.Gap, c.Tick = m.Bound.Timeline, m.Bound.Session, m.Bound.Gap, tick
	_, bytes, since := m.tx.Open()
	asked := time.Now()
	due := asked
	if late := since.Add(m.lasts(since)); !since.IsZero() && late.Before(began) {
		due = late.Add(asked.Sub(began)) // the sink was full
	}
	fault.Crash(fault.BeforeCommit)
	ctx, cancel := m.outlast(ctx)
	defer cancel()
	if err := m.tx.Commit(ctx, publisher.Position{Order: uint64(c.Order), Meta: c.Meta()}); err != nil {
		return fmt.Errorf("commit Kafka transaction: %w", err)
	}
	fault.Crash(fault.AfterCommit)
	took, idle := time.Since(asked), began.Sub(m.committed)
	if !since.IsZero() {
		m.learn(bytes, m.busy(due))
	}
	m.committed, m.next = began, m.after(began, time.Now())
	m.counts.Committed(m.events, m.open-m.events, took, m.oldest)
	m.mu.Lock()
	defer m.mu.Unlock()
	live := m.look()
	live.Position, live.Reach = c.Order, c.Reach
	m.idle.Saved(live.Transactions != m.known.Transactions, m.known.Position, live.Position, idle)
	m.known, m.open, m.events, m.oldest = live, 0, 0, time.Time{}
	return nil
}

// prepare writes to the database what comes before a commit.
func (m *exactlyOnce) prepare(ctx context.Context) (tick int64, err error) {
	ctx, cancel := state.Outlast(ctx, state.CommitGrace)
	defer cancel()
	if err := m.before(ctx); err != nil {
		return 0, err
	}
	return m.Tick(ctx)
}

// outlast bounds a commit in Kafka: one that is cut off fails the producer. It may take
// its grace when the session ends; the last one of a stop has what is left of that.
func (m *exactlyOnce) outlast(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, bounded := ctx.Deadline(); bounded {
		return context.WithCancel(ctx)
	}
	return state.Outlast(ctx, m.Grace)
}

// after returns when the commit behind one begins, at the earliest, so that an event that came just behind
// the begin of that one is visible an interval after it: earlier by what a commit takes, as this one did.
// However long it took, half an interval is left for events.
func (m *exactlyOnce) after(began, ended time.Time) time.Time {
	next := began.Add(m.Interval - ended.Sub(began))
	if half := ended.Add(m.Interval / 2); half.After(next) {
		return half
	}
	return next
}

// status is how far everything has ended, as the last commit left it; what is
// open counts as in flight.
func (m *exactlyOnce) status() (Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.known
	live := m.look()
	now.Events, now.InFlight, now.Oldest = live.Events, live.InFlight+uint64(m.open), live.Oldest
	now.Owing = live.Owing + uint64(m.events)
	if !m.oldest.IsZero() {
		now.Oldest = m.oldest
	}
	return now, m.err
}
