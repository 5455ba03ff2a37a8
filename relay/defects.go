package relay

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
)

// The defects that a test can inject into a relay built with the tag
// onceward_defects, each the classic way to break one promise. Package cdc has
// more.
const (
	// defectConfirmEarly confirms what was read, before Kafka acknowledged it.
	defectConfirmEarly = "confirm-early"
	// defectReorder hands neighbours over in the wrong order.
	defectReorder = "reorder"
	// defectAlter changes a payload on the way.
	defectAlter = "alter"
	// defectSlotFirst confirms the slot before the checkpoint is durable.
	defectSlotFirst = "slot-first"
	// defectNoEpoch writes checkpoints whoever owns the slot by now.
	defectNoEpoch = "no-epoch"
	// defectImpatient takes a server that is mute for less than its own
	// wal_sender_timeout for a dead one.
	defectImpatient = "impatient"
	// defectNoBarrier begins without waiting for transactions that were open when
	// the slot was made.
	defectNoBarrier = "no-barrier"
	// defectForgetGap takes what may have passed the relay by for published: a gap is
	// written down as repaired.
	defectForgetGap = "forget-gap"
	// defectGapFromNow measures a gap from where it ends, as if the snapshot that was
	// published last were void and a new one had its place.
	defectGapFromNow = "gap-from-now"
	// defectForgetBefore does so with what is older than a relay that begins with
	// outbox.start: now.
	defectForgetBefore = "forget-before"
	// defectForgetWaiting forgets what waited for its route, when that can be used, in
	// the place of publishing it.
	defectForgetWaiting = "forget-waiting"
	// defectNoHistory takes every checkpoint for one of the history that the database
	// has now.
	defectNoHistory = "no-history"
	// defectConfirmIdle confirms the end of the log to the slot while nothing is
	// published, without a checkpoint that says so.
	defectConfirmIdle = "confirm-idle"
)

// forgets applies defectForgetGap and defectForgetBefore to a beginning.
func (b *beginning) forgets() bool {
	return b.cause != nil && defect == defectForgetGap || b.gap.State == gapBefore && defect == defectForgetBefore
}

// early applies defectSlotFirst to a checkpoint that is about to be written.
func (s *session) early(position pglogrepl.LSN) {
	if defect == defectSlotFirst {
		s.reader.Confirm(position)
	}
}

// untold applies defectConfirmIdle to a position that no checkpoint is due for.
func (s *session) untold(position pglogrepl.LSN) {
	if defect == defectConfirmIdle {
		s.reader.Confirm(position)
	}
}

// unfenced is [state.save] with defectNoEpoch.
func (s *state) unfenced(ctx context.Context, position pglogrepl.LSN) (tick int64, err error) {
	err = s.conn.QueryRow(ctx, `UPDATE onceward.relay_state SET confirmed_lsn = $1, tick = tick + 1 WHERE slot = $2 RETURNING tick`,
		position.String(), s.slot).Scan(&tick)
	return tick, err
}

// parting applies defectNoEpoch to the end of a session: what has ended is written
// down, though another may own the slot by now. The pump's connection is the one
// that no statement was cut off on.
func (s *session) parting(ctx context.Context) {
	if defect != defectNoEpoch {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickLimit)
	defer cancel()
	if s.mode.flush(ctx) != nil {
		return
	}
	if now, err := s.mode.status(); err == nil && now.position > s.saved.Load().order {
		_, _ = s.pumps.unfenced(ctx, now.position)
	}
}

// patience applies defectImpatient to the limit of silence.
func patience(limit, timeout time.Duration) time.Duration {
	if defect == defectImpatient {
		return timeout / 2
	}
	return limit
}

// spoil applies the defects that change a batch.
func spoil(batch []cdc.Item) {
	switch defect {
	case defectReorder:
		for i := 1; i < len(batch); i += 2 {
			if batch[i-1].Row != nil && batch[i].Row != nil {
				batch[i-1].Row, batch[i].Row = batch[i].Row, batch[i-1].Row
			}
		}
	case defectAlter:
		for i := range batch {
			if batch[i].Row != nil && batch[i].Row.Seq%100 == 0 {
				batch[i].Row.Payload = []byte(`{}`)
			}
		}
	}
}
