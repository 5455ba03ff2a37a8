package relays

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// Skipped is an event that a relay leaves out.
type Skipped struct {
	Key    string      `json:"key"`
	Relay  string      `json:"relay"`
	Slot   string      `json:"slot"`
	Reason string      `json:"reason"`
	Skip   []uuid.UUID `json:"skip"` // all that this relay is told to leave out
}

// skipOrder is an event that a relay is to leave out.
type skipOrder struct {
	state State
	key   operator.Name
}

// PlanSkip refuses an event that the relay cannot be held up by. It changes nothing.
func PlanSkip(ctx context.Context, db *operator.Database, state State, key operator.Name) (operator.Order[*Skipped],
	error) {
	key, err := key.Resolve(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("skip: %w", err)
	}
	if key.Bare {
		return nil, noSuchSkip(key)
	}
	return &skipOrder{state, key}, skippable(ctx, db, state.Slot, key)
}

// Question implements [operator.Order].
func (o *skipOrder) Question() string {
	return fmt.Sprintf("leave out the event %s for good, at relay %s", o.key, o.state.Relay)
}

// CarryOut writes the order into the relay's state, which a halted relay polls, and
// beside it an order to discard: that row keeps who gave it and why, and is for
// the event that has become a letter meanwhile. It is marked by payload_null: it
// acts only as long as the order stands.
func (o *skipOrder) CarryOut(ctx context.Context, db *operator.Database, reason string) (*Skipped, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("make a control id: %w", err)
	}
	report := &Skipped{Key: o.key.String(), Relay: o.state.Relay, Slot: o.state.Slot, Reason: reason}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		q := outboxdb.New(tx)
		err := q.InsertControl(ctx, outboxdb.InsertControlParams{
			ControlID: id, Action: states.ActionDiscard, Namespace: &o.key.Namespace, LetterID: &o.key.ID,
			PayloadNull: true, Reason: reason,
		})
		if err != nil {
			return err
		}
		row, err := q.Skip(ctx, outboxdb.SkipParams{Slot: o.state.Slot, Ids: []uuid.UUID{o.key.ID}})
		report.Skip = row.Skip
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("skip %s: %w", o.key, operator.ExplainWrite(err))
	}
	return report, nil
}

// skippable refuses a key that the relay cannot be held up by.
func skippable(ctx context.Context, db *operator.Database, slot string, key operator.Name) error {
	q := outboxdb.New(db)
	letters, err := q.LettersNow(ctx, []uuid.UUID{key.ID})
	if err != nil {
		return fmt.Errorf("skip: %w", operator.Explain(err, migrations.Outbox))
	}
	for _, l := range letters {
		switch {
		case l.Slot != slot:
		case l.State == states.LetterRetrying:
			return nil // its retry is held, or under way
		case l.State == states.LetterDiscarded:
			return fmt.Errorf("%s was given up already: `outboxctl dead show %s` says by whom", key, key)
		case l.State == states.LetterOpen:
			return fmt.Errorf("%s is a dead letter: `outboxctl dead discard %s --reason \"…\"` gives it up", key, key)
		}
	}
	rows, err := q.KeysForReplay(ctx, []uuid.UUID{key.ID})
	if err != nil {
		return fmt.Errorf("skip: %w", operator.Explain(err, migrations.Outbox))
	}
	if len(rows) == 0 {
		return comesTo(ctx, q, slot, key)
	}
	switch v := rows[0]; {
	case !key.Is(v.Namespace):
		return fmt.Errorf("this UUID belongs to namespace %s: the key is %s", v.Namespace, operator.NameText(v.Namespace, key.ID))
	case v.State == states.Published:
		return fmt.Errorf("%s was published; no relay halts at it", key)
	}
	return nil
}

// comesTo refuses a key that no row has, unless the relay knows it all the same: as
// a replay's, or from the log, where the row was deleted since.
func comesTo(ctx context.Context, q *outboxdb.Queries, slot string, key operator.Name) error {
	target, err := q.SkipTarget(ctx, outboxdb.SkipTargetParams{Slot: slot, ID: key.ID})
	if err != nil {
		return fmt.Errorf("skip: %w", operator.Explain(err, migrations.Outbox))
	}
	switch {
	case target.Waits:
		return nil
	case target.State != "" && !key.Is(target.Namespace):
		return fmt.Errorf("this UUID belongs to namespace %s: the key is %s", target.Namespace, operator.NameText(target.Namespace, key.ID))
	case target.GapID != "":
		return fmt.Errorf("the replay %s lay in gap %s: it is not proved to be published, and no relay comes to it any more; `outboxctl replay %s --config FILE --reason \"…\"` orders it again",
			key, target.GapID, operator.NameText(target.Namespace, target.EventID))
	case target.State == states.Published:
		return fmt.Errorf("the replay %s was published; no relay halts at it", key)
	case target.State != "":
		return nil
	}
	halted, err := HaltsAt(ctx, q, key.ID)
	if err != nil {
		return fmt.Errorf("skip: %w", operator.Explain(err, migrations.Outbox))
	}
	if halted == nil {
		return noSuchSkip(key)
	}
	return nil
}

func noSuchSkip(key operator.Name) error {
	return fmt.Errorf("no event and no replay that is committed has the key %s, and no relay halts at it: nothing was ordered. The log and /readyz of a relay that halts name the key; "+
		"`outboxctl list --state waiting` lists what waits; an event that is not committed yet can be left out once it is", key)
}

// Undone is an order to skip that was taken back, or was not there.
type Undone struct {
	Key       string      `json:"key"`
	Relay     string      `json:"relay"`
	Slot      string      `json:"slot"`
	TakenBack bool        `json:"taken_back"`
	GivenUp   bool        `json:"given_up"` // too late: it was carried out
	Skip      []uuid.UUID `json:"skip"`     // all that this relay is told to leave out
}

// TakeBackSkip takes an order to skip back. The relay looks for it in the transaction that
// carries it out, so that what was taken back is never left out.
func TakeBackSkip(ctx context.Context, db *operator.Database, state State, key operator.Name) (*Undone, error) {
	q := outboxdb.New(db)
	row, err := q.TakeBackSkip(ctx, outboxdb.TakeBackSkipParams{Slot: state.Slot, ID: key.ID})
	if err != nil {
		return nil, fmt.Errorf("take back the skip of %s: %w", key, operator.ExplainWrite(err))
	}
	report := &Undone{Key: key.String(), Relay: row.Relay, Slot: row.Slot, TakenBack: row.Stood, Skip: row.Skip}
	if row.Stood {
		return report, nil
	}
	letters, err := q.LettersNow(ctx, []uuid.UUID{key.ID})
	if err != nil {
		return nil, fmt.Errorf("look what became of %s: %w", key, operator.Explain(err, migrations.Outbox))
	}
	for _, l := range letters {
		report.GivenUp = report.GivenUp || l.Slot == row.Slot && l.State == states.LetterDiscarded
	}
	return report, nil
}

// Wrong tells that there was nothing to take back.
func (r *Undone) Wrong() bool { return !r.TakenBack }
