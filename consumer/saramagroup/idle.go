package saramagroup

import "time"

const (
	// idleAfter is how long nothing may have arrived, nor be in hand, before a
	// partition's leader is asked whether it was read to its end.
	idleAfter = 10 * time.Second
	// lookEvery is how often it is asked while nothing arrives.
	lookEvery = time.Minute
)

// idle is what a worker knows of a partition in which nothing happens.
type idle struct {
	since time.Time  // when the last message came
	asked time.Time  // when its leader was asked last; zero: not since then
	seen  chan sight // what the one question found that may be under way
	busy  bool       // it is
}

// sight is what look found from an offset on.
type sight struct {
	from, end int64
	ok        bool
}

// look asks, when it is time to, whether the partition was read to its end, and
// returns when it will be time; zero when something else comes before.
func (w *worker) look() (at time.Time) {
	if held, _ := w.lanes.held(); held > 0 || w.idle.busy {
		return time.Time{}
	}
	at = w.idle.since.Add(w.cfg.idleAfter())
	if !w.idle.asked.IsZero() {
		at = w.idle.asked.Add(w.cfg.lookEvery())
	}
	now := time.Now()
	if now.Before(at) {
		return at
	}
	w.idle.busy, w.idle.asked = true, now
	from := w.read
	w.looks.Go(func() {
		end, ok, err := findEnd(w.client, place{w.claim.Topic(), w.claim.Partition()}, from)
		if err != nil {
			w.log.Warn("nobody can tell whether the partition was read to its end; stream time waits for it", "error", err)
		}
		w.idle.seen <- sight{from, end, ok}
	})
	return time.Time{}
}

// seen moves the mark to the end of a partition that was read to it. Nothing has
// come meanwhile, or it waits for the next time.
func (w *worker) seen(s sight) {
	w.idle.busy = false
	if held, _ := w.lanes.held(); !s.ok || held > 0 || w.read != s.from {
		return
	}
	w.read = s.end
	w.gauges.end.Store(s.end)
	w.widen(s.end-1, true)
}

// soonest returns the earlier of two times; zero is never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// wake returns a channel that delivers at the given time; never for zero.
func wake(at time.Time) <-chan time.Time {
	if at.IsZero() {
		return nil
	}
	return time.After(time.Until(at))
}
