package relay

import (
	"context"
	"log/slog"
	"time"
)

// remindAfter is how old a wait is when it is logged; after the last of them it
// is logged again every repeatReminder.
var remindAfter = []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute}

// repeatReminder is the time between two reminders of an old wait.
const repeatReminder = 30 * time.Minute

// reminders decide when to log what waits. They are pure.
type reminders map[string]*reminder // by kind

type reminder struct {
	since time.Time
	said  int
}

// notice is one line for the log.
type notice struct {
	wait   Wait // the oldest of its kind
	others int  // of that kind, beside it
	over   bool
	lasted time.Duration
}

// tick returns what is to be said now. A standby is how it should be, and is
// not talked about.
func (r reminders) tick(now time.Time, waiting []Wait) (say []notice) {
	seen := make(map[string]int)
	for _, w := range waiting {
		if seen[w.For]++; seen[w.For] > 1 || w.For == WaitStandby {
			continue
		}
		m := r[w.For]
		if m == nil {
			m = &reminder{since: w.Since}
			r[w.For] = m
		}
		if age := now.Sub(m.since); age >= dueAt(m.said) {
			for age >= dueAt(m.said) {
				m.said++
			}
			say = append(say, notice{wait: w, lasted: age})
		}
	}
	for i := range say {
		say[i].others = seen[say[i].wait.For] - 1
	}
	for _, kind := range Waits {
		if m := r[kind]; m != nil && seen[kind] == 0 {
			if m.said > 0 {
				say = append(say, notice{wait: Wait{For: kind, Since: m.since}, over: true, lasted: now.Sub(m.since)})
			}
			delete(r, kind)
		}
	}
	return say
}

// dueAt is the age at which a wait is logged that was logged so many times.
func dueAt(said int) time.Duration {
	if said < len(remindAfter) {
		return remindAfter[said]
	}
	return remindAfter[len(remindAfter)-1] + time.Duration(said-len(remindAfter)+1)*repeatReminder
}

// waitWords say what it means that something waits.
var waitWords = map[string]string{
	WaitKafka:       "Kafka takes no events",
	WaitPostgres:    "no session with PostgreSQL",
	WaitSlot:        "nothing can be read from the replication slot yet",
	WaitRoute:       "routes are held",
	WaitLetter:      "a dead letter is being written",
	WaitTransaction: "an open transaction pins log that the relay does not need; end it, or find out why it is open",
	WaitPaused:      "paused by an operator",
	WaitHalted:      "halted: an operator is needed",
	WaitMaintenance: "partitions are neither made nor dropped",
	WaitSettings:    "this standby and the process that holds the slot are configured differently; give both the same relay.yaml",
}

// say logs a notice.
func (n notice) say(ctx context.Context, log *slog.Logger) {
	if n.over {
		log.InfoContext(ctx, "no longer waiting: "+waitWords[n.wait.For], "for", n.wait.For, "lasted", n.lasted.Round(time.Second))
		return
	}
	args := []any{"for", n.wait.For, "since", n.wait.Since.UTC().Format(time.RFC3339), "lasts", n.lasted.Round(time.Second), "detail", n.wait.Detail}
	if n.wait.What != "" {
		args = append(args, "what", n.wait.What)
	}
	if n.others > 0 {
		args = append(args, "others", n.others)
	}
	log.WarnContext(ctx, "waiting: "+waitWords[n.wait.For], args...)
}
