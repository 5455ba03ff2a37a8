package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/state"
)

// clusterLimit bounds a question for the cluster's id.
const clusterLimit = 10 * time.Second

// otherKafka says that a relay met another cluster than the one that it is bound to.
func otherKafka(cfg *Config, met *publisher.OtherClusterError) *cdc.StartError {
	return &cdc.StartError{
		Code: beginning.CodeOtherKafka,
		What: fmt.Sprintf("relay %s (slot %s) publishes to Kafka cluster %s, %s is of cluster %s; nothing was written to it", cfg.Name, cfg.SlotName(), met.Known, met.Address, met.Met),
		Cure: fmt.Sprintf("if that is not the Kafka that you meant, put the right one into kafka.brokers, or have its names lead there; "+
			"if it takes the place of the other and lacks what that had, or you do not know: `outboxctl adopt --kafka gap --slot %s --cluster %s --reason \"…\"`; "+
			"if it has all of it, as a mirror that has caught up: --kafka continue, or --kafka from-position (outboxctl adopt --help says which)", cfg.SlotName(), met.Met),
	}
}

// configureSink makes the configuration of a producer that writes to the cluster that the
// relay is bound to, and knows what those before it met.
func (o *opener) configureSink(ctx context.Context) (err error) {
	if o.kafka, err = o.cfg.Publisher(o.log); err != nil {
		return err
	}
	o.kafka.Narrow, o.kafka.Memory, o.kafka.Cluster = o.last.narrow, o.last.memory, state.BoundTo(o.row)
	o.kafka.Sent = o.counts.sent
	o.topics.memory = o.last.memory
	return o.topics.recall(ctx)
}

// bindKafka writes to which cluster the session publishes, and by which routes, if
// that is news. It comes before anything is published.
func (o *opener) bindKafka(ctx context.Context) error {
	row := o.row
	routes := o.cfg.routesHash()
	if row.Routes != nil && *row.Routes != routes {
		o.log.WarnContext(ctx, "the routes are not those of the session before", "slot", row.Slot, "before", *row.Routes, "now", routes)
	}
	cluster := o.clusterOf()
	if state.BoundTo(row) == cluster && row.KafkaMet == nil && row.Routes != nil && *row.Routes == routes {
		return nil
	}
	n, err := o.state.Queries.SaveKafka(ctx, outboxdb.SaveKafkaParams{Cluster: nonEmpty(cluster), Routes: routes,
		Slot: row.Slot, Epoch: o.state.Epoch})
	if err := o.state.Fenced("save the Kafka cluster", n, err); err != nil {
		return err
	}
	if state.BoundTo(row) == "" && cluster != "" {
		o.log.InfoContext(ctx, "bound to a Kafka cluster", "slot", row.Slot, "cluster", cluster)
	}
	return nil
}

// clusterOf returns the cluster that the session's sink writes to; empty where it
// does not say.
func (o *opener) clusterOf() string {
	if sink, ok := o.sink.(interface{ Cluster() string }); ok {
		return sink.Cluster()
	}
	return ""
}

func nonEmpty(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// explainKafka makes the error of a session that met another cluster one that halts
// the relay, and remembers that it did.
func (l *lookout) explainKafka(ctx context.Context, last *owned, err error) error {
	var other *publisher.OtherClusterError
	if !errors.As(err, &other) {
		return err
	}
	last.otherKafka = other.Known
	ctx, cancel := context.WithTimeout(ctx, lookoutLimit)
	defer cancel()
	_ = l.work(ctx, func(q *outboxdb.Queries) error { // the operator names it himself otherwise
		return q.SaveKafkaMet(ctx, outboxdb.SaveKafkaMetParams{Met: other.Met, Slot: l.cfg.SlotName(),
			Cluster: other.Known})
	})
	return otherKafka(l.cfg, other)
}

// stillOther looks whether a relay that met another cluster would meet it again,
// without the slot: it is not one that may write. What cannot be looked at is left
// to the session.
func (l *lookout) stillOther(ctx context.Context, last *owned) error {
	if last.otherKafka == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, clusterLimit)
	defer cancel()
	row, err := l.relayState(ctx)
	if err == nil && state.BoundTo(row) == last.otherKafka {
		if err := l.cfg.sameKafka(ctx, state.BoundTo(row)); errors.Is(err, publisher.ErrOtherCluster) {
			return err
		}
	}
	last.otherKafka = ""
	return nil
}

// sameKafka asks the brokers for their cluster and compares it with the one that
// the relay is bound to; empty: none. It writes nothing there.
func (c *Config) sameKafka(ctx context.Context, bound string) error {
	sink, err := c.Publisher(nil)
	if err != nil || bound == "" {
		return err
	}
	sink.Cluster = bound
	_, err = publisher.Inspect(ctx, sink, nil)
	return err
}

// DecideKafka says what [Relay.Run] would decide about the brokers' cluster, by
// the same code and without a change.
func DecideKafka(ctx context.Context, cfg *Config, conn *pgx.Conn) Decision {
	d := Decision{Name: "Kafka cluster", Detail: "the relay is bound to none yet"}
	row, _, err := state.New(conn, cfg.SlotName()).Load(ctx)
	if err == nil {
		err = cfg.sameKafka(ctx, state.BoundTo(row))
	}
	var other *publisher.OtherClusterError
	switch {
	case errors.As(err, &other):
		d.Err = otherKafka(cfg, other)
	case err != nil:
		d.Err = err
	case state.BoundTo(row) != "":
		d.Detail = state.BoundTo(row)
	}
	return d
}
