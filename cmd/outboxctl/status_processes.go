package main

import (
	"slices"
	"strconv"

	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/terminal"
)

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
				rows = append(rows, append(slices.Clone(first), what, events, terminal.Stamp(&w.Since), short(w.Detail)))
			}
		}
	}
	return rows
}
