package partitions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// Adopted is a partition whose events are published, that it held when it was attached.
type Adopted struct {
	Partition string   `json:"partition"`
	Slots     []string `json:"slots"`
	Events    int64    `json:"events"`
}

// plannedAdoption is a partition that relays stop for, and how many events it has.
type plannedAdoption struct {
	*Adopted
	leaf outboxdb.AdoptLeafParams
}

// PlanAdopt finds a partition that held rows when it was attached. It changes
// nothing.
func PlanAdopt(ctx context.Context, db *operator.Database, name string) (operator.Order[*Adopted], error) {
	leaf, report, err := filledPartition(ctx, outboxdb.New(db), name)
	if err != nil {
		return nil, err
	}
	if report.Events, err = outboxdb.New(db).CountLeaf(ctx, outboxdb.CountLeafParams(leaf)); err != nil {
		return nil, fmt.Errorf("count the events of partition %s: %w", name, operator.Explain(err, migrations.Outbox))
	}
	return &plannedAdoption{report, leaf}, nil
}

// Question implements [operator.Order].
func (p *plannedAdoption) Question() string {
	return fmt.Sprintf("have relays publish the %s of partition %s, also those that were published before", label.Count(p.Events, "event"), p.Partition)
}

// CarryOut has the events published.
func (p *plannedAdoption) CarryOut(ctx context.Context, db *operator.Database, reason string) (*Adopted, error) {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return p.write(ctx, outboxdb.New(tx), p.leaf, reason) })
	if err != nil {
		return nil, fmt.Errorf("adopt partition %s: %w", p.Partition, operator.ExplainMaintainer(err))
	}
	return p.Adopted, nil
}

// LockOutbox keeps producers from writing until the end of the transaction. It gives
// way to one that stays open: all others would wait behind.
func LockOutbox(ctx context.Context, q *outboxdb.Queries) error {
	open, err := q.OutboxWriters(ctx)
	if err != nil {
		return fmt.Errorf("look for open transactions of producers: %w", err)
	}
	err = q.LockOutbox(ctx)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55P03" { // lock_not_available
		return fmt.Errorf("a transaction that has written to onceward.outbox stays open (%s): wait for its end, or end it, and run this again; nothing was changed",
			cmp.Or(open.Writers, "not known which"))
	}
	return err
}

// filledPartition finds the partition, and the relays that stop for it.
func filledPartition(ctx context.Context, q *outboxdb.Queries, name string) (leaf outboxdb.AdoptLeafParams,
	report *Adopted, err error) {
	report = &Adopted{Partition: name, Slots: []string{}}
	states, err := q.RelayStates(ctx)
	if err != nil {
		return leaf, report, fmt.Errorf("look for relays: %w", operator.Explain(err, migrations.Outbox))
	}
	for _, relay := range states {
		found, err := q.FilledLeaves(ctx, relay.Slot)
		if err != nil {
			return leaf, report, fmt.Errorf("look for filled partitions: %w", operator.Explain(err, migrations.Outbox))
		}
		i := slices.IndexFunc(found, func(l outboxdb.FilledLeavesRow) bool { return l.Leaf == name })
		if i >= 0 {
			leaf = outboxdb.AdoptLeafParams{Low: found[i].Low, High: found[i].High, Relid: found[i].Relid}
			report.Slots = append(report.Slots, relay.Slot)
		}
	}
	if len(report.Slots) == 0 {
		return leaf, report, fmt.Errorf("partition %s held no rows when it was attached, or no relay stops for it: nothing is to be adopted", name)
	}
	return leaf, report, nil
}

func (r *Adopted) write(ctx context.Context, q *outboxdb.Queries, leaf outboxdb.AdoptLeafParams,
	reason string) (err error) {
	if err := LockOutbox(ctx, q); err != nil {
		return err
	}
	if r.Slots, err = q.ForgetCatalogs(ctx); err != nil {
		return err
	}
	if r.Events, err = q.AdoptPartitions(ctx, leaf); err != nil {
		return err
	}
	for _, slot := range r.Slots {
		err := q.RecordAction(ctx, outboxdb.RecordActionParams{
			Action: "adopt partition", Slot: slot, Target: fmt.Sprintf("%s: %s", r.Partition, label.Count(r.Events, "event")), Reason: reason,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
