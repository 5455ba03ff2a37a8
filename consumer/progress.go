package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/completed"
	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/consumer/internal/progress"
	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/outbox"
)

// Mark says how far the group has got in one topic partition. Marks are kept in
// onceward.progress and only ever widen.
type Mark struct {
	Topic     string
	Partition int32
	// TopicID is Kafka's id of the topic that the mark is about, zero when it is
	// not known. A topic that was made anew, or is on another cluster, has another
	// id, and its offsets say nothing of those of before: there is a mark for each.
	TopicID uuid.UUID
	// Low is the first offset that the group ever read, High the last before
	// which, itself included, everything is finished.
	Low, High int64
	// FinishedTime is the latest event time among the finished messages; zero
	// when none had one.
	FinishedTime time.Time
	// AtEnd: the partition was read to its end, so that it counts the latest
	// event time that the group has finished in any partition. Else a quiet
	// partition would hold the floors back for ever; what arrives in it later
	// with an older time is late. Not part of what [Processor.Progress] returns.
	AtEnd bool
	// Read is the offset up to which messages were read, itself excluded; 0 when it
	// is not known.
	Read int64
	// Crashed: another session has had the partition and did not end. Something
	// between High and a little after Read may be what has killed its process. Only
	// part of what Progress returns.
	Crashed bool
	// Inherited, with Crashed: the last session has ended well, but has not come to all
	// that an earlier one has left in doubt. Only part of what Progress returns.
	Inherited bool
	// Retired: an operator has taken the mark out of the group's stream time, or the
	// group has begun with another topic of the name. To save the mark again, with
	// whatever High, takes it back in, unless there is that other topic. Only part of
	// what Progress returns.
	Retired bool
}

// Progress is what the database knows of the group's way through its topics.
type Progress struct {
	// Of several topics of one name the one that is read now, or was last, comes first.
	Marks []Mark
	// History is system identifier, timeline, and when the server was started. A failover,
	// a restored backup or snapshot, another cluster changes it: effects that were committed
	// before may be missing. A restart changes it too, and costs one look.
	History  string
	Database string // its name, for messages
}

// ErrHistory: the database is on another history than it was, see [Progress], or a
// mark is gone from it or lower than it was.
var ErrHistory = progress.ErrHistory

// marks are how far this process has read and finished, and the marks of the group.
type marks struct {
	*member
	windows    *windows
	ages       memory.Ages
	known      memory.Marks
	session    atomic.Pointer[completed.Session] // what BeginProgress began; nil: there is none
	attended   atomic.Bool                       // a member of the group runs on it
	stream     memory.Instant                    // stream time as far as this process has seen it
	reads      memory.Reads
	savedAlone atomic.Int64 // when the stream time of events without Source was saved, Unix ms
}

// end closes what a session had open.
func (m *marks) end(ctx context.Context, given []Mark) error {
	m.session.Store(nil)
	row := m.rowsOf(given)
	crashed := make(map[memory.Life]bool, len(given))
	for _, g := range given {
		crashed[g.life()] = g.Crashed
	}
	doubts := make([]bool, len(row.Topics))
	for i, topic := range row.Topics {
		id, err := uuid.Parse(row.TopicIds[i])
		doubts[i] = err == nil && crashed[memory.Life{Topic: topic, ID: id, Partition: row.KafkaPartitions[i]}]
	}
	err := consumerdb.New(m.db).EndProgress(ctx, consumerdb.EndProgressParams{
		Topics: row.Topics, TopicIds: row.TopicIds, KafkaPartitions: row.KafkaPartitions, Crashed: doubts,
		ConsumerGroup: m.group, OpenBy: m.incarnation,
	})
	if err != nil {
		return fmt.Errorf("end the session's progress: %w", err)
	}
	return nil
}

func (m *marks) save(ctx context.Context, history string, given []Mark, begins bool) error {
	row := m.rowsOf(given)
	if begins {
		row.OpenBy = m.incarnation
	}
	for _, g := range given {
		at := g.FinishedTime
		if g.AtEnd { // the time of other partitions' events, at most, which the mark counts from now on
			at = memory.Latest(at, m.windows.now())
		}
		m.reads.Raise(g.Topic, g.Partition, at)
	}
	counted := m.ages.Take()
	if err := m.saveProgress(ctx, history, row, counted); err != nil {
		if errors.Is(err, ErrHistory) {
			m.session.Store(nil)
		}
		m.ages.Merge(counted)
		return fmt.Errorf("save progress: %w", err)
	}
	if begins {
		m.session.Store(completed.NewSession(history, row.Topics, row.KafkaPartitions))
	}
	for _, g := range given {
		m.stream.Raise(g.FinishedTime)
		m.known.Raise(g.life(), g.High)
	}
	return nil
}

func (m Mark) life() memory.Life {
	return memory.Life{Topic: m.Topic, ID: m.TopicID, Partition: m.Partition}
}

// least returns what a mark must at least be.
func (m *marks) least(of Mark) int64 {
	if high, known := m.known.Least(of.life()); known {
		return high
	}
	return progress.AnyMark
}

func (m *marks) rowsOf(given []Mark) consumerdb.SaveProgressParams {
	given = slices.SortedFunc(slices.Values(given), func(a, b Mark) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	row := consumerdb.SaveProgressParams{ConsumerGroup: m.group}
	for _, g := range given {
		if g.FinishedTime.IsZero() {
			g.FinishedTime = time.Unix(0, 0)
		}
		row.Topics, row.KafkaPartitions, row.TopicIds = append(row.Topics, g.Topic), append(row.KafkaPartitions,
			g.Partition), append(row.TopicIds, g.TopicID.String())
		row.LowOffsets, row.HighOffsets, row.AtLeast = append(row.LowOffsets, g.Low), append(row.HighOffsets,
			g.High), append(row.AtLeast, m.least(g))
		row.ReadOffsets = append(row.ReadOffsets, g.Read)
		row.FinishedTimes, row.AtEnds = append(row.FinishedTimes, g.FinishedTime), append(row.AtEnds, g.AtEnd)
	}
	return row
}

func (m *marks) saveProgress(ctx context.Context, history string, row consumerdb.SaveProgressParams,
	counted map[memory.AgeClass]memory.AgeCount) (err error) {
	if len(row.Topics) == 0 && len(counted) == 0 { // an idle group, at every commit interval
		return progress.SameHistory(ctx, consumerdb.New(m.db), history)
	}
	tx, err := m.windows.begin(ctx)
	if err != nil {
		return err
	}
	defer transaction.Rollback(ctx, tx)
	defer func() { err = judge(ctx, tx, err) }()
	if err := progress.Save(ctx, consumerdb.New(tx), history, row, counted); err != nil {
		return err
	}
	return commit(ctx, tx)
}

// aloneEvery is how often the stream time of events without Source is saved.
const aloneEvery = 10 * time.Second

// applied counts an event that came from no topic towards the group's stream
// time, which else would stand still. It takes a connection of its own; a failure
// is made up for by the next event.
func (m *marks) applied(ctx context.Context, ev *Event) {
	if ev.Source.Topic != "" {
		return
	}
	m.stream.Raise(m.windows.timeOf(ev))
	last, now := m.savedAlone.Load(), time.Now().UnixMilli()
	if now-last < aloneEvery.Milliseconds() || !m.savedAlone.CompareAndSwap(last, now) {
		return
	}
	stream, _ := m.stream.Get()
	row := m.rowsOf([]Mark{{FinishedTime: stream}})
	if _, err := consumerdb.New(m.db).SaveProgress(ctx, row); err != nil {
		m.log.WarnContext(ctx, "stream time not saved; the next event does it", "error", err)
	}
}

// read reads all marks, and the database's history.
func (m *marks) read(ctx context.Context) (Progress, error) {
	now, rows, err := progress.Read(ctx, m.db, m.group)
	if err != nil {
		return Progress{}, fmt.Errorf("read progress: %w", err)
	}
	read, known := Progress{History: now.History, Database: now.Database}, make(map[memory.Life]int64, len(rows))
	for _, row := range rows {
		if row.Topic == "" {
			continue // of events without Source
		}
		g := Mark{Topic: row.Topic, TopicID: row.TopicID, Partition: row.KafkaPartition, Low: row.LowOffset,
			High: row.HighOffset, Read: row.ReadOffset, Retired: row.Retired}
		g.Crashed, g.Inherited = row.OpenBy != "" && row.OpenBy != m.incarnation, row.OpenBy == progress.OpenCrashed
		if row.FinishedTime != nil {
			g.FinishedTime = *row.FinishedTime
			m.reads.Raise(g.Topic, g.Partition, g.FinishedTime)
		}
		read.Marks, known[g.life()] = append(read.Marks, g), g.High
	}
	m.known.Set(known)
	return read, nil
}

// highMark reads the mark that counts for an offset; not ok: the group has none.
func (m *marks) highMark(ctx context.Context, q *consumerdb.Queries, src Source) (mark consumerdb.HighMarkRow, ok bool,
	err error) {
	mark, err = q.HighMark(ctx, consumerdb.HighMarkParams{
		ConsumerGroup: m.group, Topic: src.Topic, TopicID: src.TopicID, KafkaPartition: src.Partition,
		KafkaOffset: src.Offset,
	})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return mark, false, fmt.Errorf("read the mark of %s: %w", src, err)
	}
	return mark, err == nil, nil
}

// unread asks whether a record lies in a range that nobody could read at first.
func (m *marks) unread(ctx context.Context, q *consumerdb.Queries, src Source) (bool, error) {
	unread, err := q.WasUnreadable(ctx, consumerdb.WasUnreadableParams{
		ConsumerGroup: m.group, Topic: src.Topic, TopicID: src.TopicID, KafkaPartition: src.Partition,
		KafkaOffset: src.Offset,
	})
	if err != nil {
		return false, fmt.Errorf("ask whether %s could be read: %w", src, err)
	}
	return unread, nil
}

// passed reports whether the group's mark is beyond an offset.
func (m *marks) passed(ctx context.Context, q statement.Queries, src Source) (bool, error) {
	mark, ok, err := m.highMark(ctx, q.Queries, src)
	if err != nil || !ok || src.Offset > mark.HighOffset {
		return false, err
	}
	unread, err := m.unread(ctx, q.Queries, src) // there the mark says nothing of it
	return !unread, err
}

// behind reports whether an event of a topic lies further behind what was read of its
// partition than its window. Its claim goes as soon as its floor is raised, when
// copies of it may be on their way still, and before the mark has passed it perhaps.
func (m *marks) behind(ev *Event) bool {
	if ev.Source.Topic == "" {
		return false
	}
	read := m.reads.Latest(ev.Source.Topic, ev.Source.Partition)
	if read.IsZero() {
		read = m.windows.now()
	}
	return outbox.IDTime(m.claimID(*ev)).Before(read.Add(-m.windows.windowOf(ev.Type)))
}

// age is how far an event lies behind the group's stream time, or the clock while
// that is not known; behind its first delivery when it is claimed by arrival.
func (m *marks) age(ev *Event, first time.Time) time.Duration {
	if m.windows.byArrival(ev.Type) {
		return m.windows.now().Sub(first)
	}
	stream, known := m.stream.Get()
	if !known {
		stream = m.windows.now()
	}
	return stream.Sub(outbox.IDTime(m.claimID(*ev)))
}
