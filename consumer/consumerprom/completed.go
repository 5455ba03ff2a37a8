package consumerprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/onceward/consumer"
)

var (
	lookups = desc("completed_lookups_total", "Events looked up in Config.Completed: hit (a duplicate that did not reach the database), miss, stale (of another content, history or registration), error, unasked (left alone after errors).", "result")
	writes  = desc("completed_writes_total", "Applied events told to Config.Completed: kept, forgone (it failed, or was left alone).", "result")
)

var completedDescs = []*prometheus.Desc{lookups, writes}

// Completed shows what stats says at each scrape: Stats of a redisfast.Cache. It must return at
// once and be safe for concurrent use.
func (c *Collector) Completed(stats func() consumer.CompletedStats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.completed = stats
}

func collectCompleted(ch chan<- prometheus.Metric, s consumer.CompletedStats) {
	for result, n := range map[string]int64{"hit": s.Hits, "miss": s.Misses, "stale": s.Stale, "error": s.Errors, "unasked": s.Unasked} {
		counter(ch, lookups, n, result)
	}
	counter(ch, writes, s.Remembered, "kept")
	counter(ch, writes, s.Forgone, "forgone")
}
