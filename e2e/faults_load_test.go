//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The wild load: what the generator of the tests under faults adds to writers.
// A third of the rows of small transactions goes to one hot aggregate, a transaction in 200 has 300 to
// 1000 rows, some stay open while others pass them, payloads have from a few
// bytes to a hundred kilobytes, and writers pause, so that the load is bounded by
// itself and not by the machine.
const (
	hotAggregate = "a-0"
	wildPause    = 40 * time.Millisecond // the longest, between two transactions of a writer
	wildLinger   = 2 * time.Second       // the longest that a transaction stays open
)

// wildPicks makes some transactions large and some rows hot.
func (w *writers) wildPicks(random *rand.Rand, picks []string) []string {
	if random.IntN(200) == 0 {
		for range 300 + random.IntN(700) {
			picks = append(picks, fmt.Sprintf("a-%d", random.IntN(w.aggregates)))
		}
	}
	if len(picks) > 5 {
		return picks // would have everybody wait for the hot aggregate
	}
	for i := range picks {
		if random.IntN(3) == 0 {
			picks[i] = hotAggregate
		}
	}
	return picks
}

// linger keeps a small transaction open for a while, so that others commit
// around it. It holds the locks of its aggregates, so not of the hot one.
func (w *writers) linger(ctx context.Context, random *rand.Rand, picks []string) error {
	if len(picks) > 3 || slices.Contains(picks, hotAggregate) || random.IntN(40) != 0 {
		return nil
	}
	return wait(ctx, time.Duration(random.Int64N(int64(wildLinger))))
}

// rest is the pause between two transactions.
func (w *writers) rest(ctx context.Context, random *rand.Rand) {
	_ = wait(ctx, time.Duration(random.Int64N(int64(wildPause))))
}

// wildPad is the padding of the n-th event of an aggregate.
func wildPad(n int) string {
	switch {
	case n%301 == 300:
		return strings.Repeat("large, ", 15_000)
	case n%17 == 16:
		return strings.Repeat("…✓\\\"", 400)
	case n%5 == 4:
		return ""
	}
	return padding
}

// padding is in most payloads of the wild load; no log may hold it.
const padding = "a payload is nobody's business"

// wait waits, or returns ctx's error when that ends first.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unrelated writes rows that are nobody's events, about ten times as many as the
// writers', until ctx ends. Faults of the server are none of its business.
func unrelated(ctx context.Context, pool *pgxpool.Pool) {
	_, _ = pool.Exec(ctx, `CREATE TABLE noise (n bigint, pad text)`)
	for wait(ctx, 50*time.Millisecond) == nil {
		_, _ = pool.Exec(ctx, `INSERT INTO noise SELECT i, repeat('n', 50) FROM generate_series(1, 500) i`)
	}
}
