package state

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/scripted"
	"github.com/onceward/onceward/relay/internal/snapshot"
)

// Every write of a session names its epoch, and ends by name when that is over:
// whoever wakes after another took the slot changes nothing.
func TestAWriteOfAnEpochThatIsOverIsFenced(t *testing.T) {
	for statement, write := range map[string]func(context.Context, *State) error{
		"SaveCheckpoint": func(ctx context.Context, s *State) error {
			_, err := s.Save(ctx, ledger.Checkpoint{Order: 200})
			return err
		},
		"RaiseTick":        func(ctx context.Context, s *State) error { _, err := s.RaiseTick(ctx); return err },
		"EnterExactlyOnce": func(ctx context.Context, s *State) error { return s.EnterExactlyOnce(ctx) },
		"LeaveExactlyOnce": func(ctx context.Context, s *State) error {
			_, err := s.LeaveExactlyOnce(ctx, &ledger.Checkpoint{})
			return err
		},
		"SavePublished": func(ctx context.Context, s *State) error {
			return s.SavePublished(ctx, snapshot.Snapshot{Text: "9:9:"})
		},
		"SavePublicationCatalog": func(ctx context.Context, s *State) error { return s.SaveCatalog(ctx, "publication 1") },
		"SaveTimeline":           func(ctx context.Context, s *State) error { return s.Follow(ctx, 2) },
		"PollWords":              func(ctx context.Context, s *State) error { _, err := s.PollCommands(ctx); return err },
		"LoadRelayState":         func(ctx context.Context, s *State) error { return s.Owns(ctx) },
	} {
		t.Run(statement, func(t *testing.T) {
			db := scripted.New(t)
			conn := db.Connect()
			db.On(statement, scripted.Fenced)
			if statement == "LoadRelayState" {
				db.Returns(statement, outboxdb.RelayState{ConfirmedLsn: "0/64", Epoch: 8})
			}
			require.ErrorIs(t, write(t.Context(), &State{Conn: conn, Queries: outboxdb.New(conn), Slot: "onceward_orders", Epoch: 7}), ErrFenced)
			require.Len(t, db.Log(), 1)
			require.Contains(t, db.Log()[0], "onceward_orders")
			if statement != "LoadRelayState" {
				require.Regexp(t, `\b7\b`, db.Log()[0], "the epoch")
			}
		})
	}
}
