package status

import (
	"context"
	"time"

	"github.com/onceward/onceward/internal/outboxdb"
)

// maxRemadeShown bounds the list of topics that were made anew.
const maxRemadeShown = 20

// RemadeTopic is a topic that was deleted and made anew under a relay.
type RemadeTopic struct {
	Topic   string    `json:"topic"`
	Slot    string    `json:"slot"`
	Times   int32     `json:"times"`
	Last    time.Time `json:"last"`
	Records int64     `json:"records"` // that the one before had acknowledged to the relay, as far as was counted
}

func remadeTopics(ctx context.Context, q *outboxdb.Queries) ([]RemadeTopic, error) {
	out := []RemadeTopic{}
	rows, err := q.RemadeTopics(ctx, maxRemadeShown)
	for _, v := range rows {
		t := RemadeTopic{Topic: v.Topic, Slot: v.Slot, Times: v.Remade}
		if v.RemadeAt != nil {
			t.Last = v.RemadeAt.UTC()
		}
		if v.LostRecords != nil {
			t.Records = *v.LostRecords
		}
		out = append(out, t)
	}
	return out, err
}
