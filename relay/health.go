package relay

import (
	"context"
	"fmt"
	"time"
)

// healthInterval is the time between two looks at what the slot keeps.
const healthInterval = 5 * time.Second

// pinnedBytes is how much log behind the confirmed position counts as pinned:
// one segment. It is kept although the relay needs none of it, because a
// transaction that was open then may still write into the outbox.
const pinnedBytes = 16 << 20

// repeatWarning is the time between two warnings of the same thing.
const repeatWarning = time.Minute

// health watches what the slot keeps of the log, and names what pins it.
type health struct {
	lookedAt, warnedAt time.Time
}

// look reads the slot's state into the metrics, at most once per healthInterval.
func (s *session) look(ctx context.Context) error {
	if time.Since(s.health.lookedAt) < healthInterval {
		return nil
	}
	s.health.lookedAt = time.Now()
	now, err := s.state.queries.SlotHealth(ctx, s.state.slot)
	if err != nil {
		return fmt.Errorf("look at slot %s: %w", s.state.slot, err)
	}
	s.metrics.slot(now)
	if time.Since(s.health.warnedAt) < repeatWarning {
		return nil
	}
	var message string
	switch {
	case now.WalStatus == "unreserved" || now.WalStatus == "lost":
		message = "the slot is about to be lost, or is: the log that it needs is beyond max_slot_wal_keep_size"
	case now.PinnedBytes >= pinnedBytes && now.OldestTransaction != "":
		message = "an open transaction pins log that the relay does not need; end it, or find out why it is open"
	default:
		return nil
	}
	s.health.warnedAt = time.Now()
	s.log.WarnContext(ctx, message, "slot", s.state.slot, "wal_status", now.WalStatus, "retained_bytes", now.RetainedBytes,
		"pinned_bytes", now.PinnedBytes, "safe_bytes", now.SafeBytes, "oldest_transaction", now.OldestTransaction,
		"open_for", time.Duration(now.OldestSeconds*float64(time.Second)).Round(time.Second))
	return nil
}
