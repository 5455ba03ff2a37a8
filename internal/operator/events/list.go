package events

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// Filter says which events are listed.
type Filter struct {
	State         string
	Slot          string // as the relay of this slot has it; empty: some relay, and for published every relay
	Namespace     string
	AggregateType string
	AggregateID   string
	EventType     string
	Older         time.Duration // than that; with the state pending what waits is listed, too
	Limit         int
}

// List is events in one state.
type List struct {
	State  string     `json:"state"`
	Relays []Snapshot `json:"relays"`
	Events []Event    `json:"events"`
	More   bool       `json:"more"`                        // than the limit
	Filled []string   `json:"partitions_filled,omitempty"` // of which no event counts as published

	Replays int64 `json:"replays_waiting,omitempty"` // with the state waiting: they are no events, and not listed

	Problems []operator.Problem `json:"problems"` // what rests by an operator's word, where that is why events wait

	NotBegun []string `json:"relays_not_begun,omitempty"` // relays that have processes and no state yet

	stuck bool // they should not be there any more
}

// Snapshot is what a relay's account is worth: nothing before its first
// published snapshot, and as old as that afterwards.
type Snapshot struct {
	Relay      string     `json:"relay"`
	Slot       string     `json:"slot"`
	Known      bool       `json:"known"`
	SnapshotAt *time.Time `json:"snapshot_at"`
}

// Event is an event without its content.
type Event struct {
	Key           string    `json:"key"`
	State         string    `json:"state"`
	AggregateType string    `json:"aggregate_type"`
	AggregateID   string    `json:"aggregate_id"`
	EventType     string    `json:"event_type"`
	CreatedAt     time.Time `json:"created_at"`
	AgeSeconds    float64   `json:"age_seconds"`
	TxID          uint64    `json:"tx_id"`
	Seq           int64     `json:"seq"`
	Letter        *LetterOf `json:"dead_letter,omitempty"`
}

// LetterOf is the letter of a dead event.
type LetterOf struct {
	Slot     string `json:"slot"`
	State    string `json:"state"`
	Class    string `json:"error_class"`
	Error    string `json:"error"`
	Attempts int32  `json:"attempts"`
}

// Read lists events, with the relays whose account it is.
func Read(ctx context.Context, db *operator.Database, f Filter) (*List, error) {
	report := &List{State: f.State, Relays: []Snapshot{}, Events: []Event{}, Problems: []operator.Problem{},
		stuck: f.Older > 0}
	err := report.read(ctx, db, outboxdb.ListByStateParams{
		State: f.State, Slot: f.Slot, Namespace: f.Namespace, AggregateType: f.AggregateType,
		AggregateID: f.AggregateID, EventType: f.EventType,
		OlderSeconds: f.Older.Seconds(), RowLimit: int32(f.Limit) + 1, // one more tells whether there are more
	})
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	q := outboxdb.New(db)
	processes, err := relays.Processes(ctx, q)
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	report.NotBegun = notBegun(processes, report.Relays)
	if f.State != states.Pending && f.State != states.Waiting {
		return report, nil
	}
	rests, err := relays.Rests(ctx, q, f.Slot)
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	report.Problems = rests
	return report, nil
}

// Wrong tells that events are older than they should be.
func (r *List) Wrong() bool { return r.stuck && len(r.Events) > 0 }

// Sought is which events were looked for, as it stands behind "no event was found".
func (r *List) Sought() string {
	if r.stuck {
		return "that is pending or waiting for as long as --stuck says"
	}
	return "in the state " + r.State
}

// CountOwed counts the events that a relay owes in one state, up to a limit and one more.
func CountOwed(ctx context.Context, db *operator.Database, slot, state string, limit int) (int, error) {
	owed := List{State: state}
	err := owed.read(ctx, db, outboxdb.ListByStateParams{State: state, Slot: slot, RowLimit: int32(limit) + 2})
	return len(owed.Events), err
}

// read takes snapshots and events from one snapshot of the database: they belong
// together.
func (r *List) read(ctx context.Context, db *operator.Database, filter outboxdb.ListByStateParams) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			q := outboxdb.New(tx)
			relays, err := q.Snapshots(ctx)
			if err != nil {
				return err
			}
			for _, v := range relays {
				r.Relays = append(r.Relays,
					Snapshot{Relay: v.Relay, Slot: v.Slot, Known: v.Known, SnapshotAt: v.TakenAt})
			}
			var now time.Time
			if err := tx.QueryRow(ctx, "SELECT pg_catalog.now()").Scan(&now); err != nil {
				return err
			}
			filled, err := q.FilledPartitions(ctx)
			if err != nil {
				return err
			}
			filter.FilledSlots, filter.FilledTables = filled.Tables()
			r.Filled = filled.Leaves()
			if r.Events, err = r.events(ctx, q, filter); err != nil {
				return err
			}
			if r.State == states.Waiting {
				if r.Replays, err = q.WaitingReplays(ctx, filter.Slot); err != nil {
					return err
				}
			}
			if filter.OlderSeconds > 0 {
				waiting, err := waitingEvents(ctx, q, filter)
				if err != nil {
					return err
				}
				r.Events = append(r.Events, waiting...)
			}
			limit := int(filter.RowLimit) - 1
			if r.More = len(r.Events) > limit; r.More {
				r.Events = r.Events[:limit]
			}
			r.Events = operator.NotNil(r.Events)
			for i := range r.Events {
				r.Events[i].AgeSeconds = max(0, now.Sub(r.Events[i].CreatedAt).Seconds())
			}
			return nil
		})
}

// notBegun names the relays that have processes and are none of those that have begun.
func notBegun(processes []outboxdb.RelayHealthRow, begun []Snapshot) (names []string) {
	for _, p := range processes {
		known := slices.ContainsFunc(begun, func(v Snapshot) bool { return v.Slot == p.Slot })
		if !known && !slices.Contains(names, p.Relay) {
			names = append(names, p.Relay)
		}
	}
	return names
}

func (r *List) events(ctx context.Context, q *outboxdb.Queries, f outboxdb.ListByStateParams) ([]Event, error) {
	out := []Event{}
	switch r.State {
	case states.Published:
		rows, err := q.ListPublished(ctx, outboxdb.ListPublishedParams{
			Namespace: f.Namespace, AggregateType: f.AggregateType, AggregateID: f.AggregateID, EventType: f.EventType,
			RowLimit: f.RowLimit, Slot: f.Slot,
			FilledSlots: f.FilledSlots, FilledTables: f.FilledTables,
		})
		for _, v := range rows {
			out = append(out, New(states.Published, outboxdb.ListByStateRow(v)))
		}
		return out, err
	case states.Waiting:
		return waitingEvents(ctx, q, f)
	case states.Dead:
		rows, err := q.ListDead(ctx, outboxdb.ListDeadParams{
			Namespace: f.Namespace, AggregateType: f.AggregateType, AggregateID: f.AggregateID, EventType: f.EventType,
			RowLimit: f.RowLimit, Slot: f.Slot,
		})
		for _, v := range rows {
			e := New(states.Dead, outboxdb.ListByStateRow{
				ID: v.LetterID, Namespace: v.Namespace, AggregateType: v.AggregateType, AggregateID: v.AggregateID,
				EventType: v.EventType, CreatedAt: v.CreatedAt, TxID: v.TxID, Seq: v.Seq,
			})
			e.Letter = &LetterOf{Slot: v.Slot, State: v.State, Class: v.ErrorClass, Error: v.Error,
				Attempts: v.Attempts}
			out = append(out, e)
		}
		return out, err
	default:
		rows, err := q.ListByState(ctx, f)
		for _, v := range rows {
			out = append(out, New(r.State, v))
		}
		return out, err
	}
}

// waitingEvents are those whose route cannot be used. One that waits for one relay
// and is owed by another is pending too, and listed as both.
func waitingEvents(ctx context.Context, q *outboxdb.Queries, f outboxdb.ListByStateParams) (out []Event, err error) {
	rows, err := q.ListWaiting(ctx, outboxdb.ListWaitingParams{
		Namespace: f.Namespace, AggregateType: f.AggregateType, AggregateID: f.AggregateID, EventType: f.EventType,
		OlderSeconds: f.OlderSeconds, RowLimit: f.RowLimit, Slot: f.Slot,
	})
	for _, v := range rows {
		out = append(out, New(states.Waiting, outboxdb.ListByStateRow(v)))
	}
	return out, err
}

// New is a row of the outbox in a state.
func New(state string, v outboxdb.ListByStateRow) Event {
	return Event{
		Key: operator.KeyText(v.Namespace, v.ID), State: state, AggregateType: v.AggregateType,
		AggregateID: v.AggregateID,
		EventType:   v.EventType, CreatedAt: v.CreatedAt.UTC(), TxID: v.TxID, Seq: v.Seq,
	}
}
