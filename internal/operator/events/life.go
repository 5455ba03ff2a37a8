package events

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/claims"
	"github.com/onceward/onceward/internal/operator/fences"
	"github.com/onceward/onceward/internal/operator/kafka"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// Life is one event's life.
type Life struct {
	Key         string         `json:"key"`
	EventTime   time.Time      `json:"event_time"`
	State       string         `json:"state"`
	Why         string         `json:"why"`
	Disagree    string         `json:"disagree,omitempty"` // how the table and the topic differ
	Row         *Row           `json:"row"`
	Relays      []Account      `json:"relays"`
	DeadLetters []Letter       `json:"dead_letters"`
	Replays     []Replay       `json:"replays"`
	Kafka       *kafka.Copies  `json:"kafka,omitempty"`
	NotSearched string         `json:"kafka_not_searched,omitempty"` // why, where it was asked for
	Groups      *[]Group       `json:"groups,omitempty"`
	Tries       []claims.Tries `json:"failed_tries,omitempty"` // of groups that try it still
	Fences      []fences.Fence `json:"fences,omitempty"`
	Refused     []Refused      `json:"consumer_dead_letters,omitempty"`
	Waited      string         `json:"waited_in_vain,omitempty"` // for so long
	Next        []string       `json:"next"`                     // commands that do something about it; they may be a choice
	otherOwner  string         // namespace that has this UUID
	notBegun    []string       // relays that have processes and no state, where no other is known

	detached *partition.Leaf // of the day of the event, where no row was found
}

// Row is the event as it was written.
type Row struct {
	AggregateType  string          `json:"aggregate_type"`
	AggregateID    string          `json:"aggregate_id"`
	EventType      string          `json:"event_type"`
	ContentType    string          `json:"content_type"`
	Headers        json.RawMessage `json:"headers,omitempty"`
	Traceparent    string          `json:"traceparent,omitempty"`
	CreatedAt      time.Time       `json:"created_at"`
	TxID           uint64          `json:"tx_id"`
	Seq            int64           `json:"seq"`
	Tombstone      bool            `json:"tombstone"`
	PayloadBytes   int             `json:"payload_bytes"`
	PayloadPreview string          `json:"payload_preview"`
	Payload        []byte          `json:"payload,omitempty"`
}

// AsOf is when what an account says began to hold, or was known to: the last try of the
// event where the relay has a letter of it, which may be younger than the snapshot. Of one
// that is published it is not known: it may have waited, though the snapshot covers it.
func (r *Life) AsOf(v Account) *time.Time {
	if l := r.eventLetter(v.Slot); l != nil {
		return &l.LastAt
	}
	if v.State == states.Published {
		return nil
	}
	return v.PublishedAt
}

// Account is what one relay's account says of the row. Known is false
// until its first start has ended.
type Account struct {
	Relay       string          `json:"relay"`
	Slot        string          `json:"slot"`
	Known       bool            `json:"known"`
	State       string          `json:"state"` // parked, discarded, waiting, before, gap, given-up, published or pending
	Gap         *uuid.UUID      `json:"gap,omitempty"`
	Filled      string          `json:"partition_filled,omitempty"` // the event's partition, where that makes the gap
	Published   bool            `json:"published"`
	PublishedAt *time.Time      `json:"snapshot_at"`
	Why         string          `json:"why"`
	Paused      []relays.Rested `json:"paused_routes,omitempty"` // of the relay, where the event waits for its route
	Disagrees   bool            `json:"disagrees,omitempty"`     // with the topic, which does not have the event
	Moved       bool            `json:"moved,omitempty"`         // the relay has run on another system, and nothing here proves what it published

	pausesHidden bool // the login may not read who paused what
}

// Letter is a dead letter of the event or of a replay of it.
type Letter struct {
	Slot        string     `json:"slot"`
	ID          uuid.UUID  `json:"letter_id"` // the event's id, or a replay's
	State       string     `json:"state"`
	Class       string     `json:"error_class"`
	Error       string     `json:"error"`
	Attempts    int32      `json:"attempts"`
	Position    string     `json:"position"`
	FirstAt     time.Time  `json:"first_at"`
	LastAt      time.Time  `json:"last_at"`
	DecidedBy   *string    `json:"decided_by,omitempty"`
	DecidedWhy  *string    `json:"decided_why,omitempty"`
	EditedAt    *time.Time `json:"edited_at,omitempty"`
	AggregateID string     `json:"aggregate_id"`

	aggregateType, eventType string // for its route
}

// Replay is an order to replay it.
type Replay struct {
	ID          uuid.UUID `json:"replay_id"`
	Mode        string    `json:"mode"`
	Group       *string   `json:"replay_group,omitempty"`
	Topic       *string   `json:"topic,omitempty"`
	Reason      string    `json:"reason"`
	RequestedBy string    `json:"requested_by"`
	RequestedAt time.Time `json:"requested_at"`
	WaitsIn     []string  `json:"waits_in,omitempty"` // slots of the relays with which it waits for its route
	GiveUp      []string  `json:"give_up,omitempty"`  // the commands that leave it out there

	key string // by which a command calls it
}

// Group is what a group did with it.
type Group struct {
	Group       string    `json:"group"`
	Outcome     string    `json:"outcome"`
	ProcessedAt time.Time `json:"processed_at"`
	ByArrival   bool      `json:"by_arrival,omitempty"` // claimed as a late event
	ReplayID    string    `json:"replay_id,omitempty"`  // claimed as this replay
}

// As says as what it was claimed.
func (g *Group) As() string {
	switch {
	case g.ReplayID != "":
		return "replay " + g.ReplayID
	case g.ByArrival:
		return "event, by arrival"
	}
	return "event"
}

// Refused is a letter of a group.
type Refused struct {
	Group     string    `json:"group"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Reason    string    `json:"reason"`
	Error     string    `json:"error"`
	State     string    `json:"state"`
	CreatedAt time.Time `json:"created_at"`
}

// ReadLife reads everything that the producer's database knows of an event, as the relay
// with the slot has it where one is named. It waits for it to be there, and neither
// pending nor waiting for its route, at most so long; 0 looks once.
func ReadLife(ctx context.Context, db *operator.Database, key operator.Name, slot string,
	wait time.Duration) (r *Life, err error) {
	err = operator.Poll(ctx, wait, func() (bool, error) {
		r = &Life{Key: key.String(), EventTime: key.Time()}
		if err := r.readProducer(ctx, db, key); err != nil {
			return false, operator.Explain(err, migrations.Outbox)
		}
		if r.Row != nil && len(r.Relays) == 0 {
			processes, err := relays.Processes(ctx, outboxdb.New(db))
			if err != nil {
				return false, operator.Explain(err, migrations.Outbox)
			}
			r.notBegun = notBegun(processes, nil)
		}
		if slot != "" {
			r.Narrow(slot)
		}
		r.judgeRelays()
		return slices.Contains(passing, r.State), nil
	})
	if err == nil && wait > 0 && slices.Contains(passing, r.State) {
		r.Waited = wait.String()
	}
	return r, err
}

// passing are the states of an event that has not come so far yet.
var passing = []string{states.Pending, states.Waiting, states.NotFound}

// readProducer reads everything that the producer's database knows, from one
// snapshot: the row and the account of it belong together.
func (r *Life) readProducer(ctx context.Context, db *operator.Database, key operator.Name) error {
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			q := outboxdb.New(tx)
			if err := r.readRow(ctx, q, key); err != nil {
				return err
			}
			replays, err := q.ReplaysOfEvent(ctx, key.ID)
			if err != nil {
				return err
			}
			ids := []uuid.UUID{key.ID}
			r.Replays = []Replay{}
			for _, v := range replays {
				if !key.Is(v.Namespace) {
					continue
				}
				ids = append(ids, v.ReplayID)
				r.Replays = append(r.Replays, Replay{
					ID: v.ReplayID, Mode: v.Mode, Group: v.ReplayGroup, Topic: v.Topic,
					Reason: v.Reason, RequestedBy: v.RequestedBy, RequestedAt: v.RequestedAt.UTC(),
					WaitsIn: v.WaitsIn, key: operator.NameText(v.Namespace, v.ReplayID),
				})
			}
			return r.readLetters(ctx, q, key, ids)
		})
	if err == nil && r.Row == nil {
		r.detached = detachedDay(ctx, db, key.Time())
	}
	return err
}

// Narrow leaves what one relay says.
func (r *Life) Narrow(slot string) {
	r.Relays = slices.DeleteFunc(r.Relays, func(v Account) bool { return v.Slot != slot })
	r.DeadLetters = slices.DeleteFunc(r.DeadLetters, func(l Letter) bool { return l.Slot != slot })
	for i := range r.Replays {
		v := &r.Replays[i]
		v.WaitsIn = slices.DeleteFunc(v.WaitsIn, func(waits string) bool { return waits != slot })
	}
}

func (r *Life) readRow(ctx context.Context, q *outboxdb.Queries, key operator.Name) error {
	r.Relays = []Account{}
	row, err := q.FindOutboxRow(ctx, key.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if !key.Is(row.Namespace) {
		r.otherOwner = row.Namespace
		return nil
	}
	r.Row = &Row{
		AggregateType: row.AggregateType, AggregateID: row.AggregateID, EventType: row.EventType,
		ContentType: row.ContentType, Headers: row.Headers, CreatedAt: row.CreatedAt.UTC(), TxID: row.TxID,
		Seq:       row.Seq,
		Tombstone: row.Payload == nil, PayloadBytes: len(row.Payload), Payload: row.Payload,
	}
	if row.Traceparent != nil {
		r.Row.Traceparent = *row.Traceparent
	}
	accounts, err := q.AccountOf(ctx, outboxdb.AccountOfParams{ID: row.ID, TxID: row.TxID, Seq: row.Seq})
	if err != nil {
		return err
	}
	for _, v := range accounts {
		r.Relays = append(r.Relays, Account{
			Relay: v.Relay, Slot: v.Slot, Known: v.Known, State: v.State, Gap: v.GapID,
			Published: v.State == states.Published, PublishedAt: v.TakenAt,
			Moved: v.Moved,
		})
	}
	if err := r.readPaused(ctx, q); err != nil {
		return err
	}
	return r.readFilled(ctx, q, row.ID)
}

// detachedDay finds the partition of an instant where it is in the outbox no more, or is
// leaving it: nobody sees its rows. Nil: there is none, or it could not be looked for, as
// beside a DETACH that waits.
func detachedDay(ctx context.Context, db *operator.Database, at time.Time) (found *partition.Leaf) {
	_ = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '1s'"); err != nil {
			return err
		}
		leaves, err := partition.Leaves(ctx, tx, partition.Outbox)
		i := slices.IndexFunc(leaves, func(l partition.Leaf) bool {
			return (l.Pending || !l.Attached && l.Alike) && !at.Before(l.From()) && at.Before(l.To())
		})
		if i >= 0 {
			found = &leaves[i]
		}
		return err
	})
	return found
}

// readPaused reads which routes are paused of a relay for whose route the event waits. Which
// of them is the event's, if any, only relay.yaml says. With the login of a relay, as of
// --config, nothing is said of them.
func (r *Life) readPaused(ctx context.Context, q *outboxdb.Queries) error {
	if !slices.ContainsFunc(r.Relays, func(v Account) bool { return v.State == states.Waiting }) {
		return nil
	}
	if allowed, err := q.MayReadActions(ctx); err != nil || !allowed {
		for i := range r.Relays {
			r.Relays[i].pausesHidden = true
		}
		return err
	}
	rests, err := q.Rests(ctx)
	for _, rest := range rests {
		for i := range r.Relays {
			if v := &r.Relays[i]; v.State == states.Waiting && v.Slot == rest.Slot && rest.Route != "" {
				v.Paused = append(v.Paused, relays.RestedOf(rest))
			}
		}
	}
	return err
}

// readFilled finds that a relay was sent nothing of the partition that has the row:
// its published snapshot proves nothing then.
func (r *Life) readFilled(ctx context.Context, q *outboxdb.Queries, id uuid.UUID) error {
	filled, err := q.FilledPartitions(ctx)
	if err != nil {
		return err
	}
	for _, leaf := range filled {
		in, err := q.IsIn(ctx, outboxdb.IsInParams{ID: id, Tables: leaf.Tables})
		if err != nil {
			return err
		}
		for i := range r.Relays {
			if v := &r.Relays[i]; in && v.Slot == leaf.Slot && v.Published {
				v.State, v.Published, v.Filled = states.Gap, false, leaf.Leaf
			}
		}
	}
	return nil
}

func (r *Life) readLetters(ctx context.Context, q *outboxdb.Queries, key operator.Name, ids []uuid.UUID) error {
	letters, err := q.DeadLettersByID(ctx, ids)
	if err != nil {
		return err
	}
	r.DeadLetters = []Letter{}
	for _, v := range letters {
		if !key.Is(v.Namespace) {
			continue
		}
		r.DeadLetters = append(r.DeadLetters, Letter{
			Slot: v.Slot, ID: v.LetterID, State: v.State, Class: v.ErrorClass, Error: v.Error, Attempts: v.Attempts,
			Position: v.Position, FirstAt: v.FirstAt.UTC(), LastAt: v.LastAt.UTC(),
			DecidedBy: v.DecidedBy, DecidedWhy: v.DecidedWhy, EditedAt: v.EditedAt, AggregateID: v.AggregateID,
			aggregateType: v.AggregateType, eventType: v.EventType,
		})
	}
	return nil
}

// ReadGroups reads what every group of a consumer's database did. A group
// that was to reprocess a replay has claimed it under the replay's id.
func (r *Life) ReadGroups(ctx context.Context, db *operator.Database, key operator.Name) error {
	r.Groups = &[]Group{}
	if _, err := outbox.KeyFrom(key.Namespace, key.ID, time.Now(), outbox.NoSkewLimit); err != nil {
		return nil //nolint:nilerr // no consumer takes what has no key
	}
	found, err := claims.Read(ctx, db, key, "")
	if err != nil {
		return err
	}
	ids := make([]uuid.UUID, 0, len(r.Replays))
	for _, v := range r.Replays {
		ids = append(ids, v.ID)
	}
	if err := found.AddReplays(ctx, db, key, ids); err != nil {
		return err
	}
	groups := []Group{}
	for _, v := range found.Claims {
		g := Group{Group: v.Group, Outcome: v.Outcome, ProcessedAt: v.ClaimedAt, ByArrival: v.ByArrival}
		if r.isReplay(v.ID) {
			g.ReplayID, g.ByArrival = v.ID.String(), false
		}
		groups = append(groups, g)
	}
	r.Groups, r.Tries, r.Fences = &groups, found.Tries, found.Fences
	for _, v := range found.Letters {
		r.Refused = append(r.Refused, Refused{
			Group: v.Group, Topic: v.At.Topic, Partition: v.At.Partition, Offset: v.At.Offset,
			Reason: v.Cause, Error: v.Error, State: v.State, CreatedAt: v.KeptAt,
		})
	}
	return nil
}
