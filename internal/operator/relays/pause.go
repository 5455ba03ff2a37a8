package relays

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/check"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/relay"
)

// MaxShown bounds a list of parked aggregates, and one of what is held.
const MaxShown = 100

// Resting is what rests from now on.
type Resting struct {
	Relay        string   `json:"relay"`
	Slot         string   `json:"slot"`
	OfRoutes     bool     `json:"-"` // the word was of routes, and not of the relay
	Paused       bool     `json:"paused"`
	PausedRoutes []string `json:"paused_routes"`
	Resumed      []string `json:"resumed,omitempty"`    // routes that go on
	Unknown      []string `json:"not_paused,omitempty"` // routes that were to be resumed
	NotKnown     []string `json:"not_known,omitempty"`  // routes that were paused, and that the relay has not used
	Topics       []string `json:"topics,omitempty"`     // that it has used, where some are not known
}

// Word is what is said of a relay or, where routes are named, of these routes of it.
type Word struct {
	Paused bool // or it goes on
	Routes []string
	Reason string // may be empty
}

// Rest lets a relay, or routes of it, rest or go on. Who says so is written down.
func Rest(ctx context.Context, db *operator.Database, state State, say Word) (*Resting, error) {
	paused, routes := say.Paused, operator.NotNil(say.Routes)
	q := outboxdb.New(db)
	row, err := q.Rest(ctx, outboxdb.RestParams{Slot: state.Slot, Paused: paused, Routes: routes, Reason: say.Reason})
	report := &Resting{
		Relay: row.Relay, Slot: state.Slot, OfRoutes: len(routes) > 0,
		Paused: row.Rests, PausedRoutes: operator.NotNil(row.RestingRoutes),
	}
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

// RefuseUnknown refuses routes of which neither the relay's configuration nor the database
// knows the topic: none that a route names, none that an event in the table leads to, and
// none that the relay has written to. file is what the configuration was read from.
func RefuseUnknown(ctx context.Context, db *operator.Database, cfg *relay.Config, routes []string, file string) error {
	topics, err := check.TopicsSeen(ctx, db, cfg)
	if err != nil {
		return fmt.Errorf("look whether the routes are known; nothing is paused: %w", operator.Explain(err, migrations.Outbox))
	}
	rows, err := outboxdb.New(db).KafkaTopics(ctx, cfg.SlotName())
	if err != nil {
		return fmt.Errorf("look whether the routes are known; nothing is paused: %w", operator.Explain(err, migrations.Outbox))
	}
	for _, v := range rows {
		topics = append(topics, v.Topic)
	}
	for _, route := range routes {
		if err := refuseUnknown(route, topics, file); err != nil {
			return err
		}
	}
	return nil
}

func refuseUnknown(route string, topics []string, file string) error {
	if slices.Contains(topics, route) {
		return nil
	}
	const force = "--force pauses a topic of that very name all the same"
	if meant := terminal.Nearest(route, topics); terminal.Resembles(route, meant) {
		return operator.Unclear("neither %s nor the database knows topic %s; did you mean %s? %s", file, route, meant, force)
	}
	slices.Sort(topics)
	return operator.Unclear("neither %s nor the database knows topic %s, but %s; %s", file, route, Topics(slices.Compact(topics)), force)
}

// Topics names topics, or the first of them.
func Topics(topics []string) string {
	const named = 20
	switch {
	case len(topics) == 0:
		return "no topic yet"
	case len(topics) > named:
		return strings.Join(topics[:named], ", ") + fmt.Sprintf(" and %d more", len(topics)-named)
	}
	return strings.Join(topics, ", ")
}

// Wrong tells that a route was to be resumed that was not paused.
func (r *Resting) Wrong() bool { return len(r.Unknown) > 0 }
