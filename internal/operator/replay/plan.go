package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// Plan is what was found for an order: the events in the order in which
// they were written.
type Plan struct {
	order  *Order
	events []outboxdb.EventsForReplayRow
	Report *Result
}

// Plan finds and counts the events. It changes nothing. Where the report has problems, or
// nothing is selected, there is nothing to request.
func (o *Order) Plan(ctx context.Context, db *operator.Database) (*Plan, error) {
	p, err := o.find(ctx, db)
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	if len(p.Report.Problems) == 0 && len(p.events) > 0 {
		var problems []string
		problems, err = o.overtaking(ctx, db, p)
		p.Report.Problems = operator.Problems(problems...)
	}
	return p, err
}

// find finds and counts the events, in one snapshot of the database.
func (o *Order) find(ctx context.Context, db *operator.Database) (*Plan, error) {
	p := &Plan{order: o, Report: &Result{
		DryRun: o.DryRun, Mode: states.ModeRedeliver, Group: o.Group, Topic: o.Topic, Reason: o.Reason,
		After: o.After.String(),
		Kinds: []Kind{}, LeftOut: []Left{}, Problems: []operator.Problem{},
	}}
	if o.Group != "" {
		p.Report.Mode = states.ModeReprocess
	}
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			q := outboxdb.New(tx)
			switch {
			case o.Dead:
				return p.readLetters(ctx, q, o)
			case len(o.Keys) > 0:
				return p.readKeys(ctx, q, o)
			default:
				return p.readEvents(ctx, q, o)
			}
		})
	p.Report.Selected = len(p.events)
	return p, err
}

func (p *Plan) readEvents(ctx context.Context, q *outboxdb.Queries, o *Order) error {
	counts, err := q.CountForReplay(ctx, outboxdb.CountForReplayParams{
		Namespace: o.Namespace, AggregateType: o.AggregateType, AggregateID: o.Aggregate, EventType: o.EventType,
		FromTime: o.From, ToTime: o.To, AfterSeq: o.After.seq, AfterID: o.After.id,
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
		FromTime: o.From, ToTime: o.To, AfterSeq: o.After.seq, AfterID: o.After.id, RowLimit: maxReplayed,
	})
	return err
}

// readKeys refuses the whole order for one KEY that cannot be replayed: who
// names events wants these.
func (p *Plan) readKeys(ctx context.Context, q *outboxdb.Queries, o *Order) error {
	rows, err := q.KeysForReplay(ctx, o.IDs())
	if err != nil {
		return err
	}
	found := make(map[uuid.UUID]outboxdb.KeysForReplayRow, len(rows))
	for _, v := range rows {
		found[v.ID] = v
		if replayable(v.State) && o.After.before(v.Seq, v.ID) {
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
func (p *Plan) readLetters(ctx context.Context, q *outboxdb.Queries, o *Order) error {
	rows, err := q.LettersForReplay(ctx, outboxdb.LettersForReplayParams{
		States: []string{states.LetterDiscarded, states.LetterOpen, states.LetterRetrying}, Ids: o.IDs(),
		Namespace: o.Namespace, AggregateType: o.AggregateType, AggregateID: o.Aggregate, EventType: o.EventType,
		FromTime: o.From, ToTime: o.To, AfterSeq: o.After.seq, AfterID: o.After.id, RowLimit: maxReplayed,
	})
	if err != nil {
		return err
	}
	found := make(map[string]string, len(rows))
	for _, v := range rows {
		found[operator.NameText(v.Namespace, v.LetterID)], found[v.LetterID.String()] = v.State, v.State
		if v.State == states.LetterDiscarded || v.State == states.LetterOpen && o.Topic != "" {
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
		case state == states.LetterDiscarded || state == states.LetterOpen && o.Topic != "":
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

func (p *Plan) add(id uuid.UUID, seq int64) {
	p.events = append(p.events, outboxdb.EventsForReplayRow{ID: id, Seq: seq})
}

func (p *Plan) count(namespace, aggregateType, eventType string, events int64) {
	kind := Kind{Namespace: namespace, AggregateType: aggregateType, EventType: eventType}
	for i := range p.Report.Kinds {
		k := &p.Report.Kinds[i]
		if k.sameAs(kind) {
			k.Events += events
			return
		}
	}
	kind.Events = events
	p.Report.Kinds = append(p.Report.Kinds, kind)
}

func (k Kind) sameAs(other Kind) bool {
	k.Events = other.Events
	return k == other
}

func (p *Plan) leave(state string, events int64) {
	for i := range p.Report.LeftOut {
		if p.Report.LeftOut[i].State == state {
			p.Report.LeftOut[i].Events += events
			return
		}
	}
	p.Report.LeftOut = append(p.Report.LeftOut, Left{State: state, Events: events, Why: leftOut[state]})
}

func (p *Plan) problem(format string, args ...any) {
	p.Report.Problems = append(p.Report.Problems, operator.NewProblem(fmt.Sprintf(format, args...)))
}
