package consumerprom

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/onceward/consumer/saramagroup"
)

// What a group's member shows.
var (
	generation = desc("generation", "Generation of the group's session that this member is in; 0 between sessions.", "group")
	finished   = desc("messages_finished_total", "Messages finished by this member, by what became of them.", "group", "outcome")
	failed     = desc("deliveries_failed_total", "Failed deliveries, tried again: handler (an attempt), infrastructure (none), in-progress (claimed elsewhere).", "group", "kind")
	rewinds    = desc("rewinds_total", "Partitions that began again because the database had lost commits.", "group")
	saved      = desc("progress_saved_timestamp_seconds", "When the group's progress was last saved in the database, in Unix seconds; 0 before the first time.", "group")

	next     = desc("next_offset", "Offset up to which everything is finished, itself excluded.", "group", "topic", "partition")
	end      = desc("high_water_offset", "End of the partition, as Kafka last told it.", "group", "topic", "partition")
	lag      = desc("lag_messages", "Offsets of the partition that are not finished.", "group", "topic", "partition")
	held     = desc("held_messages", "Messages that were read, and are not finished or wait behind one that is not.", "group", "topic", "partition")
	bytes    = desc("held_bytes", "Keys, values and headers of the messages that are held.", "group", "topic", "partition")
	inFlight = desc("in_flight_messages", "Messages that are being delivered.", "group", "topic", "partition")
	oldest   = desc("oldest_waiting_seconds", "For how long the first message that is not finished has been here; 0 when there is none.", "group", "topic", "partition")
)

var groupDescs = []*prometheus.Desc{
	generation, finished, failed, rewinds, saved,
	next, end, lag, held, bytes, inFlight, oldest,
}

func collectGroup(ch chan<- prometheus.Metric, s saramagroup.Snapshot, now time.Time) {
	gauge(ch, generation, float64(s.Generation), s.Group)
	for outcome, n := range s.Finished {
		counter(ch, finished, n, s.Group, outcome.String())
	}
	for kind, n := range s.Failed {
		counter(ch, failed, n, s.Group, string(kind))
	}
	counter(ch, rewinds, s.Rewinds, s.Group)
	gauge(ch, saved, unix(s.ProgressSaved), s.Group)
	for _, p := range s.Partitions {
		collectPartition(ch, p, now, []string{s.Group, p.Topic, strconv.Itoa(int(p.Partition))})
	}
}

func collectPartition(ch chan<- prometheus.Metric, p saramagroup.PartitionStats, now time.Time, labels []string) {
	age := 0.0
	if !p.WaitingSince.IsZero() {
		age = max(0, now.Sub(p.WaitingSince).Seconds())
	}
	gauge(ch, next, float64(p.Next), labels...)
	gauge(ch, end, float64(p.HighWater), labels...)
	gauge(ch, lag, float64(p.Lag()), labels...)
	gauge(ch, held, float64(p.Held), labels...)
	gauge(ch, bytes, float64(p.HeldBytes), labels...)
	gauge(ch, inFlight, float64(p.InFlight), labels...)
	gauge(ch, oldest, age, labels...)
}
