package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/relay"
)

// processReport is what a relay process said last of itself, and whether it
// lives.
type processReport struct {
	Process string       `json:"process"`
	Alive   bool         `json:"alive"`
	State   string       `json:"state"`
	Since   time.Time    `json:"since"`
	Code    string       `json:"code,omitempty"`
	Error   string       `json:"error,omitempty"`
	Waiting []relay.Wait `json:"waiting"`
	At      time.Time    `json:"written_at"`
}

// readRelays reads all relays, with their slots and processes.
func readRelays(ctx context.Context, q *outboxdb.Queries) ([]relayReport, error) {
	states, err := q.RelayStates(ctx)
	if err != nil {
		return nil, err
	}
	slots, err := q.Slots(ctx)
	if err != nil {
		return nil, err
	}
	health, err := processesKnown(ctx, q)
	if err != nil {
		return nil, err
	}
	relays, err := joinProcesses(joinSlots(states, slots), health)
	if err != nil {
		return nil, err
	}
	return relays, noteSlotsElsewhere(ctx, q, relays)
}

// noteSlotsElsewhere says of which slots only the name is a relay's of this database.
func noteSlotsElsewhere(ctx context.Context, q *outboxdb.Queries, relays []relayReport) error {
	slots, err := q.SlotsElsewhere(ctx)
	for _, s := range slots {
		for i := range relays {
			if relays[i].Slot == s.Slot {
				relays[i].SlotOf = s.Database
			}
		}
	}
	return err
}

// processesKnown lists the processes: none for a role that may not read them, until
// the roles are brought up to date.
func processesKnown(ctx context.Context, q *outboxdb.Queries) ([]outboxdb.RelayHealthRow, error) {
	rows, err := q.RelayHealth(ctx)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
		return nil, nil
	}
	return rows, err
}

// joinProcesses adds the processes of each relay, and the relays that have nothing
// but processes: they have not begun.
func joinProcesses(relays []relayReport, rows []outboxdb.RelayHealthRow) ([]relayReport, error) {
	for i := range relays {
		relays[i].Processes = []processReport{}
	}
	for _, row := range rows {
		p := processReport{
			Process: row.Process, Alive: row.Alive, State: row.State, Since: row.Since.UTC(), Code: row.Code, Error: row.Detail,
			Waiting: []relay.Wait{}, At: row.WrittenAt.UTC(),
		}
		if err := json.Unmarshal(row.Waits, &p.Waiting); err != nil {
			return nil, fmt.Errorf("read what process %s waits for: %w", row.Process, err)
		}
		i := slices.IndexFunc(relays, func(r relayReport) bool { return r.Slot == row.Slot })
		if i < 0 {
			i = len(relays)
			relays = append(relays, relayReport{Slot: row.Slot, PausedRoutes: []string{}, Skip: []uuid.UUID{}})
		}
		if r := &relays[i]; r.Relay == "" {
			r.Relay, r.NotBegun = row.Relay, true
		}
		relays[i].Processes = append(relays[i].Processes, p)
	}
	return relays, nil
}

// streams reports whether some process of the relay publishes now.
func (r *relayReport) streams() bool {
	return slices.ContainsFunc(r.Processes, func(p processReport) bool { return p.Alive && p.State == string(relay.StateStreaming) }) ||
		len(r.Processes) == 0 && r.ActivePID != nil // they cannot be read
}

// noteRepairs says of gaps under repair that nobody repairs them now.
func noteRepairs(gaps []gapReport, relays []relayReport) {
	for i := range gaps {
		g := &gaps[i]
		runs := slices.ContainsFunc(relays, func(r relayReport) bool { return r.Slot == g.Slot && r.streams() })
		if g.State == gapRepairing && !runs {
			g.Note = "once it runs"
		}
	}
}

// lives reports whether some process of the relay is there, whatever it does.
func (r *relayReport) lives() bool {
	for _, p := range r.Processes {
		if p.Alive {
			return true
		}
	}
	return false
}

// lastWords are those of the process that said something last. Whether it has ended
// is not known here: one that cannot log in, or cannot write, says nothing either.
func (r *relayReport) lastWords() string {
	var last *processReport
	for i, p := range r.Processes {
		if last == nil || p.At.After(last.At) {
			last = &r.Processes[i]
		}
	}
	if last == nil {
		return ""
	}
	text := fmt.Sprintf(" (the last one, %s, wrote at %s that it was %s", last.Process, terminal.Stamp(&last.At), last.State)
	if last.Error != "" {
		text += ": " + terminal.Preview([]byte(last.Error), terminal.ErrorBytes)
	}
	return text + ")"
}

// waiting says what the living processes wait for and should not. A standby, and
// what an operator paused, which is said elsewhere, are as they should be.
func (r *relayReport) waiting() []string {
	var out []string
	for _, p := range r.Processes {
		if !p.Alive {
			continue
		}
		for _, w := range p.Waiting {
			if w.For == relay.WaitStandby || w.For == relay.WaitPaused {
				continue
			}
			says := p.State + ", waits for " + w.For
			switch w.For {
			case relay.WaitHalted:
				says = p.State
			case relay.WaitSettings:
				says = p.State + ", and not configured as the process that holds the slot,"
			}
			if w.What != "" {
				says += " " + terminal.Preview([]byte(w.What), terminal.PreviewBytes)
			}
			out = append(out, fmt.Sprintf("relay %s is %s since %s (process %s): %s",
				r.Relay, says, terminal.Stamp(&w.Since), p.Process, terminal.Preview([]byte(w.Detail), terminal.ErrorBytes)))
		}
	}
	return out
}

// processRows has one line for each thing that a process waits for, and one for
// a process that waits for nothing.
func processRows(relays []relayReport) (rows [][]string) {
	for _, r := range relays {
		for _, p := range r.Processes {
			state := p.State
			if !p.Alive {
				state = "not connected (was " + p.State + ")"
			}
			first := []string{p.Process, orDash(r.Relay), state, terminal.Stamp(&p.Since)}
			if len(p.Waiting) == 0 {
				rows = append(rows, append(first, "-", "-", "-", orDash(terminal.Preview([]byte(p.Error), terminal.PreviewBytes))))
			}
			for _, w := range p.Waiting {
				what := w.For
				if w.What != "" {
					what += " " + terminal.Preview([]byte(w.What), terminal.PreviewBytes)
				}
				events := "-"
				if w.Events > 0 {
					events = strconv.Itoa(w.Events)
				}
				rows = append(rows, append(slices.Clone(first), what, events, terminal.Stamp(&w.Since), terminal.Preview([]byte(w.Detail), terminal.PreviewBytes)))
			}
		}
	}
	return rows
}
