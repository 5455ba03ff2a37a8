package main

import (
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
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
		Action: skipEvent,
	}
}

func skipEvent(c *cli.Context) error {
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
	return order(c, reason, func(db *operator.Database) (operator.Order[*relays.Skipped], error) {
		state, err := theRelay(c, db)
		if err != nil {
			return nil, err
		}
		return relays.PlanSkip(c.Context, db, state, key)
	}, printSkip)
}

func undoSkip(c *cli.Context, key operator.Name) error {
	if c.IsSet("reason") {
		return usage("%s: --undo goes without --reason", c.Command.HelpName)
	}
	if err := relayArguments(c); err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*relays.Undone, error) {
		state, err := theRelay(c, db)
		if err != nil {
			return nil, err
		}
		return relays.TakeBackSkip(c.Context, db, state, key)
	}, printUndo)
}

func printUndo(p *page, r *relays.Undone) {
	switch {
	case r.TakenBack:
		p.line("relay %s does not leave out %s any more", r.Relay, r.Key)
	case r.GivenUp:
		p.line("! %s was given up already: `outboxctl dead show %s` says by whom", r.Key, r.Key)
	default:
		p.line("! relay %s was not told to skip %s; `outboxctl status` lists the words that stand", r.Relay, r.Key)
	}
}

func printSkip(p *page, r *relays.Skipped) {
	p.line("relay %s leaves out %s when it comes to it; until then `outboxctl skip %s --undo --relay %s` takes the word back", r.Relay, r.Key, r.Key, r.Relay)
	p.line("the relay sees it within a second or two, when it is connected; `outboxctl dead show %s` then has the letter", r.Key)
}
