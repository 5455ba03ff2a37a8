package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/outboxdb"
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

// addProcesses adds the processes of each relay: none for a role that may not
// read them, until the roles are brought up to date.
func addProcesses(ctx context.Context, q *outboxdb.Queries, relays []relayReport) error {
	for i := range relays {
		relays[i].Processes = []processReport{}
	}
	rows, err := q.RelayHealth(ctx)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
		return nil
	}
	if err != nil {
		return err
	}
	for _, row := range rows {
		p := processReport{
			Process: row.Process, Alive: row.Alive, State: row.State, Since: row.Since.UTC(), Code: row.Code, Error: row.Detail,
			Waiting: []relay.Wait{}, At: row.WrittenAt.UTC(),
		}
		if err := json.Unmarshal(row.Waits, &p.Waiting); err != nil {
			return fmt.Errorf("read what process %s waits for: %w", row.Process, err)
		}
		for i := range relays {
			if relays[i].Slot == row.Slot {
				relays[i].Processes = append(relays[i].Processes, p)
			}
		}
	}
	return nil
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

// lastWords are those of the process that said something last.
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
	text := fmt.Sprintf(" (its last process, %s, has ended; it was %s", last.Process, last.State)
	if last.Error != "" {
		text += ": " + printable([]byte(last.Error), errorBytes)
	}
	return text + ")"
}

// errorBytes bounds an error in a line for people. It ends with what mends it.
const errorBytes = 2000

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
				says += " " + printable([]byte(w.What), previewBytes)
			}
			out = append(out, fmt.Sprintf("relay %s is %s since %s (process %s): %s",
				r.Relay, says, stamp(&w.Since), p.Process, printable([]byte(w.Detail), errorBytes)))
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
				state = "ended (was " + p.State + ")"
			}
			first := []string{p.Process, state, stamp(&p.Since)}
			if len(p.Waiting) == 0 {
				rows = append(rows, append(first, "-", "-", "-", orDash(printable([]byte(p.Error), previewBytes))))
			}
			for _, w := range p.Waiting {
				what := w.For
				if w.What != "" {
					what += " " + printable([]byte(w.What), previewBytes)
				}
				events := "-"
				if w.Events > 0 {
					events = strconv.Itoa(w.Events)
				}
				rows = append(rows, []string{first[0], first[1], first[2], what, events, stamp(&w.Since), printable([]byte(w.Detail), previewBytes)})
			}
		}
	}
	return rows
}
