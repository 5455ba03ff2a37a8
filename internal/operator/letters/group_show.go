package letters

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// GroupShown is the letter of every group that has it, and what operators did about
// it.
type GroupShown struct {
	Letters []WholeGroupLetter `json:"letters"`
	Actions []operator.Action  `json:"actions"`
	Next    []string           `json:"next"` // commands that do something about them; they may be a choice
	// Problems say why there is no letter.
	Problems []operator.Problem `json:"problems"`
}

// WholeGroupLetter is a letter with its record.
type WholeGroupLetter struct {
	GroupLetter
	TopicID        string          `json:"topic_id,omitempty"` // Kafka's, of the topic that it was read from
	RecordKey      []byte          `json:"record_key"`
	Headers        json.RawMessage `json:"record_headers,omitempty"` // pairs of name and base64 value, in order
	Tombstone      bool            `json:"tombstone"`
	PayloadBytes   int             `json:"payload_bytes"`
	PayloadPreview string          `json:"payload_preview"`
	Payload        []byte          `json:"payload,omitempty"`
}

// ShowGroups reads the letters of a place or a key, with their payloads where they
// are wanted whole.
func ShowGroups(ctx context.Context, db *operator.Database, s GroupFilter, whole bool) (*GroupShown, error) {
	r := &GroupShown{Letters: []WholeGroupLetter{}, Actions: []operator.Action{}, Next: []string{},
		Problems: []operator.Problem{}}
	q := consumerdb.New(db)
	rows, err := q.ListGroupLetters(ctx, s.query(EveryState, operator.MaxListed))
	if err != nil {
		return nil, operator.Explain(err, migrations.Consumer)
	}
	var targets []string
	for _, v := range rows {
		if len(s.Keys) > 0 && !s.Keys[0].Is(operator.Deref(v.Namespace)) {
			continue
		}
		record, err := q.ReadGroupLetter(ctx, consumerdb.ReadGroupLetterParams{
			ConsumerGroup: v.ConsumerGroup, Topic: v.Topic, KafkaPartition: v.KafkaPartition,
			KafkaOffset: v.KafkaOffset,
		})
		if err != nil {
			return nil, operator.Explain(err, migrations.Consumer)
		}
		l := WholeGroupLetter{
			GroupLetter: newGroupLetter(v), TopicID: record.TopicID, RecordKey: record.RecordKey,
			Headers: record.RecordHeaders, Tombstone: record.RecordValue == nil,
			PayloadBytes:   len(record.RecordValue),
			PayloadPreview: terminal.Preview(record.RecordValue, terminal.PreviewBytes),
		}
		if whole {
			l.Payload = record.RecordValue
		}
		next, err := nextOf(ctx, q, l.GroupLetter)
		if err != nil {
			return nil, operator.Explain(err, migrations.Consumer)
		}
		r.Next = append(r.Next, next...)
		r.Letters = append(r.Letters, l)
		targets = append(targets, l.Place)
	}
	if r.Actions, err = operator.ActionsOn(ctx, q, s.Group, targets); err != nil {
		return nil, operator.Explain(err, migrations.Consumer)
	}
	if len(r.Letters) == 0 {
		r.Problems, err = noLetter(ctx, q, s)
	}
	return r, err
}

// noLetter says whose letter of the place or key that is given is not there.
func noLetter(ctx context.Context, q *consumerdb.Queries, s GroupFilter) ([]operator.Problem, error) {
	given := strings.Join(s.given(), ", ")
	if s.Group == "" {
		return operator.Problems(fmt.Sprintf("no group has a dead letter of %s; `outboxctl processed show KEY` tells what the groups did with an event", given)), nil
	}
	unknown, err := unknownGroup(ctx, q, s.Group)
	if len(unknown) > 0 || err != nil {
		return unknown, err
	}
	return operator.Problems(fmt.Sprintf("group %s has no dead letter of %s; `outboxctl dead show --side consumer %s` shows those of all groups", s.Group, given, given)), nil
}

// nextOf are the commands about a letter that waits for a decision, its own or that about
// the first of its key.
func nextOf(ctx context.Context, q *consumerdb.Queries, l GroupLetter) ([]string, error) {
	if l.State != states.LetterParked {
		return l.Next(), nil
	}
	head, _, err := headOf(ctx, q, l)
	if err != nil || head == l.At {
		return nil, err
	}
	return []string{fmt.Sprintf("outboxctl dead show --side consumer %s --group %s", head, terminal.Word(l.Group))}, nil
}

// Wrong tells that there is no such letter.
func (r *GroupShown) Wrong() bool { return len(r.Letters) == 0 }
