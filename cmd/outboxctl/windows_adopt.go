package main

import (
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/windows"
)

func windowsAdopt(c *cli.Context) error {
	cfg, err := readAdopt(c)
	if err != nil {
		return err
	}
	return order(c, cfg.Reason, func(db *operator.Database) (operator.Order[*windows.Adoption], error) {
		return windows.PlanAdopt(c.Context, db, cfg)
	}, printAdoption)
}

func printAdoption(p *page, r *windows.Adoption) {
	for _, class := range r.Classes {
		p.line("group %s class %s: floor %s", r.Group, class, r.Floors[class])
	}
	if n := len(r.Made); n > 0 {
		p.line("made %s: %s to %s", label.Count(n, "partition"), r.Made[0], r.Made[n-1])
	}
	p.line("start the group at the oldest offset, with these very classes in its program's configuration")
}

// readAdopt checks what needs no server.
func readAdopt(c *cli.Context) (cfg retention.AdoptConfig, err error) {
	if err := checkOutput(c); err != nil {
		return cfg, err
	}
	switch {
	case c.NArg() != 1:
		return cfg, usage("%s takes one GROUP, got %s", c.Command.HelpName, label.Count(c.NArg(), "argument"))
	case c.String("from") == "":
		return cfg, usage("%s: --from is missing; want the event time of the oldest event to claim", c.Command.HelpName)
	}
	cfg.Group = c.Args().First()
	if cfg.From, err = readTime("from", c.String("from")); err != nil {
		return cfg, err
	}
	window, err := readWindow(c.String("window"))
	if err != nil {
		return cfg, err
	}
	classes := c.StringSlice("class")
	if c.IsSet("window") && len(classes) == 0 {
		classes = []string{"*"}
	}
	for _, pattern := range classes {
		cfg.Classes = append(cfg.Classes, consumer.Class{Pattern: pattern, Window: window})
	}
	cfg.Reason, err = readReason(c)
	return cfg, err
}
