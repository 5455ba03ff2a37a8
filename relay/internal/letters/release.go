package letters

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/state"
)

// Bounds of one page of released letters. A page has one letter at least, which
// may be as large as a payload can be.
const (
	pageRows  = 256
	pageBytes = 1 << 20
)

// Release is what a retry has released: letters to publish in the order of
// [Release.Next]. Each letter has ended when it is acknowledged, or when
// [Release.Fail] returns; once the checkpoint has passed the control, those
// acknowledged are settled.
type Release struct {
	letters *Store
	control uuid.UUID
	repeat  bool  // the control had acted before
	from    int64 // index of the first letter of the next page
	page    int   // how many the last one had
}

// Again reports whether the control had acted in an earlier session.
func (r *Release) Again() bool { return r.repeat }

// Next returns the next page, none after the last. Its letters are in memory
// only as long as the caller keeps them.
func (r *Release) Next(ctx context.Context) ([]*Letter, error) {
	rows, err := r.letters.State.Queries.ReadRelease(ctx, outboxdb.ReadReleaseParams{
		Slot: r.letters.State.Slot, ControlID: &r.control, FromIndex: r.from,
		RowLimit: int32(outboxdb.Ask(r.page, pageRows)), ByteLimit: pageBytes,
	})
	r.page = len(rows)
	if err != nil {
		return nil, fmt.Errorf("read letters that control %s released: %w", r.control, err)
	}
	page := make([]*Letter, len(rows))
	for i := range rows {
		if n := *rows[i].RetryIndex; n > math.MaxUint32 {
			return nil, fmt.Errorf("read letters that control %s released: more than %d", r.control, uint32(math.MaxUint32))
		}
		if page[i], err = newLetter(&rows[i]); err != nil {
			return nil, err
		}
		r.from = *rows[i].RetryIndex + 1
	}
	return page, nil
}

// Fail opens a letter again that could not be published, with the new reason.
// One that holds takes those behind it along that hold, and parks the aggregate
// again: they come in no later page, and the caller drops those that it has in
// hand. Letters that hold nothing go on.
func (r *Release) Fail(ctx context.Context, failed *Letter, class, cause string) error {
	l := r.letters
	var now *hold
	err := l.State.Count(ctx, fmt.Sprintf("open letter %s again", failed.ID), func(q *outboxdb.Queries) (state.Counted, error) {
		one := state.Counted{Writes: 1}
		n, err := q.FailLetter(ctx, outboxdb.FailLetterParams{
			Slot: l.State.Slot, LetterID: failed.ID, ControlID: &r.control, ErrorClass: class, Error: letterText(cause),
		})
		switch {
		case err != nil:
			return one, err
		case n == 0:
			return one, fmt.Errorf("control %s has not released it, or it has ended", r.control)
		case !failed.Holds:
			return one, nil
		}
		if _, err := q.FailRest(ctx, outboxdb.FailRestParams{Slot: l.State.Slot, ControlID: &r.control,
			FailedIndex: int64(failed.Index)}); err != nil {
			return one, err
		}
		now, err = l.look(ctx, q, aggregateOf(failed.Row))
		return one, err
	})
	if err != nil {
		return err
	}
	now.apply(l)
	return nil
}

// Skip discards a letter that was released, as an operator said in a command that
// is state, and forgets the command. What stands behind it goes on. It does nothing
// when the command was taken back.
func (r *Release) Skip(ctx context.Context, given *Letter) (done bool, err error) {
	l := r.letters
	err = l.State.Count(ctx, fmt.Sprintf("give up letter %s", given.ID), func(q *outboxdb.Queries) (state.Counted, error) {
		one := state.Counted{Writes: 1, Skipped: &given.ID}
		if err := l.stands(ctx, q, given.ID); err != nil {
			return one, err
		}
		by, why := "an operator", "relay_state.skip"
		who, err := q.WhoSkipped(ctx, &given.ID)
		switch {
		case err == nil:
			by, why = who.RequestedBy, who.Reason
		case !errors.Is(err, pgx.ErrNoRows):
			return one, err
		}
		n, err := q.SkipReleased(ctx, outboxdb.SkipReleasedParams{Slot: l.State.Slot, LetterID: given.ID,
			ControlID: &r.control, DecidedBy: &by, DecidedWhy: &why})
		if err == nil && n == 0 {
			err = fmt.Errorf("control %s has not released it, or it has ended", r.control)
		}
		return one, err
	})
	switch {
	case errors.Is(err, errTakenBack):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

// TakeBack opens letters whose retry was under way: the checkpoint passes
// their control now, which says nothing of them any more.
func TakeBack(ctx context.Context, q *outboxdb.Queries, row outboxdb.RelayState) error {
	if _, err := q.SettleLetters(ctx, outboxdb.SettleLettersParams{Slot: row.Slot,
		Checkpoint: &row.ConfirmedLsn}); err != nil {
		return fmt.Errorf("settle letters of slot %s: %w", row.Slot, err)
	}
	if _, err := q.TakeBackLetters(ctx, row.Slot); err != nil {
		return fmt.Errorf("take letters of slot %s back: %w", row.Slot, err)
	}
	return nil
}
