package relays

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/relay"
)

// Problems are what an operator should look at.
func (r *Relay) Problems() []operator.Problem {
	out := []operator.Problem{}
	add := func(check, format string, args ...any) {
		out = append(out, operator.NewProblem(fmt.Sprintf(format, args...)).Of(check, r.Relay, r.Slot))
	}
	switch {
	case r.Relay == "":
		add("slot-unknown", "slot %s keeps %s of WAL and no relay knows it; if it is not just being made, and no relay uses it: SELECT pg_catalog.pg_drop_replication_slot('%s'); "+
			"as a superuser or a role with REPLICATION", r.Slot, terminal.Size(r.RetainedBytes), r.Slot)
	case r.NotBegun && !r.lives():
		add("no-process", "relay %s has not begun, and no process of it is connected to PostgreSQL: start it, or look at its log and /readyz%s; "+
			"one that is not to begin is forgotten by `outboxctl retire --slot %s --reason \"…\"`", r.Relay, r.lastReport(), r.Slot)
	case r.NotBegun: // what its processes wait for says more
	case r.SlotOf != "" && !r.lives():
		add("slot-elsewhere", "relay %[1]s: slot %[2]s belongs to database %[3]s, and the relay that uses it is that database's: this database is a copy. Leave the slot alone; "+
			"a relay of this database needs another name or postgres.slot.name, and this one is forgotten by `outboxctl retire --slot %[2]s --reason \"…\"`", r.Relay, r.Slot, r.SlotOf)
		out[len(out)-1].Code = "SLOT_FOREIGN"
	case !r.SlotExists && !r.lives():
		add("slot-gone", "relay %s: its slot %s is gone; start the relay and read what it says", r.Relay, r.Slot)
	case r.WALStatus == "lost" || r.WALStatus == "unreserved":
		add("slot-lost", "relay %s: slot %s is %s; raise max_slot_wal_keep_size and look at the relay", r.Relay, r.Slot, r.WALStatus)
	case !r.held() && !r.lives():
		add("no-process", "relay %s: no process of it is connected to PostgreSQL: start it, or look at its log and /readyz%s", r.Relay, r.lastReport())
	case !r.held() && r.Streams():
		add("not-streaming", "relay %s: nobody reads from slot %s, though a process said last that it does: where its role lacks a right it can say no more; look at its log and /readyz, "+
			"and `outboxctl migrate roles --side outbox --apply` gives the role what it lacks", r.Relay, r.Slot)
	}
	if r.SlotTaken != "" && r.Relay != "" {
		add("slot-taken", "relay %s: %s", r.Relay, r.SlotTaken)
		out[len(out)-1].Code = cdc.CodeSlotTaken
	}
	out = append(append(append(out, r.waiting()...), r.elsewhere()...), r.rests()...)
	for _, id := range r.Skip {
		add("skip", "relay %s is told to skip the event %s and has not come to it; `outboxctl skip %s --undo --relay %s` takes the word back", r.Relay, id, id, r.Relay)
	}
	return out
}

// Rests says what of the relays, or of the one of a slot, rests by an operator's word.
func Rests(ctx context.Context, q *outboxdb.Queries, slot string) ([]operator.Problem, error) {
	known, err := Read(ctx, q)
	out := []operator.Problem{}
	for i := range known {
		if slot == "" || known[i].Slot == slot {
			out = append(out, known[i].rests()...)
		}
	}
	return out, err
}

func (r *Relay) rests() (out []operator.Problem) {
	add := func(check, format string, args ...any) {
		out = append(out, operator.NewProblem(fmt.Sprintf(format, args...)).Of(check, r.Relay, r.Slot))
	}
	if r.Paused {
		add("paused", "relay %s is paused%s; `outboxctl resume --relay %s` lets it go on", r.Relay, r.rested(""), r.Relay)
	}
	for _, route := range r.PausedRoutes {
		add("route-paused", "relay %s: route %s is paused%s; `outboxctl resume --relay %s --route %s` lets it go on", r.Relay, route, r.rested(route), r.Relay, route)
	}
	return out
}

// foreign is the beginning of a text that anybody may have written.
func foreign(text string) string {
	return label.Foreign(terminal.Preview([]byte(text), terminal.PreviewBytes))
}

// rested says who let the relay, or a route of it, rest, as far as it was written down.
func (r *Relay) rested(route string) string {
	i := slices.IndexFunc(r.Rests, func(v Rested) bool { return v.Route == route })
	if i < 0 {
		return ""
	}
	return " " + r.Rests[i].String()
}

// String says who did it, since when, and why.
func (v Rested) String() string {
	text := fmt.Sprintf("by %s since %s", foreign(v.By), terminal.Stamp(&v.At))
	if v.Reason != "" {
		text += " (" + foreign(v.Reason) + ")"
	}
	return text
}

// elsewhere says that a relay met another Kafka and nobody has decided about it. A
// process that lives says so itself.
func (r *Relay) elsewhere() []operator.Problem {
	if r.Met == "" || r.lives() {
		return nil
	}
	problem := operator.NewProblem(fmt.Sprintf("OTHER_KAFKA: relay %s publishes to Kafka cluster %s and met cluster %s: put the right kafka.brokers into its configuration, or see `outboxctl adopt --help`", r.Relay, r.Cluster, r.Met)).Of("other-kafka", r.Relay, r.Slot)
	problem.Code = "OTHER_KAFKA"
	return []operator.Problem{problem}
}

// held reports whether a process of a relay has the slot.
func (r *Relay) held() bool { return r.SlotExists && r.ActivePID != nil && r.SlotTaken == "" }

// waiting says what the living processes wait for and should not. A standby is as it
// should be; what an operator paused, and who else holds the slot, are said elsewhere.
func (r *Relay) waiting() []operator.Problem {
	var out []operator.Problem
	for _, p := range r.Processes {
		if !p.Alive {
			continue
		}
		for _, w := range p.Waiting {
			if w.For == relay.WaitStandby || w.For == relay.WaitPaused || w.For == relay.WaitSlot && r.SlotTaken != "" {
				continue
			}
			says, check := p.State+", waits for "+w.For, "waits"
			switch w.For {
			case relay.WaitHalted:
				says, check = p.State, "halted"
			case relay.WaitSettings:
				says = p.State + ", and not configured as the process that holds the slot,"
			}
			if w.What != "" {
				says += " " + foreign(w.What)
			}
			problem := operator.NewProblem(fmt.Sprintf("relay %s is %s since %s (process %s): %s",
				r.Relay, says, terminal.Stamp(&w.Since), p.Process,
				terminal.Preview([]byte(w.Detail), terminal.ErrorBytes))).Of(check, r.Relay, r.Slot)
			problem.Code = p.Code
			out = append(out, problem)
		}
	}
	return out
}

// lastReport is that of the process that said something last. Whether it has ended
// is not known here: one that cannot log in, or cannot write, says nothing either.
func (r *Relay) lastReport() string {
	var last *Process
	for i, p := range r.Processes {
		if last == nil || p.At.After(last.At) {
			last = &r.Processes[i]
		}
	}
	if last == nil {
		return ""
	}
	text := fmt.Sprintf(" (the last one, %s, wrote at %s that it was %s", last.Process, terminal.Stamp(&last.At), last.State)
	if last.Error != "" {
		text += ": " + terminal.Preview([]byte(last.Error), terminal.ErrorBytes)
	}
	return text + ")"
}

// ReadsLater says why a relay has not acted on an order yet, and when it will.
func (r Relay) ReadsLater() string {
	switch {
	case r.Paused:
		return fmt.Sprintf("relay %s is paused and reads nothing; `outboxctl resume --relay %s` lets it go on", r.Relay, r.Relay)
	case !r.held():
		return fmt.Sprintf("relay %s is not connected; it reads the order when it is back", r.Relay)
	}
	if rests := r.routesAtRest(); rests != "" {
		return fmt.Sprintf("relay %s has not ended it yet; what is of a route that rests waits for it: %s", r.Relay, rests)
	}
	return fmt.Sprintf("relay %s has not ended it yet, it is %s behind; it will. If it is halted, see `outboxctl skip --help`", r.Relay, terminal.Size(r.LagBytes))
}

// routesAtRest names the routes that cannot be used now, and why; empty: there is none.
func (r Relay) routesAtRest() string {
	var out []string
	for _, route := range r.PausedRoutes {
		out = append(out, fmt.Sprintf("route %s is paused; `outboxctl resume --relay %s --route %s` lets it go on", route, r.Relay, route))
	}
	for _, p := range r.Processes {
		for _, w := range p.Waiting {
			if p.Alive && w.For == relay.WaitRoute && !slices.Contains(r.PausedRoutes, w.What) {
				out = append(out, fmt.Sprintf("route %s: %s", foreign(w.What), terminal.Preview([]byte(w.Detail), terminal.ErrorBytes)))
			}
		}
	}
	return strings.Join(out, "; ")
}
