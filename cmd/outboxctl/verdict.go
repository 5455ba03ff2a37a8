package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

// judge says in which state the event is, and by what, for each relay and for all
// of them. It is pure. A record of the event itself, seen in Kafka, outweighs
// everything; else the relay that is least far counts. A replay's record says
// nothing of the event's own.
func (r *showReport) judge() {
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
	r.Disagree = fmt.Sprintf("the database says that %s, and topic %s does not have it: the topic's retention has removed it, the topic was made anew, or its route led elsewhere; "+
		"`outboxctl replay %s --config FILE --reason \"…\"` publishes it again", says, r.Kafka.Topic, r.Key)
}

// leastFar orders the states of an event of which several relays have an account.
var leastFar = []string{states.Dead, states.Pending, states.Waiting, states.Gap, states.GivenUp, states.Before, states.Discarded, states.Published}

// judgeRelays says what each relay's state rests on, and takes the one that is
// least far. A letter counts also where its relay is gone, and the row.
func (r *showReport) judgeRelays() {
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
		if r.isReplay(l.ID) {
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
	r.set(states.Pending, "no relay has run on this database yet")
}

// why says what a letter makes of its event.
func (l *letterReport) why() (state, why string) {
	switch l.State {
	case states.LetterDiscarded:
		return states.Discarded, fmt.Sprintf("an operator discarded it after: %s: %s", l.Class, l.Error)
	case states.LetterReplayed:
		return states.Published, fmt.Sprintf("it was a dead letter of slot %s and was released", l.Slot)
	}
	return states.Dead, l.Class + ": " + l.Error
}

// seen returns a record of the event itself, or of its repair.
func (r *showReport) seen() *copyReport {
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
func (r *showReport) eventLetter(slot string) *letterReport {
	for i := range r.DeadLetters {
		if l := &r.DeadLetters[i]; (slot == "" || l.Slot == slot) && !r.isReplay(l.ID) {
			return l
		}
	}
	return nil
}

func (r *showReport) isReplay(id uuid.UUID) bool {
	for _, v := range r.Replays {
		if v.ID == id {
			return true
		}
	}
	return false
}

func (r *showReport) judgeWithoutRow() {
	switch {
	case len(r.Replays) > 0:
		r.set(states.Unknown, "its row is gone from the outbox, orders to replay it are left")
	case r.Groups != nil && len(*r.Groups) > 0:
		r.set(states.Published, "a consumer group has it; its row is gone from the outbox")
	case len(r.Refused) > 0:
		r.set(states.Published, "a consumer group received it and could not apply it; its row is gone from the outbox")
	case r.otherOwner != "":
		r.set(states.NotFound, "this UUID belongs to namespace %s", r.otherOwner)
	default:
		r.set(states.NotFound, "no committed row has this key; it may have been dropped with its day after it was published, or is not committed yet")
	}
}

// why says what a state rests on.
func (v *publishedReport) why(key string) string {
	gap := ""
	if v.Gap != nil {
		gap = v.Gap.String()
	}
	switch {
	case v.State == states.Waiting:
		return fmt.Sprintf("its route cannot be used; relay %s publishes it, in its order, once it can: see /readyz of the relay and `outboxctl status`", v.Relay)
	case v.Filled != "":
		return fmt.Sprintf("partition %[2]s held rows when it was attached, of which relay %[1]s was sent none; as the maintainer `outboxctl partitions adopt %[2]s --reason \"…\"` has them published", v.Relay, v.Filled)
	case v.State == states.Gap:
		return fmt.Sprintf("relay %s cannot prove that it published it: gap %s; `outboxctl gap repair %s --reason \"…\"` publishes it", v.Relay, gap, gap)
	case v.State == states.GivenUp:
		return fmt.Sprintf("it is of gap %s of relay %s, which an operator accepted; `outboxctl replay %s --config FILE --reason \"…\"` or `outboxctl gap repair %s --reason \"…\"` publishes it all the same", gap, v.Relay, key, gap)
	case v.State == states.Before:
		return fmt.Sprintf("it was committed before relay %s began with outbox.start: now; `outboxctl replay %s --config FILE --reason \"…\"`, or `outboxctl gap repair %s --reason \"…\"` for all of them, publishes it", v.Relay, key, gap)
	case v.State == states.Published:
		return fmt.Sprintf("covered by the published snapshot of relay %s at %s", v.Relay, terminal.Stamp(v.PublishedAt))
	case v.Moved && v.State == states.Pending:
		return fmt.Sprintf("relay %s has run on another system: nothing here proves what it published, until the database is adopted (outboxctl adopt --help says how)", v.Relay)
	case gap != "":
		return fmt.Sprintf("relay %s publishes it with the repair of gap %s", v.Relay, gap)
	case !v.Known:
		return fmt.Sprintf("relay %s has not begun yet", v.Relay)
	}
	return fmt.Sprintf("not covered by the last published snapshot of relay %s", v.Relay)
}

func (r *showReport) set(state, why string, args ...any) {
	r.State, r.Why = state, fmt.Sprintf(why, args...)
}

// trimPayload leaves the payload's beginning unless the whole is wanted.
func (r *showReport) trimPayload(whole bool) {
	if r.Row == nil {
		return
	}
	r.Row.PayloadPreview = terminal.Preview(r.Row.Payload, terminal.PreviewBytes)
	if !whole {
		r.Row.Payload = nil
	}
}

func printShow(p *page, r *showReport) {
	p.pairs(
		[2]string{"key", r.Key},
		[2]string{"state", r.State + ": " + r.Why},
		[2]string{"event time", terminal.Stamp(&r.EventTime)},
	)
	printRow(p, r)
	if r.publishedEdited() {
		p.line("\nit was published with edited content; the above is what was written: `outboxctl dead show %s` has what was published", r.Key)
	}
	printProducer(p, r)
	printKafka(p, r)
	printConsumer(p, r)
	if r.Row != nil && r.Row.Payload != nil {
		p.line("\npayload:")
		p.payload(r.Row.Payload)
	}
}

// publishedEdited says that not the row's content was published.
func (r *showReport) publishedEdited() bool {
	return slices.ContainsFunc(r.DeadLetters, func(l letterReport) bool {
		return l.EditedAt != nil && l.State == states.LetterReplayed && !r.isReplay(l.ID)
	})
}

func printRow(p *page, r *showReport) {
	v := r.Row
	if v == nil {
		return
	}
	payload := fmt.Sprintf("%s: %s", terminal.Size(int64(v.PayloadBytes)), v.PayloadPreview)
	if v.Tombstone {
		payload = "none (a tombstone)"
	}
	p.pairs(
		[2]string{"event type", v.EventType},
		[2]string{"aggregate", v.AggregateType + " " + v.AggregateID},
		[2]string{"written", terminal.Stamp(&v.CreatedAt)},
		[2]string{"transaction", strconv.FormatUint(v.TxID, 10)},
		[2]string{"seq", strconv.FormatInt(v.Seq, 10)},
		[2]string{"content type", v.ContentType},
		[2]string{"headers", string(v.Headers)},
		[2]string{"traceparent", v.Traceparent},
		[2]string{"payload", payload},
	)
}

func printProducer(p *page, r *showReport) {
	var relays, letters, replays [][]string
	for _, v := range r.Relays {
		says := v.State
		if v.Disagrees {
			says += " (!)"
		}
		relays = append(relays, []string{v.Relay, v.Slot, says, terminal.Stamp(v.PublishedAt), v.Why})
	}
	for _, v := range r.DeadLetters {
		state := v.State
		if v.EditedAt != nil {
			state += ", edited"
		}
		letters = append(letters, []string{
			v.Slot, state, v.Class, terminal.Preview([]byte(v.Error), terminal.PreviewBytes), strconv.Itoa(int(v.Attempts)), terminal.Stamp(&v.FirstAt), terminal.Stamp(&v.LastAt),
		})
	}
	for _, v := range r.Replays {
		replays = append(replays, []string{v.ID.String(), v.Mode, terminal.Stamp(&v.RequestedAt), v.RequestedBy, terminal.Preview([]byte(v.Reason), terminal.PreviewBytes)})
	}
	p.table([]string{"relay", "slot", "says", "at", "because"}, relays)
	p.table([]string{"dead letter in", "state", "class", "error", "attempts", "first", "last"}, letters)
	p.table([]string{"replay", "mode", "asked at", "by", "reason"}, replays)
}

func printKafka(p *page, r *showReport) {
	if r.NotSearched != "" {
		p.line("\nkafka: not searched: %s", r.NotSearched)
	}
	if r.Kafka == nil {
		return
	}
	if r.Disagree != "" {
		p.line("\n! %s", r.Disagree)
	}
	if len(r.Kafka.Copies) == 0 {
		p.line("\nkafka: not in topic %s, partitions %v, from %s to the end", r.Kafka.Topic, r.Kafka.Partitions, terminal.Stamp(&r.Kafka.From))
		return
	}
	var rows [][]string
	for _, v := range r.Kafka.Copies {
		kind := "event"
		switch {
		case v.ReplayID != "":
			kind = "replay " + v.ReplayID
		case v.RepairID != "":
			kind = "repair " + v.RepairID
		}
		rows = append(rows, []string{r.Kafka.Topic, strconv.Itoa(int(v.Partition)), strconv.FormatInt(v.Offset, 10), terminal.Stamp(&v.Timestamp), kind})
	}
	p.table([]string{"topic", "partition", "offset", "stamped", "as"}, rows)
}

func printConsumer(p *page, r *showReport) {
	if r.Groups == nil {
		return
	}
	var groups, refused [][]string
	for _, v := range *r.Groups {
		as := "event"
		switch {
		case v.ReplayID != "":
			as = "replay " + v.ReplayID
		case v.ByArrival:
			as = "event, by arrival"
		}
		groups = append(groups, []string{v.Group, v.Outcome, terminal.Stamp(&v.ProcessedAt), as})
	}
	for _, v := range r.Refused {
		refused = append(refused, []string{
			v.Group, v.State, v.Reason, fmt.Sprintf("%s/%d@%d", v.Topic, v.Partition, v.Offset), terminal.Preview([]byte(v.Error), terminal.PreviewBytes), terminal.Stamp(&v.CreatedAt),
		})
	}
	if len(groups) == 0 {
		p.line("\nno consumer group has claimed it")
	}
	p.table([]string{"group", "outcome", "at", "as"}, groups)
	printFences(p, r.Fences)
	p.table([]string{"refused by", "state", "reason", "record", "error", "at"}, refused)
}
