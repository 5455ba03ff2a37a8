package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
)

// replayPlan is what was found for an order: the events in the order in which
// they were written.
type replayPlan struct {
	events []outboxdb.EventsForReplayRow
	report *replayResult
}

// plan finds and counts the events, in one snapshot of the database.
func (o *replayOrder) plan(ctx context.Context, db *operator.Database) (*replayPlan, error) {
	p := &replayPlan{report: &replayResult{
		DryRun: o.dryRun, Mode: states.ModeRedeliver, Group: o.group, Topic: o.topic, Reason: o.reason, After: o.after.String(),
		Kinds: []kindReport{}, LeftOut: []leftReport{}, Problems: []string{},
	}}
	if o.group != "" {
		p.report.Mode = states.ModeReprocess
	}
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		q := outboxdb.New(tx)
		switch {
		case o.dead:
			return p.readLetters(ctx, q, o)
		case len(o.Keys) > 0:
			return p.readKeys(ctx, q, o)
		default:
			return p.readEvents(ctx, q, o)
		}
	})
	p.report.Selected = len(p.events)
	return p, err
}

func (p *replayPlan) readEvents(ctx context.Context, q *outboxdb.Queries, o *replayOrder) error {
	counts, err := q.CountForReplay(ctx, outboxdb.CountForReplayParams{
		Namespace: o.Namespace, AggregateType: o.AggregateType, AggregateID: o.Aggregate, EventType: o.EventType,
		FromTime: o.From, ToTime: o.To, AfterSeq: o.after.seq, AfterID: o.after.id,
	})
	if err != nil {
		return err
	}
	total := int64(0)
	for _, v := range counts {
		if replayable(v.State) {
			total += v.Events
			p.count(v.Namespace, v.AggregateType, v.EventType, v.Events)
		} else {
			p.leave(v.State, v.Events)
		}
	}
	if total > maxReplayed {
		return fmt.Errorf("%d events: more than %d at a time; narrow the filters, for example with --from and --to", total, maxReplayed)
	}
	p.events, err = q.EventsForReplay(ctx, outboxdb.EventsForReplayParams{
		Namespace: o.Namespace, AggregateType: o.AggregateType, AggregateID: o.Aggregate, EventType: o.EventType,
		FromTime: o.From, ToTime: o.To, AfterSeq: o.after.seq, AfterID: o.after.id, RowLimit: maxReplayed,
	})
	return err
}

// readKeys refuses the whole order for one KEY that cannot be replayed: who
// names events wants these.
func (p *replayPlan) readKeys(ctx context.Context, q *outboxdb.Queries, o *replayOrder) error {
	rows, err := q.KeysForReplay(ctx, o.IDs())
	if err != nil {
		return err
	}
	found := make(map[uuid.UUID]outboxdb.KeysForReplayRow, len(rows))
	for _, v := range rows {
		found[v.ID] = v
		if replayable(v.State) && o.after.before(v.Seq, v.ID) {
			p.add(v.ID, v.Seq)
			p.count(v.Namespace, v.AggregateType, v.EventType, 1)
		}
	}
	for _, key := range o.Keys {
		switch v, ok := found[key.ID]; {
		case !ok:
			p.problem("%s has no row: it does not exist, or was dropped with its day; `outboxctl show %s` tells more", key, key)
		case !key.Is(v.Namespace):
			p.problem("%s has no row; its UUID belongs to namespace %s", key, v.Namespace)
		case !replayable(v.State):
			p.problem("%s is %s: %s", key, v.State, leftOut[v.State])
		}
	}
	return nil
}

// readLetters takes letters that were discarded and, when the copies go to
// another topic than the event's own, those that wait.
func (p *replayPlan) readLetters(ctx context.Context, q *outboxdb.Queries, o *replayOrder) error {
	rows, err := q.LettersForReplay(ctx, outboxdb.LettersForReplayParams{
		States: []string{states.LetterDiscarded, states.LetterOpen, states.LetterRetrying}, Ids: o.IDs(),
		Namespace: o.Namespace, AggregateType: o.AggregateType, AggregateID: o.Aggregate, EventType: o.EventType,
		FromTime: o.From, ToTime: o.To, AfterSeq: o.after.seq, AfterID: o.after.id, RowLimit: maxReplayed,
	})
	if err != nil {
		return err
	}
	found := make(map[string]string, len(rows))
	for _, v := range rows {
		found[operator.NameText(v.Namespace, v.LetterID)], found[v.LetterID.String()] = v.State, v.State
		if v.State == states.LetterDiscarded || v.State == states.LetterOpen && o.topic != "" {
			p.add(v.LetterID, v.Seq)
			p.count(v.Namespace, v.AggregateType, v.EventType, 1)
		} else if len(o.Keys) == 0 {
			p.leave(states.Dead, 1)
		}
	}
	for _, key := range o.Keys {
		switch state := found[key.String()]; {
		case state == "":
			p.problem("%s has no dead letter that waits or was discarded", key)
		case state == states.LetterDiscarded || state == states.LetterOpen && o.topic != "":
		default:
			p.problem("%s waits as a dead letter: %s", key, leftOut[states.Dead])
		}
	}
	return nil
}

// replayable reports whether events of the state can be replayed: published ones,
// and those that nobody publishes by itself. A replay does not change the state.
func replayable(state string) bool {
	return slices.Contains([]string{states.Published, states.Before, states.Gap, states.GivenUp}, state)
}

// leftOut says of every other state why its events are not replayed.
var leftOut = map[string]string{
	states.Pending:   "not published yet as far as a published snapshot tells; it comes by itself",
	states.Waiting:   "its route cannot be used for now; it comes by itself once it can",
	states.Dead:      "`outboxctl dead retry KEY --reason \"…\"` publishes it in its place",
	states.Discarded: "an operator discarded it; --dead replays it all the same",
}

func (p *replayPlan) add(id uuid.UUID, seq int64) {
	p.events = append(p.events, outboxdb.EventsForReplayRow{ID: id, Seq: seq})
}

func (p *replayPlan) count(namespace, aggregateType, eventType string, events int64) {
	kind := kindReport{Namespace: namespace, AggregateType: aggregateType, EventType: eventType}
	for i := range p.report.Kinds {
		k := &p.report.Kinds[i]
		if k.sameAs(kind) {
			k.Events += events
			return
		}
	}
	kind.Events = events
	p.report.Kinds = append(p.report.Kinds, kind)
}

func (k kindReport) sameAs(other kindReport) bool {
	k.Events = other.Events
	return k == other
}

func (p *replayPlan) leave(state string, events int64) {
	for i := range p.report.LeftOut {
		if p.report.LeftOut[i].State == state {
			p.report.LeftOut[i].Events += events
			return
		}
	}
	p.report.LeftOut = append(p.report.LeftOut, leftReport{State: state, Events: events, Why: leftOut[state]})
}

func (p *replayPlan) problem(format string, args ...any) {
	p.report.Problems = append(p.report.Problems, fmt.Sprintf(format, args...))
}
