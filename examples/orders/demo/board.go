package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// board shows the live line.
type board struct {
	stage      *stage
	watcher    *watcher
	outcomes   *outcomes
	began      time.Time
	rolledBack atomic.Int64
	placed     atomic.Bool // no more orders come

	enqueued, shipped atomic.Int64
}

// run looks at the tables twice a second, and ends with ctx or with the relay.
func (b *board) run(ctx context.Context) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		published := b.watcher.distinct() // before the rows are counted: no line has more published than enqueued
		if err := errors.Join(b.look(ctx), b.stage.relay.died()); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		b.show(n, published)
	}
}

func (b *board) look(ctx context.Context) error {
	var enqueued, shipped int64
	err := b.stage.db.QueryRow(ctx, `SELECT (SELECT count(*) FROM onceward.outbox), (SELECT count(*) FROM shipments)`).Scan(&enqueued, &shipped)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	b.enqueued.Store(enqueued)
	b.shipped.Store(shipped)
	return nil
}

// show writes over the line on a terminal; elsewhere a line every two seconds.
func (b *board) show(n, published int) {
	line := fmt.Sprintf("%5.1fs enqueued=%d rolled_back=%d published=%d effects=%d duplicates_removed=%d lag=%d events",
		time.Since(b.began).Seconds(), b.enqueued.Load(), b.rolledBack.Load(), published, b.shipped.Load(),
		b.outcomes.duplicates.Load(), max(0, b.enqueued.Load()-int64(published)))
	if info, err := os.Stdout.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		fmt.Printf("\rdemo: %s   ", line)
		if n%20 == 19 {
			fmt.Println()
		}
		return
	}
	if n%4 == 3 {
		say("%s", line)
	}
}

// allShipped reports whether every committed order has an effect.
func (b *board) allShipped() bool {
	return b.placed.Load() && b.enqueued.Load() > 0 && b.shipped.Load() >= b.enqueued.Load() &&
		int64(b.watcher.distinct()) >= b.enqueued.Load()
}

// until waits for a condition, which the servers' work brings about, after a
// fresh look at the tables each time.
func (b *board) until(ctx context.Context, what string, condition func() bool) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := b.look(ctx); err == nil && condition() {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s (enqueued %d, published %d, effects %d): %w", what, b.enqueued.Load(), b.watcher.distinct(), b.shipped.Load(), ctx.Err())
		}
	}
}
