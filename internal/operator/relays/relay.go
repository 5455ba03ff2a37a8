package relays

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
)

// Relay joins a slot with the relay_state row of the same name. A slot
// without a row has no relay, a row without a slot no slot. A relay that has not
// begun has no row: its processes name it.
type Relay struct {
	Slot         string `json:"slot"`
	Relay        string `json:"relay"`
	NotBegun     bool   `json:"not_begun,omitempty"` // its first start has not ended
	Mode         string `json:"mode,omitempty"`
	Epoch        int64  `json:"epoch"`
	Tick         int64  `json:"tick"`
	ConfirmedLSN string `json:"confirmed_lsn"`
	Paused       bool   `json:"paused"`
	// PausedRoutes and Skip are commands that stand, Rests who let rest what rests.
	PausedRoutes  []string    `json:"paused_routes"`
	Rests         []Rested    `json:"rests,omitempty"`
	Skip          []uuid.UUID `json:"skip"`
	SlotExists    bool        `json:"slot_exists"`
	SlotOf        string      `json:"slot_of,omitempty"` // the other database that has a slot of this name
	ActivePID     *int32      `json:"active_pid"`
	SlotTaken     string      `json:"slot_taken,omitempty"` // by whom, where active_pid is no process of the relay
	WALStatus     string      `json:"wal_status"`
	RetainedBytes int64       `json:"retained_bytes"`
	LagBytes      int64       `json:"lag_bytes"`
	// Processes are those of this relay, living or dead, as each says of itself.
	Processes []Process `json:"processes"`
	Binding
}

// Rested is who let a relay, or a route of it, rest.
type Rested struct {
	Route  string    `json:"route,omitempty"` // empty: the relay
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// Binding says where a relay publishes.
type Binding struct {
	Cluster string `json:"kafka_cluster,omitempty"` // that it is bound to
	Met     string `json:"kafka_met,omitempty"`     // another one that answered
	Routes  string `json:"routes,omitempty"`        // a hash of those of the last session
}

func bindingOf(state outboxdb.RelayState) (r Binding) {
	for field, value := range map[*string]*string{&r.Cluster: state.KafkaCluster, &r.Met: state.KafkaMet,
		&r.Routes: state.Routes} {
		if value != nil {
			*field = *value
		}
	}
	return r
}

// Read reads all relays, with their slots and processes.
func Read(ctx context.Context, q *outboxdb.Queries) ([]Relay, error) {
	states, err := q.RelayStates(ctx)
	if err != nil {
		return nil, err
	}
	slots, err := q.Slots(ctx)
	if err != nil {
		return nil, err
	}
	health, err := Processes(ctx, q)
	if err != nil {
		return nil, err
	}
	relays, err := joinProcesses(joinSlots(states, slots), health)
	if err != nil {
		return nil, err
	}
	return relays, errors.Join(noteSlotsElsewhere(ctx, q, relays), noteRests(ctx, q, relays))
}

// joinSlots pairs relays with their slots. A slot that no relay knows is
// listed when its name says that it is Onceward's: it keeps WAL for nobody.
func joinSlots(states []outboxdb.RelayState, slots []outboxdb.SlotsRow) []Relay {
	bySlot := make(map[string]outboxdb.SlotsRow, len(slots))
	for _, s := range slots {
		bySlot[s.Slot] = s
	}
	out := []Relay{}
	for _, st := range states {
		r := Relay{
			Slot: st.Slot, Relay: st.Relay, Mode: st.Mode, Epoch: st.Epoch, Tick: st.Tick,
			ConfirmedLSN: st.ConfirmedLsn, Paused: st.Paused, PausedRoutes: operator.NotNil(st.PausedRoutes),
			Skip:    append([]uuid.UUID{}, st.Skip...),
			Binding: bindingOf(st),
		}
		if s, ok := bySlot[st.Slot]; ok {
			r.addSlot(s)
			delete(bySlot, st.Slot)
		}
		out = append(out, r)
	}
	for _, s := range slots {
		if _, left := bySlot[s.Slot]; left && strings.HasPrefix(s.Slot, "onceward_") {
			r := Relay{Slot: s.Slot, ConfirmedLSN: s.ConfirmedFlushLsn, PausedRoutes: []string{}, Skip: []uuid.UUID{}}
			r.addSlot(s)
			out = append(out, r)
		}
	}
	return out
}

func (r *Relay) addSlot(s outboxdb.SlotsRow) {
	r.SlotExists, r.ActivePID = true, s.ActivePid
	r.RetainedBytes, r.LagBytes = s.RetainedBytes, s.LagBytes
	if s.Strange && s.ActivePid != nil {
		r.SlotTaken = cdc.SlotTaken(s.Slot, *s.ActivePid, s.Application, s.Role).Error()
	}
	if s.WalStatus != nil {
		r.WALStatus = *s.WalStatus
	}
}

// RestedOf is a row of what rests.
func RestedOf(v outboxdb.RestsRow) Rested {
	return Rested{Route: v.Route, By: v.RequestedBy, At: v.RequestedAt.UTC(), Reason: v.Reason}
}

// noteRests says who let rest what rests.
func noteRests(ctx context.Context, q *outboxdb.Queries, relays []Relay) error {
	if !slices.ContainsFunc(relays, func(r Relay) bool { return r.Paused || len(r.PausedRoutes) > 0 }) {
		return nil
	}
	rests, err := q.Rests(ctx)
	for _, v := range rests {
		for i := range relays {
			if relays[i].Slot == v.Slot {
				relays[i].Rests = append(relays[i].Rests, RestedOf(v))
			}
		}
	}
	return err
}

// noteSlotsElsewhere says of which slots only the name is a relay's of this database.
func noteSlotsElsewhere(ctx context.Context, q *outboxdb.Queries, relays []Relay) error {
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
