package main

import (
	"log/slog"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/kafka"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay"
)

// whereabouts says in which database and in which cluster show looks.
type whereabouts struct {
	kafka.Where
	dsn string // of --config; empty: of the flags and the environment
}

func whereToLook(c *cli.Context) (whereabouts, error) {
	w, cfg, err := clusterToAsk(c)
	if err != nil || !w.Routed {
		return w, err
	}
	given, _, err := callersDSN(c)
	if err == nil && given == "" {
		w.dsn, err = cfg.DSN()
	}
	return w, err
}

// clusterToAsk leaves the configuration's DSN alone: it is the relay's, who may
// not do what an operator may.
func clusterToAsk(c *cli.Context) (whereabouts, *relay.Config, error) {
	w := whereabouts{Where: kafka.Where{Config: publisher.Config{Brokers: c.StringSlice("brokers")}, Topic: c.String("topic")}}
	if c.String("config") == "" {
		return w, nil, nil
	}
	cfg, err := loadConfig(c)
	if err != nil {
		return w, nil, err
	}
	if w.Config, err = cfg.Publisher(slog.New(slog.DiscardHandler)); err != nil {
		return w, nil, err
	}
	w.Routed, w.Slot = true, cfg.SlotName()
	return w, &cfg, nil
}

func (w whereabouts) connect(c *cli.Context) (*operator.Database, error) {
	if w.dsn == "" {
		return connect(c)
	}
	return operator.Open(c.Context, w.dsn)
}
