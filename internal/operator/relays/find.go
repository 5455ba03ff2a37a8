package relays

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// State is the row of a relay that has begun.
type State = outboxdb.RelayState

// Find finds the relay that is meant, by its name or its slot; where both are
// empty, the only one.
func Find(ctx context.Context, db *operator.Database, name, slot string) (State, error) {
	states, err := begun(ctx, outboxdb.New(db))
	if err != nil {
		return State{}, err
	}
	return choose(states, name, slot)
}

func begun(ctx context.Context, q *outboxdb.Queries) ([]State, error) {
	states, err := q.RelayStates(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for relays: %w", operator.Explain(err, migrations.Outbox))
	}
	return states, nil
}

// FindToForget finds the relay that is meant, also among those that have not begun: of
// these there is nothing but the name, the slot and what their processes said.
func FindToForget(ctx context.Context, db *operator.Database, name, slot string) (State, error) {
	q := outboxdb.New(db)
	states, err := begun(ctx, q)
	if err != nil {
		return State{}, err
	}
	state, err := choose(states, name, slot)
	if err == nil {
		return state, nil
	}
	processes, unread := Processes(ctx, q)
	if unread != nil {
		return State{}, err
	}
	for _, p := range processes {
		if !slices.ContainsFunc(states, func(s State) bool { return s.Slot == p.Slot }) {
			states = append(states, State{Slot: p.Slot, Relay: p.Relay})
		}
	}
	return choose(states, name, slot)
}

// NotBegun reports whether a relay that was found has but what its processes said.
func NotBegun(state State) bool { return state.SystemIdentifier == "" }

func choose(states []State, name, slot string) (State, error) {
	var names []string
	var meant []State
	for _, v := range states {
		names = append(names, fmt.Sprintf("%s (slot %s)", v.Relay, v.Slot))
		if (name == "" || v.Relay == name) && (slot == "" || v.Slot == slot) {
			meant = append(meant, v)
		}
	}
	switch {
	case len(states) == 0:
		return State{}, errors.New(label.NoRelay)
	case len(meant) == 0:
		return State{}, operator.Unclear("no relay %s%s here; there are %s", name, slot, strings.Join(names, ", "))
	case len(meant) > 1:
		return State{}, operator.Unclear("which relay? there are %s; give --relay or --slot", strings.Join(names, ", "))
	}
	return meant[0], nil
}
