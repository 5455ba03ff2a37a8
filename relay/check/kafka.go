package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay"
)

// maxKinds bounds how many kinds of events are looked up in the table.
const maxKinds = 1000

// kafka looks at the brokers and at the topics of the events that are in the
// table; without a connection, or with an empty table, only at the brokers.
func kafka(ctx context.Context, cfg *relay.Config, conn *pgx.Conn) []Verdict {
	const name = "Kafka"
	sink, err := cfg.Publisher(slog.New(slog.DiscardHandler))
	if err != nil {
		return []Verdict{failure(name, err)}
	}
	var all []Verdict
	topics, routes := topicsOf(ctx, conn, sink)
	all = append(all, routes...)
	reports, err := publisher.Inspect(ctx, sink, topics)
	if err != nil {
		return append(all, failure(name, err))
	}
	all = append(all, Verdict{Name: name, Status: OK, Detail: "the brokers answer"})
	for _, r := range reports {
		all = append(all, topicVerdict(r))
	}
	if cfg.Kafka.Mode == relay.ModeExactlyOnce {
		all = append(all, checkpointVerdict(publisher.InspectCheckpoint(ctx, sink), cfg.Topics.Create))
	}
	return all
}

// checkpointVerdict judges the topic of exactly-once mode, which shows at the
// first commit otherwise. create: the relay may make it at its start.
func checkpointVerdict(err error, create bool) Verdict {
	v := Verdict{Name: "topic " + publisher.DefaultCheckpointTopic, Status: OK, Detail: "2 partitions, compacted"}
	var wrong *publisher.CheckpointError
	switch {
	case err == nil:
	case !errors.As(err, &wrong):
		return failure(v.Name, err)
	case create && wrong.Missing:
		v.Detail = "is missing; the relay makes it at its start (topics.create)"
	default:
		v.Status, v.Code, v.Detail, v.Cure = Failed, "CHECKPOINT_TOPIC", wrong.Reason, wrong.Cure
	}
	return v
}

// topicsOf routes every kind of event that the newest partitions hold.
func topicsOf(ctx context.Context, conn *pgx.Conn, sink publisher.Config) (topics []string, failed []Verdict) {
	if conn == nil {
		return nil, nil
	}
	rows, err := conn.Query(ctx, `SELECT DISTINCT namespace, aggregate_type, event_type FROM
		(SELECT namespace, aggregate_type, event_type FROM onceward.outbox ORDER BY id DESC LIMIT 100000) newest LIMIT $1`, maxKinds)
	if err != nil {
		return nil, nil // said by the checks of the table
	}
	kinds, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (kind [3]string, err error) {
		return kind, row.Scan(&kind[0], &kind[1], &kind[2])
	})
	if err != nil {
		return nil, nil
	}
	for _, kind := range kinds {
		topic, err := sink.TopicOf(kind[0], kind[1], kind[2])
		switch {
		case err != nil:
			failed = append(failed, failure(fmt.Sprintf("route of %s in %s.%s", kind[2], kind[0], kind[1]), err))
		case !slices.Contains(topics, topic):
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return topics, failed
}

func topicVerdict(r publisher.TopicReport) Verdict {
	v := Verdict{Name: "topic " + r.Name, Status: OK, Detail: fmt.Sprintf("%d partitions, %d replicas", r.Partitions, r.Replicas)}
	var route *publisher.RouteError
	switch {
	case errors.As(r.Err, &route):
		v.Status, v.Code, v.Detail, v.Cure = Failed, "ROUTE", route.Reason, route.Cure
	case r.Err != nil:
		return failure(v.Name, r.Err)
	case r.Narrow:
		v.Status, v.Code, v.Cure = Warning, "NARROW_TOPIC", r.Cure
		v.Detail = fmt.Sprintf("takes batches of at most %d bytes (max.message.bytes), below the relay's max_message_bytes: its records go one by one, which is slow", r.Limit)
	case r.Unclean:
		v.Status, v.Cure = Warning, "set unclean.leader.election.enable=false on the topic: an election of a replica that lags loses acknowledged events"
	case r.Replicas < 3:
		v.Status, v.Cure = Warning, "with fewer than 3 replicas an acknowledged event can be lost with one machine; raise the replication factor"
	case r.MinInSync == 1:
		v.Status, v.Cure = Warning, "set min.insync.replicas=2 on the topic: with 1 an event counts as acknowledged when one machine has it"
	}
	return v
}
