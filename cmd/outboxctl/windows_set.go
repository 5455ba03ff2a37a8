package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// windowChange is the JSON answer of windows set, raise and retire.
type windowChange struct {
	Group   string   `json:"group"`
	Class   string   `json:"class,omitempty"`
	Topic   *string  `json:"topic,omitempty"`
	Changed []string `json:"changed"`
	Reason  string   `json:"reason"`
	Notes   []string `json:"notes"`
}

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
	if err := changeBuckets(c, db, change, &params); err != nil {
		return fmt.Errorf("windows set %s %s: %w", change.Group, change.Class, operator.ExplainOperator(err, migrations.Consumer))
	}
	if err := confirm(c, fmt.Sprintf("set %s of class %s of group %s", strings.Join(change.Changed, ", "), change.Class, change.Group)); err != nil {
		return err
	}
	n, err := consumerdb.New(db).SetWindow(c.Context, params)
	if err == nil && n == 0 {
		err = errNoClass
	}
	if err != nil {
		return fmt.Errorf("windows set %s %s: %w", change.Group, change.Class, operator.ExplainOperator(err, migrations.Consumer))
	}
	return answer(c, change, printWindowChange)
}

// changeBuckets says of a new window what becomes of the buckets in which the class
// claims by arrival.
func changeBuckets(c *cli.Context, db *operator.Database, change *windowChange, p *consumerdb.SetWindowParams) error {
	q := consumerdb.New(db)
	rows, err := q.ListWindows(c.Context, change.Group)
	if err != nil {
		return err
	}
	now, err := q.DatabaseTime(c.Context)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(rows, func(v consumerdb.ListWindowsRow) bool { return v.Class == change.Class && v.RetiredAt == nil })
	if at < 0 {
		return errNoClass
	}
	if !p.NewWindow.Valid {
		return nil
	}
	keyed, window := consumer.Keying(rows[at].Keyed), time.Duration(p.NewWindow.Microseconds)*time.Microsecond
	length, buckets := consumer.BucketOf(keyed, window), bucketsOf(rows[at])
	switch {
	case keyed == consumer.ByArrival && length != window:
		return usage("--window %s: want at most %s of a class that is keyed by arrival", terminal.Length(window), terminal.Length(length))
	case keyed == consumer.ByEventTime:
		change.Notes = append(change.Notes, "a program whose configuration says a longer window lengthens it again at its next start: change the configuration first")
	}
	if rows[at].BucketMs == 0 && window.Milliseconds() != rows[at].WindowMs {
		return fmt.Errorf("no program of this release has registered it: the buckets of arrivals are as long as its window until then, and copies of what is claimed in them would be applied again; "+
			"start the group's program first, or retire the class where there is none any more: `outboxctl windows retire --class %s --reason \"…\" %s`",
			terminal.Word(p.Class), terminal.Arguments(p.ConsumerGroup))
	}
	if rows[at].BucketMs == 0 || length == buckets.Length {
		return nil
	}
	if buckets.Changing(now) {
		return fmt.Errorf("its buckets are being changed from %s to %s until %s: try again then", terminal.Length(buckets.Old), terminal.Length(buckets.Length), buckets.OldUntil.UTC().Format(time.RFC3339))
	}
	p.NewBucket = pgtype.Interval{Microseconds: length.Microseconds(), Valid: true}
	change.Changed = append(change.Changed, fmt.Sprintf("buckets of arrivals %s, from %s", terminal.Length(length), terminal.Length(buckets.Length)))
	p.Did = ": " + strings.Join(change.Changed, ", ")
	change.Notes = append(change.Notes, "what is claimed by arrival is claimed in the buckets of before as well until no copy can miss it any more")
	return nil
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
		Notes: []string{"members that run go by it within ten seconds, retention from its next run on"},
	}
	p = consumerdb.SetWindowParams{ConsumerGroup: change.Group, Class: change.Class}
	if c.IsSet("window") {
		window, err := readWindow(c.String("window"))
		if err != nil {
			return nil, p, err
		}
		p.NewWindow = pgtype.Interval{Microseconds: window.Microseconds(), Valid: true}
		change.Changed = append(change.Changed, "window "+terminal.Length(window))
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

func printWindowChange(p *page, r *windowChange) {
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
