package status

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/gaps"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// Report is how a producer's database is, with what an operator should act on.
type Report struct {
	Database    string             `json:"database"`
	Relays      []relays.Relay     `json:"relays"`
	Partitions  partitions.Extent  `json:"partitions"`
	Rows        int64              `json:"outbox_rows_estimate"` // -1: not known, because no partition was ever analyzed
	DeadLetters []LettersInState   `json:"dead_letters"`
	Parked      []Parked           `json:"parked_aggregates"` // the oldest; at most relays.MaxShown
	Gaps        []gaps.Gap         `json:"gaps"`              // that wait for a decision, or are being repaired
	Held        []Held             `json:"held"`              // the longest held; at most relays.MaxShown
	Remade      []RemadeTopic      `json:"topics_made_anew"`  // the last ones; at most maxRemadeShown
	Problems    []operator.Problem `json:"problems"`

	newer   error // the schema is of a later release; nil: it is known
	nobodys int   // events where no relay is known; at most maxNobodys + 1
}

// maxNobodys bounds the count of the events that no relay owes to anybody.
const maxNobodys = 1000

// LettersInState counts the letters of a slot in a state.
type LettersInState struct {
	Slot    string `json:"slot"`
	State   string `json:"state"`
	Letters int64  `json:"letters"`
}

// Parked is an aggregate whose events wait behind a dead letter.
type Parked struct {
	Slot          string    `json:"slot"`
	Namespace     string    `json:"namespace"`
	AggregateType string    `json:"aggregate_type"`
	AggregateID   string    `json:"aggregate_id"`
	Letters       int64     `json:"letters"`
	Since         time.Time `json:"since"`
	First         string    `json:"first_letter"` // its key
	Class         string    `json:"error_class"`
	Error         string    `json:"error"`
}

// Held is what waits for a route that cannot be used: the events of one
// aggregate type, or the replays to one topic.
type Held struct {
	Slot          string    `json:"slot"`
	Namespace     string    `json:"namespace"`
	AggregateType string    `json:"aggregate_type"`
	Topic         string    `json:"topic,omitempty"` // of replays
	Events        int64     `json:"events"`
	Orders        int64     `json:"orders,omitempty"` // about dead letters
	Since         time.Time `json:"since"`
	First         string    `json:"first_replay,omitempty"` // of those to a topic: by what a command calls it
}

// Name says what is held.
func (r Held) Name() string {
	if r.Topic != "" {
		return "replays to " + r.Topic
	}
	return r.Namespace + " " + r.AggregateType
}

// Read reads how a producer's database is.
func Read(ctx context.Context, db *operator.Database) (*Report, error) {
	r, err := read(ctx, db)
	if err != nil {
		return nil, explain(ctx, db, err)
	}
	return r, nil
}

// explain says also that it is the other side's database that was asked.
func explain(ctx context.Context, db *operator.Database, err error) error {
	if operator.ConsumersOnly(ctx, db, err) {
		return fmt.Errorf("%w; this database has Onceward's consumer side: `outboxctl windows list` says how that is, and status is of the producer's database", err)
	}
	return operator.Explain(err, migrations.Outbox)
}

func read(ctx context.Context, db *operator.Database) (*Report, error) {
	r := &Report{Database: db.Pool.Config().ConnConfig.Database, DeadLetters: []LettersInState{}}
	q := outboxdb.New(db)
	var err error
	if r.Relays, err = relays.Read(ctx, q); err != nil {
		return nil, err
	}
	if len(r.Relays) == 0 {
		const count = "SELECT pg_catalog.count(*) FROM (SELECT FROM onceward.outbox LIMIT $1) o"
		if err := db.QueryRow(ctx, count, maxNobodys+1).Scan(&r.nobodys); err != nil {
			return nil, err
		}
	}
	m, err := migrations.New(migrations.Config{Pool: db.Pool, Side: migrations.Outbox})
	if err != nil {
		return nil, err
	}
	installed, err := m.Status(ctx)
	if err != nil {
		return nil, err
	}
	r.Partitions, r.newer = partitions.ExtentOf(installed), migrations.Newer(installed)
	if r.Rows, err = q.OutboxEstimate(ctx); err != nil {
		return nil, err
	}
	letters, err := q.DeadLettersByState(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range letters {
		r.DeadLetters = append(r.DeadLetters, LettersInState(l))
	}
	if r.Parked, err = parkedAggregates(ctx, q); err != nil {
		return nil, err
	}
	if r.Gaps, err = gaps.Open(ctx, q); err != nil {
		return nil, err
	}
	gaps.NoteRepairs(r.Gaps, r.Relays)
	if r.Held, err = heldLanes(ctx, q); err != nil {
		return nil, err
	}
	if r.Remade, err = remadeTopics(ctx, q); err != nil {
		return nil, err
	}
	filled, err := partitions.Filled(ctx, q)
	r.Problems = append(r.problems(), filled...)
	return r, err
}

func parkedAggregates(ctx context.Context, q *outboxdb.Queries) ([]Parked, error) {
	out := []Parked{}
	rows, err := q.ParkedAggregates(ctx, relays.MaxShown)
	for _, v := range rows {
		out = append(out, Parked{
			Slot: v.Slot, Namespace: v.Namespace, AggregateType: v.AggregateType, AggregateID: v.AggregateID,
			Letters: v.Letters,
			Since:   v.Since.UTC(), First: operator.KeyText(v.Namespace, v.FirstLetter), Class: v.ErrorClass,
			Error: v.Error,
		})
	}
	return out, err
}

// heldLanes are the routes whose events wait.
func heldLanes(ctx context.Context, q *outboxdb.Queries) ([]Held, error) {
	out := []Held{}
	rows, err := q.HeldLanes(ctx, relays.MaxShown)
	for _, v := range rows {
		held := Held{
			Slot: v.Slot, Namespace: v.Namespace, AggregateType: v.AggregateType, Topic: v.Topic, Since: v.HeldAt.UTC(),
			Events: v.Events, Orders: v.Orders,
		}
		if v.ReplayID != uuid.Nil {
			held.First = operator.NameText(v.ReplayNamespace, v.ReplayID)
		}
		out = append(out, held)
	}
	return out, err
}
