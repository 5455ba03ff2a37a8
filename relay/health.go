package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/retention"
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
	state  *state.State
	counts *counts
	log    *slog.Logger
	report func(kind string, waits ...Wait)
	topics *topics

	lookedAt, warnedAt time.Time
	countedAt          time.Time // the partitions
	stalled            stalled
}

// countInterval is the time between two counts of the partitions ahead.
const countInterval = time.Minute

// countAhead shows how many days are made ahead, whoever makes them, and says each
// time that today's is missing, or that a DEFAULT partition is there. Neither that nor not to know it is a
// reason to stop publishing.
func (h *health) countAhead(ctx context.Context) {
	if time.Since(h.countedAt) < countInterval {
		return
	}
	h.countedAt = time.Now()
	days, today, err := retention.Ahead(ctx, h.state.Conn)
	var unwanted *cdc.StartError
	if errors.As(err, &unwanted) {
		h.log.ErrorContext(ctx, "partitions cannot be made any more", "error", unwanted)
		err = nil
	}
	if err != nil {
		h.log.WarnContext(ctx, "partitions ahead are not known", "error", err)
		h.counts.ahead(-1)
		return
	}
	h.counts.ahead(days)
	if !today && unwanted == nil {
		h.log.ErrorContext(ctx, "producers cannot write", "error", retention.NoPartitionToday())
	}
}

// look reads the slot's state into the metrics, at most once per healthInterval.
func (h *health) look(ctx context.Context) error {
	if time.Since(h.lookedAt) < healthInterval {
		return nil
	}
	h.lookedAt = time.Now()
	now, err := h.state.Queries.SlotHealth(ctx, h.state.Slot)
	if err != nil {
		return fmt.Errorf("look at slot %s: %w", h.state.Slot, err)
	}
	h.counts.slot(now)
	h.countAhead(ctx)
	if err := h.topics.save(ctx, false); err != nil {
		return err
	}
	h.report(WaitTransaction, pinning(now, time.Now())...)
	if err := h.lookAtStandbys(ctx, now.AwaitsStandbys); err != nil {
		return err
	}
	if now.WalStatus != "unreserved" && now.WalStatus != "lost" || time.Since(h.warnedAt) < repeatWarning {
		return nil
	}
	h.warnedAt = time.Now()
	h.log.WarnContext(ctx, "the slot is about to be lost, or is: the log that it needs is beyond max_slot_wal_keep_size",
		"slot", h.state.Slot, "wal_status", now.WalStatus, "retained_bytes", now.RetainedBytes,
		"pinned_bytes", now.PinnedBytes, "safe_bytes", now.SafeBytes)
	return nil
}

// pinning returns the transaction that pins log which the relay does not need.
func pinning(slot outboxdb.SlotHealthRow, now time.Time) []Wait {
	if slot.PinnedBytes < pinnedBytes || slot.OldestTransaction == "" {
		return nil
	}
	return []Wait{{
		What: slot.OldestTransaction, Since: now.Add(-time.Duration(slot.OldestSeconds * float64(time.Second))),
		Detail: "log is kept that the relay does not need, because a transaction is open that may still write",
	}}
}

// stalled is where the walsender stood when it was seen to wait for standbys.
type stalled struct {
	at    string
	since time.Time
}

// look returns since when it waits there; zero: it does not, or it has moved since the look
// before. To wait for a moment at each message is as it should be.
func (s *stalled) look(at string, now time.Time) time.Time {
	if at == "" || at != s.at {
		*s = stalled{at, now}
		return time.Time{}
	}
	return s.since
}

// lookAtStandbys reports the standbys for which the walsender waits. It answers meanwhile, so
// that nothing else tells it from one that has nothing to send.
func (h *health) lookAtStandbys(ctx context.Context, at string) error {
	since := h.stalled.look(at, time.Now())
	if since.IsZero() {
		h.report(WaitSlot)
		return nil
	}
	standbys, err := cdc.AwaitedStandbys(ctx, h.state.Conn)
	if err != nil {
		return err
	}
	detail := "PostgreSQL sends nothing before the standbys of synchronized_standby_slots have it, and waits for "
	if standbys.Away != "" {
		detail += standbys.Away + "; " + standbys.Cure
	} else {
		detail += standbys.Slots + "; see in pg_stat_replication how far behind the standby is"
	}
	h.report(WaitSlot, Wait{What: h.state.Slot, Since: since, Detail: detail})
	return nil
}
