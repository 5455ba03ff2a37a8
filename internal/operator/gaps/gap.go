package gaps

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// accountStates are the states of the events of a gap, as onceward.account has them.
var accountStates = map[string]string{states.GapOpen: states.Gap, states.GapRepairing: states.Pending,
	states.GapAccepted: states.GivenUp, states.GapBefore: states.Before}

// Gap is one gap, with its first events where it is asked for alone.
type Gap struct {
	Gap         uuid.UUID      `json:"gap"`
	Relay       string         `json:"relay"`
	Slot        string         `json:"slot"`
	Cause       string         `json:"cause"`
	Detail      string         `json:"detail"`
	State       string         `json:"state"`
	Events      int64          `json:"events"` // when it was found
	Left        *int64         `json:"events_left,omitempty"`
	From        string         `json:"from_snapshot"`
	To          string         `json:"to_snapshot"`
	FoundAt     time.Time      `json:"found_at"`
	RepairedAt  *time.Time     `json:"repaired_at,omitempty"`
	DecidedBy   *string        `json:"decided_by,omitempty"`
	DecidedWhy  *string        `json:"decided_why,omitempty"`
	DecidedAt   *time.Time     `json:"decided_at,omitempty"`
	Note        string         `json:"note,omitempty"` // of a repair that nobody carries out now
	FirstEvents []events.Event `json:"first_events,omitempty"`

	// Replays are the orders to replay that lay in it. No repair publishes them.
	Replays      int64    `json:"replays"`
	FirstReplays []Replay `json:"first_replays,omitempty"`
}

// Replay is an order to replay that the relay has not come to, as far as it can prove.
type Replay struct {
	Replay      string    `json:"replay"` // its key
	Key         string    `json:"key"`    // of the event
	RequestedBy string    `json:"requested_by"`
	RequestedAt time.Time `json:"requested_at"`
}

func newGap(v outboxdb.ListGapsRow) Gap {
	return Gap{
		Gap: v.GapID, Relay: v.Relay, Slot: v.Slot, Cause: v.Cause, Detail: v.Detail, State: v.State, Events: v.Events,
		From: v.FromSnapshot, To: v.ToSnapshot,
		FoundAt: v.FoundAt.UTC(), RepairedAt: v.RepairedAt, DecidedBy: v.DecidedBy, DecidedWhy: v.DecidedWhy,
		DecidedAt: v.DecidedAt, Replays: v.Replays,
	}
}

// Read reads one gap with its first events.
func Read(ctx context.Context, db *operator.Database, id uuid.UUID, limit int) (*Gap, error) {
	q := outboxdb.New(db)
	rows, err := q.ListGaps(ctx, outboxdb.ListGapsParams{States: []string{}, GapID: &id})
	if err != nil {
		return nil, operator.Explain(err, migrations.Outbox)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("there is no gap %s: `outboxctl gap list --all` names them", id)
	}
	g := newGap(rows[0])
	if err := g.readReplays(ctx, q, limit); err != nil {
		return nil, err
	}
	if g.State == states.GapRepaired {
		return &g, nil
	}
	left, err := q.CountEventsOfGap(ctx, id)
	if err != nil {
		return nil, err
	}
	var now time.Time
	if err := db.QueryRow(ctx, "SELECT pg_catalog.now()").Scan(&now); err != nil {
		return nil, err
	}
	first, err := q.EventsOfGap(ctx, outboxdb.EventsOfGapParams{GapID: id, RowLimit: int32(limit)})
	if err != nil {
		return nil, err
	}
	g.Left, g.FirstEvents = &left, []events.Event{}
	for _, v := range first {
		e := events.New(accountStates[g.State], outboxdb.ListByStateRow(v))
		e.AgeSeconds = max(0, now.Sub(e.CreatedAt).Seconds())
		g.FirstEvents = append(g.FirstEvents, e)
	}
	return &g, nil
}

// readReplays reads the first replays that lay in the gap, also once it is repaired.
func (g *Gap) readReplays(ctx context.Context, q *outboxdb.Queries, limit int) error {
	rows, err := q.ReplaysOfGap(ctx, outboxdb.ReplaysOfGapParams{GapID: g.Gap, RowLimit: int32(limit)})
	for _, v := range rows {
		g.FirstReplays = append(g.FirstReplays, Replay{
			Replay: operator.KeyText(v.Namespace, v.ReplayID), Key: operator.KeyText(v.Namespace, v.ID),
			RequestedBy: v.RequestedBy, RequestedAt: v.RequestedAt.UTC(),
		})
	}
	return err
}

// gone is how many of the counted events are not left in the gap.
func (g *Gap) gone() int64 { return max(0, g.Events-*g.Left) }

// Stands is what is left of a gap, and where the rest is. While a repair is under way
// what it has published is not left.
func (g *Gap) Stands() string {
	if g.gone() == 0 {
		return label.Count(*g.Left, "event is", "events are") + " left in it"
	}
	rest := "have no row any more, became dead letters or wait for their route"
	if g.State == states.GapRepairing {
		rest = "are published by it, " + rest
	}
	return fmt.Sprintf("%s left in it of the %d that were counted; %d %s", label.Count(*g.Left, "event is", "events are"), g.Events, g.gone(), rest)
}
