package letters

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// letterRef is one letter of one slot, as it was when the order was planned.
type letterRef struct {
	slot      string
	id        uuid.UUID
	namespace string
	attempts  int32
}

// aggregateRef names an aggregate.
type aggregateRef struct{ namespace, aggregateType, id string }

// command is one row of onceward.controls, and the letters that it is about.
type command struct {
	control   outboxdb.InsertControlParams
	aggregate aggregateRef
	letters   []letterRef
}

// Order is what is to be done about letters of relays. A relay carries it out: it
// is the only writer of its letters.
type Order struct {
	Aggregates int // that are meant whole
	action     string
	reason     string
	commands   []*command
}

func (l *Letter) aggregate() aggregateRef {
	return aggregateRef{l.namespace, l.AggregateType, l.AggregateID}
}

// alone says that a letter is outside of its aggregate's order.
func (l *Letter) alone() bool { return l.ReplayOf != "" || !l.Holds }

// PlanRetry finds the letters that are meant, and all that wait of their aggregates. It
// changes nothing. Where there is nothing to do there is no order, and a report says why.
func PlanRetry(ctx context.Context, db *operator.Database, f Filter) (*Order, *Became, error) {
	letters, nothing, err := find(ctx, db, states.ActionRetry, f)
	if len(letters) == 0 {
		return nil, nothing, err
	}
	commands, aggregates, err := retryCommands(ctx, outboxdb.New(db), letters)
	if err != nil {
		return nil, nil, fmt.Errorf("dead retry: %w", operator.Explain(err, migrations.Outbox))
	}
	return &Order{action: states.ActionRetry, commands: commands, Aggregates: aggregates}, nil, nil
}

// PlanDiscard finds the letters that are meant. It changes nothing. Where there is nothing
// to do there is no order, and a report says why.
func PlanDiscard(ctx context.Context, db *operator.Database, f Filter) (*Order, *Became, error) {
	letters, nothing, err := find(ctx, db, states.ActionDiscard, f)
	if len(letters) == 0 {
		return nil, nothing, err
	}
	o := &Order{action: states.ActionDiscard}
	singles := make(map[uuid.UUID]*command)
	for _, l := range letters {
		o.commands = addSingle(o.commands, singles, states.ActionDiscard, l)
	}
	return o, nil, nil
}

// PlanEdit finds the letter of a key, in every slot that has it. It changes nothing. Where
// none waits there is no order, and a report says why.
func PlanEdit(ctx context.Context, db *operator.Database, key operator.Name, e Edit) (*Order, *Became, error) {
	letters, nothing, err := find(ctx, db, states.ActionEdit,
		Filter{Selection: operator.Selection{Keys: []operator.Name{key}}})
	if len(letters) == 0 {
		return nil, nothing, err
	}
	edited := addSingle(nil, make(map[uuid.UUID]*command), states.ActionEdit, letters[0])[0]
	for _, l := range letters[1:] { // of other slots
		edited.letters = append(edited.letters, letterRef{slot: l.Slot, id: l.id, namespace: l.namespace,
			attempts: l.Attempts})
	}
	edited.control.Payload, edited.control.PayloadNull, edited.control.Headers = e.Payload, e.PayloadNull, e.Headers
	return &Order{action: states.ActionEdit, commands: []*command{edited}}, nil, nil
}

// retryCommands makes one command for each aggregate, because its letters go out in
// their order or not at all; and one for each letter that is outside of that
// order: of a replay, or of an event whose route goes on without it. Such a one goes
// out with its aggregate where that is retried.
func retryCommands(ctx context.Context, q *outboxdb.Queries, letters []Letter) (commands []*command, aggregates int,
	err error) {
	singles := make(map[uuid.UUID]*command)
	whole := make(map[aggregateRef]*command)
	var all outboxdb.LettersOfAggregatesParams
	for _, l := range letters {
		a := l.aggregate()
		if l.alone() || whole[a] != nil {
			continue
		}
		whole[a] = &command{aggregate: a, control: outboxdb.InsertControlParams{
			Action: states.ActionRetry, Namespace: &a.namespace, AggregateType: &a.aggregateType, AggregateID: &a.id,
		}}
		commands = append(commands, whole[a])
		all.Namespaces, all.AggregateTypes = append(all.Namespaces, a.namespace), append(all.AggregateTypes,
			a.aggregateType)
		all.AggregateIds = append(all.AggregateIds, a.id)
	}
	for _, l := range letters {
		if whole[l.aggregate()] == nil {
			commands = addSingle(commands, singles, states.ActionRetry, l)
		}
	}
	if len(whole) == 0 {
		return commands, 0, nil
	}
	rows, err := q.LettersOfAggregates(ctx, all)
	for _, v := range rows {
		w := whole[aggregateRef{v.Namespace, v.AggregateType, v.AggregateID}]
		w.letters = append(w.letters, letterRef{slot: v.Slot, id: v.LetterID, namespace: v.Namespace,
			attempts: v.Attempts})
	}
	return commands, len(whole), err
}

// addSingle adds a command about one letter; that of another slot joins it.
func addSingle(commands []*command, singles map[uuid.UUID]*command, action string, l Letter) []*command {
	w := singles[l.id]
	if w == nil {
		namespace := l.namespace
		w = &command{aggregate: l.aggregate(), control: outboxdb.InsertControlParams{Action: action,
			Namespace: &namespace, LetterID: &l.id}}
		singles[l.id] = w
		commands = append(commands, w)
	}
	w.letters = append(w.letters, letterRef{slot: l.Slot, id: l.id, namespace: l.namespace, attempts: l.Attempts})
	return commands
}

// Count is how many letters the order is about.
func (o *Order) Count() (n int) {
	for _, w := range o.commands {
		n += len(w.letters)
	}
	return n
}

// find returns the letters that are meant and wait, or a report where there is nothing to
// do. A KEY without a waiting letter is a problem.
func find(ctx context.Context, db *operator.Database, action string, f Filter) (letters []Letter, nothing *Became,
	err error) {
	q := outboxdb.New(db)
	rows, err := q.ListLetters(ctx, f.query(operator.MaxListed))
	if err != nil {
		return nil, nil, fmt.Errorf("look for letters: %w", operator.Explain(err, migrations.Outbox))
	}
	if len(rows) == operator.MaxListed {
		return nil, nil, fmt.Errorf("%d letters or more: narrow the filters, for example with --from and --to", operator.MaxListed)
	}
	found := make(map[string]bool, len(rows))
	for _, v := range rows {
		l := newLetter(v)
		found[operator.NameText(l.namespace, l.id)], found[l.id.String()] = true, true
		letters = append(letters, l)
	}
	nothing = &Became{Action: action, Letters: []Outcome{}, Problems: []operator.Problem{}}
	for _, key := range f.Keys {
		if !found[key.String()] {
			problem, err := notWaiting(ctx, q, key)
			if err != nil {
				return nil, nil, fmt.Errorf("look for letters: %w", operator.Explain(err, migrations.Outbox))
			}
			nothing.Problems = append(nothing.Problems, operator.NewProblem(problem))
		}
	}
	if len(nothing.Problems) == 0 && len(letters) > 0 {
		return letters, nil, nil
	}
	return nil, nothing, nil
}

// notWaiting says why there is nothing to do about a key, and what to do instead.
func notWaiting(ctx context.Context, q *outboxdb.Queries, key operator.Name) (string, error) {
	letters, err := q.LettersNow(ctx, []uuid.UUID{key.ID})
	if err != nil {
		return "", err
	}
	if len(letters) > 0 {
		return fmt.Sprintf("%s is no dead letter that waits; `outboxctl dead show %s` tells what became of it", key, key), nil
	}
	p, err := relays.HaltsAt(ctx, q, key.ID)
	if err != nil {
		return "", err
	}
	if p != nil {
		return fmt.Sprintf("%s is no dead letter: relay %s halts at %s: `outboxctl skip %s --relay %s --reason \"…\"` leaves it out", key, p.Relay, key, key, p.Relay), nil
	}
	return fmt.Sprintf("%s is no dead letter; `outboxctl show %s` tells where the event is", key, key), nil
}

// maxAtOnce bounds a transaction of commands.
const maxAtOnce = 500

// ErrOrderGiven marks the errors of a command that has given its order already.
var ErrOrderGiven = errors.New("the order is given")

// Give writes the order in small transactions.
func (o *Order) Give(ctx context.Context, db *operator.Database, reason string) error {
	o.reason = reason
	for at := 0; at < len(o.commands); at += maxAtOnce {
		if err := writeCommands(ctx, db, reason, o.commands[at:min(at+maxAtOnce, len(o.commands))]); err != nil {
			return fmt.Errorf("%w; the words before this were said: %d of %d", operator.ExplainWrite(err), at, len(o.commands))
		}
	}
	return nil
}

func writeCommands(ctx context.Context, db *operator.Database, reason string, commands []*command) error {
	return pgx.BeginFunc(ctx, db,
		func(tx pgx.Tx) error { return insertCommands(ctx, outboxdb.New(tx), reason, commands) })
}

func insertCommands(ctx context.Context, q *outboxdb.Queries, reason string, commands []*command) error {
	for _, w := range commands {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("make a control id: %w", err)
		}
		w.control.ControlID, w.control.Reason = id, reason
		if err := q.InsertControl(ctx, w.control); err != nil {
			return err
		}
	}
	return nil
}
