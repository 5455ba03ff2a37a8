package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/secret"
)

func relayFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "relay", Usage: "the relay called `NAME`; needed where the database has several"},
		&cli.StringFlag{Name: "slot", Usage: "the relay with slot `NAME`"},
		outputFlag(),
	}, dsnFlags()...)
}

func pauseCommand() *cli.Command {
	return &cli.Command{
		Name:  "pause",
		Usage: "let a relay, or one of its routes, rest",
		Description: "A paused relay publishes nothing and keeps its place; the server keeps the log for it. While a route is\n" +
			"paused its events are written down in the database and wait there, in their order; the others go on, and the\n" +
			"log is not kept for it. The word is kept in the database, over restarts, until `outboxctl resume`.",
		Flags:  append([]cli.Flag{&cli.StringSliceFlag{Name: "route", Usage: "only what goes to `TOPIC`"}}, relayFlags()...),
		Action: func(c *cli.Context) error { return pauseOrResume(c, true) },
	}
}

func resumeCommand() *cli.Command {
	return &cli.Command{
		Name:   "resume",
		Usage:  "let a paused relay, or one of its routes, go on",
		Flags:  append([]cli.Flag{&cli.StringSliceFlag{Name: "route", Usage: "only what goes to `TOPIC`; without it the relay goes on, and paused routes stay so"}}, relayFlags()...),
		Action: func(c *cli.Context) error { return pauseOrResume(c, false) },
	}
}

// pauseOrResume is both commands.
func pauseOrResume(c *cli.Context, paused bool) error {
	routes := c.StringSlice("route")
	if err := relayArguments(c); err != nil {
		return err
	}
	if slices.Contains(routes, "") {
		return usage("--route is empty; want a topic")
	}
	return ask(c, func(db *operator.Database) (*relays.Resting, error) {
		state, err := theRelay(c, db)
		if err != nil {
			return nil, err
		}
		return relays.Rest(c.Context, db, state, paused, routes)
	}, printResting)
}

// relayArguments checks what needs no server.
func relayArguments(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if c.Command.ArgsUsage == "" && c.Args().Present() {
		return usage("%s takes no argument, got %s; to name a relay: --relay", c.Command.HelpName, secret.Argument(c.Args().First()))
	}
	if c.String("relay") != "" && c.String("slot") != "" {
		return usage("--relay and --slot: give one of them")
	}
	return nil
}

func printResting(p *page, r *relays.Resting) {
	switch {
	case r.Paused:
		p.line("relay %s is paused; `outboxctl resume --relay %s` lets it go on", r.Relay, r.Relay)
	default:
		p.line("relay %s is not paused", r.Relay)
	}
	for _, route := range r.Resumed {
		p.line("route %s goes on", route)
	}
	for _, route := range r.PausedRoutes {
		p.line("route %s is paused", route)
	}
	const named = 20
	known := strings.Join(r.Topics[:min(named, len(r.Topics))], ", ")
	switch {
	case known == "":
		known = "no topic yet"
	case len(r.Topics) > named:
		known += fmt.Sprintf(" and %d more", len(r.Topics)-named)
	}
	for _, route := range r.NotKnown {
		p.line("! topic %s is not known: relay %s has written to %s; the pause stands, and is for a topic of that very name", route, r.Relay, known)
	}
	for _, route := range r.Unknown {
		p.line("! route %s was not paused", route)
	}
	p.line("the relay sees it within a second or two, when it is connected")
}

// theRelay finds the relay that is meant: the only one, or that of the flags.
func theRelay(c *cli.Context, db *operator.Database) (relays.State, error) {
	return relays.Find(c.Context, db, c.String("relay"), c.String("slot"))
}
