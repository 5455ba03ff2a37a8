package main

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

func skipCommand() *cli.Command {
	return &cli.Command{
		Name:      "skip",
		Usage:     "tell a relay that has halted at an event to leave it out",
		ArgsUsage: "KEY",
		Description: "A route with `poison: halt` stops the relay at an event that can never be published; its log and /readyz\n" +
			"name the key. A halted relay does not read the stream, so that orders about dead letters do not reach it.\n" +
			"Skipped, the event becomes a discarded dead letter with your reason: `outboxctl replay --dead` can bring it\n" +
			"back. A relay that is not halted leaves the event out as well, when it comes to it; so does one that waits\n" +
			"for the event's route, or for the route of a dead letter that was told to retry.",
		Flags:  append([]cli.Flag{reasonFlag(), yesFlag()}, relayFlags()...),
		Action: skip,
	}
}

// skipReport is the JSON answer of skip.
type skipReport struct {
	Key    string      `json:"key"`
	Relay  string      `json:"relay"`
	Slot   string      `json:"slot"`
	Reason string      `json:"reason"`
	Skip   []uuid.UUID `json:"skip"` // all that this relay is told to leave out
}

// skip says the word in the relay's state, which a halted relay polls, and
// beside it an ordinary order to discard: that row keeps who said so and why.
func skip(c *cli.Context) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	if err := relayArguments(c); err != nil {
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
	if key, err = key.resolve(c.Context, db); err != nil {
		return fmt.Errorf("skip: %w", err)
	}
	if key.bare {
		return fmt.Errorf("no event of the outbox has the UUID %s", key.id)
	}
	if err := skippable(c, db, state.Slot, key); err != nil {
		return err
	}
	if err := confirm(c, fmt.Sprintf("leave out the event %s for good, at relay %s", key, state.Relay)); err != nil {
		return err
	}
	id, namespace := key.id, key.namespace
	discard := &word{control: outboxdb.InsertControlParams{Action: actionDiscard, Namespace: &namespace, LetterID: &id}}
	report := &skipReport{Key: key.String(), Relay: state.Relay, Slot: state.Slot, Reason: reason}
	err = pgx.BeginFunc(c.Context, db, func(tx pgx.Tx) error {
		if err := insertWords(c.Context, outboxdb.New(tx), reason, []*word{discard}); err != nil {
			return err
		}
		row, err := outboxdb.New(tx).Skip(c.Context, outboxdb.SkipParams{Slot: state.Slot, Ids: []uuid.UUID{id}})
		report.Skip = row.Skip
		return err
	})
	if err != nil {
		return fmt.Errorf("skip %s: %w", key, explainWrite(err))
	}
	return answer(c, report, report.print)
}

// skippable refuses a key that the relay cannot be held up by.
func skippable(c *cli.Context, db *database, slot string, key eventName) error {
	q := outboxdb.New(db)
	letters, err := q.LettersNow(c.Context, []uuid.UUID{key.id})
	if err != nil {
		return fmt.Errorf("skip: %w", explain(err, migrations.Outbox))
	}
	for _, l := range letters {
		switch {
		case l.Slot != slot:
		case l.State == letterRetrying:
			return nil // its retry is held, or under way
		case l.State == letterDiscarded:
			return fmt.Errorf("%s was given up already: `outboxctl dead show %s` says by whom", key, key)
		case l.State == letterOpen:
			return fmt.Errorf("%s is a dead letter: `outboxctl dead discard %s --reason \"…\"` gives it up", key, key)
		}
	}
	rows, err := q.KeysForReplay(c.Context, []uuid.UUID{key.id})
	if err != nil {
		return fmt.Errorf("skip: %w", explain(err, migrations.Outbox))
	}
	if len(rows) == 0 {
		return nil // a replay's id, or a row of a table that is not ours
	}
	switch v := rows[0]; {
	case !key.is(v.Namespace):
		return fmt.Errorf("this UUID belongs to namespace %s: the key is %s", v.Namespace, nameText(v.Namespace, key.id))
	case v.State == statePublished:
		return fmt.Errorf("%s was published; no relay halts at it", key)
	}
	return nil
}

func (r *skipReport) print(p *page) {
	p.line("relay %s leaves out %s when it comes to it", r.Relay, r.Key)
	p.line("the relay sees it within a second or two, when it is connected; `outboxctl dead show %s` then has the letter", r.Key)
}
