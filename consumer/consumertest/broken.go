package consumertest

import (
	"fmt"
	"slices"
	"strings"
)

// Promise is one that the effects of a service keep, or not.
type Promise string

// The promises, in the order in which they are tried.
const (
	// Once: an event that is delivered has its effect, and is acknowledged.
	Once Promise = "an event that is delivered has its effect"
	// Session: what a delivery sets, locks or makes in its session of the database is gone
	// with its transaction. The next delivery that gets the session knows nothing of it.
	Session Promise = "a delivery leaves its session as it was"
	// NewKey: another event with the same content is another event.
	NewKey Promise = "a new key is a new event"
	// Copies: five deliveries, one after the other, at once, and in two processes at
	// once, are one effect.
	Copies Promise = "five deliveries are one effect"
	// Together: events that come together are applied each; of a batch only.
	Together Promise = "events of one batch have each their effect"
	// Crash: the process dies at any point of a delivery, is started again, and the event
	// is delivered again.
	Crash Promise = "a process may die at any point"
	// Cut: the connection is cut at any point, the process goes on, and the event is
	// delivered again, out of another topic.
	Cut Promise = "a connection may be cut at any point"
	// Order: events of different aggregates come in any order.
	Order Promise = "independent events come in any order"
	// AtOnce: events of different aggregates are applied at the same moment, in two
	// processes.
	AtOnce Promise = "independent events may be applied at once"
	// Restart: a process is started anew after each event, and old events come again.
	Restart Promise = "a restart changes nothing"
	// RetryQueue: a copy comes out of another topic, [Service].RetryDelay later.
	RetryQueue Promise = "a retry queue that comes back hours later adds nothing"
	// AfterWindow: after the window of its class, when its claim is gone, a message is
	// delivered again, as after a reset of the group's offsets.
	AfterWindow Promise = "a redelivery after the window adds nothing"
)

// BrokenError is a promise that is not kept.
type BrokenError struct {
	Promise  Promise
	Event    string // which event it is about
	Delivery string // how it was delivered
	Found    string // what differs, or what the delivery said
	Do       string // what to look for in the handler
}

// Error implements error, in several lines.
func (e *BrokenError) Error() string {
	return fmt.Sprintf("broken promise: %s\n  event:    %s\n  delivery: %s\n  found:    %s\n  do:       %s", e.Promise, e.Event,
		e.Delivery, strings.ReplaceAll(e.Found, "\n", "\n            "), e.Do)
}

// difference is what effects have too much of, and what they lack.
type difference struct{ more, less []string }

// differ compares effects with those that there should be, as multisets. It is pure.
func differ(got, want []string) (d difference) {
	times := make(map[string]int)
	for _, line := range got {
		times[line]++
	}
	for _, line := range want {
		times[line]--
	}
	for line, n := range times {
		for ; n > 0; n-- {
			d.more = append(d.more, line)
		}
		for ; n < 0; n++ {
			d.less = append(d.less, line)
		}
	}
	slices.Sort(d.more)
	slices.Sort(d.less)
	return d
}

func (d difference) none() bool { return len(d.more)+len(d.less) == 0 }

// String shows the lines, "+" before one that should not be there, "-" before one that is
// missing.
func (d difference) String() string {
	const most = 10
	var lines []string
	for _, line := range d.more {
		lines = append(lines, "+ "+line)
	}
	for _, line := range d.less {
		lines = append(lines, "- "+line)
	}
	text := "beside one undisturbed delivery (+ too much, - missing):\n"
	if len(lines) > most {
		return text + strings.Join(lines[:most], "\n") + fmt.Sprintf("\n… and %d more", len(lines)-most)
	}
	return text + strings.Join(lines, "\n")
}

// advice says what to look for, by the promise and by what differs.
func (d difference) advice(p Promise) string {
	switch {
	case p == Session:
		return "the next event that the pool gives this session to is applied under it. Say SET LOCAL, CREATE TEMP TABLE … ON COMMIT DROP, pg_advisory_xact_lock, and release what a connection of the pool was given."
	case p == Together:
		return "the handler of a batch has to apply every event that it is given."
	case p == AtOnce:
		return "one of them has overwritten what the other did, because it had read before. Let one statement read and write (SET n = n + 1), or lock what is read (SELECT … FOR UPDATE, pg_advisory_xact_lock). A mutex locks one process."
	case p == Order:
		return "the effect depends on which event came before. Take what it needs from the event itself; compare versions within one aggregate, never over all of them."
	case p == RetryQueue:
		return "the window of the event's class is shorter than the retry queue keeps a message: lengthen Class.Window, or have the queue give messages up before."
	case p == AfterWindow:
		return "the class applies replays (ReplayProcess), and the handler made the effect again: let it look at ev.Unprotected and change nothing that is there, or leave replays to dead letters."
	case len(d.less) == 0:
		return "an effect was made again. What a handler writes with its tx is made once; what it does beside it is not: through the pool or another connection, before Do, after a COMMIT of its own, in a goroutine, at a provider. Use tx, or outbox.Enqueue with it; for what lies outside this database consumer.Fence, giving the provider Call.Key. And Config.Group must be the same in every process."
	case len(d.more) == 0:
		return "the event counts as applied, and its effect is not there: the handler returned nil without it. Look for an error that is not returned, a goroutine that is not waited for, a COMMIT in the middle, and for what it remembers of an attempt that was rolled back, in memory or by a statement beside its tx."
	}
	return "the effect is another one than that of one delivery: it depends on memory of the process, or on which attempt made it. Keep counters in the database, and take the result of an effect from Receipt.Result, which is the same at every attempt."
}
