package consumerprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/onceward/consumer/retention"
)

// What the last run of retention.Maintain left, or would find.
var (
	maintained = desc("maintained_timestamp_seconds", "When the last maintenance ended, in Unix seconds.")
	leaves     = desc("partitions", "Partitions of processed_events by state.", "state")
	wrong      = desc("partitions_wrong", "Partitions that retention cannot drop before an operator acts; `outboxctl partitions` says why.")
	size       = desc("partitions_bytes", "Size of all partitions of processed_events, with indexes.")
	ahead      = desc("partitions_ahead", "Days after today that have a partition.")
	overdue    = desc("partitions_overdue_seconds", "For how long the oldest partition that every floor has passed is there all the same; "+
		"no longer than the newest class is registered, or since an operator raised a floor.")
	horizon = desc("horizon_timestamp_seconds", "Event time, in Unix seconds, before which claims may be gone; 0: none is.")
	expired = desc("rows_overdue_seconds", "For how long the row that expired first is there all the same.", "table")
	floor   = desc("floor_timestamp_seconds", "Event time, in Unix seconds, below which a class of events takes no claim.", "group", "class")
	behind  = desc("floor_behind_seconds", "By how much the floor lies behind the clock minus the window.", "group", "class")
	stuck   = desc("floor_stuck", "1 while the floor stands still and the table grows.", "group", "class")
)

var retentionDescs = []*prometheus.Desc{
	maintained, leaves, wrong, size, ahead, overdue, horizon, expired, floor, behind, stuck,
}

// states are shown always, so that a state that nothing is in any more is 0.
var states = []retention.LeafState{retention.LeafOpen, retention.LeafWaiting, retention.LeafClosed,
	retention.LeafDetaching, retention.LeafDropped}

func collectRetention(ch chan<- prometheus.Metric, r retention.Report) {
	count, bad := make(map[retention.LeafState]int), 0
	for _, l := range r.Leaves {
		count[l.State]++
		if l.Wrong {
			bad++
		}
	}
	for _, state := range states {
		gauge(ch, leaves, float64(count[state]), string(state))
	}
	gauge(ch, wrong, float64(bad))
	gauge(ch, size, float64(r.Bytes))
	gauge(ch, ahead, float64(r.Ahead))
	gauge(ch, overdue, r.Overdue.Seconds())
	gauge(ch, horizon, unix(r.Horizon))
	for _, rows := range r.Rows {
		gauge(ch, expired, rows.Lag.Seconds(), rows.Table)
	}
	for _, f := range r.Floors {
		if f.Retired {
			continue
		}
		gauge(ch, floor, unix(f.After), f.Group, f.Class)
		gauge(ch, behind, f.Behind.Seconds(), f.Group, f.Class)
		gauge(ch, stuck, one(f.Wrong), f.Group, f.Class)
	}
}
