package relays

import (
	"context"
	"fmt"
	"slices"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// MaxShown bounds a list of parked aggregates, and one of what is held.
const MaxShown = 100

// Resting is what rests from now on.
type Resting struct {
	Relay        string   `json:"relay"`
	Slot         string   `json:"slot"`
	Paused       bool     `json:"paused"`
	PausedRoutes []string `json:"paused_routes"`
	Resumed      []string `json:"resumed,omitempty"`    // routes that go on
	Unknown      []string `json:"not_paused,omitempty"` // routes that were to be resumed
	NotKnown     []string `json:"not_known,omitempty"`  // routes that were paused, and that the relay has not used
	Topics       []string `json:"topics,omitempty"`     // that it has used, where some are not known
}

// Rest lets a relay rest or go on or, where routes are named, these routes of it.
func Rest(ctx context.Context, db *operator.Database, state State, paused bool, routes []string) (*Resting, error) {
	q := outboxdb.New(db)
	report, err := setRest(ctx, q, state.Slot, paused, routes)
	if err != nil {
		verb := map[bool]string{true: "pause", false: "resume"}[paused]
		return nil, fmt.Errorf("%s relay %s: %w", verb, state.Relay, operator.ExplainWrite(err))
	}
	if paused && len(routes) > 0 {
		if err := report.addNotKnown(ctx, q, routes); err != nil {
			return nil, fmt.Errorf("the routes are paused; look whether they are known: %w", operator.Explain(err, migrations.Outbox))
		}
	}
	for _, route := range routes {
		switch {
		case paused:
		case slices.Contains(state.PausedRoutes, route):
			report.Resumed = append(report.Resumed, route)
		default:
			report.Unknown = append(report.Unknown, route)
		}
	}
	return report, nil
}

func setRest(ctx context.Context, q *outboxdb.Queries, slot string, paused bool, routes []string) (*Resting, error) {
	var row outboxdb.PauseRow
	var err error
	switch {
	case len(routes) == 0:
		row, err = q.Pause(ctx, outboxdb.PauseParams{Slot: slot, Paused: paused})
	case paused:
		var v outboxdb.PauseRoutesRow
		v, err = q.PauseRoutes(ctx, outboxdb.PauseRoutesParams{Slot: slot, Routes: routes})
		row = outboxdb.PauseRow(v)
	default:
		var v outboxdb.ResumeRoutesRow
		v, err = q.ResumeRoutes(ctx, outboxdb.ResumeRoutesParams{Slot: slot, Routes: routes})
		row = outboxdb.PauseRow(v)
	}
	return &Resting{Relay: row.Relay, Slot: row.Slot, Paused: row.Paused,
		PausedRoutes: operator.NotNil(row.PausedRoutes)}, err
}

// addNotKnown names the routes to which the relay has written nothing, as far as the
// database knows: it may be that they are new, or that a name is wrong.
func (r *Resting) addNotKnown(ctx context.Context, q *outboxdb.Queries, routes []string) error {
	rows, err := q.KafkaTopics(ctx, r.Slot)
	if err != nil {
		return err
	}
	held, err := q.HeldLanes(ctx, MaxShown)
	if err != nil {
		return err
	}
	var topics []string
	for _, v := range rows {
		topics = append(topics, v.Topic)
	}
	for _, route := range routes {
		waits := slices.ContainsFunc(held, func(v outboxdb.HeldLanesRow) bool {
			return v.Slot == r.Slot &&
				v.Topic == route
		})
		if !slices.Contains(topics, route) && !waits {
			r.NotKnown, r.Topics = append(r.NotKnown, route), topics
		}
	}
	return nil
}

// Wrong tells that a route was to be resumed that was not paused.
func (r *Resting) Wrong() bool { return len(r.Unknown) > 0 }
