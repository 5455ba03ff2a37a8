package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// groupLettersShown is the JSON answer of dead show on the consumer's side: the
// letter of every group that has it, and what operators did about it.
type groupLettersShown struct {
	Given   string             `json:"given"`
	Letters []wholeGroupLetter `json:"letters"`
	Actions []actionReport     `json:"actions"`
}

type wholeGroupLetter struct {
	groupLetter
	TopicID        string          `json:"topic_id,omitempty"` // Kafka's, of the topic that it was read from
	RecordKey      []byte          `json:"record_key"`
	Headers        json.RawMessage `json:"record_headers,omitempty"` // pairs of name and base64 value, in order
	Tombstone      bool            `json:"tombstone"`
	PayloadBytes   int             `json:"payload_bytes"`
	PayloadPreview string          `json:"payload_preview"`
	Payload        []byte          `json:"payload,omitempty"`
}

// actionReport is one row of onceward.consumer_actions.
type actionReport struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Action string    `json:"action"`
	Group  string    `json:"group"`
	Target string    `json:"target"`
	Reason string    `json:"reason"`
}

func lettersShow(c *cli.Context) error {
	if c.NArg() != 1 {
		return usage("%s takes one PLACE or KEY, got %d; %s", c.Command.HelpName, c.NArg(), placeExample)
	}
	s, err := readLetterSelection(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	report := &groupLettersShown{Given: c.Args().First(), Letters: []wholeGroupLetter{}, Actions: []actionReport{}}
	if err := report.read(c, db, s); err != nil {
		return fmt.Errorf("dead show: %w", operator.Explain(err, migrations.Consumer))
	}
	if err := answer(c, report, printGroupLettersShown); err != nil {
		return err
	}
	if len(report.Letters) == 0 {
		return errWrong
	}
	return nil
}

func (r *groupLettersShown) read(c *cli.Context, db *operator.Database, s letterSelection) error {
	q := consumerdb.New(db)
	rows, err := q.ListGroupLetters(c.Context, s.query([]string{states.LetterOpen, states.LetterRequested, states.LetterParked, states.LetterRedriven, states.LetterDiscarded}, operator.MaxListed))
	if err != nil {
		return err
	}
	var targets []string
	for _, v := range rows {
		if len(s.Keys) > 0 && !s.Keys[0].Is(operator.Deref(v.Namespace)) {
			continue
		}
		record, err := q.ReadGroupLetter(c.Context, consumerdb.ReadGroupLetterParams{
			ConsumerGroup: v.ConsumerGroup, Topic: v.Topic, KafkaPartition: v.KafkaPartition, KafkaOffset: v.KafkaOffset,
		})
		if err != nil {
			return err
		}
		l := wholeGroupLetter{
			groupLetter: newGroupLetter(v), TopicID: record.TopicID, RecordKey: record.RecordKey, Headers: record.RecordHeaders, Tombstone: record.RecordValue == nil,
			PayloadBytes: len(record.RecordValue), PayloadPreview: terminal.Preview(record.RecordValue, terminal.PreviewBytes),
		}
		if c.Bool("payload") {
			l.Payload = record.RecordValue
		}
		r.Letters = append(r.Letters, l)
		targets = append(targets, l.Place)
	}
	r.Actions, err = actionsOn(c.Context, q, s.group, targets)
	return err
}

// actionsOn lists what operators did about the targets.
func actionsOn(ctx context.Context, q *consumerdb.Queries, group string, targets []string) ([]actionReport, error) {
	rows, err := q.ActionsOn(ctx, consumerdb.ActionsOnParams{Targets: operator.NotNil(targets), ConsumerGroup: group})
	out := []actionReport{}
	for _, v := range rows {
		out = append(out, actionReport{At: v.At.UTC(), By: v.ByRole, Action: v.Action, Group: v.ConsumerGroup, Target: v.Target, Reason: v.Reason})
	}
	return out, err
}

func printActions(p *page, actions []actionReport) {
	var rows [][]string
	for _, v := range actions {
		rows = append(rows, []string{v.Action, v.Group, v.Target, terminal.Stamp(&v.At), v.By, terminal.Preview([]byte(v.Reason), maxReason)})
	}
	p.table([]string{"decided", "group", "about", "at", "by", "reason"}, rows)
}

func printGroupLettersShown(p *page, r *groupLettersShown) {
	if len(r.Letters) == 0 {
		p.line("no group has a dead letter of %s; `outboxctl processed show KEY` tells what the groups did with an event", r.Given)
		return
	}
	for i, v := range r.Letters {
		if i > 0 {
			p.line("")
		}
		printGroupLetter(p, v)
	}
	printActions(p, r.Actions)
	for _, v := range r.Letters {
		if v.Payload != nil {
			p.line("\npayload (%s, %s):", v.Group, v.Place)
			p.payload(v.Payload)
		}
	}
}

func printGroupLetter(p *page, v wholeGroupLetter) {
	payload := fmt.Sprintf("%s: %s", terminal.Size(int64(v.PayloadBytes)), v.PayloadPreview)
	if v.Tombstone {
		payload = "none (a tombstone)"
	}
	sent, expires, decided := "", "", ""
	if v.SentAt != nil {
		sent = terminal.Stamp(v.SentAt)
	}
	if v.ExpiresAt != nil {
		expires = terminal.Stamp(v.ExpiresAt)
	}
	if v.DecidedAt != nil {
		decided = fmt.Sprintf("%s by %s: %s", terminal.Stamp(v.DecidedAt), operator.Deref(v.DecidedBy), terminal.Preview([]byte(operator.Deref(v.DecidedWhy)), maxReason))
	}
	p.pairs(
		[2]string{"group", v.Group},
		[2]string{"place", v.Place},
		[2]string{"topic id", v.TopicID},
		[2]string{"key", orDash(v.Key)},
		[2]string{"state", v.State},
		[2]string{"why", v.why(2000)},
		[2]string{"attempts", strconv.Itoa(int(v.Attempts))},
		[2]string{"redrives", strconv.Itoa(int(v.Generation))},
		[2]string{"kept", terminal.Stamp(&v.KeptAt)},
		[2]string{"sent to kafka", sent},
		[2]string{"decided", decided},
		[2]string{"removed after", expires},
		[2]string{"event type", terminal.Preview([]byte(v.EventType), terminal.PreviewBytes)},
		[2]string{"record key", terminal.Preview(v.RecordKey, terminal.PreviewBytes)},
		[2]string{"record headers", headerText(v.Headers)},
		[2]string{"payload", payload},
	)
}

// headerText writes the headers that a letter keeps as name=value.
func headerText(kept json.RawMessage) string {
	var pairs [][2]json.RawMessage
	if len(kept) > 0 && json.Unmarshal(kept, &pairs) != nil {
		return terminal.Preview(kept, terminal.PreviewBytes)
	}
	var out []string
	for _, v := range pairs {
		var name string
		var value []byte
		if errors.Join(json.Unmarshal(v[0], &name), json.Unmarshal(v[1], &value)) != nil {
			return terminal.Preview(kept, terminal.PreviewBytes)
		}
		out = append(out, terminal.Preview([]byte(name), terminal.PreviewBytes)+"="+terminal.Preview(value, terminal.PreviewBytes))
	}
	return strings.Join(out, " ")
}
