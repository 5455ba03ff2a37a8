package consumer

import (
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
)

// DefaultWindow is that of the class "*", when [Config] names no classes: 7
// days, after which Kafka forgets the offsets of an idle group, so that the
// group reads the topic again.
const DefaultWindow = 7 * 24 * time.Hour

// DefaultSkew is how far an event time may lie ahead of the database's clock.
const DefaultSkew = 5 * time.Minute

// Bounds of [Class].Window.
const (
	minWindow = time.Minute
	maxWindow = 3660 * 24 * time.Hour
)

// Class gives event types a deduplication window. Its floor, kept in
// onceward.dedup_windows, is an event time below which claims may be gone; it
// follows the group's stream time, see package retention, and is never lowered.
type Class struct {
	// Pattern is an event type, or the beginning of event types followed by
	// "*". Of the classes that match a type the most special one counts, see
	// [ClassOf]. Required, once.
	Pattern string
	// Window is for how long, at least, a claim is remembered: in event time,
	// behind the group's stream time, or of a class that is keyed by arrival, from
	// the arrival. 1 minute to 10 years, by arrival to 31 days, in whole
	// milliseconds. Required. What is registered in the database counts: a longer
	// window of a class by event time is taken over, anything else changes by
	// `outboxctl windows set`.
	Window time.Duration
	// Late says what becomes of an event that the group sees for the first time
	// at its offset, with an event time below the floor. Default [LateProcess].
	Late LatePolicy
	// Replay says what becomes of an event below the floor that the group may
	// have seen before. Default [ReplayDeadLetter].
	Replay ReplayPolicy
	// Keyed says by what time the class claims. Default [ByEventTime]; it
	// cannot be changed later.
	Keyed Keying
	// Content says that keys are made of what events say, as those of package fingerprint
	// are: what says the same two windows later is another event. So nothing that is
	// known of one outlives its claims. Rows of [Fence], and of [Do] in a handler of
	// [Router.Func], would: both are [ErrRegistration]. A dead letter stands for its own record, and
	// for what says the same in the same or the next bucket; its redrive claims in the
	// bucket of its arrival. Wants Keyed: ByArrival, beside which nothing of it is in the
	// database: all members of a group must have the same choice.
	Content bool
	// Bucket is, for keys made by outbox.DeriveKey or ExternalKey, by how much
	// their event time may be older than the event: the bucket, and the longest
	// delay of a delivery. Window must not be shorter. Default 0: keys that
	// carry the time of the event.
	Bucket time.Duration
}

// LatePolicy is a choice for late events.
type LatePolicy string

// Policies for late events.
const (
	// LateProcess applies the event, with Event.Late set, claimed by arrival:
	// a copy within one window, or 7 days when that is less, is a Duplicate.
	LateProcess LatePolicy = "process"
	// LateDeadLetter keeps the event as a dead letter with the reason "late".
	LateDeadLetter LatePolicy = "dead-letter"
)

// ReplayPolicy is a choice for replays from below the floor.
type ReplayPolicy string

// Policies for replays.
const (
	// ReplayDeadLetter keeps the event as a dead letter with the reason "replay".
	ReplayDeadLetter ReplayPolicy = "dead-letter"
	// ReplayProcess applies it, with Event.Unprotected set, claimed by arrival.
	// Its effect may have been made before.
	ReplayProcess ReplayPolicy = "process"
)

// Keying is a choice of the time by which claims are kept.
type Keying string

const (
	// ByEventTime claims an event under its own id.
	ByEventTime Keying = "event-time"
	// ByArrival claims it under two ids that are derived from its own and from
	// the time of arrival, at the ends of buckets, which lie ahead: for keys that carry no time of
	// their event. A copy within one window of the first meets it, one after two
	// windows does not and is taken for new. There is no Late and no Replay.
	ByArrival Keying = claims.ByArrival
)

func (c Class) withDefaults() Class {
	if c.Late == "" {
		c.Late = LateProcess
	}
	if c.Replay == "" {
		c.Replay = ReplayDeadLetter
	}
	if c.Keyed == "" {
		c.Keyed = ByEventTime
	}
	return c
}

// validate checks the class at the given place of the configuration.
func (c Class) validate(at int) error {
	prefix := strings.TrimSuffix(c.Pattern, "*")
	switch {
	case c.Pattern == "" || !consumerdb.IsText(c.Pattern) || strings.Contains(prefix, "*"):
		return fmt.Errorf("config: Classes[%d]: Pattern %q: want an event type, or the beginning of one followed by *", at, c.Pattern)
	case c.Window < minWindow || c.Window > maxWindow || c.Window%time.Millisecond != 0:
		return fmt.Errorf("config: Classes[%d]: Window %s of %q: want %s to %s in whole milliseconds", at, c.Window, c.Pattern, minWindow, maxWindow)
	case c.Keyed == ByArrival && c.Window > claims.MaxBucket:
		return fmt.Errorf("config: Classes[%d]: Window %s of %q: want at most %s of a class that is keyed by arrival, whose claims lie up to two windows ahead", at, c.Window, c.Pattern, claims.MaxBucket)
	case c.Bucket < 0 || c.Bucket > c.Window:
		return fmt.Errorf("config: Classes[%d]: Window %s of %q is shorter than its Bucket %s: a copy could fall below the floor within its window", at, c.Window, c.Pattern, c.Bucket)
	case c.Late != LateProcess && c.Late != LateDeadLetter:
		return fmt.Errorf("config: Classes[%d]: Late %q of %q: want %s or %s", at, c.Late, c.Pattern, LateProcess, LateDeadLetter)
	case c.Replay != ReplayDeadLetter && c.Replay != ReplayProcess:
		return fmt.Errorf("config: Classes[%d]: Replay %q of %q: want %s or %s", at, c.Replay, c.Pattern, ReplayDeadLetter, ReplayProcess)
	case c.Content && c.Keyed != ByArrival:
		return fmt.Errorf("config: Classes[%d]: Content of %q: want Keyed: consumer.ByArrival, because what an event says carries no time", at, c.Pattern)
	case c.Keyed != ByEventTime && c.Keyed != ByArrival:
		return fmt.Errorf("config: Classes[%d]: Keyed %q of %q: want %s or %s", at, c.Keyed, c.Pattern, ByEventTime, ByArrival)
	}
	return nil
}

// matches reports whether the class holds events of the type.
func (c Class) matches(eventType string) bool {
	if prefix, ok := strings.CutSuffix(c.Pattern, "*"); ok {
		return strings.HasPrefix(eventType, prefix)
	}
	return c.Pattern == eventType
}

// ClassOf returns the index of the class that an event type falls into, -1 for
// none: the class of that very name, else that with the longest beginning of it.
// The order of the classes means nothing. It is pure.
func ClassOf(classes []Class, eventType string) int {
	best := -1
	for i, c := range classes {
		switch {
		case !c.matches(eventType):
		case c.Pattern == eventType:
			return i
		case best < 0 || len(c.Pattern) > len(classes[best].Pattern):
			best = i
		}
	}
	return best
}

// CheckClasses returns classes with what they leave out, or says what is wrong with
// them; none are the class "*" with [DefaultWindow]. [New] does it.
func CheckClasses(classes []Class) ([]Class, error) {
	if len(classes) == 0 {
		classes = []Class{{Pattern: "*", Window: DefaultWindow}}
	}
	out := make([]Class, len(classes))
	seen := make(map[string]bool)
	for i, c := range classes {
		out[i] = c.withDefaults()
		if err := out[i].validate(i); err != nil {
			return nil, err
		}
		if seen[c.Pattern] {
			return nil, fmt.Errorf("config: Classes[%d]: Pattern %q is there twice", i, c.Pattern)
		}
		seen[c.Pattern] = true
	}
	return out, nil
}
