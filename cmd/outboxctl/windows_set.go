package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/migrations"
)

// windowChange is the JSON answer of windows set and windows retire.
type windowChange struct {
	Group   string   `json:"group"`
	Class   string   `json:"class,omitempty"`
	Topic   *string  `json:"topic,omitempty"`
	Changed []string `json:"changed"`
	Reason  string   `json:"reason"`
	Notes   []string `json:"notes"`
}

// configWins is said wherever the program's configuration says it too.
const configWins = "the program's configuration wins at its next start: change it there too"

func windowsSet(c *cli.Context) error {
	change, params, err := readWindowSet(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := confirm(c, fmt.Sprintf("set %s of class %s of group %s", strings.Join(change.Changed, ", "), change.Class, change.Group)); err != nil {
		return err
	}
	n, err := consumerdb.New(db).SetWindow(c.Context, params)
	if err == nil && n == 0 {
		err = errNoClass
	}
	if err != nil {
		return fmt.Errorf("windows set %s %s: %w", change.Group, change.Class, explainOperator(err, migrations.Consumer))
	}
	return answer(c, change, change.print)
}

// readWindowSet checks what needs no server.
func readWindowSet(c *cli.Context) (change *windowChange, p consumerdb.SetWindowParams, err error) {
	if err := checkOutput(c); err != nil {
		return nil, p, err
	}
	if c.NArg() != 2 {
		return nil, p, usage("%s takes GROUP and CLASS, got %d arguments; quote a class that ends with *", c.Command.HelpName, c.NArg())
	}
	change = &windowChange{
		Group: c.Args().Get(0), Class: c.Args().Get(1),
		Notes: []string{configWins, "members that run go by their configuration; retention goes by this from its next run on"},
	}
	p = consumerdb.SetWindowParams{ConsumerGroup: change.Group, Class: change.Class}
	if c.IsSet("window") {
		window, err := readWindow(c.String("window"))
		if err != nil {
			return nil, p, err
		}
		p.NewWindow = pgtype.Interval{Microseconds: window.Microseconds(), Valid: true}
		change.Changed = append(change.Changed, "window "+lengthText(window))
	}
	for _, policy := range []struct {
		flag    string
		allowed []string
		into    **string
	}{
		{"late", []string{string(consumer.LateProcess), string(consumer.LateDeadLetter)}, &p.NewLate},
		{"replay", []string{string(consumer.ReplayDeadLetter), string(consumer.ReplayProcess)}, &p.NewReplay},
	} {
		if !c.IsSet(policy.flag) {
			continue
		}
		value := c.String(policy.flag)
		if !slices.Contains(policy.allowed, value) {
			return nil, p, usage("--%s %q: want %s", policy.flag, value, strings.Join(policy.allowed, " or "))
		}
		*policy.into = &value
		change.Changed = append(change.Changed, policy.flag+" "+value)
	}
	if len(change.Changed) == 0 {
		return nil, p, usage("%s: say what to change: --window, --late or --replay", c.Command.HelpName)
	}
	p.Did = ": " + strings.Join(change.Changed, ", ")
	change.Reason, err = readReason(c)
	p.Reason = change.Reason
	return change, p, err
}

func (r *windowChange) print(p *page) {
	p.line("group %s%s: %s", r.Group, ofClass(r.Class), strings.Join(r.Changed, ", "))
	for _, note := range r.Notes {
		p.line("%s", note)
	}
}

func ofClass(class string) string {
	if class == "" {
		return ""
	}
	return " class " + class
}
