package binding

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// Retired is a relay that is forgotten.
type Retired struct {
	Relay   string `json:"relay"`
	Slot    string `json:"slot"`
	SlotOf  string `json:"slot_of,omitempty"` // the other database that has a slot of this name
	Pending int    `json:"pending"`           // events that it owed; this and the next two at most maxOwedShown + 1
	Waiting int    `json:"waiting"`           // of held routes
	InGaps  int    `json:"in_gaps"`           // that nobody has decided about
	Letters int64  `json:"letters"`           // dead letters that waited; they are discarded
}

// maxOwedShown bounds the count of what a relay still owes.
const maxOwedShown = 100_000

// Publication is the name of the relay's publication, as SQL has it. It stays.
func (r *Retired) Publication() string {
	return pgx.Identifier{migrations.PublicationName(r.Relay)}.Sanitize()
}

// retireOrder has a relay forgotten that is gone for good.
type retireOrder struct {
	report   *Retired
	question string
}

// PlanRetire finds the relay by its name or its slot, refuses while its slot is there, and
// counts what it owes. It changes nothing.
func PlanRetire(ctx context.Context, db *operator.Database, name, slot string) (operator.Order[*Retired], error) {
	state, err := relays.FindToForget(ctx, db, name, slot)
	if err != nil {
		return nil, err
	}
	elsewhere, err := slotToRetire(ctx, db, state.Slot)
	if err != nil {
		return nil, err
	}
	report := &Retired{Relay: state.Relay, Slot: state.Slot, SlotOf: elsewhere}
	if relays.NotBegun(state) {
		return &retireOrder{report, fmt.Sprintf("forget relay %s (slot %s), which has never begun: what its processes said of themselves", state.Relay, state.Slot)}, nil
	}
	for of, n := range map[string]*int{states.Pending: &report.Pending, states.Waiting: &report.Waiting,
		states.Gap: &report.InGaps} {
		if *n, err = events.CountOwed(ctx, db, state.Slot, of, maxOwedShown); err != nil {
			return nil, fmt.Errorf("retire: %w", err)
		}
	}
	letters, err := outboxdb.New(db).WaitingLetters(ctx, state.Slot)
	if err != nil {
		return nil, fmt.Errorf("retire: %w", err)
	}
	what := fmt.Sprintf("forget relay %s, which has not published %s (and %d that wait for their route, and %d of open gaps), and discard its %s",
		state.Relay, label.Count(report.Pending, "event"), report.Waiting, report.InGaps,
		label.Count(letters, "dead letter that waits", "dead letters that wait"))
	if elsewhere != "" {
		what += fmt.Sprintf("; the slot %s of database %s is not its own and stays", state.Slot, elsewhere)
	}
	return &retireOrder{report, what}, nil
}

// Question implements [operator.Order].
func (o *retireOrder) Question() string { return o.question }

// CarryOut forgets the relay. The slot is looked for again there, in the transaction that
// forgets.
func (o *retireOrder) CarryOut(ctx context.Context, db *operator.Database, reason string) (_ *Retired, err error) {
	o.report.Letters, err = outboxdb.New(db).RetireRelay(ctx,
		outboxdb.RetireRelayParams{Slot: o.report.Slot, Reason: reason})
	if err != nil {
		return nil, fmt.Errorf("retire: %w", operator.ExplainWrite(err))
	}
	return o.report, nil
}

// slotToRetire returns the other database that has a slot of this name: slots are of
// the whole server, and beside a copy of a database the original's is there. It
// refuses while the relay's own exists.
func slotToRetire(ctx context.Context, db *operator.Database, slot string) (elsewhere string, err error) {
	var of string
	var own bool
	err = db.QueryRow(ctx, `SELECT COALESCE(database, ''), COALESCE(database = pg_catalog.current_database(), true)
		FROM pg_catalog.pg_replication_slots WHERE slot_name = $1`, slot).Scan(&of, &own)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look for slot %s: %w", slot, err)
	case own:
		return "", fmt.Errorf("slot %[1]s exists: stop the relay for good, then drop the slot as a superuser or a role with REPLICATION (SELECT pg_catalog.pg_drop_replication_slot('%[1]s');)", slot)
	}
	return of, nil
}
