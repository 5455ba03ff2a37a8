package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
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
			"for the event's route, or for the route of a dead letter that was told to retry. Until then --undo takes the\n" +
			"word back; `outboxctl status` lists those that stand.",
		Flags: append([]cli.Flag{
			reasonFlag(), yesFlag(), &cli.BoolFlag{Name: "undo", Usage: "take the word back, which the relay has not carried out yet; needs no --reason"},
		}, relayFlags()...),
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
// beside it an order to discard: that row keeps who said so and why, and is for
// the event that has become a letter meanwhile. It is marked by payload_null: it
// acts only as long as the word stands.
func skip(c *cli.Context) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	if c.Bool("undo") {
		return undoSkip(c, key)
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
	if key, err = key.Resolve(c.Context, db); err != nil {
		return fmt.Errorf("skip: %w", err)
	}
	if key.Bare {
		return noSuchSkip(key)
	}
	if err := skippable(c, db, state.Slot, key); err != nil {
		return err
	}
	if err := confirm(c, fmt.Sprintf("leave out the event %s for good, at relay %s", key, state.Relay)); err != nil {
		return err
	}
	order, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("make a control id: %w", err)
	}
	report := &skipReport{Key: key.String(), Relay: state.Relay, Slot: state.Slot, Reason: reason}
	err = pgx.BeginFunc(c.Context, db, func(tx pgx.Tx) error {
		q := outboxdb.New(tx)
		err := q.InsertControl(c.Context, outboxdb.InsertControlParams{
			ControlID: order, Action: states.ActionDiscard, Namespace: &key.Namespace, LetterID: &key.ID, PayloadNull: true, Reason: reason,
		})
		if err != nil {
			return err
		}
		row, err := q.Skip(c.Context, outboxdb.SkipParams{Slot: state.Slot, Ids: []uuid.UUID{key.ID}})
		report.Skip = row.Skip
		return err
	})
	if err != nil {
		return fmt.Errorf("skip %s: %w", key, operator.ExplainWrite(err))
	}
	return answer(c, report, printSkip)
}

// skippable refuses a key that the relay cannot be held up by.
func skippable(c *cli.Context, db *operator.Database, slot string, key operator.Name) error {
	q := outboxdb.New(db)
	letters, err := q.LettersNow(c.Context, []uuid.UUID{key.ID})
	if err != nil {
		return fmt.Errorf("skip: %w", operator.Explain(err, migrations.Outbox))
	}
	for _, l := range letters {
		switch {
		case l.Slot != slot:
		case l.State == states.LetterRetrying:
			return nil // its retry is held, or under way
		case l.State == states.LetterDiscarded:
			return fmt.Errorf("%s was given up already: `outboxctl dead show %s` says by whom", key, key)
		case l.State == states.LetterOpen:
			return fmt.Errorf("%s is a dead letter: `outboxctl dead discard %s --reason \"…\"` gives it up", key, key)
		}
	}
	rows, err := q.KeysForReplay(c.Context, []uuid.UUID{key.ID})
	if err != nil {
		return fmt.Errorf("skip: %w", operator.Explain(err, migrations.Outbox))
	}
	if len(rows) == 0 {
		return comesTo(c.Context, q, slot, key)
	}
	switch v := rows[0]; {
	case !key.Is(v.Namespace):
		return fmt.Errorf("this UUID belongs to namespace %s: the key is %s", v.Namespace, operator.NameText(v.Namespace, key.ID))
	case v.State == states.Published:
		return fmt.Errorf("%s was published; no relay halts at it", key)
	}
	return nil
}

// comesTo refuses a key that no row has, unless the relay knows it all the same: as
// a replay's, or from the log, where the row was deleted since.
func comesTo(ctx context.Context, q *outboxdb.Queries, slot string, key operator.Name) error {
	target, err := q.SkipTarget(ctx, outboxdb.SkipTargetParams{Slot: slot, ID: key.ID})
	if err != nil {
		return fmt.Errorf("skip: %w", operator.Explain(err, migrations.Outbox))
	}
	switch {
	case target.Waits:
		return nil
	case target.State != "" && !key.Is(target.Namespace):
		return fmt.Errorf("this UUID belongs to namespace %s: the key is %s", target.Namespace, operator.NameText(target.Namespace, key.ID))
	case target.GapID != "":
		return fmt.Errorf("the replay %s lay in gap %s: it is not proved to be published, and no relay comes to it any more; `outboxctl replay %s --config FILE --reason \"…\"` orders it again",
			key, target.GapID, operator.NameText(target.Namespace, target.EventID))
	case target.State == states.Published:
		return fmt.Errorf("the replay %s was published; no relay halts at it", key)
	case target.State != "":
		return nil
	}
	halted, err := relays.HaltsAt(ctx, q, key.ID)
	if err != nil {
		return fmt.Errorf("skip: %w", operator.Explain(err, migrations.Outbox))
	}
	if halted == nil {
		return noSuchSkip(key)
	}
	return nil
}

func noSuchSkip(key operator.Name) error {
	return fmt.Errorf("no event and no replay that is committed has the key %s, and no relay halts at it: nothing was ordered. The log and /readyz of a relay that halts name the key; "+
		"`outboxctl list --state waiting` lists what waits; an event that is not committed yet can be left out once it is", key)
}

// undoReport is the JSON answer of skip --undo.
type undoReport struct {
	Key       string      `json:"key"`
	Relay     string      `json:"relay"`
	Slot      string      `json:"slot"`
	TakenBack bool        `json:"taken_back"`
	GivenUp   bool        `json:"given_up"` // too late: it was carried out
	Skip      []uuid.UUID `json:"skip"`     // all that this relay is told to leave out
}

// undoSkip takes a word back. The relay looks for it in the transaction that carries
// it out, so that what was taken back is never left out.
func undoSkip(c *cli.Context, key operator.Name) error {
	if c.IsSet("reason") {
		return usage("%s: --undo goes without --reason", c.Command.HelpName)
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
	q := outboxdb.New(db)
	row, err := q.TakeBackSkip(c.Context, outboxdb.TakeBackSkipParams{Slot: state.Slot, ID: key.ID})
	if err != nil {
		return fmt.Errorf("take back the skip of %s: %w", key, operator.ExplainWrite(err))
	}
	report := &undoReport{Key: key.String(), Relay: row.Relay, Slot: row.Slot, TakenBack: row.Stood, Skip: row.Skip}
	if !row.Stood {
		letters, err := q.LettersNow(c.Context, []uuid.UUID{key.ID})
		if err != nil {
			return fmt.Errorf("look what became of %s: %w", key, operator.Explain(err, migrations.Outbox))
		}
		for _, l := range letters {
			report.GivenUp = report.GivenUp || l.Slot == row.Slot && l.State == states.LetterDiscarded
		}
	}
	if err := answer(c, report, printUndo); err != nil || row.Stood {
		return err
	}
	return errWrong
}

func printUndo(p *page, r *undoReport) {
	switch {
	case r.TakenBack:
		p.line("relay %s does not leave out %s any more", r.Relay, r.Key)
	case r.GivenUp:
		p.line("! %s was given up already: `outboxctl dead show %s` says by whom", r.Key, r.Key)
	default:
		p.line("! relay %s was not told to skip %s; `outboxctl status` lists the words that stand", r.Relay, r.Key)
	}
}

func printSkip(p *page, r *skipReport) {
	p.line("relay %s leaves out %s when it comes to it; until then `outboxctl skip %s --undo --relay %s` takes the word back", r.Relay, r.Key, r.Key, r.Relay)
	p.line("the relay sees it within a second or two, when it is connected; `outboxctl dead show %s` then has the letter", r.Key)
}
