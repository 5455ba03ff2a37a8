package letters

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/state"
)

// LaneOf returns the lane of a letter: that of the aggregate's events, or of the
// topic that a replay names.
func (l *Store) LaneOf(ctx context.Context, id uuid.UUID) (ledger.Lane, error) {
	row, err := l.State.Queries.LetterLane(ctx, outboxdb.LetterLaneParams{Slot: l.State.Slot, LetterID: id})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ledger.Lane{}, nil
	case err != nil:
		return ledger.Lane{}, fmt.Errorf("look for letter %s of slot %s: %w", id, l.State.Slot, err)
	case row.Topic != "":
		return ledger.Lane{Topic: row.Topic}, nil
	}
	return ledger.Lane{Namespace: row.Namespace, AggregateType: row.AggregateType}, nil
}

// Apply carries out an operator's control that was read from the stream at a position, on
// letters of transactions that committed before it, and records what it did. Where
// it waited, its place in the lane counts, not the position. It
// returns what is to be published now, nil when nothing is.
//
//   - retry of an aggregate releases all its open letters, oldest first, and
//     parks it no longer. Retry of one letter releases that one, unless an older
//     letter holds its aggregate: then it does nothing, because the aggregate's
//     order would be lost.
//   - discard ends open letters without publishing them. With the last one that
//     holds its aggregate, the aggregate is parked no longer.
//   - edit replaces payload or headers of one open letter, or makes a tombstone
//     of it, and keeps what they were. It releases nothing: a retry follows.
//
// A control that finds nothing to do is recorded with the reason, and so is one
// whose row is bad. A control that is read again acts no second time: a retry
// returns what it released then and what has not ended since.
//
// The own position of a control that waited for its route was passed when it was
// written down: what it releases is replayed once it is forgotten.
func (l *Store) Apply(ctx context.Context, c *cdc.Control, bad error, at pglogrepl.LSN, waited bool) (*Release, error) {
	r, err := l.apply(ctx, c, bad, at, waited)
	if n := len(l.unsettled); !waited && r != nil && (n == 0 || l.unsettled[n-1] < at) {
		l.unsettled = append(l.unsettled, at)
	}
	return r, err
}

func (l *Store) apply(ctx context.Context, c *cdc.Control, bad error, at pglogrepl.LSN, waited bool) (*Release, error) {
	o := order{letters: l, control: c, at: at.String()}
	if !waited {
		o.settledAt = &o.at
	}
	if bad != nil {
		o.bad = bad.Error()
	}
	err := l.State.Count(ctx, fmt.Sprintf("carry out control %s on letters", c.ID), func(q *outboxdb.Queries) (state.Counted, error) {
		o.queries = q
		err := o.carryOut(ctx)
		return state.Counted{Writes: o.writes, Skipped: o.skipped}, err
	})
	if err != nil {
		return nil, err
	}
	o.touched.apply(l)
	if o.released == 0 {
		return nil, nil //nolint:nilnil // that nothing is to be published is an answer
	}
	return &Release{letters: l, control: c.ID, repeat: o.repeat}, nil
}

// Reopen takes back what a control released, from one of its letters on: it waits
// for a route, and acts again. Its aggregates are parked meanwhile.
func (l *Store) Reopen(ctx context.Context, c *cdc.Control, from uint32) error {
	return l.State.Write(ctx, fmt.Sprintf("take back what control %s released", c.ID), func(q *outboxdb.Queries) error {
		_, err := q.ReopenReleased(ctx, outboxdb.ReopenReleasedParams{Slot: l.State.Slot, ControlID: &c.ID,
			FromIndex: int64(from)})
		return err
	})
}

// order is a control while it acts, inside its transaction.
type order struct {
	letters *Store
	queries *outboxdb.Queries
	control *cdc.Control
	bad     string // what is wrong with its row
	at      string
	// settledAt is the position beyond which a checkpoint settles what is released;
	// nil: it is settled when the control is forgotten.
	settledAt *string

	writes   int // for the counter
	released int64
	touched  *hold
	repeat   bool       // it has acted before
	skipped  *uuid.UUID // of the command that it has carried out
}

// waited: the control was released from a lane. It stood there behind the events
// before it and before those after it, however both were moved since.
func (o *order) waited() bool { return o.settledAt == nil }

func (o *order) carryOut(ctx context.Context) error {
	fresh, err := o.queries.RecordControl(ctx, outboxdb.RecordControlParams{
		Slot: o.letters.State.Slot, ControlID: o.control.ID, Position: o.at, Action: letterText(o.control.Action),
	})
	if err != nil {
		return err
	}
	if fresh == 0 {
		o.repeat = true
		return o.again(ctx)
	}
	o.writes = 1
	n, note, err := o.first(ctx)
	if err != nil {
		return err
	}
	return o.queries.RecordEffect(ctx, outboxdb.RecordEffectParams{Slot: o.letters.State.Slot, ControlID: o.control.ID,
		Letters: n, Note: letterText(note)})
}

// first does what the control says, and returns on how many letters; or why on none.
func (o *order) first(ctx context.Context) (n int64, note string, err error) {
	c := o.control
	single := c.LetterID != uuid.Nil
	switch {
	case o.bad != "":
		return 0, "its row is bad: " + o.bad, nil
	case single == (c.AggregateID != nil):
		return 0, "it names neither one letter nor one aggregate", nil
	case c.Action == cdc.ActionRetry && single:
		n, err = o.retryLetter(ctx)
	case c.Action == cdc.ActionRetry:
		n, err = o.retryAggregate(ctx)
	case c.Action == cdc.ActionDiscard && single:
		n, err = o.discardLetter(ctx)
	case c.Action == cdc.ActionDiscard:
		n, err = o.discardAggregate(ctx)
	case c.Action == cdc.ActionEdit && single:
		n, err = o.edit(ctx)
	default:
		return 0, fmt.Sprintf("it says %q of an aggregate or is unknown to this release", c.Action), nil
	}
	if err != nil || n > 0 {
		return n, "", err
	}
	note, err = o.why(ctx)
	return 0, note, err
}

func (o *order) retryAggregate(ctx context.Context) (int64, error) {
	c := o.control
	n, err := o.queries.ReleaseAggregate(ctx, outboxdb.ReleaseAggregateParams{
		Slot: o.letters.State.Slot, ControlID: &c.ID, At: o.at, Waited: o.waited(), SettledAt: o.settledAt,
		DecidedBy: &c.RequestedBy, DecidedWhy: &c.Reason,
		Namespace: c.Namespace, AggregateType: c.AggregateType, AggregateID: string(c.AggregateID),
	})
	o.released = n
	if err != nil || n == 0 {
		return n, err
	}
	return n, o.touch(ctx, o.aggregate())
}

func (o *order) retryLetter(ctx context.Context) (int64, error) {
	c := o.control
	rows, err := o.queries.ReleaseLetter(ctx, outboxdb.ReleaseLetterParams{
		Slot: o.letters.State.Slot, LetterID: c.LetterID, ControlID: &c.ID, At: o.at, Waited: o.waited(),
		SettledAt: o.settledAt, DecidedBy: &c.RequestedBy, DecidedWhy: &c.Reason,
	})
	o.released = int64(len(rows))
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return 1, o.touch(ctx, aggregate{rows[0].Namespace, rows[0].AggregateType, rows[0].AggregateID})
}

func (o *order) discardAggregate(ctx context.Context) (int64, error) {
	c := o.control
	n, err := o.queries.DiscardAggregate(ctx, outboxdb.DiscardAggregateParams{
		Slot: o.letters.State.Slot, ControlID: &c.ID, At: o.at, Waited: o.waited(), DecidedBy: &c.RequestedBy,
		DecidedWhy: &c.Reason,
		Namespace:  c.Namespace, AggregateType: c.AggregateType, AggregateID: string(c.AggregateID),
	})
	if err != nil || n == 0 {
		return n, err
	}
	return n, o.touch(ctx, o.aggregate())
}

// saidWithSkip reports whether a discard was said together with the word skip, by
// which a relay may have ended the event before it reads this: it is for a letter
// that was written meanwhile, and counts as long as that word stands.
func saidWithSkip(c *cdc.Control) bool { return c.Action == cdc.ActionDiscard && c.PayloadNull }

func (o *order) discardLetter(ctx context.Context) (int64, error) {
	c := o.control
	if saidWithSkip(c) {
		switch err := o.letters.stands(ctx, o.queries, c.LetterID); {
		case errors.Is(err, errTakenBack):
			return 0, nil
		case err != nil:
			return 0, err
		}
	}
	rows, err := o.queries.DiscardLetter(ctx, outboxdb.DiscardLetterParams{
		Slot: o.letters.State.Slot, LetterID: c.LetterID, ControlID: &c.ID, At: o.at, DecidedBy: &c.RequestedBy,
		DecidedWhy: &c.Reason,
	})
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	if saidWithSkip(c) {
		o.skipped = &c.LetterID
	}
	return 1, o.touch(ctx, aggregate{rows[0].Namespace, rows[0].AggregateType, rows[0].AggregateID})
}

func (o *order) edit(ctx context.Context) (int64, error) {
	c := o.control
	return o.queries.EditLetter(ctx, outboxdb.EditLetterParams{
		Slot: o.letters.State.Slot, LetterID: c.LetterID, At: o.at, Payload: c.Payload, PayloadNull: c.PayloadNull,
		Headers:   c.Headers,
		ControlID: &c.ID, DecidedBy: &c.RequestedBy, DecidedWhy: &c.Reason,
	})
}

// again is a control that has acted before. Letters that were opened when a session
// took them back are still marked as released by it; those that failed, or that
// another one released or ended since, are not.
func (o *order) again(ctx context.Context) error {
	c := o.control
	rows, err := o.queries.ReleaseAgain(ctx, outboxdb.ReleaseAgainParams{Slot: o.letters.State.Slot, ControlID: &c.ID,
		SettledAt: o.settledAt})
	if err != nil {
		return err
	}
	if _, err := o.queries.GiveUpLetters(ctx, outboxdb.GiveUpLettersParams{Slot: o.letters.State.Slot,
		ControlID: &c.ID}); err != nil {
		return err
	}
	o.released = int64(len(rows))
	if len(rows) == 0 {
		return nil
	}
	o.writes = 1
	return o.touch(ctx, aggregate{rows[0].Namespace, rows[0].AggregateType, rows[0].AggregateID})
}

// why explains that there was nothing to do.
func (o *order) why(ctx context.Context) (string, error) {
	if o.control.LetterID == uuid.Nil {
		return "the aggregate has no open letter that committed before it", nil
	}
	row, err := o.queries.WhyIdle(ctx, outboxdb.WhyIdleParams{Slot: o.letters.State.Slot, LetterID: o.control.LetterID,
		At: o.at})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "there is no such letter", nil
	case err != nil:
		return "", err
	case row.State == letterRetrying:
		return fmt.Sprintf("the letter is retrying: where its route holds it up, `outboxctl skip %s --slot %s --reason \"…\"` gives it up",
			label.Argument(o.control.Namespace, o.control.LetterID), o.letters.State.Slot), nil
	case row.State != letterOpen:
		return "the letter is " + row.State, nil
	case saidWithSkip(o.control):
		return "the skip that it was said with does not stand any more", nil
	case !row.Below && !o.waited():
		return "the letter's event committed after it", nil
	}
	return "an older letter holds the letter's aggregate: retry the aggregate, or discard the older one", nil
}

func (o *order) aggregate() aggregate {
	return aggregate{o.control.Namespace, o.control.AggregateType, string(o.control.AggregateID)}
}

func (o *order) touch(ctx context.Context, a aggregate) (err error) {
	o.touched, err = o.letters.look(ctx, o.queries, a)
	return err
}

// hold is what a transaction found about an aggregate: whether it is parked.
type hold struct {
	of     aggregate
	parked bool
	holder
}

// look reads whether an aggregate is parked, inside a transaction.
func (l *Store) look(ctx context.Context, q *outboxdb.Queries, a aggregate) (*hold, error) {
	row, err := q.OldestHolding(ctx, outboxdb.OldestHoldingParams{Slot: l.State.Slot, Namespace: a.namespace,
		AggregateType: a.kind, AggregateID: a.id})
	if errors.Is(err, pgx.ErrNoRows) {
		return &hold{of: a}, nil
	}
	if err != nil {
		return nil, err
	}
	commit, err := ledger.ParseLSN(row.Position)
	return &hold{of: a, parked: true, holder: holder{commit, row.Seq}}, err
}

// apply makes it known, once the transaction has committed.
func (h *hold) apply(l *Store) {
	switch {
	case h == nil:
	case h.parked:
		l.oldest.set(h.of, h.holder)
	default:
		l.oldest.free(h.of)
	}
}
