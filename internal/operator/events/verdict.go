package events

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/kafka"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
)

// Judge says in which state the event is, and by what, for each relay and for all
// of them. It is pure. A record of the event itself, seen in Kafka, outweighs
// everything; else the relay that is least far counts. A replay's record says
// nothing of the event's own.
func (r *Life) Judge() {
	defer func() { r.Next = r.next() }()
	r.judgeReplays()
	r.judgeRelays()
	if seen := r.seen(); seen != nil {
		r.set(states.Published, "found in topic %s partition %d offset %d", r.Kafka.Topic, seen.Partition, seen.Offset)
	}
	if r.Kafka == nil || len(r.Kafka.Copies) > 0 {
		return
	}
	var sure []string
	for i := range r.Relays {
		if v := &r.Relays[i]; v.State == states.Published {
			v.Disagrees = true
			sure = append(sure, v.Relay)
		}
	}
	says := "relay " + strings.Join(sure, ", ") + " has published it"
	if len(sure) == 0 {
		if r.State != states.Published {
			return
		}
		says = "it was published"
	}
	lacks := "topic %s does not have it: the topic's retention has removed it, the topic was made anew,"
	if r.Kafka.NoTopic {
		lacks = "there is no topic %s: it was removed,"
	}
	r.Disagree = fmt.Sprintf("the database says that %s, and "+lacks+" or its route led elsewhere; "+
		"`outboxctl replay %s --config FILE --reason \"…\"` publishes it again", says, r.Kafka.Topic, r.Key)
}

// leastFar orders the states of an event of which several relays have an account.
var leastFar = []string{states.Dead, states.Pending, states.Waiting, states.Gap, states.GivenUp, states.Before,
	states.Discarded, states.Published}

// judgeRelays says what each relay's state rests on, and takes the one that is
// least far. A letter counts also where its relay is gone, and no other has the row.
func (r *Life) judgeRelays() {
	said := make(map[string]string) // why, by state
	say := func(state, why string) {
		if said[state] == "" {
			said[state] = why
		}
	}
	for i := range r.Relays {
		v := &r.Relays[i]
		if v.Why = v.why(r.Key); r.eventLetter(v.Slot) == nil {
			say(v.State, v.Why)
		}
	}
	for i := range r.DeadLetters {
		l := &r.DeadLetters[i]
		known := slices.ContainsFunc(r.Relays, func(v Account) bool { return v.Slot == l.Slot })
		if r.isReplay(l.ID) || !known && len(r.Relays) > 0 { // of a relay that was retired
			continue
		}
		state, why := l.why()
		say(state, why)
		for k := range r.Relays {
			if r.Relays[k].Slot == l.Slot {
				r.Relays[k].Why = why
			}
		}
	}
	for _, state := range leastFar {
		if why := said[state]; why != "" {
			r.set(state, "%s", why)
			return
		}
	}
	if r.Row == nil {
		r.judgeWithoutRow()
		return
	}
	if len(r.notBegun) > 0 {
		r.set(states.Pending, "relay %s has not begun: `outboxctl status` says what it waits for", strings.Join(r.notBegun, ", "))
		return
	}
	r.set(states.Pending, label.NoRelay)
}

// InVain says how long it was waited, and how not to wait for a relay that is behind, or no more.
func (r *Life) InVain() string {
	var behind, further []string
	for _, v := range r.Relays {
		if slices.Contains(passing, v.State) {
			behind = append(behind, v.Relay)
		} else {
			further = append(further, v.Relay)
		}
	}
	if len(behind) == 0 || len(further) == 0 {
		return r.Waited
	}
	return fmt.Sprintf("%s, with relay %s; relay %s has got further: with `--relay %s` that one alone is waited for",
		r.Waited, strings.Join(behind, ", "), strings.Join(further, ", "), further[0])
}

// judgeReplays says how those are given up that wait for their route.
func (r *Life) judgeReplays() {
	for i := range r.Replays {
		v := &r.Replays[i]
		v.GiveUp = nil
		for _, slot := range v.WaitsIn {
			v.GiveUp = append(v.GiveUp, fmt.Sprintf("outboxctl skip %s --slot %s --reason \"…\"", v.key, slot))
		}
	}
}

// WaitingReplays says of the first of the replays that wait for their route how they are given up.
func (r *Life) WaitingReplays() (lines []string) {
	const shown = 3
	more := 0
	for _, v := range r.Replays {
		switch {
		case len(v.GiveUp) == 0:
			continue
		case len(lines) == shown:
			more++
			continue
		}
		to := ""
		if v.Topic != nil {
			to = ", topic " + label.Foreign(terminal.Preview([]byte(*v.Topic), terminal.PreviewBytes))
		}
		lines = append(lines, fmt.Sprintf("replay %s waits for its route%s; to give it up: %s", v.ID, to, "`"+strings.Join(v.GiveUp, "`, `")+"`"))
	}
	if more > 0 {
		lines = append(lines, label.Count(more, "replay waits", "replays wait")+" beside; -o json has their commands")
	}
	return lines
}

// next are the commands that do something about the event as it is.
func (r *Life) next() []string {
	switch r.State {
	case states.Dead: // what it is dead of may have been written by anybody
		return letters.Next(r.Key, states.LetterOpen)
	case states.Discarded:
		return letters.Next(r.Key, states.LetterDiscarded)
	}
	return append(operator.NewProblem(r.Why).Cures, operator.NewProblem(r.Disagree).Cures...)
}

// why says what a letter makes of its event.
func (l *Letter) why() (state, why string) {
	switch l.State {
	case states.LetterDiscarded:
		return states.Discarded, fmt.Sprintf("an operator discarded it after: %s: %s", l.Class, l.Error)
	case states.LetterReplayed:
		return states.Published, fmt.Sprintf("it was a dead letter of slot %s and was released", l.Slot)
	}
	return states.Dead, l.Class + ": " + l.Error
}

// seen returns a record of the event itself, or of its repair.
func (r *Life) seen() *kafka.Copy {
	if r.Kafka == nil {
		return nil
	}
	for i := range r.Kafka.Copies {
		if c := &r.Kafka.Copies[i]; c.ReplayID == "" {
			return c
		}
	}
	return nil
}

// eventLetter returns the letter of the event itself, not one of its replays, that
// the relay of a slot has, or any.
func (r *Life) eventLetter(slot string) *Letter {
	for i := range r.DeadLetters {
		if l := &r.DeadLetters[i]; (slot == "" || l.Slot == slot) && !r.isReplay(l.ID) {
			return l
		}
	}
	return nil
}

func (r *Life) isReplay(id uuid.UUID) bool {
	for _, v := range r.Replays {
		if v.ID == id {
			return true
		}
	}
	return false
}

func (r *Life) judgeWithoutRow() {
	switch {
	case len(r.Replays) > 0:
		r.set(states.Unknown, "its row is gone from the outbox, orders to replay it are left")
	case r.Groups != nil && len(*r.Groups) > 0:
		r.set(states.Published, "a consumer group has it; its row is gone from the outbox")
	case len(r.Refused) > 0:
		r.set(states.Published, "a consumer group received it and could not apply it; its row is gone from the outbox")
	case r.otherOwner != "":
		r.set(states.NotFound, "this UUID belongs to namespace %s", r.otherOwner)
	case r.detached != nil:
		r.set(states.NotFound, "%s", outside(r.detached, r.Key))
	default:
		r.set(states.NotFound, "no committed row has this key; it may have been dropped with its day after it was published, or is not committed yet")
	}
}

// outside says of an event whose partition is in the outbox no more how it is looked for,
// and comes back.
func outside(l *partition.Leaf, key string) string {
	is := "is detached"
	if l.Pending {
		is = "is being detached"
	}
	table := partition.Sibling(partition.Outbox, l.Name)
	return fmt.Sprintf("no committed row has this key, and its partition %[1]s %[2]s: its rows are not in the outbox, and nobody publishes them. "+
		"Where retention does not do so (`outboxctl partitions status` says it): look for it by SELECT seq FROM %[3]s WHERE id = '%[4]s' and, as %[5]s, attach it again: `%[6]s` "+
		"and, when a relay says PARTITION_FILLED, `outboxctl partitions adopt %[1]s --reason \"…\"` (all of its rows are published once more)",
		l.Name, is, table, key[strings.LastIndex(key, ":")+1:], l.As(), strings.Join(l.Reattach(partition.Outbox), "; "))
}

// why says what a state rests on.
func (v *Account) why(key string) string {
	gap := ""
	if v.Gap != nil {
		gap = v.Gap.String()
	}
	switch {
	case v.State == states.Waiting:
		return v.waits()
	case v.Filled != "":
		return fmt.Sprintf("partition %[2]s held rows when it was attached, of which relay %[1]s was sent none; as the maintainer `outboxctl partitions adopt %[2]s --reason \"…\"` has them published", v.Relay, v.Filled)
	case v.State == states.Gap:
		return fmt.Sprintf("relay %s cannot prove that it published it: gap %s; `outboxctl gap repair %s --reason \"…\"` publishes it", v.Relay, gap, gap)
	case v.State == states.GivenUp:
		return fmt.Sprintf("it is of gap %s of relay %s, which an operator accepted; `outboxctl replay %s --config FILE --reason \"…\"` or `outboxctl gap repair %s --reason \"…\"` publishes it all the same", gap, v.Relay, key, gap)
	case v.State == states.Before:
		return fmt.Sprintf("it was committed before relay %s began with outbox.start: now; `outboxctl replay %s --config FILE --reason \"…\"`, or `outboxctl gap repair %s --reason \"…\"` for all of them, publishes it", v.Relay, key, gap)
	case v.State == states.Published:
		return fmt.Sprintf("covered by the published snapshot of relay %s, taken at %s, and waits for nothing", v.Relay, terminal.Stamp(v.PublishedAt))
	case v.Moved && v.State == states.Pending:
		return fmt.Sprintf("relay %s has run on another system: nothing here proves what it published, until the database is adopted (outboxctl adopt --help says how)", v.Relay)
	case gap != "":
		return fmt.Sprintf("relay %s publishes it with the repair of gap %s", v.Relay, gap)
	case !v.Known:
		return fmt.Sprintf("relay %s has not begun yet", v.Relay)
	}
	return fmt.Sprintf("not covered by the last published snapshot of relay %s", v.Relay)
}

// waits says for what an event waits: the topics of the database and of the routes are
// joined by relay.yaml alone, so a paused route is named, and not said to be the event's.
func (v *Account) waits() string {
	const shown = 3
	var paused strings.Builder
	for i, rest := range v.Paused {
		if i == shown {
			fmt.Fprintf(&paused, "; and %d more", len(v.Paused)-shown)
			break
		}
		fmt.Fprintf(&paused, "; route %s is paused %s, and `outboxctl resume --relay %s --route %s` lets it go on", rest.Route, rest, v.Relay, rest.Route)
	}
	cause := "its route cannot be used for now"
	if len(v.Paused) > 0 || v.pausesHidden {
		cause = "its route is paused, or cannot be used"
	}
	return fmt.Sprintf("%s; relay %s publishes it, in its order, once it can: see /readyz of the relay and `outboxctl status`%s", cause, v.Relay, paused.String())
}

func (r *Life) set(state, why string, args ...any) {
	r.State, r.Why = state, fmt.Sprintf(why, args...)
}

// TrimPayload leaves the payload's beginning unless the whole is wanted.
func (r *Life) TrimPayload(whole bool) {
	if r.Row == nil {
		return
	}
	r.Row.PayloadPreview = terminal.Preview(r.Row.Payload, terminal.PreviewBytes)
	if !whole {
		r.Row.Payload = nil
	}
}

// PublishedEdited says that not the row's content was published.
func (r *Life) PublishedEdited() bool {
	return slices.ContainsFunc(r.DeadLetters, func(l Letter) bool {
		return l.EditedAt != nil && l.State == states.LetterReplayed && !r.isReplay(l.ID)
	})
}

// Wrong tells that there is no such event, that the database and the topic disagree, or that
// the topic was to be searched and was not.
func (r *Life) Wrong() bool {
	return r.State == states.NotFound || r.Disagree != "" || r.NotSearched != "" || r.Waited != ""
}
