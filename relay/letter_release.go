package relay

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

// release is what a retry has released: letters to publish in the order of
// [release.next]. Each letter has ended when it is acknowledged, or when
// [release.fail] returns; once the checkpoint has passed the control, those
// acknowledged are settled.
type release struct {
	letters *letters
	control uuid.UUID
	repeat  bool  // the control had acted before
	from    int64 // index of the first letter of the next page
}

func (r *release) again() bool { return r.repeat }

// next returns the next page, none after the last. Its letters are in memory
// only as long as the caller keeps them.
func (r *release) next(ctx context.Context) ([]*letter, error) {
	rows, err := r.letters.state.Queries.ReadRelease(ctx, outboxdb.ReadReleaseParams{
		Slot: r.letters.state.Slot, ControlID: &r.control, FromIndex: r.from, RowLimit: pageRows, ByteLimit: pageBytes,
	})
	if err != nil {
		return nil, fmt.Errorf("read letters that control %s released: %w", r.control, err)
	}
	page := make([]*letter, len(rows))
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

// fail opens a letter again that could not be published, with the new reason.
// One that holds takes those behind it along that hold, and parks the aggregate
// again: they come in no later page, and the caller drops those that it has in
// hand. Letters that hold nothing go on.
func (r *release) fail(ctx context.Context, failed *letter, class, cause string) error {
	l := r.letters
	var now *hold
	err := l.state.Count(ctx, fmt.Sprintf("open letter %s again", failed.id), func(q *outboxdb.Queries) (state.Counted, error) {
		one := state.Counted{Writes: 1}
		n, err := q.FailLetter(ctx, outboxdb.FailLetterParams{
			Slot: l.state.Slot, LetterID: failed.id, ControlID: &r.control, ErrorClass: class, Error: letterText(cause),
		})
		switch {
		case err != nil:
			return one, err
		case n == 0:
			return one, fmt.Errorf("control %s has not released it, or it has ended", r.control)
		case !failed.holds:
			return one, nil
		}
		if _, err := q.FailRest(ctx, outboxdb.FailRestParams{Slot: l.state.Slot, ControlID: &r.control, FailedIndex: int64(failed.index)}); err != nil {
			return one, err
		}
		now, err = l.look(ctx, q, aggregateOf(failed.row))
		return one, err
	})
	if err != nil {
		return err
	}
	now.apply(l)
	return nil
}

// skip discards a letter that was released, as an operator said in a word that
// is state, and forgets the word. What stands behind it goes on. It does nothing
// when the word was taken back.
func (r *release) skip(ctx context.Context, given *letter) (done bool, err error) {
	l := r.letters
	err = l.state.Count(ctx, fmt.Sprintf("give up letter %s", given.id), func(q *outboxdb.Queries) (state.Counted, error) {
		one := state.Counted{Writes: 1, Skipped: &given.id}
		if err := l.stands(ctx, q, given.id); err != nil {
			return one, err
		}
		by, why := "an operator", "relay_state.skip"
		who, err := q.WhoSkipped(ctx, &given.id)
		switch {
		case err == nil:
			by, why = who.RequestedBy, who.Reason
		case !errors.Is(err, pgx.ErrNoRows):
			return one, err
		}
		n, err := q.SkipReleased(ctx, outboxdb.SkipReleasedParams{Slot: l.state.Slot, LetterID: given.id, ControlID: &r.control, DecidedBy: &by, DecidedWhy: &why})
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
