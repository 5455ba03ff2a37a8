package relay

import (
	"context"

	"github.com/onceward/onceward/cdc"
)

// parting applies [fault.NoEpoch] to the end of a session: what has ended is written
// down, though another may own the slot by now. The pump's connection is the one
// that no statement was cut off on.
func (s *session) parting(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickLimit)
	defer cancel()
	if s.mode.flush(ctx) != nil {
		return
	}
	if now, err := s.mode.status(); err == nil && now.position > s.saved.Load().Order {
		_, _ = s.pumps.Unfenced(ctx, now.position)
	}
}

// reorder is [fault.Reorder] on a batch.
func reorder(batch []cdc.Item) {
	for i := 1; i < len(batch); i += 2 {
		if batch[i-1].Row != nil && batch[i].Row != nil {
			batch[i-1].Row, batch[i].Row = batch[i].Row, batch[i-1].Row
		}
	}
}

// alter is [fault.Alter] on a batch.
func alter(batch []cdc.Item) {
	for i := range batch {
		if batch[i].Row != nil && batch[i].Row.Seq%100 == 0 {
			batch[i].Row.Payload = []byte(`{}`)
		}
	}
}
