package relay

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay/retention"
)

// maintain keeps the partitions of the outbox while the relay runs, over a
// connection of its own with the maintainer's role. What fails is logged and
// tried again at the next turn: a relay that publishes is worth more than one
// that stopped because a partition could not be dropped. It returns when ctx
// ends.
func maintain(ctx context.Context, cfg *Config, counts *counts, log *slog.Logger) {
	tick := time.NewTicker(cfg.Outbox.Partitions.Every)
	defer tick.Stop()
	for {
		if err := maintainOnce(ctx, cfg, counts, log); err != nil && ctx.Err() == nil {
			log.ErrorContext(ctx, "partitions could not be maintained; it is tried again", "error", err, "in", cfg.Outbox.Partitions.Every)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func maintainOnce(ctx context.Context, cfg *Config, counts *counts, log *slog.Logger) error {
	dsn, err := cfg.maintenanceDSN()
	if err != nil {
		return err
	}
	conn, err := Connect(ctx, dsn, cfg.SlotName())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the work is committed or reported
	report, err := retention.Maintain(ctx, conn, cfg.retention())
	if errors.Is(err, retention.ErrMaintained) {
		return nil // a standby, or cron, is at it
	}
	err = cdc.ExplainRefused(err)
	counts.partitions(report)
	for _, name := range report.Made {
		log.InfoContext(ctx, "partition made", "partition", name)
	}
	for _, l := range report.Leaves {
		switch {
		case l.Wrong:
			log.WarnContext(ctx, "partition needs an operator", "partition", l.Name, "state", string(l.State), "why", l.Why)
		case l.State == retention.LeafDropped && l.Why != "":
			log.InfoContext(ctx, "partition dropped", "partition", l.Name, "rows", l.Why)
		case l.State == retention.LeafDropped:
			log.InfoContext(ctx, "partition dropped: every row of it was published", "partition", l.Name)
		}
	}
	return err
}
