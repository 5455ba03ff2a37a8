package saramagroup

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/consumer"
)

// tally is what a call of Run counts. Workers count by atomics; the lock is
// taken when a partition comes or goes, and for a Snapshot.
type tally struct {
	generation atomic.Int32
	finished   [1 << 8]atomic.Int64 // by consumer.Outcome, which has 8 bits
	handler    atomic.Int64         // failures, by kind
	database   atomic.Int64
	inProgress atomic.Int64
	rewinds    atomic.Int64
	saved      instant

	mu     sync.Mutex
	gauges map[place]*gauges
	read   map[place]int64 // where workers that are gone have stopped reading
}

// gauges are what one worker shows of its partition. Only the worker writes.
type gauges struct {
	next, held, bytes, inFlight atomic.Int64
	end                         atomic.Int64 // as a look has found it
	since                       instant
	highWater                   func() int64 // sarama's, safe for concurrent use
}

// instant is a time that is read and written at once; zero is no time.
type instant struct{ nano atomic.Int64 }

func (i *instant) set(t time.Time) {
	if t.IsZero() {
		i.nano.Store(0)
		return
	}
	i.nano.Store(t.UnixNano())
}

func (i *instant) get() time.Time {
	n := i.nano.Load()
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

// left remembers where a worker has stopped reading.
func (t *tally) left(at place, read int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.read == nil {
		t.read = make(map[place]int64)
	}
	t.read[at] = read
}

// reached returns what left has remembered.
func (t *tally) reached(at place) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read[at]
}

// open makes a partition's gauges. The function it returns takes them away.
func (t *tally) open(at place, highWater func() int64) (d *gauges, leave func()) {
	d = &gauges{highWater: highWater}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gauges == nil {
		t.gauges = make(map[place]*gauges)
	}
	t.gauges[at] = d
	return d, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.gauges, at)
	}
}

// failed counts a delivery that is tried again.
func (t *tally) failed(d consumer.Delivery) {
	switch {
	case d.Err == nil:
		t.inProgress.Add(1)
	case counts(d.Err):
		t.handler.Add(1)
	default:
		t.database.Add(1)
	}
}

// counts reports whether a failure is an attempt: it is the handler's own. What else
// there is, such as consumer.ErrNoPartition, says nothing of the event.
func counts(err error) bool {
	var failed *consumer.HandlerError
	return errors.As(err, &failed) && !consumer.IsInfrastructure(err)
}

func (t *tally) snapshot(group string) Snapshot {
	s := Snapshot{
		Group: group, Generation: t.generation.Load(),
		Finished: make(map[consumer.Outcome]int64),
		Failed: map[FailureKind]int64{
			FailureHandler: t.handler.Load(), FailureInfrastructure: t.database.Load(),
			FailureInProgress: t.inProgress.Load(),
		},
		Rewinds: t.rewinds.Load(), ProgressSaved: t.saved.get(),
	}
	for i := range t.finished {
		if o := consumer.Outcome(i); o.Acknowledges() {
			s.Finished[o] = t.finished[i].Load()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, d := range t.gauges {
		s.Partitions = append(s.Partitions, d.stats(at))
	}
	slices.SortFunc(s.Partitions, func(a, b PartitionStats) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return s
}

func (d *gauges) stats(at place) PartitionStats {
	return PartitionStats{
		Topic: at.topic, Partition: at.partition, Next: d.next.Load(), HighWater: max(d.end.Load(), d.highWater()),
		Held: d.held.Load(), HeldBytes: d.bytes.Load(), InFlight: d.inFlight.Load(), WaitingSince: d.since.get(),
	}
}

// observe gives a Snapshot to Config.Observe at every commit interval, in one
// goroutine. The function it returns has it give a last one and ends it.
func (t *tally) observe(group string, cfg Config) (end func()) {
	if cfg.Observe == nil {
		return func() {}
	}
	over := make(chan struct{})
	var observer sync.WaitGroup
	observer.Go(func() {
		tick := time.NewTicker(cfg.CommitInterval)
		defer tick.Stop()
		for open := true; open; {
			select {
			case <-over:
				open = false
			case <-tick.C:
			}
			cfg.Observe(t.snapshot(group))
		}
	})
	return func() {
		close(over)
		observer.Wait()
	}
}
