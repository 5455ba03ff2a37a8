package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/migrations"
)

// adoptReport is the JSON answer of windows adopt.
type adoptReport struct {
	Group  string            `json:"group"`
	Made   []string          `json:"partitions_made"`
	Floors map[string]string `json:"floors"` // by class
	Reason string            `json:"reason"`
}

func windowsAdopt(c *cli.Context) error {
	cfg, err := readAdopt(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	plan := cfg
	plan.DryRun = true
	planned, err := adopt(c.Context, db, plan)
	if err != nil {
		return explainAdopt(err)
	}
	from := cfg.From.UTC().Format(time.DateOnly)
	if err := confirm(c, fmt.Sprintf("let the new group %s (classes %s) claim events from %s on, and make %d partitions for it", cfg.Group, strings.Join(planned.Classes, ", "), from, len(planned.Made))); err != nil {
		return err
	}
	done, err := adopt(c.Context, db, cfg)
	if err != nil {
		return explainAdopt(err)
	}
	report := &adoptReport{Group: cfg.Group, Made: operator.NotNil(done.Made), Floors: make(map[string]string), Reason: cfg.Reason}
	for class, floor := range done.Floors {
		report.Floors[class] = floor.UTC().Format(time.RFC3339)
	}
	return answer(c, report, func(p *page, report *adoptReport) {
		for _, class := range done.Classes {
			p.line("group %s class %s: floor %s", cfg.Group, class, report.Floors[class])
		}
		if n := len(report.Made); n > 0 {
			p.line("made %d partitions: %s to %s", n, report.Made[0], report.Made[n-1])
		}
		p.line("start the group at the oldest offset, with these very classes in its program's configuration")
	})
}

func adopt(ctx context.Context, db *operator.Database, cfg consumer.AdoptConfig) (report consumer.AdoptReport, err error) {
	err = db.Direct(ctx, func(conn *pgx.Conn) (err error) {
		report, err = consumer.Adopt(ctx, conn, cfg)
		return err
	})
	return report, err
}

// readAdopt checks what needs no server.
func readAdopt(c *cli.Context) (cfg consumer.AdoptConfig, err error) {
	if err := checkOutput(c); err != nil {
		return cfg, err
	}
	switch {
	case c.NArg() != 1:
		return cfg, usage("%s takes one GROUP, got %d arguments", c.Command.HelpName, c.NArg())
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

// explainAdopt names the role: partitions are made by the owner of the table.
func explainAdopt(err error) error {
	switch {
	case errors.Is(err, consumer.ErrMaintained):
		return fmt.Errorf("%w; try again when it has ended", err)
	case operator.Denied(err):
		return fmt.Errorf("%w; connect as a member of the role onceward_consumer_maintainer: `outboxctl migrate roles --side consumer --print` shows how to make one", err)
	}
	return operator.Explain(err, migrations.Consumer)
}
