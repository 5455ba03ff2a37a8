package main

import (
	"encoding/json"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/fences"
)

func fencesReconcile(c *cli.Context) error {
	made := c.Bool("made")
	switch {
	case made == c.Bool("not-made"):
		return usage("%s: give one of --made and --not-made: ask the provider first", c.Command.HelpName)
	case !made && (c.IsSet("result") || c.IsSet("type")):
		return usage("%s: --result and --type go with --made", c.Command.HelpName)
	case c.IsSet("result") && !json.Valid([]byte(c.String("result"))):
		return usage("--result %q: want JSON, e.g. '{\"charge\": \"ch_1\"}'", c.String("result"))
	}
	return settle(c, func(db *operator.Database, one fences.One) (operator.Order[*fences.Settled], error) {
		if !made {
			return fences.PlanNotMade(c.Context, db, one)
		}
		var result []byte
		if c.IsSet("result") {
			result = []byte(c.String("result"))
		}
		return fences.PlanMade(c.Context, db, one, c.String("type"), result)
	})
}

func fencesRelease(c *cli.Context) error {
	return settle(c, func(db *operator.Database, one fences.One) (operator.Order[*fences.Settled], error) {
		return fences.PlanRelease(c.Context, db, one)
	})
}

// settle finds the fence, asks and does what is planned for it.
func settle(c *cli.Context, plan func(*operator.Database, fences.One) (operator.Order[*fences.Settled], error)) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	do, err := plan(db, fences.One{Key: key, Group: c.String("group"), Name: c.String("name")})
	if err != nil {
		return err
	}
	if err := confirm(c, do.Question()); err != nil {
		return err
	}
	report, err := do.CarryOut(c.Context, db, reason)
	if err != nil {
		return fmt.Errorf("%s %s: %w", c.Command.HelpName, key, err)
	}
	return answer(c, report, printSettled)
}

func printSettled(p *page, r *fences.Settled) {
	did := map[string]string{"made": "recorded as made", "not-made": "free to be made again", "released": "released"}[r.Did]
	p.line("fence %s of %s, group %s: %s, epoch %d", short(r.Name), r.Key, r.Group, did, r.Epoch)
	for _, note := range r.Notes {
		p.line("%s", note)
	}
}
