package relays

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay"
)

// Process is what a relay process said last of itself, and whether it
// lives.
type Process struct {
	Process string       `json:"process"`
	Alive   bool         `json:"alive"`
	State   string       `json:"state"`
	Since   time.Time    `json:"since"`
	Code    string       `json:"code,omitempty"`
	Error   string       `json:"error,omitempty"`
	Waiting []relay.Wait `json:"waiting"`
	At      time.Time    `json:"written_at"`
}

// Processes lists the processes: none for a role that may not read them, until
// the roles are brought up to date.
func Processes(ctx context.Context, q *outboxdb.Queries) ([]outboxdb.RelayHealthRow, error) {
	rows, err := q.RelayHealth(ctx)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
		return nil, nil
	}
	return rows, err
}

// joinProcesses adds the processes of each relay, and the relays that have nothing
// but processes: they have not begun.
func joinProcesses(relays []Relay, rows []outboxdb.RelayHealthRow) ([]Relay, error) {
	for i := range relays {
		relays[i].Processes = []Process{}
	}
	for _, row := range rows {
		p := Process{
			Process: row.Process, Alive: row.Alive, State: row.State, Since: row.Since.UTC(), Code: row.Code,
			Error:   row.Detail,
			Waiting: []relay.Wait{}, At: row.WrittenAt.UTC(),
		}
		if err := json.Unmarshal(row.Waits, &p.Waiting); err != nil {
			return nil, fmt.Errorf("read what process %s waits for: %w", row.Process, err)
		}
		i := slices.IndexFunc(relays, func(r Relay) bool { return r.Slot == row.Slot })
		if i < 0 {
			i = len(relays)
			relays = append(relays, Relay{Slot: row.Slot, PausedRoutes: []string{}, Skip: []uuid.UUID{}})
		}
		if r := &relays[i]; r.Relay == "" {
			r.Relay, r.NotBegun = row.Relay, true
		}
		relays[i].Processes = append(relays[i].Processes, p)
	}
	return relays, nil
}

// Streams reports whether some process of the relay publishes now.
func (r *Relay) Streams() bool {
	return slices.ContainsFunc(r.Processes, func(p Process) bool {
		return p.Alive &&
			p.State == string(relay.StateStreaming)
	}) ||
		len(r.Processes) == 0 && r.held() // they cannot be read
}

// lives reports whether some process of the relay is there, whatever it does.
func (r *Relay) lives() bool {
	for _, p := range r.Processes {
		if p.Alive {
			return true
		}
	}
	return false
}

// HaltsAt returns the process of a relay that halts at an event; nil without one.
func HaltsAt(ctx context.Context, q *outboxdb.Queries, id uuid.UUID) (*outboxdb.RelayHealthRow, error) {
	processes, err := Processes(ctx, q)
	if err != nil {
		return nil, err
	}
	for i := range processes {
		if p := &processes[i]; p.State == string(relay.StateHalted) && strings.Contains(p.Detail, id.String()) {
			return p, nil
		}
	}
	return nil, nil //nolint:nilnil // that none halts there is an answer
}
