package main

import (
	"strconv"

	"github.com/onceward/onceward/internal/operator/status"
	"github.com/onceward/onceward/internal/terminal"
)

// remadeRows says "at least": what a session that ended by an error wrote since the
// last count is in none.
func remadeRows(topics []status.RemadeTopic) (rows [][]string) {
	for _, t := range topics {
		rows = append(rows, []string{t.Topic, t.Slot, strconv.Itoa(int(t.Times)), terminal.Stamp(&t.Last), "at least " + strconv.FormatInt(t.Records, 10)})
	}
	return rows
}
