package letters

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
)

// endedWindow is how many ids of letters are in memory at a time: about 6 MiB.
const endedWindow = 100_000

// endedLetters answers for rows that are read again whether they have a letter.
// The stream is read in commit order, so that a window of ids moves along with
// it, and beyond the newest letter nothing is asked at all. In a transaction that
// has more letters than a window, each row is looked up by itself.
type endedLetters struct {
	queries *outboxdb.Queries
	slot    string
	window  int32

	newest   pglogrepl.LSN // of all letters when the session began
	from, to pglogrepl.LSN // ids holds all letters with from ≤ position < to
	ids      map[uuid.UUID]struct{}
	dense    pglogrepl.LSN // a transaction that does not fit into the window
}

func openEnded(ctx context.Context, queries *outboxdb.Queries, slot string) (*endedLetters, error) {
	text, err := queries.NewestLetter(ctx, slot)
	if err != nil {
		return nil, fmt.Errorf("look for the newest letter of slot %s: %w", slot, err)
	}
	newest, err := ledger.ParseLSN(text)
	if err != nil {
		return nil, err
	}
	return &endedLetters{queries: queries, slot: slot, window: endedWindow, newest: newest}, nil
}

// has reports whether a row of the transaction whose commit record starts at
// commit had a letter when the session began.
func (e *endedLetters) has(ctx context.Context, id uuid.UUID, commit pglogrepl.LSN) (bool, error) {
	if e == nil || commit > e.newest {
		return false, nil
	}
	if commit >= e.to && commit != e.dense {
		if err := e.load(ctx, commit); err != nil {
			return false, err
		}
	}
	if commit >= e.from && commit < e.to {
		_, found := e.ids[id]
		return found, nil
	}
	found, err := e.queries.HasLetter(ctx, outboxdb.HasLetterParams{Slot: e.slot, LetterID: id})
	if err != nil {
		return false, fmt.Errorf("look for letter %s of slot %s: %w", id, e.slot, err)
	}
	return found, nil
}

// load moves the window to begin at the position.
func (e *endedLetters) load(ctx context.Context, at pglogrepl.LSN) error {
	rows, err := e.queries.LettersFrom(ctx, outboxdb.LettersFromParams{Slot: e.slot, FromPosition: at.String(),
		RowLimit: e.window})
	if err != nil {
		return fmt.Errorf("read letters of slot %s from %s: %w", e.slot, at, err)
	}
	// The last transaction of a full window may not be whole.
	end := e.newest + 1
	if len(rows) == int(e.window) {
		if end, err = ledger.ParseLSN(rows[len(rows)-1].Position); err != nil {
			return err
		}
	}
	if end == at {
		e.dense, e.from, e.to, e.ids = at, 0, 0, nil
		return nil
	}
	e.from, e.to, e.ids = at, end, make(map[uuid.UUID]struct{}, len(rows))
	for _, row := range rows {
		e.ids[row.LetterID] = struct{}{}
	}
	return nil
}
