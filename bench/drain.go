package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/bench/internal/procfs"
	"github.com/onceward/onceward/bench/internal/report"
	"github.com/onceward/onceward/bench/internal/sink"
	"github.com/onceward/onceward/internal/process"
)

// drainLimit is how long one side may take for a backlog, and for each million events of one.
const drainLimit = 10 * time.Minute

// largeBlocks make a payload of 64 KiB.
const largeBlocks = 1 << 10

// hogs is how many programs want the CPU in the workload of that name.
const hogs = 8

// load is what the sides of a drain take up.
type load struct {
	workload string
	events   int // of a backlog
	each     int // events in a transaction; 0: mixed
	rounds   int // each with a backlog of its own
	shape    sink.Shape
}

// load is that of a workload which is no curve.
func (p *plan) load(workload string) load {
	l := load{workload, p.events[workload], 1, p.rounds, sink.Usual}
	switch workload {
	case report.Bulk:
		l.each = bulkTransaction
	case report.Mixed:
		l.each = 0
	case report.Large:
		l.shape.Blocks = largeBlocks
	case report.Hogs:
		l.rounds = min(l.rounds, p.paces)
	}
	return l
}

// drain measures how fast each side takes up a backlog.
func (b *bench) drain(ctx context.Context, l load) (err error) {
	st, err := b.servers.open(ctx, l.workload)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close(ctx)) }()
	st.shape = l.shape
	names, sides, err := b.sides(ctx, st, l.workload)
	if err != nil {
		return err
	}
	for round := range l.rounds {
		if err := st.backlog(ctx, l.events, l.each); err != nil {
			return err
		}
		for _, name := range turned(names, round) {
			run, err := b.drainOne(ctx, st, l, name, sides[name])
			if b.leaveOut(ctx, l.workload, name, err) {
				names = slices.DeleteFunc(names, func(n string) bool { return n == name })
				if err := st.drop(ctx, sides[name]); err != nil {
					return err
				}
				continue
			}
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", name, round+1, err)
			}
			run.Workload, run.Side, run.Round = l.workload, name, round
			b.add(run)
		}
	}
	return nil
}

// drainOne lets a side take up what it has not had yet.
func (b *bench) drainOne(ctx context.Context, st *stage, l load, name string, s side) (report.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, drainLimit*time.Duration(1+l.events/1_000_000))
	defer cancel()
	if w, ok := s.(writer); ok {
		if err := w.catchUp(ctx, st.written); err != nil {
			return report.Run{}, err
		}
	}
	if l.workload == report.Hogs {
		stop, err := startHogs(st)
		if err != nil {
			return report.Run{}, err
		}
		defer stop()
	}
	m := b.watch()
	if err := m.untilFinished(ctx, st, s); err != nil {
		return report.Run{}, err
	}
	if name == report.Ceiling || name == report.Reader {
		return m.ofReader(s, l.events)
	}
	return m.ofTopic(ctx, st, s)
}

// startHogs starts programs that do nothing but take the CPU.
func startHogs(st *stage) (stop func(), err error) {
	var all []*process.Process
	stop = func() {
		for _, p := range all {
			p.Kill()
		}
	}
	for range hogs {
		p, err := startTask(task{Kind: hogTask}, st.path("hog.log"))
		if err != nil {
			stop()
			return nil, err
		}
		all = append(all, p)
	}
	return stop, nil
}

// measuring watches the processes of one measurement.
type measuring struct {
	sampler *procfs.Sampler
	began   time.Time // when the side began to read; zero: CPU counts from the first event on
	ended   time.Time // when it was seen to have dealt with all
}

// watch begins a measurement; the broker is there already.
func (b *bench) watch() *measuring {
	m := &measuring{sampler: procfs.Start()}
	m.sampler.Watch("broker", b.servers.kafka.PID(0))
	m.sampler.Watch("machine", procfs.Machine)
	m.sampler.Watch("stolen", procfs.Stolen)
	return m
}

// untilFinished starts a side, waits until it has dealt with all that was written, and stops it.
func (m *measuring) untilFinished(ctx context.Context, st *stage, s side) error {
	defer m.sampler.Stop()
	if err := m.start(ctx, s); err != nil {
		return err
	}
	err := until(ctx, "the backlog is drained", func() (bool, error) {
		if err := m.findBackend(ctx, s); err != nil {
			return false, err
		}
		return s.finished(ctx, st.written)
	})
	m.ended = time.Now()
	if r, ok := s.(hasBeginning); ok && err == nil {
		m.began, err = r.beginning()
	}
	return errors.Join(err, s.stop(ctx))
}

func (m *measuring) start(ctx context.Context, s side) error {
	if err := free(ctx, s); err != nil {
		return err
	}
	p, err := s.start(ctx)
	if err != nil {
		return err
	}
	m.sampler.Watch("side", p.PID())
	return nil
}

// free waits until the backend of a side is gone, which ends a moment after the side's process.
func free(ctx context.Context, s side) error {
	return until(ctx, "the backend is gone", func() (bool, error) {
		pid, err := s.backend(ctx)
		return pid == 0, err
	})
}

// findBackend watches the process that serves the side, once there is one.
func (m *measuring) findBackend(ctx context.Context, s side) error {
	pid, err := s.backend(ctx)
	if err == nil && pid != 0 {
		m.sampler.WatchNew("backend", pid)
	}
	return err
}

// ofReader is what a side says of itself that publishes nothing.
func (m *measuring) ofReader(s side, events int) (report.Run, error) {
	speaker, ok := s.(hasSpan)
	if !ok {
		return report.Run{}, errors.New("this side publishes nothing and says nothing")
	}
	found, err := speaker.span()
	if err != nil {
		return report.Run{}, err
	}
	run := m.between(events, found.First, found.Last)
	delete(run.CPU, "broker") // had nothing to do with it
	return run, nil
}

// warming is a side that is slow in its first seconds: its first third does not count.
type warming interface{ warms() }

// ofTopic reads what a side has published since the last time, checks it, and says how fast that
// came.
func (m *measuring) ofTopic(ctx context.Context, st *stage, s side) (report.Run, error) {
	read, err := s.sink().Read(ctx, st.written)
	if err != nil {
		return report.Run{}, err
	}
	records, from := read.Records, read.First
	if _, ok := s.(warming); ok {
		records, from = read.Warm()
	}
	run := m.between(records, from, read.Last)
	run.Batch = read.PerBatch()
	return run, nil
}

// between is what the processes spent for the events that came between two times.
func (m *measuring) between(events int, from, to time.Time) report.Run {
	run := report.Run{Events: events, Seconds: to.Sub(from).Seconds(), CPU: make(map[string]float64)}
	if !m.began.IsZero() {
		from = m.began
	}
	for _, process := range []string{"side", "backend", "broker", "machine", "stolen"} {
		last := to
		if process == "backend" && !m.began.IsZero() {
			last = m.ended // it may have been found after the last event of a short backlog, and has nothing to do then
		}
		if cpu, ok := m.sampler.Between(process, from, last); ok {
			run.CPU[process] = cpu.Seconds() * 1e6 / float64(max(events, 1))
		}
	}
	if peak := m.sampler.Peak("side"); peak > 0 {
		mib := float64(peak) / (1 << 20)
		run.Memory = &mib
	}
	return run
}
