package main

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

func retireCommand() *cli.Command {
	return &cli.Command{
		Name:  "retire",
		Usage: "forget a relay that is gone for good, so that nothing waits for it",
		Description: "Retention keeps what any relay of the database has not published. A relay that was renamed or taken down for\n" +
			"good is forgotten by this command, with its gaps and what it had published. Dead letters that wait are discarded, and\n" +
			"discarded ones stay readable.\n" +
			"Its slot must be gone: it would pin the log, and a relay that used it would begin anew. A slot of that name in another\n" +
			"database of the server is not its own and is left alone.",
		Flags:  append([]cli.Flag{reasonFlag(), yesFlag()}, relayFlags()...),
		Action: retire,
	}
}

// retireReport is the JSON answer of retire.
type retireReport struct {
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

func retire(c *cli.Context) error {
	if err := relayArguments(c); err != nil {
		return err
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	state, err := theRelay(c, db)
	if err != nil {
		return err
	}
	elsewhere, err := slotToRetire(c, db, state.Slot)
	if err != nil {
		return err
	}
	report := &retireReport{Relay: state.Relay, Slot: state.Slot, SlotOf: elsewhere}
	for of, n := range map[string]*int{states.Pending: &report.Pending, states.Waiting: &report.Waiting, states.Gap: &report.InGaps} {
		if *n, err = events.CountOwed(c.Context, db, state.Slot, of, maxOwedShown); err != nil {
			return fmt.Errorf("retire: %w", err)
		}
	}
	letters, err := outboxdb.New(db).WaitingLetters(c.Context, state.Slot)
	if err != nil {
		return fmt.Errorf("retire: %w", err)
	}
	what := fmt.Sprintf("forget relay %s, which has not published %d events (and %d that wait for their route, and %d of open gaps), and discard its %d dead letters that wait",
		state.Relay, report.Pending, report.Waiting, report.InGaps, letters)
	if elsewhere != "" {
		what += fmt.Sprintf("; the slot %s of database %s is not its own and stays", state.Slot, elsewhere)
	}
	if err := confirm(c, what); err != nil {
		return err
	}
	// The slot is looked for again there, in the transaction that forgets.
	report.Letters, err = outboxdb.New(db).RetireRelay(c.Context, outboxdb.RetireRelayParams{Slot: state.Slot, Reason: reason})
	if err != nil {
		return fmt.Errorf("retire: %w", operator.ExplainWrite(err))
	}
	return answer(c, report, func(p *page, report *retireReport) {
		p.line("relay %s is forgotten; nothing waits for it any more", report.Relay)
		p.line("%d dead letters that waited are discarded", report.Letters)
		if report.SlotOf != "" {
			p.line("slot %s is of database %s and was not this relay's: it stays, leave it alone", report.Slot, report.SlotOf)
		}
		publication := pgx.Identifier{migrations.PublicationName(report.Relay)}.Sanitize()
		p.line("its publication stays, where it has one: its owner drops it by DROP PUBLICATION IF EXISTS %s;", publication)
	})
}

// slotToRetire returns the other database that has a slot of this name: slots are of
// the whole server, and beside a copy of a database the original's is there. It
// refuses while the relay's own exists.
func slotToRetire(c *cli.Context, db *operator.Database, slot string) (elsewhere string, err error) {
	var of string
	var own bool
	err = db.QueryRow(c.Context, `SELECT COALESCE(database, ''), COALESCE(database = pg_catalog.current_database(), true)
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
