package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/outboxdb"
)

// words are the operator's that are state, not rows of the stream: a relay that
// is paused or halted reads no stream, so a row behind what holds it up would
// never be reached. They are columns of relay_state, read every tick.
type words struct {
	paused bool        // everything rests
	routes []string    // these rest
	skip   []uuid.UUID // events, or replays, that are to end without being published

	repairs []uuid.UUID // gaps that are to be repaired
}

// pollWords reads the words as they are now. It writes nothing: a word stands
// until it is taken back, but that of skip is forgotten with the letter that
// obeys it. [ErrFenced] says that another session owns the slot.
func (s *state) pollWords(ctx context.Context) (words, error) {
	row, err := s.queries.PollWords(ctx, outboxdb.PollWordsParams{Slot: s.slot, Epoch: s.epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrFenced
	}
	if err != nil {
		return words{}, fmt.Errorf("read the operator's words of slot %s: %w", s.slot, err)
	}
	return words{paused: row.Paused, routes: row.PausedRoutes, skip: row.Skip, repairs: row.Repairs}, nil
}

// skips reports whether the event or the replay is to be skipped. There are few
// such words: they are for what holds the relay up.
func (w *words) skips(id uuid.UUID) bool { return slices.Contains(w.skip, id) }
