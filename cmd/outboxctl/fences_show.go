package main

import (
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/fences"
	"github.com/onceward/onceward/internal/terminal"
)

func fencesList(c *cli.Context) error {
	filter, err := readFencesList(c)
	if err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*fences.Report, error) {
		return fences.List(c.Context, db, filter, c.Int("limit"))
	}, printFenceReport)
}

// readFencesList checks what needs no server.
func readFencesList(c *cli.Context) (f fences.Filter, err error) {
	if err := checkOutput(c); err != nil {
		return f, err
	}
	if err := noArgument(c, "to look at one event: outboxctl fences show KEY"); err != nil {
		return f, err
	}
	if err := checkLimit(c); err != nil {
		return f, err
	}
	if c.Bool("all") && (c.Bool("stale") || c.Bool("expired")) {
		return f, usage("%s: --all goes without --stale and --expired, which are of PENDING fences", c.Command.HelpName)
	}
	return fences.Filter{Group: c.String("group"), Expired: c.Bool("expired"), Waiting: c.Bool("stale"), Complete: c.Bool("all")}, nil
}

func fencesShow(c *cli.Context) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*fences.Report, error) {
		report, err := fences.Show(c.Context, db, key, c.String("group"))
		return report, prefixed("fences show "+key.String(), err)
	}, printFenceReport)
}

func printFences(p *page, list []fences.Fence) {
	var rows [][]string
	for _, f := range list {
		ended := f.LeaseUntil
		if f.CompletedAt != nil {
			ended = *f.CompletedAt
		}
		key := f.Key
		if key == "" {
			key = f.ID.String()
		}
		rows = append(rows, []string{
			key, f.Group, short(f.Name), f.State(), strconv.FormatInt(f.Epoch, 10), terminal.Stamp(&f.BegunAt),
			terminal.Stamp(&ended), terminal.Stamp(f.ProviderKeyUntil),
		})
	}
	p.table([]string{"fence of", "group", "name", "state…", "epoch?", "begun??", "lease or end?", "provider's key until??"}, rows)
}

func printFenceReport(p *page, r *fences.Report) {
	switch {
	case len(r.Fences) == 0 && r.Key != "":
		p.line("no group has a fence of %s", r.Key)
	case len(r.Fences) == 0:
		p.line("none")
	}
	printFences(p, r.Fences)
	if r.More {
		p.line("\nthere are more; raise --limit")
	}
	for _, f := range r.Fences {
		if f.ProviderKey != "" {
			p.line("\n%s of group %s: the provider was given the key %s", short(f.Name), f.Group, terminal.Preview([]byte(f.ProviderKey), 2*terminal.PreviewBytes))
		}
		if f.ProviderKey != "" && f.Result != nil {
			p.line("result: %s", terminal.Preview(f.Result, 2000))
		}
	}
	printActions(p, r.Past)
}
