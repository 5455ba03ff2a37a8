package main

import (
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/status"
	"github.com/onceward/onceward/internal/terminal"

	"slices"

	"github.com/onceward/onceward/internal/operator/relays"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:   "status",
		Usage:  "say how relays, slots, partitions and dead letters of a producer's database are",
		Flags:  append([]cli.Flag{outputFlag()}, dsnFlags()...),
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
	return ask(c, func(db *operator.Database) (*status.Report, error) {
		report, err := status.Read(c.Context, db)
		return report, prefixed("read status", err)
	}, printStatus)
}

func printStatus(p *page, r *status.Report) {
	p.pairs(
		[2]string{"database", r.Database},
		[2]string{"outbox", aboutRows(r.Rows)},
		[2]string{"partitions", r.Partitions.String()},
	)
	var rows, letters [][]string
	for _, v := range r.Relays {
		pid := "-"
		if v.ActivePID != nil {
			pid = strconv.Itoa(int(*v.ActivePID))
		}
		wal, retained, lag := v.WALStatus, terminal.Size(v.RetainedBytes), terminal.Size(v.LagBytes)
		if !v.SlotExists {
			wal, retained, lag = "no slot", "-", "-"
		}
		rows = append(rows, []string{
			orDash(v.Relay), v.Slot, orDash(v.Mode), strconv.FormatInt(v.Epoch, 10), orDash(v.ConfirmedLSN), pid, wal,
			retained, lag,
		})
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
		p.line("\nno relay is known here: none has begun yet, or all were retired")
	}
	if len(r.Problems) > 0 {
		p.line("")
	}
	for _, problem := range r.Problems {
		p.line("! %s", problem)
	}
}

func parkedRows(parked []status.Parked) (rows [][]string) {
	for _, v := range parked {
		rows = append(rows, []string{
			short(v.Namespace + " " + v.AggregateType + " " + v.AggregateID), v.Slot, strconv.FormatInt(v.Letters, 10), terminal.Stamp(&v.Since),
			v.First, v.Class + ": " + short(v.Error),
		})
	}
	return rows
}

// aboutRows says how many rows the planner takes a table to have.
func aboutRows(n int64) string {
	if n < 0 {
		return "not analysed yet"
	}
	return fmt.Sprintf("about %d rows", n)
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
				rows = append(rows, append(first, "-", "-", "-", orDash(short(p.Error))))
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
					short(w.Detail)))
			}
		}
	}
	return rows
}
