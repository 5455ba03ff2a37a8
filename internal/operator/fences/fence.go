package fences

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// Fence is one effect of one event of one group.
type Fence struct {
	ID               uuid.UUID       `json:"event_id"`
	Key              string          `json:"key,omitempty"` // where the database still knows it
	Group            string          `json:"group"`
	Name             string          `json:"name"`
	Status           string          `json:"status"`
	Live             bool            `json:"live"`  // an attempt holds the lease
	Stale            bool            `json:"stale"` // the provider may have forgotten its key
	Stuck            string          `json:"stuck,omitempty"`
	Alone            bool            `json:"alone"` // the effect is the event
	Epoch            int64           `json:"epoch"`
	Owner            string          `json:"owner"`
	LeaseUntil       time.Time       `json:"lease_until"`
	ProviderKeyUntil *time.Time      `json:"provider_key_until,omitempty"`
	BegunAt          time.Time       `json:"begun_at"`
	CompletedAt      *time.Time      `json:"completed_at,omitempty"`
	ProviderKey      string          `json:"provider_key,omitempty"`
	Fingerprint      string          `json:"fingerprint,omitempty"`
	Result           json.RawMessage `json:"result,omitempty"`

	event eventOfFence
}

// eventOfFence is what is needed of the event that an effect of it keeps.
type eventOfFence struct {
	Key         string    `json:"key"`
	Type        string    `json:"type"`
	ReplayID    uuid.UUID `json:"replay_id"`
	ReplayMode  []byte    `json:"replay_mode"`
	ReplayGroup []byte    `json:"replay_group"`
}

// Report is fences, oldest first or, with a key, those of one event with what was
// done about them.
type Report struct {
	Key    string            `json:"key,omitempty"` // of fences show
	Fences []Fence           `json:"fences"`
	More   bool              `json:"more"`
	Past   []operator.Action `json:"actions,omitempty"`

	waiting bool // they wait for an operator
}

// Filter says which fences are meant.
type Filter struct {
	Group    string // empty: of all groups
	Expired  bool   // only those whose lease has run out
	Waiting  bool   // only those that wait for an operator
	Complete bool   // COMPLETE ones too, without the two before
}

// List lists at most so many fences.
func List(ctx context.Context, db *operator.Database, f Filter, limit int) (*Report, error) {
	rows, err := f.rows(ctx, consumerdb.New(db), int32(limit)+1) // one more tells whether there are more
	if err != nil {
		return nil, fmt.Errorf("list fences: %w", operator.Explain(err, migrations.Consumer))
	}
	report := &Report{Fences: []Fence{}, waiting: f.Waiting}
	for _, v := range rows {
		report.Fences = append(report.Fences, Fence{
			ID: v.EventID, Key: v.EventKey, Group: v.ConsumerGroup, Name: v.Name, Status: v.Status, Live: v.Live,
			Stale: v.Stale, Stuck: operator.Deref(v.Stuck),
			Epoch: v.Epoch, Owner: v.Owner, LeaseUntil: v.LeaseUntil.UTC(), ProviderKeyUntil: v.ProviderKeyUntil,
			BegunAt: v.CreatedAt.UTC(), CompletedAt: v.CompletedAt,
		})
	}
	if len(report.Fences) > limit {
		report.Fences, report.More = report.Fences[:limit], true
	}
	return report, nil
}

func (f Filter) rows(ctx context.Context, q *consumerdb.Queries, limit int32) (out []consumerdb.ListPendingFencesRow,
	err error) {
	if !f.Complete {
		return q.ListPendingFences(ctx, consumerdb.ListPendingFencesParams{ConsumerGroup: f.Group, Expired: f.Expired,
			Waiting: f.Waiting, RowLimit: limit})
	}
	rows, err := q.ListAllFences(ctx, consumerdb.ListAllFencesParams{ConsumerGroup: f.Group, RowLimit: limit})
	for _, v := range rows {
		out = append(out, consumerdb.ListPendingFencesRow(v))
	}
	return out, err
}

// Wrong tells that the event has none or, of a list, that some wait for an operator.
func (r *Report) Wrong() bool {
	return r.Key != "" && len(r.Fences) == 0 || r.waiting && len(r.Fences) > 0
}

// Show reads the fences of an event, of one group where it is named, and what
// operators did about them.
func Show(ctx context.Context, db *operator.Database, key operator.Name, group string) (report *Report, err error) {
	q := consumerdb.New(db)
	report = &Report{Key: key.String()}
	if report.Fences, err = OfEvent(ctx, q, key, group, ""); err == nil {
		report.Past, err = operator.ActionsOn(ctx, q, group, TargetsOf(key, report.Fences))
	}
	if err != nil {
		return nil, operator.Explain(err, migrations.Consumer)
	}
	return report, nil
}

// OfEvent reads the fences of an event: those of one group where it is named,
// and of one name.
func OfEvent(ctx context.Context, q *consumerdb.Queries, key operator.Name, group, name string) ([]Fence, error) {
	rows, err := q.FencesOfEvent(ctx, consumerdb.FencesOfEventParams{EventID: key.ID, ConsumerGroup: group, Name: name})
	if err != nil {
		return nil, err
	}
	out := []Fence{}
	for _, v := range rows {
		f := Fence{
			ID: v.EventID, Key: key.String(), Group: v.ConsumerGroup, Name: v.Name, Status: v.Status, Live: v.Live,
			Stale: v.Stale, Stuck: operator.Deref(v.Stuck), Alone: v.Alone,
			Epoch: v.Epoch, Owner: v.Owner, LeaseUntil: v.LeaseUntil.UTC(), ProviderKeyUntil: v.ProviderKeyUntil,
			BegunAt: v.CreatedAt.UTC(), CompletedAt: v.CompletedAt,
			Fingerprint: hex.EncodeToString(v.RequestFingerprint), Result: v.Result,
		}
		if v.Event != nil {
			if err := json.Unmarshal(v.Event, &f.event); err != nil {
				return nil, fmt.Errorf("read the event of fence %q: %w", v.Name, err)
			}
		}
		if f.event.Key != "" && f.event.Key != key.String() {
			if !key.Bare {
				continue // the UUID in another namespace
			}
			f.Key = f.event.Key
		}
		if whole, err := outbox.ParseKeyAt(f.Key, time.Now(), outbox.NoSkewLimit); err == nil {
			f.ProviderKey = consumer.ProviderKey(whole, v.ConsumerGroup, v.Name)
		}
		out = append(out, f)
	}
	return out, nil
}

// targetOf names a fence in onceward.consumer_actions.
func targetOf(key operator.Name, name string) string { return key.String() + "/" + name }

// TargetsOf are the names that the fences of an event have there.
func TargetsOf(key operator.Name, fences []Fence) (targets []string) {
	for _, f := range fences {
		targets = append(targets, targetOf(key, f.Name), f.Key+"/"+f.Name)
	}
	return targets
}

// State says in one word how a fence stands.
func (f Fence) State() string {
	switch {
	case f.Status == states.FenceComplete:
		return "complete"
	case f.Live:
		return "live"
	case f.Stale:
		return "stale"
	case f.Stuck != "":
		return "stuck: " + terminal.Preview([]byte(f.Stuck), terminal.PreviewBytes)
	}
	return "expired"
}
