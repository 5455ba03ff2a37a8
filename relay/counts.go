package relay

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/stream"
	"github.com/onceward/onceward/relay/retention"
)

// counts gather the [Stats] of a relay but State and Waiting. They outlive
// sessions. Safe for concurrent use; no call is made for every event.
type counts struct {
	mu                      sync.Mutex
	now                     Stats
	delay, commit, requests histogram
}

func newCounts(relay string) *counts {
	return &counts{
		now: Stats{Relay: relay, Skipped: make(map[string]uint64), Controls: make(map[string]uint64),
			PartitionsAhead: -1},
		delay:    newHistogram(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 300),
		commit:   newHistogram(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60),
		requests: newHistogram(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
	}
}

// stats returns them as they are now.
func (c *counts) stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now
	now.Skipped, now.Controls = maps.Clone(now.Skipped), maps.Clone(now.Controls)
	now.Delay, now.Commit, now.Requests = c.delay.look(), c.commit.look(), c.requests.look()
	return now
}

func (c *counts) change(to func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to(&c.now)
}

func (c *counts) Read(events int) { c.change(func(s *Stats) { s.Read += uint64(events) }) }

func (c *counts) Published(events, letters int, commit time.Time) {
	c.change(func(s *Stats) {
		s.Published += uint64(events)
		s.Letters += uint64(letters)
		if !commit.IsZero() {
			c.delay.observe(max(0, time.Since(commit).Seconds()))
		}
	})
}

// sent counts one produce request.
func (c *counts) sent(records int) {
	c.change(func(*Stats) { c.requests.observe(float64(records)) })
}

// Committed counts one Kafka transaction, with what it published.
func (c *counts) Committed(events, letters int, took time.Duration, commit time.Time) {
	c.change(func(s *Stats) {
		s.Transactions++
		c.commit.observe(took.Seconds())
	})
	c.Published(events, letters, commit)
}

func (c *counts) Skipped(reason string) { c.change(func(s *Stats) { s.Skipped[reason]++ }) }

func (c *counts) Waited(events int) { c.change(func(s *Stats) { s.Waited += uint64(events) }) }

func (c *counts) Control(action string) {
	switch action {
	case cdc.ActionRetry, cdc.ActionDiscard, cdc.ActionEdit:
	default:
		action = "unknown" // a label is no place for what a row says
	}
	c.change(func(s *Stats) {
		s.Controls[action]++
		s.Skipped[stream.SkippedByControl]++
	})
}

func (c *counts) Parked(events int) { c.change(func(s *Stats) { s.Parked += uint64(events) }) }

func (c *counts) ParkedNow(aggregates int) {
	c.change(func(s *Stats) { s.ParkedAggregates = aggregates })
}

func (c *counts) checkpointLost() { c.change(func(s *Stats) { s.CheckpointsLost++ }) }

// rewound counts what a session had read and not ended when it was over.
func (c *counts) rewound(events uint64) {
	if events > 0 {
		c.change(func(s *Stats) { s.Rewinds, s.Rewound = s.Rewinds+1, s.Rewound+events })
	}
}

func (c *counts) session() { c.change(func(s *Stats) { s.Sessions++ }) }

func (c *counts) topicRemade() { c.change(func(s *Stats) { s.TopicsRemade++ }) }

func (c *counts) checkpointed() { c.change(func(s *Stats) { s.Checkpoints++ }) }

func (c *counts) snapshotPublished(at time.Time) { c.change(func(s *Stats) { s.Snapshot = at }) }

// observe shows how far a session has come.
func (c *counts) observe(now stream.Status, durable pglogrepl.LSN, queue int) {
	lag := time.Duration(0)
	if !now.Oldest.IsZero() {
		lag = max(0, time.Since(now.Oldest))
	}
	c.change(func(s *Stats) {
		s.Lag, s.InFlight, s.QueueBytes = lag, now.InFlight, queue
		s.Confirmed, s.Ended = uint64(durable), uint64(now.Position)
	})
}

// slot shows what the slot keeps.
func (c *counts) slot(now outboxdb.SlotHealthRow) {
	c.change(func(s *Stats) {
		s.Slot = SlotStats{
			RetainedBytes: now.RetainedBytes, LagBytes: now.LagBytes, SafeBytes: now.SafeBytes,
			WALStatus: now.WalStatus,
			Oldest:    time.Duration(now.OldestSeconds * float64(time.Second)),
		}
	})
}

// ahead shows how many days have a partition; -1: it is not known.
func (c *counts) ahead(days int) { c.change(func(s *Stats) { s.PartitionsAhead = days }) }

// partitions shows what maintenance left.
func (c *counts) partitions(report retention.Report) {
	leaves := make(map[retention.LeafState]int)
	for _, l := range report.Leaves {
		leaves[l.State]++
	}
	c.change(func(s *Stats) {
		s.Partitions = leaves
		if report.Ahead > 0 { // it was counted
			s.PartitionsAhead = report.Ahead
		}
	})
}

// Holding shows how many events wait, by route.
func (c *counts) Holding(routes map[string]stream.HeldRoute) {
	held := make(map[string]int, len(routes))
	for route, h := range routes {
		held[route] = h.Events
	}
	c.change(func(s *Stats) { s.Held = held })
}

// histogram is a [Histogram] that is counted.
type histogram struct {
	bounds []float64 // ascending
	counts []uint64  // of each, what was more than the one before
	beyond uint64
	sum    float64
}

func newHistogram(bounds ...float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds))}
}

func (h *histogram) observe(v float64) {
	h.sum += v
	if i, _ := slices.BinarySearch(h.bounds, v); i < len(h.bounds) {
		h.counts[i]++
	} else {
		h.beyond++
	}
}

func (h *histogram) look() Histogram {
	out := Histogram{Sum: h.sum, Buckets: make(map[float64]uint64, len(h.bounds))}
	for i, bound := range h.bounds {
		out.Count += h.counts[i]
		out.Buckets[bound] = out.Count
	}
	out.Count += h.beyond
	return out
}
