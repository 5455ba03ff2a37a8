package relay

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/snapshot"
)

// Every write of a session names its epoch, and ends by name when that is over:
// whoever wakes after another took the slot changes nothing.
func TestAWriteOfAnEpochThatIsOverIsFenced(t *testing.T) {
	for statement, write := range map[string]func(context.Context, *state) error{
		"SaveCheckpoint": func(ctx context.Context, s *state) error {
			_, err := s.save(ctx, ledger.Checkpoint{Order: 200})
			return err
		},
		"RaiseTick":        func(ctx context.Context, s *state) error { _, err := s.raiseTick(ctx); return err },
		"EnterExactlyOnce": func(ctx context.Context, s *state) error { return s.enterExactlyOnce(ctx) },
		"LeaveExactlyOnce": func(ctx context.Context, s *state) error {
			_, err := s.leaveExactlyOnce(ctx, &ledger.Checkpoint{})
			return err
		},
		"SavePublished": func(ctx context.Context, s *state) error {
			return s.savePublished(ctx, snapshot.Snapshot{Text: "9:9:"})
		},
		"SavePublicationCatalog": func(ctx context.Context, s *state) error { return s.saveCatalog(ctx, "publication 1") },
		"SaveTimeline":           func(ctx context.Context, s *state) error { return s.follow(ctx, 2) },
		"PollWords":              func(ctx context.Context, s *state) error { _, err := s.pollWords(ctx); return err },
		"LoadRelayState":         func(ctx context.Context, s *state) error { return s.owns(ctx) },
	} {
		t.Run(statement, func(t *testing.T) {
			db := newScripted(t)
			db.on(statement, fenced)
			if statement == "LoadRelayState" {
				db.returns(statement, outboxdb.RelayState{ConfirmedLsn: "0/64", Epoch: 8})
			}
			require.ErrorIs(t, write(t.Context(), db.state()), ErrFenced)
			require.Len(t, db.log(), 1)
			require.Contains(t, db.log()[0], "onceward_orders")
			if statement != "LoadRelayState" {
				require.Regexp(t, `\b7\b`, db.log()[0], "the epoch")
			}
		})
	}
}
