package relay

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay/retention"
)

// maintain keeps the partitions of the outbox while the relay runs, over a
// connection of its own with the maintainer's role. What fails is logged and
// tried again at the next turn: a relay that publishes is worth more than one
// that stopped because a partition could not be dropped. It returns when ctx
// ends.
func (r *Relay) maintain(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Outbox.Partitions.Every)
	defer tick.Stop()
	for {
		if err := r.maintainOnce(ctx); err != nil && ctx.Err() == nil {
			r.log.ErrorContext(ctx, "partitions could not be maintained; it is tried again", "error", err, "in", r.cfg.Outbox.Partitions.Every.String())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Relay) maintainOnce(ctx context.Context) error {
	dsn, err := r.cfg.maintenanceDSN()
	if err != nil {
		return err
	}
	conn, err := Connect(ctx, dsn, r.cfg.SlotName())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the work is committed or reported
	report, err := retention.Maintain(ctx, conn, r.cfg.retention())
	if errors.Is(err, retention.ErrMaintained) {
		return nil // a standby, or cron, is at it
	}
	err = cdc.ExplainRefused(err)
	r.counts.partitions(report)
	for _, name := range report.Made {
		r.log.InfoContext(ctx, "partition made", "partition", name)
	}
	for _, l := range report.Leaves {
		switch {
		case l.Wrong:
			r.log.WarnContext(ctx, "partition needs an operator", "partition", l.Name, "state", string(l.State), "why", l.Why)
		case l.State == retention.LeafDropped && l.Why != "":
			r.log.InfoContext(ctx, "partition dropped", "partition", l.Name, "rows", l.Why)
		case l.State == retention.LeafDropped:
			r.log.InfoContext(ctx, "partition dropped: every row of it was published", "partition", l.Name)
		}
	}
	return err
}
