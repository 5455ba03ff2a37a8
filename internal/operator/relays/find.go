package relays

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// State is the row of a relay that has begun.
type State = outboxdb.RelayState

// Find finds the relay that is meant, by its name or its slot; where both are
// empty, the only one.
func Find(ctx context.Context, db *operator.Database, name, slot string) (State, error) {
	states, err := outboxdb.New(db).RelayStates(ctx)
	if err != nil {
		return State{}, fmt.Errorf("look for relays: %w", operator.Explain(err, migrations.Outbox))
	}
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
		return State{}, errors.New("no relay has run on this database yet")
	case len(meant) == 0:
		return State{}, operator.Unclear("no relay %s%s here; there are %s", name, slot, strings.Join(names, ", "))
	case len(meant) > 1:
		return State{}, operator.Unclear("which relay? there are %s; give --relay or --slot", strings.Join(names, ", "))
	}
	return meant[0], nil
}
