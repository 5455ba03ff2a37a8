package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/status"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/internal/terminal/device"
	"github.com/onceward/onceward/internal/terminal/watch"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "say how relays, slots, partitions and dead letters of a producer's database are",
		Description: "With --watch it asks again and again, until it is interrupted, and then ends as the last look would have. What\n" +
			"is wrong stands first. At a terminal each answer takes the place of the one before; elsewhere they follow one\n" +
			"another, each under its time, in JSON an object a line. A look that fails, or has no answer for 10 seconds, is\n" +
			"shown, and the next one tries again.",
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "watch", Usage: "ask again and again, until interrupted"},
			&cli.DurationFlag{Name: "every", Value: 2 * time.Second, Usage: "with --watch: the `TIME` between two looks"},
			outputFlag(),
		}, dsnFlags()...),
		Action: showStatus,
	}
}

func showStatus(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, ""); err != nil {
		return err
	}
	const least = 100 * time.Millisecond
	switch {
	case c.Bool("watch") && c.Duration("every") < least:
		return usage("--every %s: want %s or more", c.Duration("every"), least)
	case c.Bool("watch"):
		return watchStatus(c)
	case c.IsSet("every"):
		return usage("--every goes with --watch")
	}
	return ask(c, func(db *operator.Database) (*status.Report, error) {
		report, err := status.Read(c.Context, db)
		return report, prefixed("read status", err)
	}, printStatus)
}

// watchStatus keeps its connections from look to look. After a failed one it connects
// anew, and so with a password that was changed meanwhile.
func watchStatus(c *cli.Context) error {
	var db *operator.Database
	end := func() {
		if db != nil {
			db.Close()
		}
		db = nil
	}
	defer end()
	lines := func() int {
		if c.String("output") == outputJSON {
			return 0
		}
		return device.Lines(c.App.Writer)
	}
	w := watch.Watch{To: c.App.Writer, Every: c.Duration("every"), Patience: 10 * time.Second, Lines: lines}
	return w.Run(c.Context, func(ctx context.Context) watch.Answer {
		look := statusLook{At: time.Now().UTC()}
		looking := *c
		looking.Context = ctx
		var err error
		if db == nil {
			db, err = connect(&looking)
		}
		if err == nil {
			look.Report, err = status.Read(ctx, db)
			err = prefixed("read status", err)
		}
		if err != nil {
			end()
		}
		return look.answer(&looking, err)
	})
}

// statusLook is one look at how a database is, or why that cannot be told.
type statusLook struct {
	At time.Time `json:"at"`
	*status.Report
	Error string `json:"error,omitempty"`
}

func (l statusLook) answer(c *cli.Context, err error) watch.Answer {
	var wrongCall *usageError
	var unclear *operator.UnclearError
	switch {
	case errors.As(err, &wrongCall), errors.As(err, &unclear):
		return watch.Answer{Err: err, Over: true}
	case err != nil:
		l.Error = secret.Scrub(err.Error(), []string{c.String("dsn"), c.String("dsn-file")})
	case l.Wrong():
		err = errWrong
	}
	if c.String("output") == outputJSON {
		text, failed := document(l, "")
		return watch.Answer{Text: text, Err: errors.Join(err, failed), Over: failed != nil}
	}
	p := newPage(c, c.App.Writer)
	p.line("%s, again every %s", terminal.Stamp(&l.At), c.Duration("every"))
	if l.Error != "" {
		p.line("! %s", strings.ReplaceAll(l.Error, "\n", "; "))
	} else { // a terminal that is too short cuts the end off
		if printProblems(p, l.Problems); l.Wrong() {
			p.line("")
		}
		printRelays(p, l.Report)
	}
	return watch.Answer{Text: p.text.String() + "\n", Err: err}
}

func printStatus(p *page, r *status.Report) {
	printRelays(p, r)
	printProblems(p, r.Problems)
}

func printRelays(p *page, r *status.Report) {
	p.pairs(
		[2]string{"database", r.Database},
		[2]string{"outbox", aboutRows(r.Rows)},
		[2]string{"partitions", r.Partitions.String()},
	)
	var rows, letters [][]string
	for _, v := range r.Relays {
		pid := "-"
		if v.ActivePID != nil && v.SlotTaken == "" {
			pid = strconv.Itoa(int(*v.ActivePID))
		}
		wal, retained, lag := v.WALStatus, terminal.Size(v.RetainedBytes), terminal.Size(v.LagBytes)
		if !v.SlotExists {
			wal, retained, lag = "no slot", "-", "-"
		}
		rows = append(rows, []string{orDash(v.Relay), v.Slot, orDash(v.Mode), strconv.FormatInt(v.Epoch, 10),
			orDash(v.ConfirmedLSN), pid, wal, retained, lag})
	}
	for _, l := range r.DeadLetters {
		letters = append(letters, []string{l.Slot, l.State, strconv.FormatInt(l.Letters, 10)})
	}
	p.table([]string{"relay", "slot?", "mode?", "epoch??", "confirmed??", "pid??", "wal", "retained", "lag"}, rows)
	p.table([]string{"process", "relay?", "state!…", "since??", "waits for…", "events?", "waits since??", "why…"}, processRows(r.Relays))
	p.table([]string{"dead letters", "state", "count"}, letters)
	var held [][]string
	for _, v := range r.Held {
		held = append(held, []string{short(v.Name()), strconv.FormatInt(v.Events, 10), strconv.FormatInt(v.Orders, 10),
			terminal.Stamp(&v.Since)})
	}
	p.table([]string{"held", "events", "orders?", "since?"}, held)
	p.table([]string{"topic made anew", "slot??", "times?", "last??", "records of the one before?"}, remadeRows(r.Remade))
	p.table([]string{"parked aggregate…", "slot??", "letters?", "since?", "behind", "why…"}, parkedRows(r.Parked))
	if len(r.Relays) == 0 {
		p.line("\n%s", label.NoRelay)
	}
}

func parkedRows(parked []status.Parked) (rows [][]string) {
	for _, v := range parked {
		rows = append(rows, []string{
			short(v.Namespace + " " + v.AggregateType + " " + v.AggregateID), v.Slot, strconv.FormatInt(v.Letters, 10), terminal.Stamp(&v.Since),
			v.First, v.Class + ": " + whole(v.Error),
		})
	}
	return rows
}

// aboutRows says how many rows the planner takes a table to have.
func aboutRows(n int64) string {
	if n < 0 {
		return "not analysed yet"
	}
	return "about " + label.Count(n, "row")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// remadeRows says "at least": what a session that ended by an error wrote since the
// last count is in none.
func remadeRows(topics []status.RemadeTopic) (rows [][]string) {
	for _, t := range topics {
		rows = append(rows, []string{t.Topic, t.Slot, strconv.Itoa(int(t.Times)), terminal.Stamp(&t.Last), "at least " + strconv.FormatInt(t.Records, 10)})
	}
	return rows
}

// processRows has one line for each thing that a process waits for, and one for
// a process that waits for nothing.
func processRows(known []relays.Relay) (rows [][]string) {
	for _, r := range known {
		for _, p := range r.Processes {
			state := p.State
			if !p.Alive {
				state = "not connected (was " + p.State + ")"
			}
			first := []string{p.Process, orDash(r.Relay), state, terminal.Stamp(&p.Since)}
			if len(p.Waiting) == 0 {
				rows = append(rows, append(first, "-", "-", "-", orDash(whole(p.Error))))
			}
			for _, w := range p.Waiting {
				what := w.For
				if w.What != "" {
					what += " " + short(w.What)
				}
				events := "-"
				if w.Events > 0 {
					events = strconv.Itoa(w.Events)
				}
				rows = append(rows, append(slices.Clone(first), what, events, terminal.Stamp(&w.Since),
					whole(w.Detail)))
			}
		}
	}
	return rows
}
