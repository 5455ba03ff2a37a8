package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/windows"
)

func windowsSet(c *cli.Context) error {
	setting, reason, err := readWindowSet(c)
	if err != nil {
		return err
	}
	return order(c, reason, func(db *operator.Database) (operator.Order[*windows.Change], error) {
		return windows.PlanSet(c.Context, db, setting)
	}, printWindowChange)
}

// readWindowSet checks what needs no server.
func readWindowSet(c *cli.Context) (s windows.Setting, reason string, err error) {
	if err := checkOutput(c); err != nil {
		return s, "", err
	}
	if c.NArg() != 2 {
		return s, "", usage("%s takes GROUP and CLASS, got %s; quote a class that ends with *", c.Command.HelpName, label.Count(c.NArg(), "argument"))
	}
	s.Group, s.Class = c.Args().Get(0), c.Args().Get(1)
	if c.IsSet("window") {
		if s.Window, err = readWindow(c.String("window")); err != nil {
			return s, "", err
		}
	}
	for _, policy := range []struct {
		flag    string
		allowed []string
		into    *string
	}{
		{"late", []string{string(consumer.LateProcess), string(consumer.LateDeadLetter)}, &s.Late},
		{"replay", []string{string(consumer.ReplayDeadLetter), string(consumer.ReplayProcess)}, &s.Replay},
	} {
		if !c.IsSet(policy.flag) {
			continue
		}
		*policy.into = c.String(policy.flag)
		if !slices.Contains(policy.allowed, *policy.into) {
			return s, "", usage("--%s %q: want %s", policy.flag, *policy.into, strings.Join(policy.allowed, " or "))
		}
	}
	if len(s.Changes()) == 0 {
		return s, "", usage("%s: say what to change: --window, --late or --replay", c.Command.HelpName)
	}
	reason, err = readReason(c)
	return s, reason, err
}

func printWindowChange(p *page, r *windows.Change) {
	p.line("group %s%s: %s", r.Group, windows.OfClass(r.Class), strings.Join(r.Changed, ", "))
	for _, note := range r.Notes {
		p.line("%s", note)
	}
}
