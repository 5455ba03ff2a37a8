package consumer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/consumer/internal/progress"
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
	// Marks of several topics of one name stand side by side, the one that is read
	// now, or was read last, first.
	Marks []Mark
	// History identifies the history that the database is on: system identifier,
	// timeline, and when the server was started. It changes with a failover, a
	// restored backup or snapshot, another cluster; effects that were committed
	// before may be missing then. A restart changes it too, and costs one look.
	History string
}

// ErrHistory: the database is on another history than it was, see [Progress], or a
// mark is gone from it or lower than it was.
var ErrHistory = progress.ErrHistory

// SaveProgress writes marks, durably, after the effects that they stand for. The
// write-ahead log keeps the order: a database that has a mark has every effect
// before it, even after a failover that lost commits. So Kafka's offsets may
// follow the marks, never lead them.
//
// History is what [Processor.Progress] said when the work began. On another one
// nothing is written and the error is [ErrHistory], because the marks may stand
// for effects that are lost. So it is when a mark is gone, or lower than this
// Processor has last read or saved it: higher it may be, by another member.
// Without marks only the history is found out.
func (p *Processor) SaveProgress(ctx context.Context, history string, marks []Mark) error {
	return p.save(ctx, history, marks, false)
}

// Attend begins the membership of the group for as long as leave is not called. One
// Processor has one at a time, else the error is [ErrAttended]: marks say whose
// session has a partition by its Processor, so that of two members the end of the one
// would be taken for that of the other, and its crash would not be seen.
func (p *Processor) Attend() (leave func(), err error) {
	if !p.attended.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("group %q: %w", p.group, ErrAttended)
	}
	return func() { p.attended.Store(false) }, nil
}

// BeginProgress saves the marks with which a session begins, and that it has
// begun, until EndProgress. A mark whose topic id was not known before gets it. One
// of another topic of the same name and partition is retired: it stays, and
// stream time goes on without it. Otherwise as SaveProgress.
func (p *Processor) BeginProgress(ctx context.Context, history string, marks []Mark) error {
	return p.save(ctx, history, marks, true)
}

// EndProgress says that a session that had these partitions has ended, and did not
// crash. Where it is not said, the next session finds Mark.Crashed; so it does where
// a mark is given with Crashed: what an earlier crash has left in doubt still is.
func (p *Processor) EndProgress(ctx context.Context, marks []Mark) error {
	row := p.rowsOf(marks)
	crashed := make(map[memory.Life]bool, len(marks))
	for _, m := range marks {
		crashed[m.life()] = m.Crashed
	}
	doubts := make([]bool, len(row.Topics))
	for i, topic := range row.Topics {
		id, err := uuid.Parse(row.TopicIds[i])
		doubts[i] = err == nil && crashed[memory.Life{Topic: topic, ID: id, Partition: row.KafkaPartitions[i]}]
	}
	err := consumerdb.New(p.db).EndProgress(ctx, consumerdb.EndProgressParams{
		Topics: row.Topics, TopicIds: row.TopicIds, KafkaPartitions: row.KafkaPartitions, Crashed: doubts, ConsumerGroup: p.group, OpenBy: p.incarnation,
	})
	if err != nil {
		return fmt.Errorf("end the session's progress: %w", err)
	}
	return nil
}

func (p *Processor) save(ctx context.Context, history string, marks []Mark, begins bool) error {
	row := p.rowsOf(marks)
	if begins {
		row.OpenBy = p.incarnation
	}
	for _, m := range marks {
		at := m.FinishedTime
		if m.AtEnd { // the time of other partitions' events, at most, which the mark counts from now on
			at = latest(at, p.windows.now())
		}
		p.reads.Raise(m.Topic, m.Partition, at)
	}
	counted := p.ages.Take()
	if err := p.saveProgress(ctx, history, row, counted); err != nil {
		p.ages.Merge(counted)
		return fmt.Errorf("save progress: %w", err)
	}
	for _, m := range marks {
		p.sawTime(m.FinishedTime)
		p.knownMarks.Raise(m.life(), m.High)
	}
	return nil
}

func (m Mark) life() memory.Life {
	return memory.Life{Topic: m.Topic, ID: m.TopicID, Partition: m.Partition}
}

// least returns what a mark must at least be.
func (p *Processor) least(m Mark) int64 {
	if high, known := p.knownMarks.Least(m.life()); known {
		return high
	}
	return progress.AnyMark
}

func (p *Processor) rowsOf(marks []Mark) consumerdb.SaveProgressParams {
	marks = slices.SortedFunc(slices.Values(marks), func(a, b Mark) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	row := consumerdb.SaveProgressParams{ConsumerGroup: p.group}
	for _, m := range marks {
		if m.FinishedTime.IsZero() {
			m.FinishedTime = time.Unix(0, 0)
		}
		row.Topics, row.KafkaPartitions, row.TopicIds = append(row.Topics, m.Topic), append(row.KafkaPartitions, m.Partition), append(row.TopicIds, m.TopicID.String())
		row.LowOffsets, row.HighOffsets, row.AtLeast = append(row.LowOffsets, m.Low), append(row.HighOffsets, m.High), append(row.AtLeast, p.least(m))
		row.ReadOffsets = append(row.ReadOffsets, m.Read)
		row.FinishedTimes, row.AtEnds = append(row.FinishedTimes, m.FinishedTime), append(row.AtEnds, m.AtEnd)
	}
	return row
}

func (p *Processor) saveProgress(ctx context.Context, history string, row consumerdb.SaveProgressParams, counted map[memory.AgeClass]memory.AgeCount) (err error) {
	if len(row.Topics) == 0 && len(counted) == 0 { // an idle group, at every commit interval
		return progress.SameHistory(ctx, consumerdb.New(p.db), history)
	}
	tx, err := p.begin(ctx)
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

// sawTime raises the stream time that this process knows.
func (p *Processor) sawTime(at time.Time) { p.stream.Raise(at) }

// aloneEvery is how often the stream time of events without Source is saved.
const aloneEvery = 10 * time.Second

// applied counts an event that came from no topic towards the group's stream
// time, which else would stand still. It takes a connection of its own; a failure
// is made up for by the next event.
func (p *Processor) applied(ctx context.Context, ev *Event) {
	if ev.Source.Topic != "" {
		return
	}
	p.sawTime(p.timeOf(ev))
	last, now := p.savedAlone.Load(), time.Now().UnixMilli()
	if now-last < aloneEvery.Milliseconds() || !p.savedAlone.CompareAndSwap(last, now) {
		return
	}
	stream, _ := p.stream.Get()
	row := p.rowsOf([]Mark{{FinishedTime: stream}})
	if _, err := consumerdb.New(p.db).SaveProgress(ctx, row); err != nil {
		p.log.WarnContext(ctx, "stream time not saved; the next event does it", "error", err)
	}
}

// Progress reads all marks of the group, and the database's history.
func (p *Processor) Progress(ctx context.Context) (Progress, error) {
	history, rows, err := progress.Read(ctx, p.db, p.group)
	if err != nil {
		return Progress{}, fmt.Errorf("read progress: %w", err)
	}
	read, known := Progress{History: history}, make(map[memory.Life]int64, len(rows))
	for _, row := range rows {
		if row.Topic == "" {
			continue // of events without Source
		}
		m := Mark{Topic: row.Topic, TopicID: row.TopicID, Partition: row.KafkaPartition, Low: row.LowOffset, High: row.HighOffset, Read: row.ReadOffset, Retired: row.Retired}
		m.Crashed, m.Inherited = row.OpenBy != "" && row.OpenBy != p.incarnation, row.OpenBy == progress.OpenCrashed
		if row.FinishedTime != nil {
			m.FinishedTime = *row.FinishedTime
			p.reads.Raise(m.Topic, m.Partition, m.FinishedTime)
		}
		read.Marks, known[m.life()] = append(read.Marks, m), m.High
	}
	p.knownMarks.Set(known)
	return read, nil
}

// SaveProgress is [Processor.SaveProgress].
func (r *Router) SaveProgress(ctx context.Context, history string, marks []Mark) error {
	return r.processor.SaveProgress(ctx, history, marks)
}

// Attend is [Processor.Attend].
func (r *Router) Attend() (leave func(), err error) { return r.processor.Attend() }

// BeginProgress is [Processor.BeginProgress].
func (r *Router) BeginProgress(ctx context.Context, history string, marks []Mark) error {
	return r.processor.BeginProgress(ctx, history, marks)
}

// EndProgress is [Processor.EndProgress].
func (r *Router) EndProgress(ctx context.Context, marks []Mark) error {
	return r.processor.EndProgress(ctx, marks)
}

// Progress is [Processor.Progress].
func (r *Router) Progress(ctx context.Context) (Progress, error) { return r.processor.Progress(ctx) }

// age is how far an event lies behind the group's stream time, or the clock while
// that is not known; behind its first delivery when it is claimed by arrival.
func (p *Processor) age(ev *Event, first time.Time) time.Duration {
	if p.byArrival(ev.Type) {
		return p.windows.now().Sub(first)
	}
	stream, known := p.stream.Get()
	if !known {
		stream = p.windows.now()
	}
	return stream.Sub(outbox.IDTime(p.claimID(*ev)))
}

// timeOf is the time by which an event counts towards stream time: that of its
// arrival when it is claimed by that; zero for one that has not come yet, which
// must not move stream time.
func (p *Processor) timeOf(ev *Event) time.Time {
	now := p.windows.now()
	switch at := ev.Key.Time(); {
	case p.byArrival(ev.Type):
		return now
	case at.After(now.Add(p.windows.skew)):
		return time.Time{}
	default:
		return at
	}
}

func (p *Processor) byArrival(eventType string) bool {
	i := p.windows.index(eventType)
	return i >= 0 && p.windows.classes[i].Keyed == ByArrival
}
