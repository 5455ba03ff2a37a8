package retention

import (
	"slices"
	"time"

	"github.com/onceward/onceward/consumer"
)

// Redeliveries is how late the duplicates of one event type came, as kept in
// onceward.redeliveries: by how much the event's time lay behind the group's
// stream time.
type Redeliveries struct {
	EventType string
	// Seen is how many duplicates there were.
	Seen int64
	// Oldest is the age of the oldest.
	Oldest time.Duration
}

// Advice is what the redeliveries say of a class's window.
type Advice struct {
	Pattern string
	Window  time.Duration
	// Seen counts the duplicates of the class, Oldest is the age of the oldest
	// and EventType the type that it had; zero without any.
	Seen      int64
	Oldest    time.Duration
	EventType string
	// TooSmall: the oldest duplicate was older than half the window. One that is
	// older than the window is a Replay, or new where it is keyed by arrival.
	TooSmall bool
	// Recommended is the window itself unless it is too small; else the next
	// round length of at least twice the oldest age.
	Recommended time.Duration
}

// Advise judges windows by the duplicates that were seen: half of a window is
// its margin. It never recommends a smaller one, because duplicates that were
// not seen may come. It is pure; the order is that of the classes.
func Advise(classes []consumer.Class, seen []Redeliveries) []Advice {
	out := make([]Advice, len(classes))
	for i, c := range classes {
		out[i] = Advice{Pattern: c.Pattern, Window: c.Window, Recommended: c.Window}
	}
	for _, r := range seen {
		i := consumer.ClassOf(classes, r.EventType)
		if i < 0 {
			continue
		}
		a := &out[i]
		a.Seen += r.Seen
		if r.Oldest > a.Oldest || a.EventType == "" {
			a.Oldest, a.EventType = r.Oldest, r.EventType
		}
	}
	for i := range out {
		if a := &out[i]; a.Oldest > a.Window/2 {
			a.TooSmall, a.Recommended = true, roundLength(2*a.Oldest)
		}
	}
	return out
}

// roundLengths are the windows that people choose.
var roundLengths = []time.Duration{
	5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour,
	12 * time.Hour,
	24 * time.Hour, 2 * 24 * time.Hour, 3 * 24 * time.Hour, 5 * 24 * time.Hour, 7 * 24 * time.Hour, 10 * 24 * time.Hour,
	14 * 24 * time.Hour,
	21 * 24 * time.Hour, 30 * 24 * time.Hour,
}

// roundLength returns the next round length that is not shorter: of the list,
// or else whole tens of days.
func roundLength(d time.Duration) time.Duration {
	if i := slices.IndexFunc(roundLengths, func(r time.Duration) bool { return r >= d }); i >= 0 {
		return roundLengths[i]
	}
	const step = 10 * 24 * time.Hour
	tens := d.Truncate(step)
	if tens < d {
		tens += step
	}
	return tens
}
