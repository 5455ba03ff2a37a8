package procfs

import (
	"slices"
	"sync"
	"time"
)

// every is the time between two readings.
const every = 20 * time.Millisecond

// Sampler reads the CPU time and the peak memory of processes while something is measured, so
// that afterwards the part can be taken that belongs to the measured time. Make one with
// [Start]; its methods may be called by several goroutines.
type Sampler struct {
	mu      sync.Mutex
	watched map[string]*series
	quit    chan struct{}
	done    chan struct{}
}

// series are the readings of one process, and of those that it followed.
type series struct {
	pid    int
	before time.Duration // what those had spent
	points []point
	peak   int64
}

// point is one reading.
type point struct {
	at  time.Time
	cpu time.Duration
}

// Start starts a sampler, which reads until [Sampler.Stop].
func Start() *Sampler {
	s := &Sampler{watched: make(map[string]*series), quit: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s
}

func (s *Sampler) run() {
	defer close(s.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		s.read()
		select {
		case <-tick.C:
		case <-s.quit:
			s.read()
			return
		}
	}
}

// Watch adds a process under a name, and reads it at once. A name that is there already keeps
// its process.
func (s *Sampler) Watch(name string, pid int) {
	s.mu.Lock()
	if s.watched[name] == nil {
		s.watched[name] = &series{pid: pid}
	}
	s.mu.Unlock()
	s.read()
}

// WatchNew is Watch of a process that was started since the sampler was: what it has spent
// already counts from now on. Where the name has another process, this one follows it.
func (s *Sampler) WatchNew(name string, pid int) {
	s.mu.Lock()
	switch w := s.watched[name]; {
	case w == nil:
		s.watched[name] = &series{pid: pid, points: []point{{time.Now(), 0}}}
	case w.pid != pid:
		w.pid, w.before = pid, w.points[len(w.points)-1].cpu
	}
	s.mu.Unlock()
	s.read()
}

// read takes one reading of all. A process that is gone keeps its last.
func (s *Sampler) read() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watched {
		if cpu, err := CPU(w.pid); err == nil {
			w.points = append(w.points, point{time.Now(), w.before + cpu})
		}
		if peak, err := Peak(w.pid); err == nil {
			w.peak = max(w.peak, peak)
		}
	}
}

// Stop takes a last reading and ends the goroutine. It is called once.
func (s *Sampler) Stop() {
	close(s.quit)
	<-s.done
}

// Between returns the CPU time that a process spent between two times; ok is false where it was
// not seen.
func (s *Sampler) Between(name string, from, to time.Time) (cpu time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watched[name]
	if w == nil || len(w.points) == 0 {
		return 0, false
	}
	return spent(w.points, to) - spent(w.points, from), true
}

// Peak returns the most memory that a process had resident, in bytes; 0 where it was not seen.
func (s *Sampler) Peak(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watched[name]; w != nil {
		return w.peak
	}
	return 0
}

// spent is the CPU time up to a moment, between two readings in proportion, and before the first
// and after the last that one.
func spent(points []point, at time.Time) time.Duration {
	i, _ := slices.BinarySearchFunc(points, at, func(p point, at time.Time) int { return p.at.Compare(at) })
	if i == 0 {
		return points[0].cpu
	}
	if i == len(points) {
		return points[i-1].cpu
	}
	a, b := points[i-1], points[i]
	share := float64(at.Sub(a.at)) / float64(b.at.Sub(a.at))
	return a.cpu + time.Duration(share*float64(b.cpu-a.cpu))
}
