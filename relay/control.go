package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/printed"
	"github.com/onceward/onceward/relay/internal/state"
)

// laneOf returns the lane of a letter: that of the aggregate's events, or of the
// topic that a replay names.
func (l *letters) laneOf(ctx context.Context, id uuid.UUID) (lane, error) {
	row, err := l.state.Queries.LetterLane(ctx, outboxdb.LetterLaneParams{Slot: l.state.Slot, LetterID: id})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return lane{}, nil
	case err != nil:
		return lane{}, fmt.Errorf("look for letter %s of slot %s: %w", id, l.state.Slot, err)
	case row.Topic != "":
		return lane{topic: row.Topic}, nil
	}
	return lane{namespace: row.Namespace, aggregateType: row.AggregateType}, nil
}

// act obeys an operator's word that was read from the stream at a position, on
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
// A word that finds nothing to do is recorded with the reason, and so is one
// whose row is bad. A word that is read again acts no second time: a retry
// returns what it released then and what has not ended since.
//
// The own position of a word that waited for its route was passed when it was
// written down: what it releases is replayed once it is forgotten.
func (l *letters) act(ctx context.Context, c *cdc.Control, bad error, at pglogrepl.LSN, waited bool) (*release, error) {
	r, err := l.obey(ctx, c, bad, at, waited)
	if n := len(l.unsettled); !waited && r != nil && (n == 0 || l.unsettled[n-1] < at) {
		l.unsettled = append(l.unsettled, at)
	}
	return r, err
}

func (l *letters) obey(ctx context.Context, c *cdc.Control, bad error, at pglogrepl.LSN, waited bool) (*release, error) {
	w := word{letters: l, control: c, at: at.String()}
	if !waited {
		w.settledAt = &w.at
	}
	if bad != nil {
		w.bad = bad.Error()
	}
	err := l.state.Count(ctx, fmt.Sprintf("obey control %s on letters", c.ID), func(q *outboxdb.Queries) (state.Counted, error) {
		w.queries = q
		err := w.obey(ctx)
		return state.Counted{Writes: w.writes, Skipped: w.skipped}, err
	})
	if err != nil {
		return nil, err
	}
	w.touched.apply(l)
	if w.released == 0 {
		return nil, nil //nolint:nilnil // that nothing is to be published is an answer
	}
	return &release{letters: l, control: c.ID, repeat: w.repeat}, nil
}

// reopen takes back what a control released, from one of its letters on: it waits
// for a route, and acts again. Its aggregates are parked meanwhile.
func (l *letters) reopen(ctx context.Context, c *cdc.Control, from uint32) error {
	return l.state.Write(ctx, fmt.Sprintf("take back what control %s released", c.ID), func(q *outboxdb.Queries) error {
		_, err := q.ReopenReleased(ctx, outboxdb.ReopenReleasedParams{Slot: l.state.Slot, ControlID: &c.ID, FromIndex: int64(from)})
		return err
	})
}

// word is a control while it acts, inside its transaction.
type word struct {
	letters *letters
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
	skipped  *uuid.UUID // of the word that it has obeyed
}

// waited: the control was released from a lane. It stood there behind the events
// before it and before those after it, however both were moved since.
func (w *word) waited() bool { return w.settledAt == nil }

func (w *word) obey(ctx context.Context) error {
	fresh, err := w.queries.RecordControl(ctx, outboxdb.RecordControlParams{
		Slot: w.letters.state.Slot, ControlID: w.control.ID, Position: w.at, Action: letterText(w.control.Action),
	})
	if err != nil {
		return err
	}
	if fresh == 0 {
		w.repeat = true
		return w.again(ctx)
	}
	w.writes = 1
	n, note, err := w.first(ctx)
	if err != nil {
		return err
	}
	return w.queries.RecordEffect(ctx, outboxdb.RecordEffectParams{Slot: w.letters.state.Slot, ControlID: w.control.ID, Letters: n, Note: letterText(note)})
}

// first does what the word says, and returns on how many letters; or why on none.
func (w *word) first(ctx context.Context) (n int64, note string, err error) {
	c := w.control
	single := c.LetterID != uuid.Nil
	switch {
	case w.bad != "":
		return 0, "its row is bad: " + w.bad, nil
	case single == (c.AggregateID != nil):
		return 0, "it names neither one letter nor one aggregate", nil
	case c.Action == cdc.ActionRetry && single:
		n, err = w.retryLetter(ctx)
	case c.Action == cdc.ActionRetry:
		n, err = w.retryAggregate(ctx)
	case c.Action == cdc.ActionDiscard && single:
		n, err = w.discardLetter(ctx)
	case c.Action == cdc.ActionDiscard:
		n, err = w.discardAggregate(ctx)
	case c.Action == cdc.ActionEdit && single:
		n, err = w.edit(ctx)
	default:
		return 0, fmt.Sprintf("it says %q of an aggregate or is unknown to this release", c.Action), nil
	}
	if err != nil || n > 0 {
		return n, "", err
	}
	note, err = w.why(ctx)
	return 0, note, err
}

func (w *word) retryAggregate(ctx context.Context) (int64, error) {
	c := w.control
	n, err := w.queries.ReleaseAggregate(ctx, outboxdb.ReleaseAggregateParams{
		Slot: w.letters.state.Slot, ControlID: &c.ID, At: w.at, Waited: w.waited(), SettledAt: w.settledAt, DecidedBy: &c.RequestedBy, DecidedWhy: &c.Reason,
		Namespace: c.Namespace, AggregateType: c.AggregateType, AggregateID: string(c.AggregateID),
	})
	w.released = n
	if err != nil || n == 0 {
		return n, err
	}
	return n, w.touch(ctx, w.aggregate())
}

func (w *word) retryLetter(ctx context.Context) (int64, error) {
	c := w.control
	rows, err := w.queries.ReleaseLetter(ctx, outboxdb.ReleaseLetterParams{
		Slot: w.letters.state.Slot, LetterID: c.LetterID, ControlID: &c.ID, At: w.at, Waited: w.waited(), SettledAt: w.settledAt, DecidedBy: &c.RequestedBy, DecidedWhy: &c.Reason,
	})
	w.released = int64(len(rows))
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return 1, w.touch(ctx, aggregate{rows[0].Namespace, rows[0].AggregateType, rows[0].AggregateID})
}

func (w *word) discardAggregate(ctx context.Context) (int64, error) {
	c := w.control
	n, err := w.queries.DiscardAggregate(ctx, outboxdb.DiscardAggregateParams{
		Slot: w.letters.state.Slot, ControlID: &c.ID, At: w.at, Waited: w.waited(), DecidedBy: &c.RequestedBy, DecidedWhy: &c.Reason,
		Namespace: c.Namespace, AggregateType: c.AggregateType, AggregateID: string(c.AggregateID),
	})
	if err != nil || n == 0 {
		return n, err
	}
	return n, w.touch(ctx, w.aggregate())
}

func (w *word) discardLetter(ctx context.Context) (int64, error) {
	c := w.control
	if c.BesideSkip() {
		switch err := w.letters.stands(ctx, w.queries, c.LetterID); {
		case errors.Is(err, errTakenBack):
			return 0, nil
		case err != nil:
			return 0, err
		}
	}
	rows, err := w.queries.DiscardLetter(ctx, outboxdb.DiscardLetterParams{
		Slot: w.letters.state.Slot, LetterID: c.LetterID, ControlID: &c.ID, At: w.at, DecidedBy: &c.RequestedBy, DecidedWhy: &c.Reason,
	})
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	if c.BesideSkip() {
		w.skipped = &c.LetterID
	}
	return 1, w.touch(ctx, aggregate{rows[0].Namespace, rows[0].AggregateType, rows[0].AggregateID})
}

func (w *word) edit(ctx context.Context) (int64, error) {
	c := w.control
	return w.queries.EditLetter(ctx, outboxdb.EditLetterParams{
		Slot: w.letters.state.Slot, LetterID: c.LetterID, At: w.at, Payload: c.Payload, PayloadNull: c.PayloadNull, Headers: c.Headers,
		ControlID: &c.ID, DecidedBy: &c.RequestedBy, DecidedWhy: &c.Reason,
	})
}

// again is a word that has acted before. Letters that were opened when a session
// took them back are still marked as released by it; those that failed, or that
// another word released or ended since, are not.
func (w *word) again(ctx context.Context) error {
	c := w.control
	rows, err := w.queries.ReleaseAgain(ctx, outboxdb.ReleaseAgainParams{Slot: w.letters.state.Slot, ControlID: &c.ID, SettledAt: w.settledAt})
	if err != nil {
		return err
	}
	if _, err := w.queries.GiveUpLetters(ctx, outboxdb.GiveUpLettersParams{Slot: w.letters.state.Slot, ControlID: &c.ID}); err != nil {
		return err
	}
	w.released = int64(len(rows))
	if len(rows) == 0 {
		return nil
	}
	w.writes = 1
	return w.touch(ctx, aggregate{rows[0].Namespace, rows[0].AggregateType, rows[0].AggregateID})
}

// why explains that there was nothing to do.
func (w *word) why(ctx context.Context) (string, error) {
	if w.control.LetterID == uuid.Nil {
		return "the aggregate has no open letter that committed before it", nil
	}
	row, err := w.queries.WhyIdle(ctx, outboxdb.WhyIdleParams{Slot: w.letters.state.Slot, LetterID: w.control.LetterID, At: w.at})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "there is no such letter", nil
	case err != nil:
		return "", err
	case row.State == letterRetrying:
		return fmt.Sprintf("the letter is retrying: where its route holds it up, `outboxctl skip %s --slot %s --reason \"…\"` gives it up",
			printed.Argument(w.control.Namespace, w.control.LetterID), w.letters.state.Slot), nil
	case row.State != letterOpen:
		return "the letter is " + row.State, nil
	case w.control.BesideSkip():
		return "the skip that it was said with does not stand any more", nil
	case !row.Below && !w.waited():
		return "the letter's event committed after it", nil
	}
	return "an older letter holds the letter's aggregate: retry the aggregate, or discard the older one", nil
}

func (w *word) aggregate() aggregate {
	return aggregate{w.control.Namespace, w.control.AggregateType, string(w.control.AggregateID)}
}

func (w *word) touch(ctx context.Context, a aggregate) (err error) {
	w.touched, err = w.letters.look(ctx, w.queries, a)
	return err
}

// hold is what a transaction found about an aggregate: whether it is parked.
type hold struct {
	of     aggregate
	parked bool
	holder
}

// look reads whether an aggregate is parked, inside a transaction.
func (l *letters) look(ctx context.Context, q *outboxdb.Queries, a aggregate) (*hold, error) {
	row, err := q.OldestHolding(ctx, outboxdb.OldestHoldingParams{Slot: l.state.Slot, Namespace: a.namespace, AggregateType: a.kind, AggregateID: a.id})
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
func (h *hold) apply(l *letters) {
	switch {
	case h == nil:
	case h.parked:
		l.oldest.set(h.of, h.holder)
	default:
		l.oldest.free(h.of)
	}
}
