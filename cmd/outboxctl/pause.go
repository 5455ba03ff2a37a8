package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/migrations"
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
		Action: func(c *cli.Context) error { return rest(c, true) },
	}
}

func resumeCommand() *cli.Command {
	return &cli.Command{
		Name:   "resume",
		Usage:  "let a paused relay, or one of its routes, go on",
		Flags:  append([]cli.Flag{&cli.StringSliceFlag{Name: "route", Usage: "only what goes to `TOPIC`; without it the relay goes on, and paused routes stay so"}}, relayFlags()...),
		Action: func(c *cli.Context) error { return rest(c, false) },
	}
}

// wordsReport is the JSON answer of pause and resume: what rests from now on.
type wordsReport struct {
	Relay        string   `json:"relay"`
	Slot         string   `json:"slot"`
	Paused       bool     `json:"paused"`
	PausedRoutes []string `json:"paused_routes"`
	Resumed      []string `json:"resumed,omitempty"`    // routes that go on
	Unknown      []string `json:"not_paused,omitempty"` // routes that were to be resumed
	NotKnown     []string `json:"not_known,omitempty"`  // routes that were paused, and that the relay has not used
	Topics       []string `json:"topics,omitempty"`     // that it has used, where some are not known
}

// rest is pause and resume.
func rest(c *cli.Context, paused bool) error {
	routes := c.StringSlice("route")
	if err := relayArguments(c); err != nil {
		return err
	}
	if slices.Contains(routes, "") {
		return usage("--route is empty; want a topic")
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
	report, err := setRest(c.Context, outboxdb.New(db), state.Slot, paused, routes)
	if err != nil {
		return fmt.Errorf("%s relay %s: %w", c.Command.Name, state.Relay, operator.ExplainWrite(err))
	}
	if paused && len(routes) > 0 {
		if err := report.addNotKnown(c.Context, outboxdb.New(db), routes); err != nil {
			return fmt.Errorf("the routes are paused; look whether they are known: %w", operator.Explain(err, migrations.Outbox))
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
	if err := answer(c, report, printResting); err != nil {
		return err
	}
	if len(report.Unknown) > 0 {
		return errWrong
	}
	return nil
}

// addNotKnown names the routes to which the relay has written nothing, as far as the
// database knows: it may be that they are new, or that a name is wrong.
func (r *wordsReport) addNotKnown(ctx context.Context, q *outboxdb.Queries, routes []string) error {
	rows, err := q.KafkaTopics(ctx, r.Slot)
	if err != nil {
		return err
	}
	held, err := q.HeldLanes(ctx, maxParkedShown)
	if err != nil {
		return err
	}
	var topics []string
	for _, v := range rows {
		topics = append(topics, v.Topic)
	}
	for _, route := range routes {
		waits := slices.ContainsFunc(held, func(v outboxdb.HeldLanesRow) bool { return v.Slot == r.Slot && v.Topic == route })
		if !slices.Contains(topics, route) && !waits {
			r.NotKnown, r.Topics = append(r.NotKnown, route), topics
		}
	}
	return nil
}

func setRest(ctx context.Context, q *outboxdb.Queries, slot string, paused bool, routes []string) (*wordsReport, error) {
	var row outboxdb.PauseRow
	var err error
	switch {
	case len(routes) == 0:
		row, err = q.Pause(ctx, outboxdb.PauseParams{Slot: slot, Paused: paused})
	case paused:
		var v outboxdb.PauseRoutesRow
		v, err = q.PauseRoutes(ctx, outboxdb.PauseRoutesParams{Slot: slot, Routes: routes})
		row = outboxdb.PauseRow(v)
	default:
		var v outboxdb.ResumeRoutesRow
		v, err = q.ResumeRoutes(ctx, outboxdb.ResumeRoutesParams{Slot: slot, Routes: routes})
		row = outboxdb.PauseRow(v)
	}
	return &wordsReport{Relay: row.Relay, Slot: row.Slot, Paused: row.Paused, PausedRoutes: operator.NotNil(row.PausedRoutes)}, err
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

// theRelay finds the relay that is meant: the only one, or that of the flags.
func theRelay(c *cli.Context, db *operator.Database) (outboxdb.RelayState, error) {
	states, err := outboxdb.New(db).RelayStates(c.Context)
	if err != nil {
		return outboxdb.RelayState{}, fmt.Errorf("look for relays: %w", operator.Explain(err, migrations.Outbox))
	}
	name, slot := c.String("relay"), c.String("slot")
	var names []string
	var meant []outboxdb.RelayState
	for _, v := range states {
		names = append(names, fmt.Sprintf("%s (slot %s)", v.Relay, v.Slot))
		if (name == "" || v.Relay == name) && (slot == "" || v.Slot == slot) {
			meant = append(meant, v)
		}
	}
	switch {
	case len(states) == 0:
		return outboxdb.RelayState{}, errors.New("no relay has run on this database yet")
	case len(meant) == 0:
		return outboxdb.RelayState{}, usage("no relay %s%s here; there are %s", name, slot, strings.Join(names, ", "))
	case len(meant) > 1:
		return outboxdb.RelayState{}, usage("which relay? there are %s; give --relay or --slot", strings.Join(names, ", "))
	}
	return meant[0], nil
}

func printResting(p *page, r *wordsReport) {
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
