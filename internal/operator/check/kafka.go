package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay"
)

// maxKinds bounds how many kinds of events are looked up in the table.
const maxKinds = 1000

// kafka looks at the brokers, at the topics that routes name, and at those of the
// events that are in the table.
func (r *run) kafka(ctx context.Context) {
	const name = "Kafka"
	sink, err := r.cfg.Publisher(slog.New(slog.DiscardHandler))
	if err != nil {
		r.tell(failure(name, err))
		return
	}
	topics, err := sink.FixedTopics()
	if err != nil {
		r.tell(failure(name, err))
		return
	}
	if r.conn != nil && !r.conn.IsClosed() {
		r.look(ctx, "routes", "PostgreSQL, which does not answer a query", func(ctx context.Context) (found []Verdict) {
			topics, found = topicsOf(ctx, r.conn, r.cfg, sink, topics)
			return found
		})
	}
	waitsFor := "an answer of " + strings.Join(r.cfg.Kafka.Brokers, ", ")
	r.look(ctx, name, waitsFor, func(ctx context.Context) []Verdict {
		if _, err := publisher.Inspect(ctx, sink, nil); err != nil {
			return []Verdict{ofKafka(failure(name, err))}
		}
		return []Verdict{{Name: name, Status: OK, Detail: "the brokers answer"}}
	})
	if r.verdicts[len(r.verdicts)-1].Status != OK {
		return
	}
	r.ask(ctx, "Kafka cluster", func(ctx context.Context) []Verdict {
		d := relay.DecideKafka(ctx, r.cfg, r.conn)
		v := verdictOf(d.Name, d.Err)
		if d.Err == nil {
			v.Detail = d.Detail
		}
		return []Verdict{v}
	})
	r.look(ctx, "topics", waitsFor, func(ctx context.Context) (found []Verdict) {
		reports, err := publisher.Inspect(ctx, sink, topics)
		if err != nil {
			return []Verdict{ofKafka(failure("topics", err))}
		}
		for _, report := range reports {
			found = append(found, topicVerdicts(report)...)
		}
		return found
	})
	if r.cfg.Kafka.Mode == relay.ModeExactlyOnce {
		r.look(ctx, "topic "+publisher.DefaultCheckpointTopic, waitsFor, func(ctx context.Context) []Verdict {
			err := publisher.InspectCheckpoint(ctx, sink, false)
			return positionVerdicts(ctx, sink, checkpointVerdict(err, r.cfg.Topics.Create))
		})
		r.rights(ctx, sink, topics, waitsFor)
	}
}

// rights looks at those of exactly-once mode.
func (r *run) rights(ctx context.Context, sink publisher.Config, topics []string, waitsFor string) {
	const name = "rights of transactions"
	var tx publisher.TransactionConfig
	r.ask(ctx, name, func(ctx context.Context) []Verdict {
		id, err := relay.TransactionalID(ctx, r.cfg, r.conn)
		if err != nil {
			return []Verdict{failure(name, err)}
		}
		tx.ID, tx.Group = id, id
		return nil
	})
	if tx.ID == "" {
		return
	}
	r.look(ctx, name, waitsFor, func(ctx context.Context) []Verdict {
		id, group, half, err := publisher.InspectRights(ctx, sink, tx, topics)
		if err != nil {
			return []Verdict{ofKafka(failure(name, err))}
		}
		return []Verdict{
			rightVerdict("transactional id "+tx.ID, id, Verdict{Status: Failed, Code: relay.CodeKafka, Detail: "no transaction begins"}),
			rightVerdict("group "+tx.Group, group, Verdict{Status: Failed, Code: relay.CodeKafka, Detail: "no checkpoint can be committed"}),
			rightVerdict("half commits", half, Verdict{Status: Warning, Code: codeHalfCommits,
				Detail: "a transaction that a coordinator has half committed is not seen, and its other half is aborted: events are lost or doubled then"}),
		}
	})
}

// rightVerdict judges a right; without says what becomes of it that is refused.
func rightVerdict(name string, refused *publisher.Refusal, without Verdict) Verdict {
	if refused == nil {
		return Verdict{Name: name, Status: OK}
	}
	without.Name, without.Cure = name, refused.Cure
	without.Detail += ": " + refused.Err.Error()
	return without
}

// ofKafka is a failure that Kafka is asked about, where nothing says more.
func ofKafka(v Verdict) Verdict {
	if v.Code == relay.CodePostgres {
		v.Code = relay.CodeKafka
	}
	return v
}

// checkpointVerdict judges the topic of exactly-once mode, which shows at the
// first commit otherwise. create: the relay may make it at its start.
func checkpointVerdict(err error, create bool) Verdict {
	v := Verdict{Name: "topic " + publisher.DefaultCheckpointTopic, Status: OK, Detail: "2 partitions, compacted"}
	var wrong *publisher.CheckpointError
	switch {
	case err == nil:
	case !errors.As(err, &wrong):
		return ofKafka(failure(v.Name, err))
	case create && wrong.Missing:
		v.Detail = "is missing; the relay makes it at its start (topics.create)"
	default:
		v.Status, v.Code, v.Detail, v.Cure = Failed, relay.CodeCheckpointTopic, wrong.Reason, wrong.Cure
	}
	return v
}

// kind is a kind of event that the relay meets, or a topic that replays name.
type kind struct {
	namespace, aggregateType, eventType, topic string
	due                                        bool // an event of it is not published
}

// selectKinds finds what the newest partitions hold, and the beginning of everything
// that waits, which the published snapshot has passed: a thousand events of each lane.
const selectKinds = `SELECT namespace, aggregate_type, event_type, '', pg_catalog.bool_or(NOT COALESCE(pg_catalog.pg_visible_in_snapshot(tx_id,
	(SELECT snapshot FROM onceward.published_snapshots WHERE slot = $2)), false)) AS due FROM
	(SELECT namespace, aggregate_type, event_type, tx_id FROM onceward.outbox ORDER BY id DESC LIMIT 100000) newest GROUP BY 1, 2, 3
UNION ALL SELECT '', '', '', topic, true FROM onceward.lanes WHERE slot = $2 AND topic <> ''
UNION ALL SELECT DISTINCT o.namespace, o.aggregate_type, o.event_type, '', true FROM
	(SELECT id FROM onceward.lanes WHERE slot = $2 AND topic = '' ORDER BY id LIMIT $1) l
	CROSS JOIN LATERAL (SELECT w.id FROM onceward.waiting w WHERE w.lane = l.id ORDER BY w.position, w.ordinal LIMIT 1000) w
	JOIN onceward.outbox o ON o.id = w.id
ORDER BY due DESC LIMIT $1`

// querier is a way to PostgreSQL: a connection, or all of an operator's.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func kindsOf(ctx context.Context, conn querier, slot string) ([]kind, error) {
	rows, err := conn.Query(ctx, selectKinds, maxKinds, slot)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k kind, err error) {
		return k, row.Scan(&k.namespace, &k.aggregateType, &k.eventType, &k.topic, &k.due)
	})
}

// topicsOf adds the topics of every kind of event that the newest partitions hold and
// of what waits. A kind without a route counts while an event of it is not published.
func topicsOf(ctx context.Context, conn *pgx.Conn, cfg *relay.Config, sink publisher.Config,
	topics []string) (all []string, failed []Verdict) {
	kinds, err := kindsOf(ctx, conn, cfg.SlotName())
	if err != nil {
		return topics, []Verdict{{Name: "routes", Status: Skipped, Detail: fmt.Sprintf("the events in the table cannot be read: %v", err)}}
	}
	return ledTo(kinds, sink, topics)
}

func ledTo(kinds []kind, sink publisher.Config, topics []string) (all []string, failed []Verdict) {
	seen := make(map[string]bool)
	for _, k := range kinds {
		topic, err := k.leadsTo(sink)
		switch {
		case err == nil && !slices.Contains(topics, topic):
			topics = append(topics, topic)
		case err != nil && k.due && !seen[k.name()]:
			seen[k.name()] = true
			failed = append(failed, routeVerdict(k.name(), err))
		}
	}
	slices.Sort(topics)
	return topics, failed
}

// Topics returns the topics to which the relay's routes lead: those that they name, those
// of every kind of event that the newest partitions hold, and of what waits. A problem
// says what no route takes, or that PostgreSQL did not answer; sink is cfg's.
func Topics(ctx context.Context, cfg *relay.Config, sink publisher.Config) (topics, problems []string, err error) {
	if topics, err = sink.FixedTopics(); err != nil {
		return nil, nil, err
	}
	conn, v := connect(ctx, cfg)
	if conn == nil {
		return topics, []string{"only topics that routes name are known: " + v.Detail}, nil
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was written
	topics, found := topicsOf(ctx, conn, cfg, sink, topics)
	for _, v := range found {
		problems = append(problems, v.Name+": "+v.Detail)
	}
	return topics, problems, nil
}

// BoundElsewhere is the error, with what to do, where the brokers are of another cluster than
// the one that the relay is bound to; nil: they are not, or that cannot be told.
func BoundElsewhere(ctx context.Context, cfg *relay.Config) error {
	conn, _ := connect(ctx, cfg)
	if conn == nil {
		return nil
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was written
	d := relay.DecideKafka(ctx, cfg, conn)
	var other *cdc.StartError
	if errors.As(d.Err, &other) && other.Code == "OTHER_KAFKA" {
		return fmt.Errorf("this is not the cluster that relay %s is bound to: %w", cfg.Name, d.Err)
	}
	return nil
}

// TopicsSeen are [Topics] as somebody else than the relay sees them: by a connection of
// their own. It connects to nothing, and reads no file of a secret.
func TopicsSeen(ctx context.Context, conn querier, cfg *relay.Config) ([]string, error) {
	sink := cfg.Routing()
	topics, err := sink.FixedTopics()
	if err != nil {
		return nil, err
	}
	kinds, err := kindsOf(ctx, conn, cfg.SlotName())
	if err != nil {
		return nil, err
	}
	topics, _ = ledTo(kinds, sink, topics)
	return topics, nil
}

// leadsTo returns the topic of a kind; its error is what the relay would meet.
func (k kind) leadsTo(sink publisher.Config) (string, error) {
	if k.topic != "" {
		return k.topic, sink.Permits(k.topic)
	}
	return sink.TopicOf(k.namespace, k.aggregateType, k.eventType)
}

func (k kind) name() string {
	if k.topic != "" {
		return "topic " + k.topic
	}
	return fmt.Sprintf("route of %s in %s.%s", k.eventType, k.namespace, k.aggregateType)
}

// routeVerdict: what no route takes waits; what can never be a topic's name is a dead
// letter.
func routeVerdict(name string, err error) Verdict {
	v := failure(name, err)
	var route *publisher.RouteError
	switch {
	case errors.As(err, &route):
		v.Status, v.Code, v.Detail, v.Cure = Held, codeRoute, route.Reason, route.Advice()
		if route.Topic != "" {
			v.Detail = fmt.Sprintf("topic %q %s", route.Topic, route.Reason)
		}
	case errors.Is(err, publisher.ErrRecord):
		v.Status, v.Detail = Warning, v.Detail+"; what has it becomes a dead letter"
	}
	return v
}
