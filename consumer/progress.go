package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/consumerdb"
)

// Mark says how far the group has got in one topic partition. Marks are kept in
// onceward.progress and only ever widen.
type Mark struct {
	Topic     string
	Partition int32
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
	// Retired: an operator has taken the mark out of the group's stream time. To
	// save the mark again, with whatever High, takes it back in. Only part of what
	// Progress returns.
	Retired bool
}

// Progress is what the database knows of the group's way through its topics.
type Progress struct {
	Marks []Mark
	// History identifies the history that the database is on: system identifier,
	// timeline, and when the server was started. It changes with a failover, a
	// restored backup or snapshot, another cluster; effects that were committed
	// before may be missing then. A restart changes it too, and costs one look.
	History string
}

// ErrHistory: the database is on another history than it was; see [Progress].
var ErrHistory = errors.New("the database is on another history (failover, restore or another cluster)")

// SaveProgress writes marks, durably, after the effects that they stand for. The
// write-ahead log keeps the order: a database that has a mark has every effect
// before it, even after a failover that lost commits. So Kafka's offsets may
// follow the marks, never lead them.
//
// History is what [Processor.Progress] said when the work began. On another one
// nothing is written and the error is [ErrHistory], because the marks may stand
// for effects that are lost. Without marks only that is found out.
func (p *Processor) SaveProgress(ctx context.Context, history string, marks []Mark) error {
	marks = slices.SortedFunc(slices.Values(marks), func(a, b Mark) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	row := consumerdb.SaveProgressParams{ConsumerGroup: p.group}
	for _, m := range marks {
		if m.FinishedTime.IsZero() {
			m.FinishedTime = time.Unix(0, 0)
		}
		row.Topics, row.KafkaPartitions = append(row.Topics, m.Topic), append(row.KafkaPartitions, m.Partition)
		row.LowOffsets, row.HighOffsets = append(row.LowOffsets, m.Low), append(row.HighOffsets, m.High)
		row.FinishedTimes, row.AtEnds = append(row.FinishedTimes, m.FinishedTime), append(row.AtEnds, m.AtEnd)
	}
	counted := p.ages.take()
	if err := p.saveProgress(ctx, history, row, counted); err != nil {
		p.ages.merge(counted)
		return fmt.Errorf("save progress: %w", err)
	}
	for _, m := range marks {
		p.sawTime(m.FinishedTime)
	}
	return nil
}

// sameHistory is [ErrHistory] when the database is on another one.
func sameHistory(ctx context.Context, q *consumerdb.Queries, history string) error {
	now, err := q.History(ctx)
	if err == nil && now != history {
		err = fmt.Errorf("%w: was %s, is %s", ErrHistory, history, now)
	}
	return err
}

func (p *Processor) saveProgress(ctx context.Context, history string, row consumerdb.SaveProgressParams, counted map[ageClass]ageCount) (err error) {
	if len(row.Topics) == 0 && len(counted) == 0 { // an idle group, at every commit interval
		return sameHistory(ctx, consumerdb.New(p.db), history)
	}
	tx, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer rollback(ctx, tx)
	defer func() { err = judge(ctx, tx, err) }()
	q := consumerdb.New(tx)
	if err := sameHistory(ctx, q, history); err != nil {
		return err
	}
	if err := p.saveAges(ctx, q, counted); err != nil {
		return err
	}
	if err := q.SaveProgress(ctx, row); err != nil {
		return err
	}
	if err := q.ForgetAhead(ctx, consumerdb.ForgetAheadParams{
		ConsumerGroup: p.group, Topics: row.Topics, KafkaPartitions: row.KafkaPartitions, HighOffsets: row.HighOffsets,
	}); err != nil {
		return err
	}
	return commit(ctx, tx)
}

// sawTime raises the stream time that this process knows.
func (p *Processor) sawTime(at time.Time) { raise(&p.stream, at) }

// raise lifts a time in Unix ms; it never lowers it.
func raise(to *atomic.Int64, at time.Time) {
	for {
		known := to.Load()
		if at.IsZero() || at.UnixMilli() <= known || to.CompareAndSwap(known, at.UnixMilli()) {
			return
		}
	}
}

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
	row := consumerdb.SaveProgressParams{
		ConsumerGroup: p.group, Topics: []string{""}, KafkaPartitions: []int32{0}, LowOffsets: []int64{0}, HighOffsets: []int64{0},
		FinishedTimes: []time.Time{time.UnixMilli(p.stream.Load())}, AtEnds: []bool{false},
	}
	if err := consumerdb.New(p.db).SaveProgress(ctx, row); err != nil {
		p.log.WarnContext(ctx, "stream time not saved; the next event does it", "error", err)
	}
}

// Progress reads all marks of the group, and the database's history.
func (p *Processor) Progress(ctx context.Context) (Progress, error) {
	q := consumerdb.New(p.db)
	history, err := q.History(ctx)
	if err != nil {
		return Progress{}, fmt.Errorf("read the database's history: %w", err)
	}
	rows, err := q.ProgressOfGroup(ctx, p.group)
	if err != nil {
		return Progress{}, fmt.Errorf("read progress: %w", err)
	}
	progress := Progress{History: history}
	for _, row := range rows {
		if row.Topic == "" {
			continue // of events without Source
		}
		m := Mark{Topic: row.Topic, Partition: row.KafkaPartition, Low: row.LowOffset, High: row.HighOffset, Retired: row.Retired}
		if row.FinishedTime != nil {
			m.FinishedTime = *row.FinishedTime
			p.sawRead(m.FinishedTime)
		}
		progress.Marks = append(progress.Marks, m)
	}
	return progress, nil
}

// SaveProgress is [Processor.SaveProgress].
func (r *Router) SaveProgress(ctx context.Context, history string, marks []Mark) error {
	return r.processor.SaveProgress(ctx, history, marks)
}

// Progress is [Processor.Progress].
func (r *Router) Progress(ctx context.Context) (Progress, error) { return r.processor.Progress(ctx) }
