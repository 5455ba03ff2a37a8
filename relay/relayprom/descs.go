package relayprom

import "github.com/prometheus/client_golang/prometheus"

// descs are the metrics, and all of them in a list.
type descs struct {
	read, published, parked, skipped, rewound, waited                                       *prometheus.Desc
	letters, controls                                                                       *prometheus.Desc
	sessions, rewinds, checkpoints, checkpointsLost, transactions, topicsRemade, logDropped *prometheus.Desc
	delay, commit, requests                                                                 *prometheus.Desc
	lag, inFlight, queue, throttle, confirmed, ended, snapshot                              *prometheus.Desc
	parkedAggregates, held, heldEvents                                                      *prometheus.Desc
	retained, slotLag, safe, oldest, walStatus                                              *prometheus.Desc
	ahead, leaves                                                                           *prometheus.Desc
	state, waiting                                                                          *prometheus.Desc

	all []*prometheus.Desc
}

func newDescs(relay string) (d descs) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		one := prometheus.NewDesc("onceward_"+name, help, labels, prometheus.Labels{"relay": relay})
		d.all = append(d.all, one)
		return one
	}
	d.read = desc("events_read_total", "Events read from the log, copies after a restart included.")
	d.published = desc("events_published_total", "Events acknowledged by all in-sync replicas.")
	d.parked = desc("events_parked_total", "Events kept as dead letters.")
	d.skipped = desc("events_skipped_total", "Ended, neither published nor parked now: letter (has one), word (an operator's), "+
		"control (rows of controls), erased (waited, and its row is gone).", "reason")
	d.rewound = desc("events_rewound_total", "Events read whose session ended before they had; they are read again.")
	d.waited = desc("events_waited_total", "Events written down because their route could not be used. They count as published, or otherwise, once they have.")

	d.letters = desc("letters_published_total", "Dead letters that an operator retried, once Kafka has acknowledged or committed them.")
	d.controls = desc("controls_total", "Operators' words that were read from the stream.", "action")

	d.sessions = desc("sessions_total", "Sessions that took the slot.")
	d.rewinds = desc("rewinds_total", "Sessions that ended with events in flight.")
	d.checkpoints = desc("checkpoints_total", "Checkpoints written.")
	d.checkpointsLost = desc("checkpoints_lost_total", "Sessions that found no usable checkpoint in Kafka and went on from relay_state.")
	d.transactions = desc("transactions_total", "Kafka transactions committed, those that carried a checkpoint only included.")
	d.topicsRemade = desc("topics_remade_total", "Topics that were found deleted and made anew: what was in them is gone.")
	d.logDropped = desc("log_lines_dropped_total", "Log lines that were dropped because nobody read the log.")

	d.delay = desc("publish_delay_seconds", "From the commit of an event to its acknowledgement, of the first in each acknowledgement or Kafka transaction, but of none that had waited; two machines' clocks.")
	d.commit = desc("transaction_commit_seconds", "From the call to the known commit of a Kafka transaction.")
	d.requests = desc("produce_request_records", "Records of each produce request, those that were sent again included. Few under load: each event costs most of what it can.")

	d.lag = desc("lag_seconds", "Age of the oldest transaction that was read, whole or in part, and has not ended; 0 when there is none.")
	d.inFlight = desc("events_in_flight", "Events read since the first that is not acknowledged.")
	d.queue = desc("queue_bytes", "Bytes read from the log and not handed to the producer.")
	d.throttle = desc("kafka_throttle_seconds", "Time for which a broker takes nothing more, because a quota of the relay's client id or user is used up; 0 when none throttles.")
	d.confirmed = desc("confirmed_position_bytes", "The durable checkpoint, as bytes of log.")
	d.ended = desc("ended_position_bytes", "The position up to which everything has ended, as bytes of log.")
	d.snapshot = desc("published_snapshot_timestamp_seconds", "When the published snapshot was taken, in Unix seconds; 0 before the first.")

	d.parkedAggregates = desc("parked_aggregates", "Aggregates whose events wait behind a dead letter.")
	d.held = desc("route_held", "1 while events wait for this topic (or namespace/aggregate_type, when no route leads to a topic). No series: nothing is held.", "route")
	d.heldEvents = desc("held_events", "Events that wait for this topic. Beyond 100 topics the rest is one series, others.", "route")

	d.retained = desc("slot_retained_bytes", "Log that the slot keeps on the server.")
	d.slotLag = desc("slot_lag_bytes", "Log behind which the slot is confirmed.")
	d.safe = desc("slot_safe_bytes", "Log that may still be written before the slot is lost; -1 when nothing limits it.")
	d.oldest = desc("oldest_transaction_seconds", "Age of the oldest transaction on the server that has written; it pins the log. The relay's log names it.")
	d.walStatus = desc("slot_wal_status", "1 for the slot's wal_status.", "status")

	d.ahead = desc("partitions_ahead_seconds", "Time after today for which there are partitions, whole days, whoever makes them; 0 also where today's own is missing. "+
		"No series: another process has the slot, or nobody has counted yet. Without a session it stands as the last one left it.")
	d.leaves = desc("partitions", "Partitions of the outbox by state, after each round of maintenance. No series: this process has no postgres.maintenance_dsn_file.", "state")

	d.state = desc("state", "1 for the state that the relay is in.", "state")
	d.waiting = desc("waiting", "1 while the relay waits for this; /readyz says since when and why.", "for")
	return d
}
