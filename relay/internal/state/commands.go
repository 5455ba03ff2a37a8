package state

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/outboxdb"
)

// Commands are the operator's that are state, not rows of the stream: a relay that
// is paused or halted reads no stream, so a row behind what holds it up would
// never be reached. They are columns of relay_state, read every tick.
type Commands struct {
	Paused bool        // nothing is published
	Routes []string    // nothing of these is
	Skip   []uuid.UUID // events, or replays, that are to end without being published

	Repairs []uuid.UUID // gaps that are to be repaired
}

// PollCommands reads them as they are now. It writes nothing: a command stands
// until it is taken back, but one to skip is forgotten with the letter that
// carries it out. [ErrFenced] says that another session owns the slot.
func (s *State) PollCommands(ctx context.Context) (Commands, error) {
	row, err := s.Queries.PollWords(ctx, outboxdb.PollWordsParams{Slot: s.Slot, Epoch: s.Epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrFenced
	}
	if err != nil {
		return Commands{}, fmt.Errorf("read the operator's commands of slot %s: %w", s.Slot, err)
	}
	return Commands{Paused: row.Paused, Routes: row.PausedRoutes, Skip: row.Skip, Repairs: row.Repairs}, nil
}

// Skips reports whether the event or the replay is to be skipped. There are few
// such commands: they are for what holds the relay up.
func (c *Commands) Skips(id uuid.UUID) bool { return slices.Contains(c.Skip, id) }
