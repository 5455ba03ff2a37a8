package claims

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/fences"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// Report is what the groups have of one event.
type Report struct {
	Key        string                `json:"key"`
	EventTime  time.Time             `json:"event_time"`
	Claims     []Claim               `json:"claims"`
	Tries      []Tries               `json:"failed_tries"`
	Fences     []fences.Fence        `json:"fences"`
	Letters    []letters.GroupLetter `json:"dead_letters"`
	Actions    []operator.Action     `json:"actions"`
	Notes      []string              `json:"notes"`
	otherOwner string                // namespace that has this UUID
	windows    []window              // classes that could have claimed it
}

// Claim is a claim of a group.
type Claim struct {
	Group       string          `json:"group"`
	ID          uuid.UUID       `json:"id"`
	ByArrival   bool            `json:"by_arrival"` // under an id made of the arrival
	Outcome     string          `json:"outcome"`
	EventType   string          `json:"event_type"`
	ClaimedAt   time.Time       `json:"claimed_at"`
	Fingerprint string          `json:"fingerprint"`
	Result      json.RawMessage `json:"result,omitempty"`
}

// Tries counts the tries of a group that failed.
type Tries struct {
	Group     string `json:"group"`
	Attempts  int32  `json:"attempts"`
	LastError string `json:"last_error"`
}

// window is one class of a group.
type window struct {
	group, class string
	floor        time.Time
	keyed        consumer.Keying
	replay       consumer.ReplayPolicy
	retired      bool
}

// Read reads what one group, or all groups where none is named, have of an event.
func Read(ctx context.Context, db *operator.Database, key operator.Name, group string) (*Report, error) {
	r, err := lookUp(ctx, db, key, group)
	if err != nil {
		return nil, operator.Explain(err, migrations.Consumer)
	}
	return r, nil
}

// AddReplays adds the claims that groups have under the ids of replays.
func (r *Report) AddReplays(ctx context.Context, db *operator.Database, key operator.Name, ids []uuid.UUID) error {
	return operator.Explain(r.readClaims(ctx, consumerdb.New(db), ids, key, ""), migrations.Consumer)
}

// lookUp reads what one group, or all groups, have of an event.
func lookUp(ctx context.Context, db *operator.Database, key operator.Name, group string) (*Report, error) {
	q := consumerdb.New(db)
	r := &Report{
		Key: key.String(), EventTime: key.Time(), Claims: []Claim{}, Tries: []Tries{}, Fences: []fences.Fence{},
		Letters: []letters.GroupLetter{}, Notes: []string{},
	}
	ids, err := r.candidates(ctx, db, key.ID, group)
	if err != nil {
		return nil, err
	}
	if err := r.readClaims(ctx, q, ids, key, group); err != nil {
		return nil, err
	}
	tries, err := q.AttemptsOfEvent(ctx, consumerdb.AttemptsOfEventParams{Ids: []uuid.UUID{key.ID},
		ConsumerGroup: group})
	for _, v := range tries {
		r.Tries = append(r.Tries, Tries{Group: v.ConsumerGroup, Attempts: v.Attempts, LastError: v.LastError})
	}
	if err != nil {
		return nil, err
	}
	if r.Fences, err = fences.OfEvent(ctx, q, key, group, ""); err != nil {
		return nil, err
	}
	targets := []string{key.String()}
	found, err := letters.OfEvent(ctx, q, key, group)
	if err != nil {
		return nil, err
	}
	for _, l := range found {
		r.Letters, targets = append(r.Letters, l), append(targets, l.Place)
	}
	r.note()
	r.Actions, err = operator.ActionsOn(ctx, q, group, append(targets, fences.TargetsOf(key, r.Fences)...))
	return r, err
}

// maxIDs bounds a statement.
const maxIDs = 10_000

func (r *Report) readClaims(ctx context.Context, q *consumerdb.Queries, ids []uuid.UUID, key operator.Name,
	group string) error {
	for part := range slices.Chunk(ids, maxIDs) {
		rows, err := q.ClaimsUnder(ctx, consumerdb.ClaimsUnderParams{Ids: part, ConsumerGroup: group})
		if err != nil {
			return err
		}
		for _, v := range rows {
			if !key.Is(v.Namespace) {
				r.otherOwner = v.Namespace
				continue
			}
			r.Claims = append(r.Claims, Claim{
				Group: v.ConsumerGroup, ID: v.EventID, ByArrival: v.EventID != key.ID, Outcome: outcomeOf(v.Outcome),
				EventType: v.EventType,
				ClaimedAt: v.ProcessedAt.UTC(), Fingerprint: hex.EncodeToString(v.Fingerprint), Result: v.Result,
			})
		}
	}
	return nil
}

// outcomeOf spells the stored letter out.
func outcomeOf(letter string) string {
	switch letter {
	case "p":
		return "processed"
	case "d":
		return "dead"
	}
	return letter
}

// note says what the absence of a claim is worth. Failed tries and fences of a
// UUID that belongs to another namespace are that one's.
func (r *Report) note() {
	if r.otherOwner != "" {
		r.Tries, r.Fences = []Tries{}, []fences.Fence{}
		r.Notes = append(r.Notes, "this UUID belongs to namespace "+r.otherOwner)
	}
	for _, w := range r.windows {
		claimed := slices.ContainsFunc(r.Claims, func(v Claim) bool { return v.Group == w.group })
		if !claimed && !w.retired && r.EventTime.Before(w.floor) {
			r.Notes = append(r.Notes, fmt.Sprintf("group %s class %s: the event is below its floor %s: a claim that there was may be gone", w.group, w.class, terminal.Stamp(&w.floor)))
		}
	}
}

// Empty tells that no group has anything of the event.
func (r *Report) Empty() bool {
	return len(r.Claims)+len(r.Tries)+len(r.Fences)+len(r.Letters) == 0
}

// Wrong tells the same.
func (r *Report) Wrong() bool { return r.Empty() }
