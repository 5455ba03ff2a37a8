package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// fenceReport is one effect of one event of one group.
type fenceReport struct {
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

// fencesReport is the JSON answer of fences list and fences show.
type fencesReport struct {
	Key    string            `json:"key,omitempty"` // of fences show
	Fences []fenceReport     `json:"fences"`
	More   bool              `json:"more"`
	Past   []operator.Action `json:"actions,omitempty"`
}

func fencesList(c *cli.Context) error {
	filter, err := readFencesList(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	rows, err := listFences(c, consumerdb.New(db), filter)
	if err != nil {
		return fmt.Errorf("list fences: %w", operator.Explain(err, migrations.Consumer))
	}
	report := &fencesReport{Fences: []fenceReport{}}
	for _, v := range rows {
		report.Fences = append(report.Fences, fenceReport{
			ID: v.EventID, Key: v.EventKey, Group: v.ConsumerGroup, Name: v.Name, Status: v.Status, Live: v.Live, Stale: v.Stale, Stuck: operator.Deref(v.Stuck),
			Epoch: v.Epoch, Owner: v.Owner, LeaseUntil: v.LeaseUntil.UTC(), ProviderKeyUntil: v.ProviderKeyUntil, BegunAt: v.CreatedAt.UTC(), CompletedAt: v.CompletedAt,
		})
	}
	if limit := c.Int("limit"); len(report.Fences) > limit {
		report.Fences, report.More = report.Fences[:limit], true
	}
	if err := answer(c, report, printFenceReport); err != nil {
		return err
	}
	if c.Bool("stale") && len(report.Fences) > 0 {
		return errWrong
	}
	return nil
}

// readFencesList checks what needs no server.
func readFencesList(c *cli.Context) (f consumerdb.ListPendingFencesParams, err error) {
	if err := checkOutput(c); err != nil {
		return f, err
	}
	if err := noArgument(c, "to look at one event: outboxctl fences show KEY"); err != nil {
		return f, err
	}
	if err := checkLimit(c); err != nil {
		return f, err
	}
	if c.Bool("all") && (c.Bool("stale") || c.Bool("expired")) {
		return f, usage("%s: --all goes without --stale and --expired, which are of PENDING fences", c.Command.HelpName)
	}
	return consumerdb.ListPendingFencesParams{
		ConsumerGroup: c.String("group"), Expired: c.Bool("expired"), Waiting: c.Bool("stale"), RowLimit: int32(c.Int("limit")) + 1,
	}, nil
}

func listFences(c *cli.Context, q *consumerdb.Queries, f consumerdb.ListPendingFencesParams) (out []consumerdb.ListPendingFencesRow, err error) {
	if !c.Bool("all") {
		return q.ListPendingFences(c.Context, f)
	}
	rows, err := q.ListAllFences(c.Context, consumerdb.ListAllFencesParams{ConsumerGroup: f.ConsumerGroup, RowLimit: f.RowLimit})
	for _, v := range rows {
		out = append(out, consumerdb.ListPendingFencesRow(v))
	}
	return out, err
}

func fencesShow(c *cli.Context) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	q, group := consumerdb.New(db), c.String("group")
	report := &fencesReport{Key: key.String()}
	if report.Fences, err = fencesOf(c.Context, q, key, group, ""); err == nil {
		report.Past, err = operator.ActionsOn(c.Context, q, group, targetsOf(key, report.Fences))
	}
	if err != nil {
		return fmt.Errorf("fences show %s: %w", key, operator.Explain(err, migrations.Consumer))
	}
	if err := answer(c, report, printFenceReport); err != nil {
		return err
	}
	if len(report.Fences) == 0 {
		return errWrong
	}
	return nil
}

// fencesOf reads the fences of an event: those of one group where it is named,
// and of one name.
func fencesOf(ctx context.Context, q *consumerdb.Queries, key operator.Name, group, name string) ([]fenceReport, error) {
	rows, err := q.FencesOfEvent(ctx, consumerdb.FencesOfEventParams{EventID: key.ID, ConsumerGroup: group, Name: name})
	if err != nil {
		return nil, err
	}
	out := []fenceReport{}
	for _, v := range rows {
		f := fenceReport{
			ID: v.EventID, Key: key.String(), Group: v.ConsumerGroup, Name: v.Name, Status: v.Status, Live: v.Live, Stale: v.Stale, Stuck: operator.Deref(v.Stuck), Alone: v.Alone,
			Epoch: v.Epoch, Owner: v.Owner, LeaseUntil: v.LeaseUntil.UTC(), ProviderKeyUntil: v.ProviderKeyUntil, BegunAt: v.CreatedAt.UTC(), CompletedAt: v.CompletedAt,
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

func targetsOf(key operator.Name, fences []fenceReport) (targets []string) {
	for _, f := range fences {
		targets = append(targets, targetOf(key, f.Name), f.Key+"/"+f.Name)
	}
	return targets
}

// state says in one word how a fence stands.
func (f fenceReport) state() string {
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

func printFences(p *page, fences []fenceReport) {
	var rows [][]string
	for _, f := range fences {
		ended := f.LeaseUntil
		if f.CompletedAt != nil {
			ended = *f.CompletedAt
		}
		key := f.Key
		if key == "" {
			key = f.ID.String()
		}
		rows = append(rows, []string{
			key, f.Group, terminal.Preview([]byte(f.Name), terminal.PreviewBytes), f.state(), strconv.FormatInt(f.Epoch, 10), terminal.Stamp(&f.BegunAt), terminal.Stamp(&ended), terminal.Stamp(f.ProviderKeyUntil),
		})
	}
	p.table([]string{"fence of", "group", "name", "state", "epoch", "begun", "lease or end", "provider's key until"}, rows)
}

func printFenceReport(p *page, r *fencesReport) {
	switch {
	case len(r.Fences) == 0 && r.Key != "":
		p.line("no group has a fence of %s", r.Key)
	case len(r.Fences) == 0:
		p.line("none")
	}
	printFences(p, r.Fences)
	if r.More {
		p.line("\nthere are more; raise --limit")
	}
	for _, f := range r.Fences {
		if f.ProviderKey != "" {
			p.line("\n%s of group %s: the provider was given the key %s", terminal.Preview([]byte(f.Name), terminal.PreviewBytes), f.Group, terminal.Preview([]byte(f.ProviderKey), 2*terminal.PreviewBytes))
		}
		if f.ProviderKey != "" && f.Result != nil {
			p.line("result: %s", terminal.Preview(f.Result, 2000))
		}
	}
	printActions(p, r.Past)
}
