package binding

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/outboxdb"
)

// How a database came to another system.
const (
	ByCopy = "copy"
	ByDump = "dump"
)

// Adopted is a database that relays go on with on another system.
type Adopted struct {
	By     string   `json:"by"`
	Relays []string `json:"relays"`
	System string   `json:"system_identifier"`
	Events int64    `json:"events_rewritten"`

	// Events that --by dump leaves to be asked about, and those of them that were
	// never to be published.
	InDoubt int64 `json:"events_in_doubt,omitempty"`
	Before  int64 `json:"events_before,omitempty"`
	GivenUp int64 `json:"events_given_up,omitempty"`

	// Partitions that --by copy has published whole.
	Partitions []string `json:"partitions,omitempty"`

	slots []string
}

// databaseOrder makes a database that was restored or moved the one that relays go on with.
type databaseOrder struct {
	report   *Adopted
	question string
}

// PlanDatabase finds the relays, and what is to become of the events. It changes nothing,
// and refuses a copy that is none.
func PlanDatabase(ctx context.Context, db *operator.Database, by string) (operator.Order[*Adopted], error) {
	o, q := &databaseOrder{report: &Adopted{By: by, Relays: []string{}}}, outboxdb.New(db)
	err := o.report.choose(ctx, q)
	if err == nil {
		o.question, err = o.report.plan(ctx, q)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", operator.ExplainMaintainer(err))
	}
	return o, nil
}

// Question implements [operator.Order].
func (o *databaseOrder) Question() string { return o.question }

// CarryOut adopts the database, in one transaction in which producers wait.
func (o *databaseOrder) CarryOut(ctx context.Context, db *operator.Database, reason string) (*Adopted, error) {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return o.report.write(ctx, outboxdb.New(tx), reason) })
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", operator.ExplainMaintainer(err))
	}
	return o.report, nil
}

// choose finds the relays: those of another system, and by dump all, because every
// event is written anew.
func (r *Adopted) choose(ctx context.Context, q *outboxdb.Queries) error {
	found, err := q.SystemsOfRelays(ctx)
	if err != nil {
		return fmt.Errorf("look for relays: %w", err)
	}
	due := false
	for _, v := range found {
		due = due || v.Moved
		if !v.Moved && r.By == ByCopy {
			continue
		}
		if !v.Moved && !due {
			filled, err := q.FilledLeaves(ctx, v.Slot)
			if err != nil {
				return fmt.Errorf("look for filled partitions: %w", err)
			}
			due = len(filled) > 0
		}
		r.Relays, r.slots, r.System = append(r.Relays, v.Relay), append(r.slots, v.Slot), v.Here
	}
	if !due {
		return errors.New("no relay of this database has run on another system, and none stops for partitions that came with a dump: nothing is to be adopted")
	}
	return nil
}

// strangers finds the partitions that a relay had not looked at when the database
// was moved, with events that it counts as published: they were there before.
func (r *Adopted) strangers(ctx context.Context, q *outboxdb.Queries) (leaves map[string]outboxdb.AdoptLeafParams,
	err error) {
	leaves = map[string]outboxdb.AdoptLeafParams{}
	for _, slot := range r.slots {
		found, err := q.FilledLeaves(ctx, slot)
		if err != nil {
			return nil, fmt.Errorf("look for filled partitions: %w", err)
		}
		for _, l := range found {
			if !l.Known && l.Covered {
				leaves[l.Leaf] = outboxdb.AdoptLeafParams{Low: l.Low, High: l.High, Relid: l.Relid}
			}
		}
	}
	return leaves, nil
}

// plan says what is to be confirmed, and refuses a copy that is none: a relay would
// take events for published whose transaction ids are those of another system.
func (r *Adopted) plan(ctx context.Context, q *outboxdb.Queries) (what string, err error) {
	what = fmt.Sprintf("make this system (%s) that of relay %s", r.System, strings.Join(r.Relays, ", "))
	if r.By == ByCopy {
		ahead, err := q.IsNoCopy(ctx, r.slots)
		if err != nil {
			return "", err
		}
		if ahead {
			return "", errors.New("this database is no copy: it holds transaction ids that this system has not given out yet, or none of the " +
				"partitions that its relays know, so that events would be lost unseen; it came by dump: run it with --by dump")
		}
		strangers, err := r.strangers(ctx, q)
		if err != nil || len(strangers) == 0 {
			return what, err
		}
		var events int64
		for _, leaf := range strangers {
			n, err := q.CountLeaf(ctx, outboxdb.CountLeafParams(leaf))
			if err != nil {
				return "", fmt.Errorf("count the events of partitions: %w", err)
			}
			events += n
		}
		return fmt.Sprintf("%s, and have the %s of partition %s published, which a relay had not looked at before the database was moved",
			what, label.Count(events, "event"), strings.Join(slices.Sorted(maps.Keys(strangers)), ", ")), nil
	}
	left, err := q.CountLeftOut(ctx, r.slots)
	if err != nil {
		return "", err
	}
	r.InDoubt, r.Before, r.GivenUp = left.Events, left.Before, left.GivenUp
	return fmt.Sprintf("%s, and count none of the %s in the outbox as published, of which %d are older than a relay and %d were given up",
		what, label.Count(left.Events, "event"), left.Before, left.GivenUp), nil
}

func (r *Adopted) write(ctx context.Context, q *outboxdb.Queries, reason string) (err error) {
	if err := partitions.LockOutbox(ctx, q); err != nil {
		return err
	}
	if r.By == ByCopy {
		if err := q.SettleMoved(ctx, r.slots); err != nil {
			return err
		}
	}
	if _, err := q.AdoptRelays(ctx, r.slots); err != nil {
		return err
	}
	streams, err := q.StreamingSlot(ctx, r.slots)
	if err != nil {
		return err
	}
	if streams != "" {
		return fmt.Errorf("a process streams from slot %s: stop its relay first", streams)
	}
	if r.By == ByDump {
		err = r.writeDump(ctx, q)
	} else {
		err = r.writeCopy(ctx, q)
	}
	if err != nil {
		return err
	}
	if err := q.AdoptLetters(ctx, r.slots); err != nil {
		return err
	}
	if err := q.RestartRetries(ctx, r.slots); err != nil {
		return err
	}
	for _, slot := range r.slots {
		err := q.RecordAction(ctx, outboxdb.RecordActionParams{Action: "adopt by " + r.By, Slot: slot, Target: r.target(), Reason: reason})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeCopy makes the partitions count as they did on the system before.
func (r *Adopted) writeCopy(ctx context.Context, q *outboxdb.Queries) error {
	strangers, err := r.strangers(ctx, q)
	if err != nil {
		return err
	}
	r.Partitions = slices.Sorted(maps.Keys(strangers))
	if len(strangers) > 0 { // for relays that have run here already too
		if _, err := q.ForgetCatalogs(ctx); err != nil {
			return err
		}
	}
	if r.Events, err = q.AdoptPartitions(ctx, slices.Collect(maps.Values(strangers))...); err != nil {
		return err
	}
	return q.AdoptAttachings(ctx, r.slots)
}

// writeDump makes nothing of what the database knows of its transactions count.
func (r *Adopted) writeDump(ctx context.Context, q *outboxdb.Queries) (err error) {
	if err := roomBehind(ctx, q); err != nil {
		return err
	}
	if r.Events, err = q.AdoptOutbox(ctx); err != nil {
		return err
	}
	if err := q.AdoptSequence(ctx); err != nil {
		return err
	}
	if err := q.AdoptSnapshots(ctx, r.slots); err != nil {
		return err
	}
	if err := q.AdoptAttachings(ctx, r.slots); err != nil {
		return err
	}
	if err := q.EndReleases(ctx, r.slots); err != nil { // their cursors are places of another log
		return err
	}
	if err := q.AdoptWaiting(ctx, r.slots); err != nil {
		return err
	}
	for _, slot := range r.slots {
		if _, err := q.RetireGaps(ctx, slot); err != nil {
			return err
		}
	}
	return nil
}

// maxSeq is far beyond what producers are given, and leaves them as much again.
const maxSeq = 1 << 62

// roomBehind refuses events of which the sequence cannot be set behind the last: no
// producer could write any more. Only who filled a partition by hand has such.
func roomBehind(ctx context.Context, q *outboxdb.Queries) error {
	last, err := q.LastInOrder(ctx)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && last.Seq <= maxSeq {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the greatest seq: %w", err)
	}
	return fmt.Errorf("event %s in partition %s has seq %d, behind which the sequence of onceward.outbox has no room for what producers write: "+
		"detach %s, give the events that were put into it a seq below %d, attach it, and run this again; nothing was changed",
		operator.KeyText(last.Namespace, last.ID), last.Leaf, last.Seq, last.Leaf, int64(maxSeq))
}

// target is what the record of the action says.
func (r *Adopted) target() string {
	switch {
	case r.By == ByDump:
	case len(r.Partitions) > 0:
		return fmt.Sprintf("system %s: %s of partition %s", r.System, label.Count(r.Events, "event"), strings.Join(r.Partitions, ", "))
	default:
		return "system " + r.System
	}
	return fmt.Sprintf("system %s: %s, %d before, %d given up", r.System, label.Count(r.Events, "event"), r.Before, r.GivenUp)
}
