package main

import (
	"context"
	"strconv"
	"time"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
)

// maxRemadeShown bounds the list of topics that were made anew.
const maxRemadeShown = 20

// remadeTopic is a topic that was deleted and made anew under a relay.
type remadeTopic struct {
	Topic   string    `json:"topic"`
	Slot    string    `json:"slot"`
	Times   int32     `json:"times"`
	Last    time.Time `json:"last"`
	Records int64     `json:"records"` // that the one before had acknowledged to the relay, as far as was counted
}

func remadeTopics(ctx context.Context, q *outboxdb.Queries) ([]remadeTopic, error) {
	out := []remadeTopic{}
	rows, err := q.RemadeTopics(ctx, maxRemadeShown)
	for _, v := range rows {
		t := remadeTopic{Topic: v.Topic, Slot: v.Slot, Times: v.Remade}
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

// remadeRows says "at least": what a session that ended by an error wrote since the
// last count is in none.
func remadeRows(topics []remadeTopic) (rows [][]string) {
	for _, t := range topics {
		rows = append(rows, []string{t.Topic, t.Slot, strconv.Itoa(int(t.Times)), terminal.Stamp(&t.Last), "at least " + strconv.FormatInt(t.Records, 10)})
	}
	return rows
}
