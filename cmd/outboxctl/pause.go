package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/config"
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
			"log is not kept for it. The word is kept in the database, over restarts, until `outboxctl resume`; whose it is\n" +
			"and why is in `outboxctl status`.\n\n" +
			"Only relay.yaml says which topics there are. With --config FILE a TOPIC is refused to which no route leads by\n" +
			"its name, or for an event in the table, and which the relay has not written to; --force pauses it all the\n" +
			"same. Without --config there is a warning where the relay has not written to it.",
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "route", Usage: "only what goes to `TOPIC`"},
			restReasonFlag(), configFlag(), &cli.BoolFlag{Name: "force", Usage: "also a topic that --config does not know"},
		}, relayFlags()...),
		Action: func(c *cli.Context) error { return pauseOrResume(c, true) },
	}
}

func resumeCommand() *cli.Command {
	return &cli.Command{
		Name:  "resume",
		Usage: "let a paused relay, or one of its routes, go on",
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "route", Usage: "only what goes to `TOPIC`; without it the relay goes on, and paused routes stay so"}, restReasonFlag(),
		}, relayFlags()...),
		Action: func(c *cli.Context) error { return pauseOrResume(c, false) },
	}
}

func restReasonFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "`WHY` it is done; kept, together with who did it, and shown by status"}
}

// pauseOrResume is both commands.
func pauseOrResume(c *cli.Context, paused bool) error {
	routes := c.StringSlice("route")
	if err := relayArguments(c); err != nil {
		return err
	}
	bad := func(t string) bool { return (paused || t == "") && publisher.InvalidTopic(t) != "" }
	switch i := slices.IndexFunc(routes, bad); {
	case i >= 0:
		return usage("--route %s %s; want a topic", secret.Argument(routes[i]), publisher.InvalidTopic(routes[i]))
	case c.Bool("force") && c.String("config") == "":
		return usage("--force goes with --config: without it no topic is refused")
	}
	var cfg *relay.Config
	if c.String("config") != "" {
		loaded, err := config.LoadOffline(c.String("config"), os.Environ()) // it needs the routes only
		if err != nil {
			return err
		}
		cfg = &loaded
	}
	return ask(c, func(db *operator.Database) (*relays.Resting, error) {
		state, err := theConfigured(c, db, cfg)
		if err == nil && cfg != nil && !c.Bool("force") {
			err = relays.RefuseUnknown(c.Context, db, cfg, routes, c.String("config"))
		}
		if err != nil {
			return nil, err
		}
		return relays.Rest(c.Context, db, state, relays.Word{Paused: paused, Routes: routes, Reason: c.String("reason")})
	}, printResting)
}

// theConfigured is theRelay, and that of the configuration, which may be nil.
func theConfigured(c *cli.Context, db *operator.Database, cfg *relay.Config) (relays.State, error) {
	if cfg == nil {
		return theRelay(c, db)
	}
	name, slot := c.String("relay"), c.String("slot")
	if name != "" && name != cfg.Name || slot != "" && slot != cfg.SlotName() {
		return relays.State{}, usage("--config is of relay %s with slot %s, and %s%s is given", cfg.Name, cfg.SlotName(), name, slot)
	}
	return relays.Find(c.Context, db, cfg.Name, cfg.SlotName())
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
	itself := fmt.Sprintf("relay %s is not paused", r.Relay)
	if r.Paused {
		itself = fmt.Sprintf("relay %s is paused; `outboxctl resume --relay %s` lets it go on", r.Relay, r.Relay)
	}
	if !r.OfRoutes { // else they come first
		p.line("%s", itself)
	}
	for _, route := range r.Resumed {
		p.line("route %s goes on", route)
	}
	for _, route := range r.PausedRoutes {
		p.line("route %s is paused; `outboxctl resume --relay %s --route %s` lets it go on", route, r.Relay, route)
	}
	for _, route := range r.NotKnown {
		p.line("! topic %s is not known: relay %s has written to %s; the pause stands, and is for a topic of that very name", route, r.Relay, relays.Topics(r.Topics))
	}
	for _, route := range r.Unknown {
		p.line("! route %s was not paused", route)
	}
	if r.OfRoutes {
		p.line("beside that, %s", itself)
	}
	p.line("the relay sees it within a second or two, when it is connected")
}

// theRelay finds the relay that is meant: the only one, or that of the flags.
func theRelay(c *cli.Context, db *operator.Database) (relays.State, error) {
	return relays.Find(c.Context, db, c.String("relay"), c.String("slot"))
}
