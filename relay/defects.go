package relay

import (
	"context"
)

// parting applies [fault.NoEpoch] to the end of a session: what has ended is written
// down, though another may own the slot by now. The pump's connection is the one
// that no statement was cut off on.
func (s *session) parting(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickLimit)
	defer cancel()
	if s.pump.FlushSink(ctx) != nil {
		return
	}
	if now, err := s.pump.HasEnded(); err == nil && now.Position > s.saved.Load().Order {
		_, _ = s.pumps.Unfenced(ctx, now.Position)
	}
}
